package run_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/show"
	"github.com/falcon-vnic/vnic/cmd/vnic/vf"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/qemu/vhosttest"
)

// TestPortsCarryFramesBetweenGuests: guests with rings of each kind find the gateway by ARP, and
// their frames arrive unchanged.
func TestPortsCarryFramesBetweenGuests(t *testing.T) {
	dir := t.TempDir()
	vnictest.ServeOn(t, fabric.New(4500), vnictest.PortConfig(t, dir, 1, 4, 2, ""))
	var all []*vnictest.PortGuest
	for i, o := range []vhosttest.NetOptions{
		{}, {Packed: true, Merge: true, EventIdx: true}, {Merge: true, EventIdx: true, Indirect: true, Split: 300, Offloads: true}, {Queues: 2, Packed: true, Indirect: true, Offloads: true},
	} {
		all = append(all, vnictest.NewPortGuest(t, dir, 1, i+1, o))
	}
	for i, s := range all {
		s.Ask(all[(i+1)%len(all)].IP)
	}
	for i, s := range all {
		s.Exchange(all[(i+1)%len(all)], 300)
	}
	t.Run("offloads", func(t *testing.T) { cutForGuest(t, all[2], all[1]) })
	t.Run("long frames", func(t *testing.T) {
		longFrames(t, all[2], all[3])
		longFrames(t, all[3], all[2])
	})
	t.Run("broken", func(t *testing.T) {
		all[0].Guest.Break(0)
		all[0].Guest.Kick(0)
		all[1].Exchange(all[2], 100) // others do not notice
		faulty := func(want bool) {
			t.Helper()
			vnictest.Eventually(t, "what is said of the port", func() error {
				out, err := vnictest.Here(t, show.Command(), "functions", "-s", filepath.Join(dir, "ctl1"))
				if err == nil && strings.Contains(out, "port: virtqueue broken by its driver: available index") != want {
					err = fmt.Errorf("want a fault: %v\n%s", want, out)
				}
				return err
			})
		}
		faulty(true)
		if _, err := all[0].Guest.Stop(); err != nil {
			t.Fatal(err)
		}
		if err := all[0].Guest.Boot(); err != nil {
			t.Fatal(err)
		}
		all[0].Exchange(all[1], 100)
		all[3].Exchange(all[0], 100)
		faulty(false)
	})
}

// TestPortComesAndGoesAtRunTime adds a port in guest memory to a function of a running NIC, removes
// it and adds it again.
func TestPortComesAndGoesAtRunTime(t *testing.T) {
	dir := t.TempDir()
	vnictest.ServeOn(t, fabric.New(4500), vnictest.PortConfig(t, dir, 1, 2, 1, ""))
	set := func(port string) {
		t.Helper()
		if out, err := vnictest.Here(t, vf.Command(), "set", "-s", filepath.Join(dir, "ctl1"), "pf0.vf2", "port", port); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	a := vnictest.NewPortGuest(t, dir, 1, 1, vhosttest.NetOptions{Merge: true})
	for range 2 {
		b := vnictest.NewPortGuest(t, dir, 1, 2, vhosttest.NetOptions{Packed: true})
		a.Ask(b.IP)
		b.Ask(a.IP)
		a.Exchange(b, 20)
		set("none")
		set("type=vhost-user,mtu=1500,queues=2,socket=" + vnictest.PortSocket(dir, 1, 2))
	}
}

// longFrames sends large frames that the receiver may split, between short ones, and compares what
// arrives.
func longFrames(t *testing.T, from, to *vnictest.PortGuest) {
	t.Helper()
	for i := range 100 {
		n := 100
		if i%3 != 0 {
			n = 4000 + i*577
		}
		payload := make([]byte, n)
		for j := range payload {
			payload[j] = byte(j*7 + j>>8 + i)
		}
		f, h := from.UDP(to.IP, payload), vhosttest.Header{}
		if n > 1000 {
			h = vhosttest.Header{1, 5, 42, 0, 0xe8, 3, 34, 0, 6} // datagrams of 1000 bytes; their checksums are left open
		}
		if !from.Guest.Transmit(0, h, f) {
			t.Fatal("no room")
		}
		got, frame := to.Receive(vnictest.Limit)
		if len(frame) != len(f) || !bytes.Equal(frame[14:], f[14:]) || got[1] != h[1] {
			t.Fatalf("frame %d of %d bytes: got %d, header %v", i, len(f), len(frame), got)
		}
	}
	vnictest.Eventually(t, "all buffers back", func() error {
		if !from.Guest.Idle(0) {
			return fmt.Errorf("some are missing")
		}
		return nil
	})
}

// cutForGuest sends a large frame to a guest that takes only single frames, and checks the pieces.
func cutForGuest(t *testing.T, from, to *vnictest.PortGuest) {
	const segment, segments = 1000, 7
	payload := make([]byte, segment*segments-300)
	for i := range payload {
		payload[i] = byte(i / 10)
	}
	f := from.UDP(to.IP, nil)[:34]
	binary.BigEndian.PutUint16(f[16:], uint16(20+20+len(payload)))
	f[23], f[24], f[25] = 6, 0, 0
	binary.BigEndian.PutUint16(f[24:], ^vnictest.OnesSum(f[14:34]))
	tcp := make([]byte, 20)
	tcp[0], tcp[2], tcp[12], tcp[13] = 0x10, 0x20, 0x50, 0x18
	pseudo := append(append([]byte{}, f[26:34]...), 0, 6, byte((20+len(payload))>>8), byte(20+len(payload)))
	binary.BigEndian.PutUint16(tcp[16:], vnictest.OnesSum(pseudo))
	f = append(append(f, tcp...), payload...)
	h := vhosttest.Header{1, 1, 54, 0, byte(segment & 0xff), segment >> 8, 34, 0, 16, 0}
	if !from.Guest.Transmit(0, h, f) {
		t.Fatal("no room")
	}
	for at := 0; at < len(payload); {
		h, got := to.Receive(vnictest.Limit)
		if got == nil {
			t.Fatalf("%d of %d bytes arrived", at, len(payload))
		}
		if h[0] != 0 || h[1] != 0 {
			t.Fatalf("header %v for a guest that does nothing itself", h)
		}
		whole := append(append([]byte{}, got[26:34]...), 0, 6, byte((len(got)-34)>>8), byte(len(got)-34))
		body := got[34:]
		if len(body)%2 == 1 {
			body = append(bytes.Clone(body), 0)
		}
		if s := vnictest.OnesSum(append(whole, body...)); s != 0xffff {
			t.Fatalf("checksum of the packet at %d: %#x", at, s)
		}
		if vnictest.OnesSum(got[14:34]) != 0xffff {
			t.Fatal("checksum of IP")
		}
		if seq := binary.BigEndian.Uint32(got[38:]); int(seq) != at || !bytes.Equal(got[54:], payload[at:at+len(got)-54]) {
			t.Fatalf("packet at %d: sequence number %d, %d bytes", at, seq, len(got)-54)
		}
		at += len(got) - 54
	}
}

// TestNICConnectsToAGuestThatListens: the NIC also connects again when the connection is lost, and
// the guest's rings go on where they were.
func TestNICConnectsToAGuestThatListens(t *testing.T) {
	dir := t.TempDir()
	path := vnictest.PortConfig(t, dir, 1, 2, 1, "")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	socket := vnictest.PortSocket(dir, 1, 1)
	changed := strings.Replace(string(text), "socket: "+socket, "listen: guest, socket: "+socket, 1)
	if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	vnictest.ServeOn(t, fabric.New(4500), path)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accept := func() *net.UnixConn {
		if err := l.SetDeadline(time.Now().Add(vnictest.Limit)); err != nil {
			t.Fatal(err)
		}
		c, err := l.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	guest, err := vhosttest.NewNet(accept(), vhosttest.NetOptions{Merge: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = guest.Kill() })
	a := &vnictest.PortGuest{T: t, Guest: guest, MAC: vnictest.MACOf(1, 1), IP: netip.MustParseAddr("192.168.100.11")}
	b := vnictest.NewPortGuest(t, dir, 1, 2, vhosttest.NetOptions{EventIdx: true})
	a.Ask(b.IP)
	b.Ask(a.IP)
	for range 3 {
		a.Exchange(b, 50)
		b.Exchange(a, 50)
		if err := guest.Conn.Close(); err != nil {
			t.Fatal(err)
		}
		if err := guest.Reconnect(accept()); err != nil {
			t.Fatal(err)
		}
	}
	b.Exchange(a, 50)
}
