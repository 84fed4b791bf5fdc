package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/device"
	"github.com/falcon-vnic/vnic/device/config"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/qemu"
	"github.com/falcon-vnic/vnic/queues/abi"
)

func runCommand() *cobra.Command {
	var path string
	var check bool
	run := &cobra.Command{
		Use:   "run -c FILE",
		Short: "run one NIC until it is told to stop",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(path)
			if err != nil {
				return err
			}
			if check {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: good: host %d, %d functions, %d peers\n", path, cfg.NIC.Host, len(cfg.AllFunctions()), len(cfg.Peers))
				return nil
			}
			return runNIC(cmd.Context(), cfg)
		},
	}
	run.Flags().StringVarP(&path, "config", "c", "", "configuration (see docs/vnic.example.yaml)")
	run.Flags().BoolVar(&check, "check", false, "only check the configuration")
	_ = run.MarkFlagRequired("config")
	return run
}

func runNIC(ctx context.Context, cfg *config.Config) error {
	log, err := newLog(cfg.Log.Level)
	if err != nil {
		return err
	}
	attachments, err := attach(cfg, log)
	if err != nil {
		return err
	}
	nic, err := device.NewNIC(cfg, device.Deps{Attachments: attachments, Log: log})
	if err != nil {
		return err
	}
	return serve(ctx, nic, log)
}

// serve runs the NIC and keeps the service manager informed.
func serve(ctx context.Context, nic *device.NIC, log *slog.Logger) error {
	tell := func(state string) {
		if err := notify(state); err != nil {
			log.Warn("service manager not told", "state", state, "err", err)
		}
	}
	ended := make(chan struct{})
	var told sync.WaitGroup
	told.Go(func() {
		select {
		case <-nic.Ready():
			tell("READY=1")
		case <-ended:
			return
		}
		select {
		case <-ctx.Done():
		case <-ended:
		}
		tell("STOPPING=1")
	})
	err := nic.Run(ctx)
	close(ended)
	told.Wait()
	return err
}

func newLog(level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("log.level: %w", err)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l})), nil
}

// attach listens wherever the configuration lets guests in. On failure nothing
// is left listening.
func attach(cfg *config.Config, log *slog.Logger) (as []device.Attachment, err error) {
	defer func() {
		if err != nil {
			for _, a := range as {
				_ = a.Close()
			}
			as = nil
		}
	}()
	for i := range cfg.Attach {
		c := &cfg.Attach[i]
		a := device.Attachment{Name: c.Name}
		switch c.Type {
		case config.AttachVhostUser:
			a.Attachment, err = listenVhostUser(cfg, c, log)
		case config.AttachUnix:
			a.Attachment, err = qemu.ListenUnix(c.Socket)
		case config.AttachVsock:
			a.Attachment, err = qemu.ListenVsock(c.Port, guestRAM(c.RAM))
		}
		if err != nil {
			return as, fmt.Errorf("attach[%d]: %w", i, err)
		}
		as = append(as, a)
	}
	return as, nil
}

// vhostUser is an attachment that owns its device: closing one closes both.
type vhostUser struct {
	device.Attachment
	dev *qemu.VhostUser
	cfg *config.Attach
}

var _ device.Windower = (*vhostUser)(nil)

// GiveWindow implements device.Windower. A window stays until the NIC ends: the
// guest's QEMU could not get another in its place.
func (v *vhostUser) GiveWindow(id pfvf.ID, cid uint32) error {
	if !v.cfg.Windows || cid != v.cfg.CID || v.dev.HasWindow(uint32(id)) {
		return nil
	}
	return addWindow(v.dev, id, v.cfg)
}

func (v *vhostUser) Close() error {
	err := v.Attachment.Close()
	if e := v.dev.Close(); err == nil {
		err = e
	}
	return err
}

func listenVhostUser(cfg *config.Config, c *config.Attach, log *slog.Logger) (*vhostUser, error) {
	dev, err := qemu.ListenVhostUser(c.Socket, c.CID, qemu.VhostOptions{Log: log})
	if err != nil {
		return nil, err
	}
	if c.Windows {
		for _, f := range cfg.FunctionsOf(c.CID) {
			id, err := pfvf.NewID(uint32(cfg.NIC.Host), uint32(f.PF), uint32(f.VF))
			if err == nil {
				err = addWindow(dev, id, c)
			}
			if err != nil {
				_ = dev.Close()
				return nil, err
			}
		}
	}
	l, err := dev.Listen(abi.Port)
	if err != nil {
		_ = dev.Close()
		return nil, err
	}
	return &vhostUser{device.Attachment{Attachment: l}, dev, c}, nil
}

func addWindow(dev *qemu.VhostUser, id pfvf.ID, c *config.Attach) error {
	kind := abi.FunctionPF
	if id.IsVF() {
		kind = abi.FunctionVF
	}
	return dev.AddWindow(uint32(id), kind, c.WindowSocket(config.NamedFunction{PF: id.PF(), VF: id.VF()}))
}

func guestRAM(rams []config.RAM) []qemu.GuestRAM {
	var gs []qemu.GuestRAM
	for _, r := range rams {
		g := qemu.GuestRAM{CID: r.CID, File: r.File}
		for _, l := range r.Layout {
			g.Ranges = append(g.Ranges, qemu.RAMRange{Addr: uint64(l.Address), Size: uint64(l.Size), Offset: uint64(l.Offset)})
		}
		gs = append(gs, g)
	}
	return gs
}
