package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/cmd/vnic/run/supervisor"
	"github.com/falcon-vnic/vnic/device"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/record"
	"github.com/falcon-vnic/vnic/qemu"
)

// resources holds the sockets, memory and connections that a NIC's supervisor keeps for its workers.
type resources struct {
	o           *options
	text        int           // memfd with the configuration for workers; -1: none yet
	level       slog.Level    // of the log, in the configuration that the worker is to take
	before      int           // memfd with the configuration before an unsettled upgrade; -1: none
	rights      []int         // capabilities of the worker
	limit       time.Duration // limit of the watchdog
	limitBefore time.Duration // limit of the watchdog before an unsettled upgrade
	given       []supervisor.Given
	relays      map[string]supervisor.Relay
	looks       map[uint32]qemu.VfioPCI // PCI look of vfio-user functions, by guest
	attach      []config.Attach         // upgrades do not change it

	log   *slog.Logger
	saves sync.WaitGroup // recordings that are being saved

	mu    sync.Mutex
	close []func() error // called in reverse order
	ring  *os.File       // memory of the worker's recorder; nil: it has none
}

// passed returns the flags of this process that are passed on to workers.
func (o *options) passed() []string {
	args := []string{"-c", o.path}
	if o.format != "" {
		args = append(args, "--log-format", o.format)
	}
	if o.record != "" {
		args = append(args, "--record", o.record, "--record-payload", o.payload)
	}
	return args
}

// supervise runs the NIC in a worker process and keeps that worker running.
func supervise(ctx context.Context, cfg *config.Config, o *options) (err error) {
	log := newLog(cfg.Log)
	if err := asWorker(cfg)(func() error { return device.CheckIdentity(cfg) }); err != nil {
		return err // otherwise the worker would serve but refuse every peer
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	k, err := keep(cfg, o, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, k.end()) }()
	return supervisor.Run(ctx, supervisor.Config{
		Program:  program,
		Args:     append([]string{"run", "--worker"}, o.passed()...),
		Given:    k.give,
		Relays:   k.relays,
		Prepare:  func(ctx context.Context) error { return k.prepare(ctx, program) },
		Commit:   k.commit,
		Revert:   k.revert,
		Reload:   k.reload,
		Reloaded: k.reloaded,
		Kept: func(name string, fds []int) (supervisor.Relay, error) {
			return k.kept(name, fds, qemu.VhostOptions{Log: log})
		},
		Watchdog: k.watchdog,
		Failed:   k.saveRecording,
		Log:      log,
		Notify: func(state string) {
			if err := notify(state); err != nil {
				log.Warn("service manager not notified", "state", state, "err", err)
			}
		},
	})
}

func (k *resources) watchdog() time.Duration { return k.limit }

func (k *resources) closeLater(f func() error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.close = append(k.close, f)
}

func (k *resources) end() error {
	k.saves.Wait()
	_ = k.takeRing(nil).Close() // nil is allowed
	k.mu.Lock()
	defer k.mu.Unlock()
	var errs []error
	for _, f := range slices.Backward(k.close) {
		if err := f(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	k.close = nil
	closeText(&k.text)
	closeText(&k.before)
	return errors.Join(errs...)
}

// keepRing keeps the memory of the worker's recorder.
func (k *resources) keepRing(fd int) error {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_ = k.takeRing(os.NewFile(uintptr(own), keptRing)).Close() // nil is allowed
	return nil
}

// takeRing returns the memory of the worker's recorder, and keeps another in its place.
func (k *resources) takeRing(is *os.File) (was *os.File) {
	k.mu.Lock()
	defer k.mu.Unlock()
	was, k.ring = k.ring, is
	return was
}

// saveRecording saves what the recorder of a worker that has ended by itself holds.
func (k *resources) saveRecording(generation int) {
	ring := k.takeRing(nil)
	cfg, err := k.current()
	if err != nil || ring == nil || cfg.NIC.Recorder == nil || cfg.NIC.Recorder.Folder == "" {
		_ = ring.Close() // nil is allowed
		return
	}
	k.saves.Go(func() {
		defer ring.Close()
		r := cfg.NIC.Recorder
		path, err := record.SaveIn(r.Folder, cfg.CM.Name, fmt.Sprintf("worker_%d", generation), func(path string) (int64, error) {
			return record.Rescue(ring, int64(r.Size), path)
		})
		if err != nil {
			k.log.Error("recording not saved", "err", err)
			return
		}
		k.log.Warn("recording saved", "file", path, "why", "the worker ended by itself", "generation", generation)
	})
}
