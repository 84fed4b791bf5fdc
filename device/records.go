package device

import (
	"context"
	"time"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/metrics"
	"github.com/falcon-vnic/vnic/device/security"
)

// What is recorded of the NIC and told to others: the capture and the key log of the configuration,
// and metrics. The NIC goes on without each of them, and says so.

// openRecords begins the capture and the key log, before the shard runs.
func (n *NIC) openRecords() {
	cfg, mode := n.cfg, config.CaptureBoth
	if c := cfg.Capture; c != nil {
		mode = c.Mode
		if n.deps.Capture == nil {
			var err error
			if n.deps.Capture, err = capture.Create(c.File); err != nil {
				n.warnings.Warn(aboutCapture, err, "a capture begins when the NIC starts or is upgraded")
			}
		}
	}
	if n.deps.Capture != nil {
		sink := capture.NewSink(n.deps.Capture, mode)
		for _, u := range n.units {
			_ = u.View().StartCapture(&sink, n.wallOffset()) // it is the first
		}
	}
	if cfg.PSP.KeyLog == "" {
		return
	}
	f, err := security.OpenKeyLog(cfg.PSP.KeyLog)
	if err != nil {
		n.warnings.Warn(aboutKeyLog, err, "keys are written when the NIC starts or is upgraded")
		return
	}
	n.keyLog = security.NewKeyLog(f, func(err error) { n.warnings.Warn(aboutKeyLog, err, "the keys in it are good, later ones are missing") })
	n.core.LogKeysTo(n.keyLog)
	for _, u := range n.units {
		u.LogKeysTo(n.keyLog)
	}
	n.log.Warn("writing all PSP keys to a file: whoever reads it can read and forge traffic", "file", cfg.PSP.KeyLog)
}

// watchCapture ends the configured capture when it cannot be written any more.
func (n *NIC) watchCapture(ctx context.Context) {
	c := n.deps.Capture
	if c == nil {
		return
	}
	select {
	case <-ctx.Done():
		return
	case <-c.Failed():
	}
	n.warnings.Warn(aboutCapture+" "+c.Path(), c.Err(), "what is in the file is good; when there is space again, vnic upgrade begins another")
	n.EndCapture(c)
}

// metricsPause is the time between two attempts to serve metrics.
const metricsPause = 5 * time.Second

// listenMetrics begins to answer Prometheus, nil if it cannot.
func (n *NIC) listenMetrics() *metrics.Server {
	s, err := metrics.Serve(n.cfg.Metrics.Listen.String(), n.API)
	if err != nil {
		n.warnings.Warn(aboutMetrics, err, "it is tried again and again")
		return nil
	}
	n.warnings.Clear(aboutMetrics)
	return s
}

// keepMetrics answers Prometheus until ctx is done. The address may be one that comes later.
func (n *NIC) keepMetrics(ctx context.Context, s *metrics.Server) {
	for s == nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(metricsPause):
			s = n.listenMetrics()
		}
	}
	<-ctx.Done()
	_ = s.Close()
}

// What warnings are about.
const (
	aboutCapture = "capture"
	aboutKeyLog  = "psp.keylog"
	aboutMetrics = "metrics"
)
