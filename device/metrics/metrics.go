package metrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/falcon-vnic/vnic/device/control"
)

// MaxFunctions have series of their own.
const MaxFunctions = 256

const (
	maxScrapes = 4
	maxClients = 64 // connected at one time
	scrapeTime = 5 * time.Second
)

// Source is what is asked at each scrape; control.Provider is one.
type Source interface {
	NIC(ctx context.Context) (control.NIC, error)
	Functions(ctx context.Context) ([]control.Function, error)
	Counters(ctx context.Context) (control.Counters, error)
	Credits(ctx context.Context) ([]control.CreditNode, error)
}

// Server answers GET /metrics.
type Server struct {
	http *http.Server
	addr net.Addr
	done chan struct{}
}

// Serve listens on a TCP address.
func Serve(addr string, s Source) (*Server, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("metrics.listen %s: %w; choose another address, or leave metrics out", addr, err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(&collector{s})
	mux, h := http.NewServeMux(), &http.Server{ReadHeaderTimeout: scrapeTime, ReadTimeout: scrapeTime, WriteTimeout: 4 * scrapeTime, IdleTimeout: time.Minute, MaxHeaderBytes: 1 << 14}
	clients := control.BoundClients(h, maxClients)
	answer := promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorHandling: promhttp.HTTPErrorOnError, MaxRequestsInFlight: maxScrapes, Timeout: 2 * scrapeTime,
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		answer.ServeHTTP(&complete{w, sync.OnceFunc(clients.Busy(r))}, r)
	})
	h.Handler = mux
	v := &Server{addr: ln.Addr(), done: make(chan struct{}), http: h}
	go func() {
		defer close(v.done)
		_ = v.http.Serve(ln) // ends by Close
	}()
	return v, nil
}

// complete notes when an answer begins to be written, which is when all of it is known (promhttp's
// Timeout sees to that): from then on it is for the client to read, and a slow one may be closed.
type complete struct {
	http.ResponseWriter
	done func()
}

func (c *complete) WriteHeader(status int) {
	c.done()
	c.ResponseWriter.WriteHeader(status)
}

func (c *complete) Write(b []byte) (int, error) {
	c.done()
	return c.ResponseWriter.Write(b)
}

// Addr is where it listens.
func (v *Server) Addr() net.Addr { return v.addr }

// Close ends it.
func (v *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := v.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, v.http.Close())
	}
	<-v.done
	return err
}

// gauges are the counters that go down too.
var gauges = map[string]bool{
	"shard.cids_in_use": true, "psp.rx_sas": true, "psp.tx_sas": true, "psp.rx_sas_unsettled": true,
	"falcon.conns": true, "falcon.tx_contexts": true, "falcon.rx_contexts": true, "falcon.rx_cells": true,
}

var (
	info = prometheus.NewDesc("vnic_info", "the NIC", []string{"nic", "host", "version"}, nil)
	up   = prometheus.NewDesc("vnic_peer_up", "1: the connection manager of the peer is reached", []string{"peer"}, nil)
	drop = prometheus.NewDesc("vnic_drops_total", "packets that ended at this NIC instead of at a function", []string{"room", "reason"}, nil)

	functionState  = prometheus.NewDesc("vnic_function_state", "functions by state", []string{"state"}, nil)
	functionLink   = prometheus.NewDesc("vnic_function_link_up", "1: the link of the function is up", []string{"function"}, nil)
	functionQPs    = prometheus.NewDesc("vnic_function_qps", "queue pairs", []string{"function"}, nil)
	functionMRs    = prometheus.NewDesc("vnic_function_mrs", "memory regions", []string{"function"}, nil)
	functionTx     = prometheus.NewDesc("vnic_function_tx_bytes", "data bytes of SENDs and WRITEs since the function was enabled", []string{"function"}, nil)
	functionRx     = prometheus.NewDesc("vnic_function_rx_bytes", "data bytes placed in the function's memory since it was enabled", []string{"function"}, nil)
	functionResets = prometheus.NewDesc("vnic_function_resets", "function-level resets", []string{"function"}, nil)

	creditLimit     = prometheus.NewDesc("vnic_credit_limit", "most credits a node may hold; absent: no limit", []string{"level", "node", "counter"}, nil)
	creditGuarantee = prometheus.NewDesc("vnic_credit_guarantee", "credits set aside for a node alone", []string{"level", "node", "counter"}, nil)
	creditInUse     = prometheus.NewDesc("vnic_credit_in_use", "credits a node holds", []string{"level", "node", "counter"}, nil)
	creditRefused   = prometheus.NewDesc("vnic_credit_refused_total", "times credit had to be waited for", []string{"level", "node"}, nil)
)

// collector asks the source at each scrape.
type collector struct{ source Source }

// Describe says nothing: the counters' names come from the rooms that count.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTime)
	defer cancel()
	nic, err := c.source.NIC(ctx)
	counters, err2 := c.source.Counters(ctx)
	functions, err3 := c.source.Functions(ctx)
	credits, err4 := c.source.Credits(ctx)
	if err := errors.Join(err, err2, err3, err4); err != nil {
		out <- prometheus.NewInvalidMetric(info, err)
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(info, 1, nic.Name, fmt.Sprint(nic.Host), nic.Version)
	for _, p := range nic.Peers {
		gauge(up, truth(p.Up), fmt.Sprint(p.Host))
	}
	for name, v := range counters {
		count(out, name, v)
	}
	collectFunctions(gauge, functions)
	collectCredits(out, gauge, credits)
}

// count shows a counter called "room.name". Drops are one metric, by reason.
func count(out chan<- prometheus.Metric, name string, v uint64) {
	room, what, _ := strings.Cut(name, ".")
	reason, isDrop := strings.CutPrefix(what, "drop_")
	switch {
	case room == "drop":
		out <- prometheus.MustNewConstMetric(drop, prometheus.CounterValue, float64(v), "device", what)
		return
	case isDrop:
		out <- prometheus.MustNewConstMetric(drop, prometheus.CounterValue, float64(v), room, reason)
		return
	}
	kind, full := prometheus.CounterValue, "vnic_"+room+"_"+what+"_total"
	if gauges[name] {
		kind, full = prometheus.GaugeValue, "vnic_"+room+"_"+what
	}
	out <- prometheus.MustNewConstMetric(prometheus.NewDesc(full, name+" of vnic show counters", nil, nil), kind, float64(v))
}

type showGauge func(d *prometheus.Desc, v float64, labels ...string)

func collectFunctions(gauge showGauge, fs []control.Function) {
	states := map[string]int{}
	var other control.Function
	show := func(f *control.Function) {
		gauge(functionLink, truth(f.LinkUp), f.ID)
		gauge(functionQPs, float64(f.QPs), f.ID)
		gauge(functionMRs, float64(f.MRs), f.ID)
		gauge(functionTx, float64(f.TxBytes), f.ID)
		gauge(functionRx, float64(f.RxBytes), f.ID)
		gauge(functionResets, float64(f.Resets), f.ID)
	}
	for i := range fs {
		f := &fs[i]
		states[f.State]++
		if i < MaxFunctions {
			show(f)
			continue
		}
		other.ID = "other"
		other.LinkUp = other.LinkUp || f.LinkUp
		other.QPs += f.QPs
		other.MRs += f.MRs
		other.TxBytes += f.TxBytes
		other.RxBytes += f.RxBytes
		other.Resets += f.Resets
	}
	if other.ID != "" {
		show(&other)
	}
	for state, n := range states {
		gauge(functionState, float64(n), state)
	}
}

func collectCredits(out chan<- prometheus.Metric, gauge showGauge, nodes []control.CreditNode) {
	functions := 0
	for i := range nodes {
		n := &nodes[i]
		if n.Level == "connection" {
			continue // as many as there are connections; vnic show credits has them
		}
		if n.Level == "function" {
			if functions++; functions > MaxFunctions {
				continue
			}
		}
		for _, part := range []struct {
			desc   *prometheus.Desc
			values map[string]uint32
		}{{creditLimit, n.Limit}, {creditGuarantee, n.Guarantee}, {creditInUse, n.InUse}} {
			for counter, v := range part.values {
				gauge(part.desc, float64(v), n.Level, n.Name, counter)
			}
		}
		out <- prometheus.MustNewConstMetric(creditRefused, prometheus.CounterValue, float64(n.Refused), n.Level, n.Name)
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
