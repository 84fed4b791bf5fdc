package device

import (
	"context"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/device/metrics"
	"github.com/falcon-vnic/vnic/device/web"
)

// httpServer tells about the NIC by HTTP, at an address of the configuration. If it cannot listen there,
// the NIC runs without it and shows a warning.
type httpServer struct {
	about    string // in warnings
	at       netip.AddrPort
	serve    func() (io.Closer, error)
	warnings *controller.Warnings
}

// httpServers lists those that the configuration asks for.
func httpServers(cfg *config.Config, api *controller.API, w *controller.Warnings) (list []httpServer) {
	m, p := cfg.Metrics, cfg.Web
	if m.Listen.IsValid() {
		list = append(list, httpServer{"metrics", m.Listen, func() (io.Closer, error) { return metrics.Serve(m.Listen.String(), m.Hosts, api) }, w})
	}
	if p.Listen.IsValid() {
		list = append(list, httpServer{"web", p.Listen, func() (io.Closer, error) { return web.Serve(p.Listen.String(), p.Hosts, api) }, w})
	}
	return list
}

// httpRunning are the HTTP servers of a running NIC.
type httpRunning struct {
	ctx     context.Context // ends with the NIC
	stop    context.CancelFunc
	serving sync.WaitGroup
}

// begin starts servers.
func (r *httpRunning) begin(list []httpServer) {
	ctx, stop := context.WithCancel(r.ctx)
	r.stop = stop
	for _, h := range list {
		s := h.listen()
		r.serving.Go(func() { h.keep(ctx, s) })
	}
}

// replace ends the servers and starts others.
func (r *httpRunning) replace(list []httpServer, w *controller.Warnings) {
	r.stop()
	r.serving.Wait()
	w.Clear("metrics")
	w.Clear("web")
	r.begin(list)
}

// listenPause is the time between two attempts to listen.
const listenPause = 5 * time.Second

// listen starts serving; nil if it cannot.
func (h *httpServer) listen() io.Closer {
	s, err := h.serve()
	if err != nil {
		h.warnings.Warn(h.about, listenError(h.about+".listen", h.at, err), "it is tried again and again")
		return nil
	}
	h.warnings.Clear(h.about)
	return s
}

// keep serves until ctx is done. It retries, since the address may appear later.
func (h *httpServer) keep(ctx context.Context, s io.Closer) {
	for s == nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(listenPause):
			s = h.listen()
		}
	}
	<-ctx.Done()
	_ = s.Close()
}
