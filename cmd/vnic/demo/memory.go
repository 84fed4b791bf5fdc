package demo

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/falcon-vnic/vnic/cmd/vnic/run"
	"github.com/falcon-vnic/vnic/device"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/fabric"
)

// startHostsHere runs both NICs in this process, connected by an in-memory Ethernet segment.
// Everything else is the same as with two processes.
func (s *scene) startHostsHere(ctx context.Context) error {
	segment := fabric.New(MTU)
	for _, h := range s.hosts {
		cfg, err := config.Load(h.Config)
		if err != nil {
			return err
		}
		logFile, err := os.Create(h.Log)
		if err != nil {
			return err
		}
		s.later(logFile.Close)
		log := slog.New(slog.NewTextHandler(logFile, nil))
		uplink, err := segment.Port(h.Uplink)
		if err != nil {
			return err
		}
		deps := device.Deps{Uplink: uplink, Log: log}
		if err := run.OpenGuests(cfg, &deps); err != nil {
			return errors.Join(err, uplink.Close())
		}
		nic, err := device.NewNIC(cfg, deps)
		if err != nil {
			return err
		}
		if err := s.runHere(ctx, h, nic); err != nil {
			return err
		}
		s.r.step("%s: in this process, uplink %s %s on an in-memory segment", h.Name(), h.Uplink, h.Underlay)
	}
	return nil
}

// runHere starts a NIC in a goroutine and returns when it serves.
func (s *scene) runHere(ctx context.Context, h *Host, nic *device.NIC) error {
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- nic.Run(run) }()
	select {
	case <-nic.Ready():
		s.later(func() error {
			cancel()
			return <-ended
		})
		return nil
	case err := <-ended:
		cancel()
		return fmt.Errorf("%s: %w", h.Name(), err)
	}
}
