package device

import (
	"context"
	"log/slog"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/device/security"
)

// records holds the NIC's recordings: the capture and the key log of the configuration. If one
// fails, the NIC runs without it and shows a warning.
type records struct {
	cfg      *config.Config
	warnings *controller.Warnings
	log      *slog.Logger
	capture  *capture.Capture // nil: none
	keyLog   *security.KeyLog // nil: none
}

// open starts the capture, unless there is one already, and the key log, before the shards run.
// offset is the wall clock minus the shards' clock, in nanoseconds.
func (r *records) open(units units, core *controller.Core, offset int64) {
	cfg, mode := r.cfg, config.CaptureBoth
	if c := cfg.Capture; c != nil {
		mode = c.Mode
		if r.capture == nil {
			var err error
			if r.capture, err = capture.Create(c.File, mode); err != nil {
				r.warnings.Warn(aboutCapture, err, "a capture begins when the NIC starts or is upgraded")
			}
		}
	}
	if r.capture != nil {
		sink := capture.NewSink(r.capture, mode)
		for _, u := range units {
			_ = u.View().Captures.Start(&sink, offset) // cannot fail: it is the first
		}
	}
	if cfg.PSP.KeyLog == "" {
		return
	}
	f, err := security.OpenKeyLog(cfg.PSP.KeyLog)
	if err != nil {
		r.warnings.Warn(aboutKeyLog, err, "keys are written when the NIC starts or is upgraded")
		return
	}
	r.keyLog = security.NewKeyLog(f, func(err error) { r.warnings.Warn(aboutKeyLog, err, "the keys in it are good, later ones are missing") })
	core.LogKeysTo(r.keyLog)
	for _, u := range units {
		u.LogKeysTo(r.keyLog)
	}
	r.log.Warn("writing all PSP keys to a file: whoever reads it can read and forge traffic", "file", cfg.PSP.KeyLog)
}

// watchCapture ends the configured capture when it cannot be written any more.
func (r *records) watchCapture(ctx context.Context, end func(*capture.Capture)) {
	c := r.capture
	if c == nil {
		return
	}
	select {
	case <-ctx.Done():
		return
	case <-c.Failed():
	}
	r.warnings.Warn(aboutCapture+" "+c.Path(), c.Err(), "what is in the file is good; when there is space again, vnic upgrade begins another")
	end(c)
}

// close closes the capture and the key log.
func (r *records) close() {
	if r.capture != nil {
		_ = r.capture.Close()
	}
	_ = r.keyLog.Close()
}

// Subjects of warnings.
const (
	aboutCapture = "capture"
	aboutKeyLog  = "psp.keylog"
)
