package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/device/record"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/internal/tape"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// records holds the NIC's recordings: the capture and the key log of the configuration. If one
// fails, the NIC runs without it and shows a warning.
type records struct {
	cfg      *config.Config
	warnings *controller.Warnings
	log      *slog.Logger
	capture  *capture.Capture // nil: none
	keyLog   *security.KeyLog // nil: none
	tapes    *record.Recorder // nil: none
	ring     *record.Ring     // nil: none
	failures chan failure     // for ring
	stopped  atomic.Bool      // tapes, by an operator
	closed   bool             // tapes and ring
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

// startTapes begins the recording of the shards, before there are shards: in a file, or else in memory as
// the configuration says. keep is Deps.KeepRing.
func (r *records) startTapes(c record.Config, offset int64, keep func(*os.File) error) (err error) {
	k := r.cfg.NIC.Recorder
	if c.File == "" && c.Made == nil && k == nil {
		return nil
	}
	h := record.Header{Version: Version, NIC: r.cfg.NIC.Name, Shards: r.cfg.NIC.Shards, Started: time.Now().UnixNano(), Offset: offset}
	if c.File != "" || c.Made != nil {
		r.tapes, err = record.Create(c, h)
		if err != nil && c.Later {
			r.warnings.Warn(aboutTapes, err, "vnic record start begins another file")
			err = nil
		}
		return err
	}
	c.Keep, _ = tape.ParsePayload(k.Payload)
	c.Limit = int64(k.Size)
	r.ring, err = record.NewRing(c, h)
	if err == nil && keep != nil {
		err = keep(r.ring.File())
	}
	if err != nil { // the NIC runs without its recorder
		r.warnings.Warn(aboutRecorder, err, "vnic upgrade tries again")
	}
	return nil
}

// tape returns the tape of a shard; nil: there is none.
func (r *records) tape(shard int) *tape.Tape {
	switch {
	case r.tapes != nil:
		return r.tapes.Tape(shard)
	case r.ring != nil:
		return r.ring.Tape(shard)
	}
	return nil
}

// failure is a reason to save what the recorder has.
type failure struct {
	id  pfvf.ID
	how string
}

// maxFailures is how many failures wait for the recorder; more are not saved.
const maxFailures = 16

// failed has the recording saved, after the Step in which a function went wrong. It is called on the
// shard's thread.
func (r *records) failed(id pfvf.ID, how string) {
	select {
	case r.failures <- failure{id, how}:
	default:
	}
}

// watchTapes shows a warning when the recording ends before the NIC does, and saves what the recorder has
// when a function went wrong: once for each function and reason.
func (r *records) watchTapes(ctx context.Context) {
	if r.tapes != nil {
		select {
		case <-ctx.Done():
		case <-r.tapes.Ended():
			r.warnings.Warn(aboutTapes, errors.New(r.tapes.Why()), "what was recorded is good; vnic upgrade begins another file")
		}
	}
	if r.ring == nil {
		return
	}
	saved := map[failure]bool{}
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-r.failures:
			if folder := r.cfg.NIC.Recorder.Folder; folder != "" && !saved[f] {
				saved[f] = true
				r.saveIn(folder, f)
			}
		}
	}
}

// saveIn saves what the recorder has, because of a failure.
func (r *records) saveIn(folder string, f failure) {
	path, err := record.SaveIn(folder, r.cfg.CM.Name, f.how+"_"+f.id.String(), r.ring.Save)
	if err != nil {
		r.warnings.Warn(aboutRecorder, err, "vnic record save saves what it has")
		return
	}
	r.log.Warn("recording saved", "file", path, "function", f.id.String(), "why", f.how)
}

// Recording writes the recording of the configured recorder to w, as it is now. It implements
// control.Provider.
func (n *NIC) Recording(_ context.Context, w io.Writer) error {
	switch r := &n.records; {
	case r.tapes != nil && r.to() == "":
		return control.BadRequest{Err: fmt.Errorf("this worker of the NIC has recorded to %s, and keeps no other recording: vnic upgrade begins one, if there is nic.recorder in the configuration", r.tapes.Path())}
	case r.tapes != nil:
		return control.BadRequest{Err: fmt.Errorf("this worker of the NIC records to %s, and keeps no other recording: vnic record stop ends that", r.tapes.Path())}
	case r.ring == nil:
		return control.BadRequest{Err: errors.New("this NIC keeps no recording: give it nic.recorder in its configuration, and vnic upgrade")}
	default:
		_, err := r.ring.WriteTo(w)
		return err
	}
}

// to returns the file that the shards record to; "": none.
func (r *records) to() string {
	if r.tapes == nil || r.stopped.Load() || r.tapes.Why() != "" {
		return ""
	}
	return r.tapes.Path()
}

// NIC describes the NIC. It implements control.Provider.
func (n *NIC) NIC(ctx context.Context) (control.NIC, error) {
	v, err := n.API.NIC(ctx)
	v.Recording = n.records.to()
	return v, err
}

// StartRecording has the next worker record to a new file, and this one replaced. It returns the NIC as it
// is before that. It implements control.Provider.
func (n *NIC) StartRecording(ctx context.Context, s control.RecordingStart) (v control.NIC, err error) {
	keep, known := tape.ParsePayload(cmp.Or(s.Payload, tape.Digest.String()))
	switch is := n.records.to(); {
	case !known:
		err = fmt.Errorf("payload %q: write digest, whole or none", s.Payload)
	case !filepath.IsAbs(s.File):
		err = fmt.Errorf("file %q: write a path that begins with /", s.File)
	case is != "":
		err = fmt.Errorf("this NIC records to %s already: vnic record stop ends that", is)
	case n.deps.StartRecording == nil:
		err = errors.New("a recording begins with a worker, and this NIC has none (vnic run --single, or the demo): start it with --record FILE")
	default:
		v, err = n.NIC(ctx)
	}
	if err == nil {
		err = n.deps.StartRecording(s.File, keep)
	}
	if err != nil {
		err = control.BadRequest{Err: err}
	}
	return v, err
}

// StopRecording ends the recording in a file, and returns when all is in it. It implements control.Provider.
func (n *NIC) StopRecording(context.Context) (v control.Recorded, err error) {
	r := &n.records
	if r.tapes == nil || r.stopped.Swap(true) {
		return v, control.BadRequest{Err: errors.New("this NIC does not record to a file")}
	}
	for i, u := range n.units {
		if err := u.Do(func(falcon.Time) { r.tapes.Tape(i).Finish() }); err != nil {
			return v, err
		}
	}
	return control.Recorded{File: r.tapes.Path(), Ended: r.tapes.Why()}, r.tapes.Close()
}

// closeTapes ends the recording. The shards' threads have ended.
func (r *records) closeTapes() {
	if r.closed {
		return
	}
	r.closed = true
	if r.tapes != nil {
		if err := r.tapes.Close(); err != nil {
			r.log.Error("recording not closed", "err", err)
		}
	}
	if r.ring != nil {
		_ = r.ring.Close()
	}
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
	r.closeTapes()
}

// Subjects of warnings.
const (
	aboutCapture  = "capture"
	aboutKeyLog   = "psp.keylog"
	aboutTapes    = "recording"
	aboutRecorder = "nic.recorder"
)
