package run

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

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

// TestChangesThatNeedARestart: a refused upgrade names exactly the changes that a new worker cannot
// take over.
func TestChangesThatNeedARestart(t *testing.T) {
	of := func(text string) shape {
		t.Helper()
		cfg, err := config.Parse([]byte("nic: {host: 1}\n" + text))
		if err != nil {
			t.Fatal(err)
		}
		s, err := shapeOf(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	const (
		up    = "uplink: {name: u, address: 10.0.0.1/24}\n"
		guest = "attach: [{type: vhost-user, socket: /g.sock, cid: 3}]\n"
		vf    = "functions: [{pf: 0, vfs: [{vf: 1, tenant: 1, address: 10.1.0.1, port: {name: p}}]}]\n"
	)
	for _, c := range []struct {
		was, is string
		want    []string
	}{
		{up + guest + vf, up + guest + vf, nil},
		{up, up + "log: {level: debug}\nmetrics: {listen: 127.0.0.1:9470}\n", nil},
		{up, "uplink: {name: u, address: 10.0.0.1/24, queues: 4}\n", []string{`uplink.queues was "1" and is "4"`}},
		{up, up + "control: /c\n", []string{`control was "" and is "/c"`}},
		{up, up + guest, []string{"the attachment with socket /g.sock (type vhost-user, cid 3) is new"}},
		{up + guest, up, []string{"the attachment with socket /g.sock (type vhost-user, cid 3) is gone"}},
		{
			up + strings.Replace(guest, "cid: 3", "cid: 4", 1), up + guest,
			[]string{`the attachment with socket /g.sock was "type vhost-user, cid 4" and is "type vhost-user, cid 3"`},
		},
		{
			up + guest + "functions: [{pf: 0, vfs: [{vf: 1, tenant: 1, address: 10.1.0.1, guest: {cid: 3}}]}]\n",
			up + strings.Replace(guest, "cid: 3", "cid: 3, windows: true", 1) + "functions: [{pf: 0, vfs: [{vf: 1, tenant: 1, address: 10.1.0.1, guest: {cid: 3}}]}]\n",
			[]string{"h1.pf0.vf1 of the guest with cid 3 (socket /g.pf0.vf1) is new"},
		},
		{up + vf, up + strings.Replace(vf, "name: p", "name: p, netns: x", 1), []string{`the port with TAP p was "netns \"\"" and is "netns \"x\""`}},
		{up + vf, up + strings.Replace(vf, "name: p", "name: p, mtu: 1400", 1), nil},
		{up + vf, up + strings.Replace(vf, ", port: {name: p}", "", 1), nil},
		{up + vf, up + strings.Replace(vf, "name: p", "name: q, netns: x", 1), nil},
		{up + vf, up + strings.Replace(vf, "name: p", "type: vhost-user, name: p, socket: /p.sock", 1), []string{"the port with socket /p.sock (name p, listen nic, queues 1, mtu 8932) is new"}},
	} {
		if got := of(c.was).changes(of(c.is)); !slices.Equal(got, c.want) {
			t.Errorf("%s%q, want %q", c.is, got, c.want)
		}
	}
}

// TestAWindowIsServedOnceItsSocketListens, not once it is bound, nor when another file has taken its place.
func TestAWindowIsServedOnceItsSocketListens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a window")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	if listens(path) {
		t.Error("a socket that does not listen was taken for one that does")
	}
	if err := unix.Listen(fd, 1); err != nil {
		t.Fatal(err)
	}
	if !listens(path) {
		t.Error("a socket that listens was not found")
	}
	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	if listens(path) {
		t.Error("a folder was taken for a socket")
	}
}
