package run

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/qemu"
	"github.com/falcon-vnic/vnic/qemu/ivshmem"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestSupervisorChoosesPaths: the supervisor serves a window or function that a worker keeps only
// if the configuration has a guest for it, and only at the path from the configuration.
func TestSupervisorChoosesPaths(t *testing.T) {
	dir := t.TempDir()
	k := &resources{attach: []config.Attach{
		{Type: config.AttachVhostUser, CID: 1001, Socket: filepath.Join(dir, "g.sock")},
		{Type: config.AttachVfioUser, CID: 1002, Socket: filepath.Join(dir, "f.sock")},
	}}
	defer func() {
		if err := k.end(); err != nil {
			t.Error(err)
		}
	}()
	const vf = 0x01000001 // pf0.vf1 of host 1
	win, err := ivshmem.NewWindow(vf, abi.FunctionVF)
	if err != nil {
		t.Fatal(err)
	}
	defer win.Close()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, tt := range []struct {
		kind string
		w    window
		says string // "": it is served
	}{
		{givenWindow, window{1001, vf, abi.FunctionVF, at("elsewhere")}, "the configuration has it at " + at("g.pf0.vf1")},
		{givenVfio, window{1002, vf, abi.FunctionVF, "/etc/cron.d/x"}, "the configuration has it at " + at("f.pf0.vf1")},
		{givenWindow, window{1002, vf, abi.FunctionVF, at("f.pf0.vf1")}, "no attachment of type vhost-user is for guest 1002"},
		{givenVfio, window{1003, vf, abi.FunctionVF, at("f.pf0.vf1")}, "no attachment of type vfio-user is for guest 1003"},
		{givenWindow, window{1001, vf, abi.FunctionVF, at("g.pf0.vf1")}, ""},
		{givenVfio, window{1002, vf, abi.FunctionVF, at("f.pf0.vf1")}, ""},
	} {
		_, err := k.kept(windowName(tt.kind, tt.w), win.FDs(), qemu.VhostOptions{Log: slog.New(slog.DiscardHandler)})
		_, there := os.Lstat(tt.w.socket)
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) || (there == nil) != (err == nil) {
			t.Errorf("%s at %s: %v, the socket: %v", tt.kind, tt.w.socket, err, there)
		}
	}
}
