package qemu

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/falcon-vnic/vnic/qemu/internal/sockettest"
)

// monitor is a fake monitor of QEMU. It answers queries from its table, and records the commands
// that change something.
type monitor struct {
	answers map[string]string // JSON, by command or, of qom-list and qom-get, by path and property
	refuses string            // a command
	events  []string          // JSON, in front of the answer to device_del; "": the monitor ends

	mu    sync.Mutex
	asked []string
}

// aGuest holds QEMU's answers for a guest with a vsock, a window plugged into the first of three
// root ports, another window from the start, and two interfaces.
func aGuest() map[string]string {
	list := func(entries ...string) string {
		var all []string
		for _, e := range entries {
			name, kind, _ := strings.Cut(e, " ")
			all = append(all, fmt.Sprintf(`{"name": %q, "type": %q}`, name, kind))
		}
		return "[" + strings.Join(all, ",") + "]"
	}
	return map[string]string{
		"query-name": `{"name": "g"}`, "query-status": `{"status": "running"}`, "query-version": `{"qemu": {"major": 7, "minor": 2, "micro": 22}}`,
		"query-kvm": `{"enabled": false}`, "query-cpus-fast": `[{}, {}]`,
		"query-memdev": `[{"id": "m0", "size": 67108864, "share": true}, {"id": "m1", "size": 1}]`,
		"/objects":     list("m1 child<memory-backend-file>", "m0 child<memory-backend-memfd>", "type string"),
		"query-chardev": `[{"label": "vsock", "filename": "unix:/run/g"}, {"label": "window-pf0.vf1", "filename": "disconnected:unix:/run/w"},
			{"label": "window-pf0.vf2", "filename": "unix:/run/w2"}]`,
		"/machine/peripheral": list("vsock child<vhost-user-vsock-pci>", "pf0.vf2 child<ivshmem-doorbell>", "pf0.vf1 child<ivshmem-doorbell>",
			"hot2 child<pcie-root-port>", "hot0 child<pcie-root-port>", "hot1 child<pcie-root-port>", "type string", "mouse child<usb-mouse>"),
		"/machine/peripheral-anon":                  list("device[0] child<virtio-net-pci>", "device[1] child<vfio-user-pci>"),
		"/machine/peripheral/vsock chardev":         `"vsock"`,
		"/machine/peripheral/pf0.vf1 chardev":       `"window-pf0.vf1"`,
		"/machine/peripheral/pf0.vf2 chardev":       `"window-pf0.vf2"`,
		"/machine/peripheral-anon/device[0] netdev": `"net0"`,
		"query-pci": `[{"devices": [
			{"qdev_id": "vsock", "slot": 29, "function": 0}, {"qdev_id": "pf0.vf2", "slot": 8, "function": 1},
			{"qdev_id": "hot0", "slot": 28, "function": 0, "pci_bridge": {"devices": [{"qdev_id": "pf0.vf1", "slot": 0, "function": 0}]}},
			{"qdev_id": "hot1", "slot": 28, "function": 1, "pci_bridge": {}}]}]`,
	}
}

// dial returns a client of the monitor, over a socket.
func (m *monitor) dial(t *testing.T) *QMP {
	t.Helper()
	ours, theirs, err := sockettest.New()
	if err != nil {
		t.Fatal(err)
	}
	return m.client(t, ours, theirs)
}

func (m *monitor) client(t *testing.T, ours, theirs net.Conn) *QMP {
	t.Helper()
	var played sync.WaitGroup
	played.Go(func() { m.play(theirs) })
	q, err := NewQMP(t.Context(), ours)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = q.Close()
		played.Wait()
	})
	return q
}

func (m *monitor) play(conn net.Conn) {
	defer conn.Close()
	fmt.Fprintln(conn, `{"QMP": {"version": {}, "capabilities": []}}`)
	for sc := bufio.NewScanner(conn); sc.Scan(); {
		var c struct {
			Execute   string         `json:"execute"`
			Arguments map[string]any `json:"arguments"`
			ID        uint64         `json:"id"`
		}
		if json.Unmarshal(sc.Bytes(), &c) != nil {
			return
		}
		key := c.Execute
		if path, ok := c.Arguments["path"].(string); ok && strings.HasPrefix(c.Execute, "qom-") {
			if key = path; c.Arguments["property"] != nil {
				key += fmt.Sprint(" ", c.Arguments["property"])
			}
		} else if !strings.HasPrefix(c.Execute, "q") {
			args, _ := json.Marshal(c.Arguments) // what was read encodes
			m.mu.Lock()
			m.asked = append(m.asked, c.Execute+" "+string(args))
			m.mu.Unlock()
		}
		switch answer, known := m.answers[key]; {
		case c.Execute == m.refuses:
			fmt.Fprintf(conn, `{"error": {"class": "GenericError", "desc": "not today"}, "id": %d}`+"\n", c.ID)
			continue
		case known:
			fmt.Fprintf(conn, `{"return": %s, "id": %d}`+"\n", answer, c.ID)
			continue
		}
		fmt.Fprintf(conn, `{"return": {}, "id": %d}`+"\n", c.ID)
		if c.Execute != "device_del" {
			continue
		}
		for _, e := range m.events {
			if e == "" {
				return
			}
			fmt.Fprintln(conn, e)
		}
	}
}

// take returns the commands since the last call.
func (m *monitor) take() (asked []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	asked, m.asked = m.asked, nil
	return asked
}

func checkAsked(t *testing.T, what string, m *monitor, want ...string) {
	t.Helper()
	if got := m.take(); !slices.Equal(got, want) {
		t.Errorf("%s: asked\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func checkSays(t *testing.T, what string, err error, says string) {
	t.Helper()
	if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
		t.Errorf("%s: %v, want %q", what, err, says)
	}
}

// TestStatusHasEachDevice: the status of a QEMU has each device with its backend and its place on
// the bus.
func TestStatusHasEachDevice(t *testing.T) {
	m := &monitor{answers: aGuest()}
	s, err := Inspect(t.Context(), m.dial(t))
	if err != nil {
		t.Fatal(err)
	}
	want := &Status{
		Name: "g", State: "running", Version: "7.2.22", CPUs: 2, Memory: Backend{
			ID: "m0", Type: "memory-backend-memfd", Bytes: 64 << 20, Shared: true,
		},
		Devices: []Device{
			{ID: "device[0]", Driver: "virtio-net-pci", Backend: "net0", Connected: true},
			{ID: "device[1]", Driver: "vfio-user-pci", Backend: "vfio-user", Connected: true},
			{ID: "pf0.vf1", Driver: "ivshmem-doorbell", PCI: "hot0", Backend: "window-pf0.vf1"},
			{ID: "pf0.vf2", Driver: "ivshmem-doorbell", PCI: "08.1", Backend: "window-pf0.vf2", Connected: true},
			{ID: "vsock", Driver: "vhost-user-vsock-pci", PCI: "1d.0", Backend: "vsock", Connected: true},
		},
		HotPlug: HotPlug{Ports: 3, Free: []string{"hot1", "hot2"}, Taken: []string{"hot0"}},
	}
	if d := cmp.Diff(want, s); d != "" {
		t.Error(d)
	}
	m = &monitor{answers: aGuest()}
	m.answers["query-memdev"], m.answers["query-kvm"] = `[]`, `{"enabled": true}`
	if s, err = Inspect(t.Context(), m.dial(t)); err != nil || s.Memory != (Backend{Type: "none"}) || !s.KVM {
		t.Errorf("%+v, %v", s, err)
	}
	for _, command := range []string{"query-name", "query-cpus-fast", "query-memdev", "query-chardev", "query-pci", "qom-list", "qom-get"} {
		m := &monitor{answers: aGuest(), refuses: command}
		if s, err := Inspect(t.Context(), m.dial(t)); err == nil || s != nil {
			t.Errorf("%s is refused: %+v, %v", command, s, err)
		}
	}
}

// TestWindowIsPluggedIntoAFreeRootPort: a window is a chardev and a device on the first free root
// port. If a step is refused, the earlier ones are undone.
func TestWindowIsPluggedIntoAFreeRootPort(t *testing.T) {
	const (
		chardev = `chardev-add {"backend":{"data":{"addr":{"data":{"path":"/run/w"},"type":"unix"},"server":false},"type":"socket"},"id":"window-pf1"}`
		device  = `device_add {"bus":"hot1","chardev":"window-pf1","driver":"ivshmem-doorbell","id":"pf1","vectors":5}`
		remove  = `chardev-remove {"id":"window-pf1"}`
	)
	for _, tt := range []struct {
		refuses, says string
		asked         []string
	}{
		{"", "", []string{chardev, device}},
		{"chardev-add", "windows: true", []string{chardev}},
		{"device_add", "pf1 on hot1: qmp device_add: not today", []string{chardev, device, remove}},
		{"query-pci", "query-pci", nil},
	} {
		m := &monitor{answers: aGuest(), refuses: tt.refuses}
		checkSays(t, "refused "+tt.refuses, PlugWindow(t.Context(), m.dial(t), Window{"pf1", "/run/w"}), tt.says)
		checkAsked(t, "refused "+tt.refuses, m, tt.asked...)
	}
}

// TestNothingIsPluggedTwiceOrNowhere: nothing is plugged into a guest that has it already or has no
// free root port.
func TestNothingIsPluggedTwiceOrNowhere(t *testing.T) {
	m := &monitor{answers: aGuest()}
	q := m.dial(t)
	checkSays(t, "what it has", PlugWindow(t.Context(), q, Window{"pf0.vf1", "/run/w"}), "the guest has it already")
	m.answers["/machine/peripheral"] = `[{"name": "hot0", "type": "child<pcie-root-port>"}]`
	checkSays(t, "no free port", PlugWindow(t.Context(), q, Window{"pf1", "/run/w"}), "all 1 root ports of this QEMU are taken")
	m.answers["/machine/peripheral"] = `[]`
	checkSays(t, "no ports", PlugWindow(t.Context(), q, Window{"pf1", "/run/w"}), "without root ports to plug into")
	checkAsked(t, "nowhere", m)
}

// TestTAPPortIsPlugged: a port on a TAP is plugged in as a netdev and a device.
func TestTAPPortIsPlugged(t *testing.T) {
	const (
		netdev = `netdev_add {"downscript":"no","id":"port-pf1","ifname":"lo","script":"no","type":"tap"}`
		device = `device_add {"bus":"hot1","driver":"virtio-net-pci","host_mtu":1400,"id":"port-pf1","mac":"02::1","netdev":"port-pf1"}`
		remove = `netdev_del {"id":"port-pf1"}`
	)
	p := Port{Function: "pf1", TAP: "lo", MAC: "02::1", MTU: 1400}
	for _, tt := range []struct {
		refuses, says string
		asked         []string
	}{
		{"", "", []string{netdev, device}},
		{"netdev_add", "ip tuntap add lo mode tap", []string{netdev}},
		{"device_add", "not today", []string{netdev, device, remove}},
	} {
		m := &monitor{answers: aGuest(), refuses: tt.refuses}
		checkSays(t, "refused "+tt.refuses, PlugPort(t.Context(), m.dial(t), p), tt.says)
		checkAsked(t, "refused "+tt.refuses, m, tt.asked...)
	}
	m := &monitor{answers: aGuest()}
	absent := p
	absent.TAP = "absent0"
	checkSays(t, "no TAP", PlugPort(t.Context(), m.dial(t), absent), "there is no TAP absent0 where QEMU runs; make it (ip tuntap add absent0 mode tap")
	checkAsked(t, "no TAP", m)
	// Which TAPs a QEMU on another machine has is not known.
	ours, theirs := net.Pipe()
	checkSays(t, "elsewhere", PlugPort(t.Context(), m.client(t, ours, theirs), absent), "")
	if n := len(m.take()); n != 2 {
		t.Errorf("asked %d times", n)
	}
}

// TestGuestPortIsPluggedAsItsQEMUNeeds: a port in the guest's memory is a chardev, a netdev and a
// device. How the socket reconnects, and whether the device has MSI-X, depends on QEMU's version.
func TestGuestPortIsPluggedAsItsQEMUNeeds(t *testing.T) {
	const (
		chardev = `chardev-add {"backend":{"data":{"addr":{"data":{"path":"/run/p"},"type":"unix"},"reconnect":1,"server":false},"type":"socket"},"id":"port-pf1-socket"}`
		inMs    = `chardev-add {"backend":{"data":{"addr":{"data":{"path":"/run/p"},"type":"unix"},"reconnect-ms":1000,"server":false},"type":"socket"},"id":"port-pf1-socket"}`
		listens = `chardev-add {"backend":{"data":{"addr":{"data":{"path":"/run/p"},"type":"unix"},"server":true,"wait":false},"type":"socket"},"id":"port-pf1-socket"}`
		netdev  = `netdev_add {"chardev":"port-pf1-socket","id":"port-pf1","queues":1,"type":"vhost-user"}`
		several = `netdev_add {"chardev":"port-pf1-socket","id":"port-pf1","queues":2,"type":"vhost-user"}`
		device  = `device_add {"bus":"hot1","driver":"virtio-net-pci","host_mtu":1400,"id":"port-pf1","mac":"02::1","netdev":"port-pf1"}`
		noMSIX  = `device_add {"bus":"hot1","driver":"virtio-net-pci","host_mtu":1400,"id":"port-pf1","mac":"02::1","netdev":"port-pf1","vectors":0}`
		noMSIX2 = `device_add {"bus":"hot1","driver":"virtio-net-pci","host_mtu":1400,"id":"port-pf1","mac":"02::1","mq":true,"netdev":"port-pf1","vectors":0}`
		six     = `device_add {"bus":"hot1","driver":"virtio-net-pci","duplex":"full","host_mtu":1400,"id":"port-pf1","mac":"02::1","mq":true,"netdev":"port-pf1","speed":10,"vectors":6}`
		unnet   = `netdev_del {"id":"port-pf1"}`
		unchar  = `chardev-remove {"id":"port-pf1-socket"}`
	)
	for _, tt := range []struct {
		name          string
		version       string // minor and major
		kvm           string
		port          Port
		refuses, says string
		asked         []string
	}{
		{"7.2", `"major": 7, "minor": 2`, "false", Port{Queues: 1}, "", "", []string{chardev, netdev, noMSIX}},
		{"7.2 with KVM", `"major": 7, "minor": 2`, "true", Port{Queues: 1}, "", "", []string{chardev, netdev, device}},
		{"9.1", `"major": 9, "minor": 1`, "false", Port{Queues: 2}, "", "", []string{chardev, several, noMSIX2}},
		{"9.2", `"major": 9, "minor": 2`, "false", Port{Queues: 1}, "", "", []string{inMs, netdev, noMSIX}},
		{"9.99", `"major": 9, "minor": 99`, "false", Port{Queues: 1}, "", "", []string{inMs, netdev, noMSIX}},
		{"10.0", `"major": 10, "minor": 0`, "false", Port{Queues: 1}, "", "", []string{inMs, netdev, device}},
		{"10.0 that listens", `"major": 10, "minor": 0`, "false", Port{Queues: 2, Server: true, Speed: 10}, "", "", []string{listens, several, six}},
		{"no socket", `"major": 10, "minor": 0`, "false", Port{Queues: 1}, "chardev-add", "does vnic run serve the port of pf1", []string{inMs}},
		{"no netdev", `"major": 10, "minor": 0`, "false", Port{Queues: 1}, "netdev_add", "not today", []string{inMs, netdev, unchar}},
		{"no device", `"major": 10, "minor": 0`, "false", Port{Queues: 1}, "device_add", "not today", []string{inMs, netdev, device, unnet, unchar}},
		{"no answers", `"major": 10, "minor": 0`, "false", Port{Queues: 1}, "query-name", "query-name", nil},
	} {
		tt.port.Function, tt.port.Socket, tt.port.MAC, tt.port.MTU = "pf1", "/run/p", "02::1", 1400
		m := &monitor{answers: aGuest(), refuses: tt.refuses}
		m.answers["query-version"] = `{"qemu": {` + tt.version + `, "micro": 0}}`
		m.answers["query-kvm"] = `{"enabled": ` + tt.kvm + `}`
		checkSays(t, tt.name, PlugPort(t.Context(), m.dial(t), tt.port), tt.says)
		checkAsked(t, tt.name, m, tt.asked...)
	}
}

// TestFunctionIsPlugged: a function by vfio-user is plugged in as a device alone.
func TestFunctionIsPlugged(t *testing.T) {
	const device = `device_add {"bus":"hot1","driver":"vfio-user-pci","id":"pf1","socket":{"path":"/run/f","type":"unix"}}`
	for refuses, says := range map[string]string{"": "", "device_add": "does vnic run serve /run/f"} {
		m := &monitor{answers: aGuest(), refuses: refuses}
		checkSays(t, "refused "+refuses, PlugVfio(t.Context(), m.dial(t), Vfio{Function: "pf1", Socket: "/run/f"}), says)
		checkAsked(t, "refused "+refuses, m, device)
	}
}

// Events of a QEMU.
const (
	goneWindow = `{"event": "DEVICE_DELETED", "data": {"device": "pf0.vf1", "path": "/machine/peripheral/pf0.vf1"}}`
	goneOther  = `{"event": "DEVICE_DELETED", "data": {"device": "pf0.vf7"}}`
	stillThere = `{"event": "DEVICE_UNPLUG_GUEST_ERROR", "data": {"device": "pf0.vf1"}}`
)

// TestUnplugWaitsForTheGuest: a device is gone when QEMU reports the end of that very device. Its
// backend is removed then, not before.
func TestUnplugWaitsForTheGuest(t *testing.T) {
	const (
		del    = `device_del {"id":"pf0.vf1"}`
		remove = `chardev-remove {"id":"window-pf0.vf1"}`
	)
	for _, tt := range []struct {
		name, refuses, says string
		events              []string
		asked               []string
	}{
		{"gone", "", "", []string{goneWindow}, []string{del, remove}},
		{"gone after others", "", "", []string{goneOther, stillThere, goneWindow}, []string{del, remove}},
		{"QEMU ends", "", "QEMU ended", []string{goneOther, ""}, []string{del}},
		{"refused", "device_del", "not today", nil, []string{del}},
		{"backend stays", "chardev-remove", "not today", []string{goneWindow}, []string{del, remove}},
		{"no answers", "query-pci", "query-pci", nil, nil},
	} {
		m := &monitor{answers: aGuest(), refuses: tt.refuses, events: tt.events}
		checkSays(t, tt.name, UnplugWindow(t.Context(), m.dial(t), Window{"pf0.vf1", "/run/w"}), tt.says)
		checkAsked(t, tt.name, m, tt.asked...)
	}
	m := &monitor{answers: aGuest(), events: []string{goneOther}}
	q := m.dial(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- UnplugWindow(ctx, q, Window{"pf0.vf1", "/run/w"}) }()
	for asked := 0; asked == 0; runtime.Gosched() {
		m.mu.Lock()
		asked = len(m.asked)
		m.mu.Unlock()
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("patience ends: %v", err)
	}
	for id, says := range map[string]string{"pf0.vf2": "had it from the start, at 08.1", "pf0.vf7": "does not have it"} {
		m := &monitor{answers: aGuest()}
		checkSays(t, id, UnplugWindow(t.Context(), m.dial(t), Window{id, "/run/w"}), says)
		checkAsked(t, id, m)
	}
}

// TestPortIsUnpluggedWithItsBackend: a port is removed with its netdev and, if it is in guest
// memory, with its socket.
func TestPortIsUnpluggedWithItsBackend(t *testing.T) {
	const (
		del    = `device_del {"id":"port-pf1"}`
		unnet  = `netdev_del {"id":"port-pf1"}`
		unchar = `chardev-remove {"id":"port-pf1-socket"}`
		gone   = `{"event": "DEVICE_DELETED", "data": {"device": "port-pf1"}}`
	)
	for _, tt := range []struct {
		socket, refuses, says string
		asked                 []string
	}{
		{"", "", "", []string{del, unnet}},
		{"/run/p", "", "", []string{del, unnet, unchar}},
		{"", "netdev_del", "not today", []string{del, unnet}},
		{"/run/p", "netdev_del", "not today", []string{del, unnet}},
		{"/run/p", "chardev-remove", "not today", []string{del, unnet, unchar}},
		{"/run/p", "device_del", "not today", []string{del}},
	} {
		m := &monitor{answers: aGuest(), refuses: tt.refuses, events: []string{gone}}
		m.answers["/machine/peripheral"] = `[{"name": "hot0", "type": "child<pcie-root-port>"}, {"name": "port-pf1", "type": "child<virtio-net-pci>"}]`
		m.answers["/machine/peripheral/port-pf1 netdev"] = `"port-pf1"`
		m.answers["query-pci"] = `[{"devices": [{"qdev_id": "hot0", "pci_bridge": {"devices": [{"qdev_id": "port-pf1"}]}}]}]`
		what := tt.socket + " refused " + tt.refuses
		checkSays(t, what, UnplugPort(t.Context(), m.dial(t), Port{Function: "pf1", Socket: tt.socket}), tt.says)
		checkAsked(t, what, m, tt.asked...)
	}
}

// TestFunctionWithMSIXIsNotUnplugged: a function with MSI-X is not unplugged, because QEMU would
// exit.
func TestFunctionWithMSIXIsNotUnplugged(t *testing.T) {
	m := &monitor{answers: aGuest(), events: []string{goneWindow}}
	q := m.dial(t)
	checkSays(t, "MSI-X", UnplugVfio(t.Context(), q, Vfio{Function: "pf0.vf1"}), "interrupts: msi")
	checkAsked(t, "MSI-X", m)
	checkSays(t, "MSI", UnplugVfio(t.Context(), q, Vfio{Function: "pf0.vf1", MSI: true}), "")
	checkAsked(t, "MSI", m, `device_del {"id":"pf0.vf1"}`)
}

// TestPeerWithoutGreetingIsRefused: a peer that does not send a monitor's greeting is refused.
func TestPeerWithoutGreetingIsRefused(t *testing.T) {
	for _, greeting := range []string{`{"other": {}}`, `no JSON`, ``} {
		ours, theirs := net.Pipe()
		go func() {
			_, _ = theirs.Write([]byte(greeting + "\n"))
			theirs.Close()
		}()
		if q, err := NewQMP(t.Context(), ours); err == nil {
			t.Errorf("%q is taken for a monitor", greeting)
			q.Close()
		}
	}
}

// TestDialSaysWhyThereIsNoMonitor: the error says whether the guest does not run or its QEMU does
// not answer.
func TestDialSaysWhyThereIsNoMonitor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "qmp")
	_, err := DialQMP(t.Context(), path)
	checkSays(t, "no socket", err, "the guest does not run")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		if conn, err := l.Accept(); err == nil { // which says nothing, at length: until it is listened to
			defer conn.Close()
			_, _ = conn.Write(bytes.Repeat([]byte{' '}, 1<<20))
			cancel()
			_, _ = conn.Read(make([]byte, 1))
		}
	}()
	_, err = DialQMP(ctx, path)
	checkSays(t, "no answer", err, "another client may have its monitor")
	m := &monitor{answers: aGuest()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if conn, err := l.Accept(); err == nil {
			m.play(conn)
		}
	}()
	q, err := DialQMP(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := Inspect(t.Context(), q); err != nil || s.Name != "g" {
		t.Errorf("%+v, %v", s, err)
	}
	_ = q.Close()
	<-done
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	_, err = DialQMP(t.Context(), path)
	checkSays(t, "nobody listens", err, "the guest does not run")
}
