package ports

import (
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/shard"
	"github.com/falcon-vnic/vnic/falcon"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

var errRefused = errors.New("refused")

// TestOpenAllOrNone checks that if one device cannot be opened, those opened before are closed, and
// the error names the function.
func TestOpenAllOrNone(t *testing.T) {
	w := describe(t, 1, 2)
	w.refuse["pf0.vf3"] = errRefused
	if err := w.open(); !errors.Is(err, errRefused) || !strings.Contains(err.Error(), "h1.pf0.vf3") {
		t.Error(err)
	}
	if !slices.Equal(w.said, []string{"close pf0.vf1", "close pf0.vf2"}) {
		t.Errorf("devices heard %q", w.said)
	}
}

// TestPortsInMemoryNeedAProgram checks that without a program that serves guests, the error says
// what to use.
func TestPortsInMemoryNeedAProgram(t *testing.T) {
	w := describe(t, 0, 1)
	_, err := Open(w.shard.Ports(), Sources{}, nil, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "use vnic run") {
		t.Error(err)
	}
}

// TestARemovedPortIsNoLongerRead checks that a removed port is not read, written or waited for, that the next port
// takes its slot, and that the other ports keep theirs.
func TestARemovedPortIsNoLongerRead(t *testing.T) {
	w := newWorld(t, 1, 2)
	for i, d := range w.devs {
		dev := w.set.Remove(w.ports[i])
		if dev != Device(d) && dev != Device(polledDevice{d}) || w.ports[i].Device != nil || !w.ports[i].Lost {
			t.Errorf("port %d: %v, %+v", i, dev, w.ports[i])
		}
		if again := w.set.Remove(w.ports[i]); again != nil {
			t.Errorf("port %d: removed twice: %v", i, again)
		}
		d.fill(60)
		if w.told() || w.read() != "" {
			t.Errorf("port %d is read", i)
		}
		w.ports[i].Lost = false
		if err := w.set.Add(w.ports[i], dev); err != nil || w.set.ports[i].port != w.ports[i] || len(w.set.ports) != 3 {
			t.Errorf("port %d came back: %v, %d places", i, err, len(w.set.ports))
		}
		if w.read() == "" {
			t.Errorf("port %d is not read again", i)
		}
	}
}

// TestRestOfARemovedPortIsCopied checks that data still in the memory of a guest whose port is
// removed is copied first, and that the guest is not polled after that. The other guest is notified
// at the end of the turn.
func TestRestOfARemovedPortIsCopied(t *testing.T) {
	w := newWorld(t, 3, 0)
	for _, d := range w.devs[1:] {
		d.leave(make([]byte, 1000), 256)
	}
	w.devs[0].fill(60)
	w.read()
	w.says()
	w.set.Remove(w.ports[1])
	if said := w.says(); !slices.Equal(said, []string{"return pf0.vf2"}) {
		t.Errorf("guests heard %q", said)
	}
	w.set.Remove(w.ports[0]) // no buffers to give back
	if w.said != nil {
		t.Errorf("guests heard %q", w.said)
	}
	w.set.Write()
	if said := w.says(); !slices.Equal(said, []string{"return pf0.vf3"}) {
		t.Errorf("guests heard %q", said)
	}
	for _, d := range w.devs {
		d.fill(61)
	}
	if came := w.read(); came != "2:61" {
		t.Errorf("%s came", came)
	}
}

// TestRemovedWhilePaused checks that a removed port has no deadline left.
func TestRemovedWhilePaused(t *testing.T) {
	w := newWorld(t, 0, 1)
	w.ports[0].Rate.SetRate(w.now, 1_000_000)
	w.devs[0].fill(64 << 10)
	w.read()
	w.devs[0].fill(60)
	before := w.read()
	due := w.set.Deadline()
	w.set.Remove(w.ports[0])
	if before != "" || due != w.now+1000 || w.set.Deadline() <= due {
		t.Errorf("%q came; due at %d, then at %d", before, due, w.set.Deadline())
	}
}

// TestLostPortIsRemoved checks that removing a lost port does not touch another device that has got
// its descriptor since.
func TestLostPortIsRemoved(t *testing.T) {
	w := newWorld(t, 0, 2)
	w.devs[0].broken = errors.New("it is gone")
	w.devs[0].signal(true)
	w.read()
	if !w.ports[0].Lost {
		t.Fatal("the port is not lost")
	}
	heir := &device{world: w, name: "heir", fd: w.devs[0].fd}
	port := &shard.Port{Endpoint: w.ports[1].Endpoint, ID: w.ports[1].ID, Config: w.ports[1].Config}
	w.set.Remove(w.ports[1])
	if err := w.set.Add(port, heir); err != nil {
		t.Fatal(err)
	}
	w.set.Remove(w.ports[0])
	heir.fill(60)
	if !w.told() {
		t.Error("nobody waits for the device that has the descriptor now")
	}
}

// TestDeviceThatCannotBeWaitedFor checks that the error names the port.
func TestDeviceThatCannotBeWaitedFor(t *testing.T) {
	w := newWorld(t, 0, 1)
	w.set.Remove(w.ports[0])
	if err := w.set.Add(w.ports[0], &device{world: w, fd: -1}); err == nil ||
		!strings.Contains(err.Error(), "pf0.vf1") {
		t.Error(err)
	}
}

// TestServeAndClose checks that Serve serves all guests, and that Close closes all devices and logs
// the ones that fail. Empty slots are skipped.
func TestServeAndClose(t *testing.T) {
	w := newWorld(t, 0, 3)
	w.set.Remove(w.ports[1])
	w.set.Serve()
	for i, want := range []int{1, 0, 1} {
		if n := w.devs[i].served; n != want {
			t.Errorf("device %d was served %d times", i, n)
		}
	}
	w.devs[0].gone = errRefused
	w.close()
	if !slices.Equal(w.said, []string{"close pf0.vf1", "close pf0.vf3"}) {
		t.Errorf("devices heard %q", w.said)
	}
	if n := strings.Count(w.log.String(), "port not closed"); n != 1 || !strings.Contains(w.log.String(), "refused") {
		t.Errorf("log: %s", w.log.String())
	}
}

// configure changes the settings of a VF's port.
func (w *world) configure(vf int, change func(c *config.Function)) {
	w.t.Helper()
	is := w.core.Functions.Settings(id(w.t, vf))
	change(&is)
	if err := w.shard.Orders().Set(w.now, id(w.t, vf), &is); err != nil {
		w.t.Fatal(err)
	}
}

// fit calls Fit, and returns the functions that could not get a port.
func (w *world) fit(do func(func(falcon.Time)) error) (failed map[pfvf.ID]error, err error) {
	if do == nil {
		do = func(f func(falcon.Time)) error { f(w.now); return nil }
	}
	failed = map[pfvf.ID]error{}
	err = w.set.Fit(Sources{Guests: w}, do, func(id pfvf.ID, err error) { failed[id] = err })
	w.ports = slices.Collect(w.shard.Ports().All())
	return failed, err
}

// TestOnlyChangedPortsAreMadeAnew checks that a port that is no longer wanted is closed, one with new settings is created
// anew and served, and the others are left alone.
func TestOnlyChangedPortsAreMadeAnew(t *testing.T) {
	w := newWorld(t, 0, 3)
	w.configure(1, func(c *config.Function) { c.Port = nil })
	w.configure(2, func(c *config.Function) {
		port := *c.Port
		port.Name, port.Socket = "other", "/nowhere/other"
		c.Port = &port
	})
	failed, err := w.fit(nil)
	if err != nil || len(failed) != 0 || !slices.Equal(w.says(), []string{"remove pf0.vf1", "remove pf0.vf2"}) {
		t.Errorf("%v, %v; devices heard %q", failed, err, w.said)
	}
	if len(w.opened) != 4 || w.opened[3].name != "other" || w.opened[3].served != 1 || w.opened[2].served != 0 {
		t.Fatalf("%d devices were made", len(w.opened))
	}
	w.opened[3].fill(60)
	w.opened[2].fill(61)
	if came := w.read(); came != "0:60 1:61" {
		t.Errorf("%q came", came)
	}
	if failed, err := w.fit(nil); err != nil || len(failed) != 0 || w.said != nil || len(w.opened) != 4 {
		t.Errorf("again: %v, %v, devices heard %q", failed, err, w.said)
	}
}

// TestFitReportsPortsThatCannotBeOpened checks that a port that cannot be opened is reported for
// its function, and tried again by the next Fit; the others are opened.
func TestFitReportsPortsThatCannotBeOpened(t *testing.T) {
	w := newWorld(t, 0, 2)
	rename := func(c *config.Function) {
		port := *c.Port
		port.Name, port.Socket = c.Port.Name+".new", c.Port.Socket+".new"
		c.Port = &port
	}
	w.configure(1, rename)
	w.configure(2, rename)
	w.refuse["pf0.vf1.new"] = errRefused
	failed, err := w.fit(nil)
	if err != nil || !errors.Is(failed[id(t, 1)], errRefused) || len(failed) != 1 || len(w.ports) != 1 {
		t.Errorf("%v, %v, %d ports", failed, err, len(w.ports))
	}
	clear(w.refuse)
	if failed, err := w.fit(nil); err != nil || len(failed) != 0 || len(w.ports) != 2 || len(w.opened) != 4 {
		t.Errorf("%v, %v, %d ports, %d devices made", failed, err, len(w.ports), len(w.opened))
	}
}

// TestFitRemovesDevicesItCannotWaitFor checks that a device that the set cannot wait for is removed
// again, and is not served.
func TestFitRemovesDevicesItCannotWaitFor(t *testing.T) {
	w := newWorld(t, 0, 1)
	w.set.Remove(w.ports[0])
	deaf := &device{world: w, name: "deaf", fd: -1, gone: errors.New("it stays")}
	w.configure(1, func(*config.Function) {})
	failed := map[pfvf.ID]error{}
	err := w.set.Fit(Sources{Guests: maker{deaf}}, func(f func(falcon.Time)) error { f(w.now); return nil }, func(id pfvf.ID, err error) { failed[id] = err })
	if err != nil || !slices.Equal(slices.Collect(maps.Keys(failed)), []pfvf.ID{id(t, 1)}) ||
		!errors.Is(failed[id(t, 1)], deaf.gone) {
		t.Errorf("%v, %v", failed, err)
	}
	if !slices.Equal(w.said, []string{"remove deaf"}) || deaf.served != 0 || w.shard.Ports().Len() != 0 {
		t.Errorf("devices heard %q, served %d, %d ports", w.said, deaf.served, w.shard.Ports().Len())
	}
}

// maker returns one device.
type maker struct{ Device }

func (m maker) OpenPort(*config.Port, func(func()) bool) (Device, error) { return m.Device, nil }

// TestFitOfAStoppedShard checks that Fit fails if the shard has stopped, and leaves no device
// behind.
func TestFitOfAStoppedShard(t *testing.T) {
	w := newWorld(t, 0, 1)
	w.configure(1, func(c *config.Function) {
		port := *c.Port
		port.Name = "other"
		c.Port = &port
	})
	stopped, calls := errors.New("stopped"), 0
	failed, err := w.fit(func(f func(falcon.Time)) error {
		if calls++; calls > 1 {
			return stopped
		}
		f(w.now)
		return nil
	})
	if err != nil || !errors.Is(failed[id(t, 1)], stopped) ||
		!slices.Equal(w.says(), []string{"remove pf0.vf1", "remove other"}) || w.opened[1].served != 0 {
		t.Errorf("%v, %v, devices heard %q", failed, err, w.said)
	}
	w.configure(1, func(*config.Function) {})
	if _, err := w.fit(func(func(falcon.Time)) error { return stopped }); !errors.Is(err, stopped) {
		t.Error(err)
	}
}

// TestRemovalThatFails checks that a device that cannot be removed gives an error, and that the
// others are removed.
func TestRemovalThatFails(t *testing.T) {
	w := newWorld(t, 0, 2)
	for vf := 1; vf <= 2; vf++ {
		w.configure(vf, func(c *config.Function) { c.Port = nil })
		w.devs[vf-1].gone = errRefused
	}
	if _, err := w.fit(nil); !errors.Is(err, errRefused) || len(w.says()) != 2 || len(w.ports) != 0 {
		t.Errorf("%v, %d ports", err, len(w.ports))
	}
	if came := w.read(); came != "" {
		t.Errorf("%q came", came)
	}
}

// TestSuperframeOfAPort checks that one send of the kernel through a direct port fills one
// superframe of sealed packets, as far as possible; the least is two packets.
func TestSuperframeOfAPort(t *testing.T) {
	const longest = 65535 - 40 - 8 // of UDP over IPv6
	for mtu := 576; mtu < 9000; mtu++ {
		n, sealed := segments(mtu), mtu+security.PlainOverhead
		if n*sealed > longest || (n+1)*sealed <= longest {
			t.Fatalf("MTU %d: %d packets of %d bytes sealed", mtu, n, sealed)
		}
	}
	if n := segments(60_000); n != 2 {
		t.Errorf("MTU 60000: %d packets", n)
	}
}
