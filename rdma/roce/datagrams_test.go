package roce_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/roce"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// crowd is a sender of datagrams that waits for room.
type crowd struct {
	waits, resumed int
}

func (c *crowd) Wait(verbs.Destination) (news bool) {
	c.waits++
	return c.waits == 1
}

func (c *crowd) Resume(verbs.Destination) { c.resumed++ }

// sender is a port with a destination for datagrams.
func sender(t *testing.T, mtu int) (*peer, *roce.Destination, *verbs.Objects) {
	t.Helper()
	p := &peer{world: newWorld(1, false, mtu, sim.Impairment{}), t: t, now: 1e9}
	of := new(verbs.Objects)
	p.ports[0].Serve(of)
	to := p.ports[0].To(&verbs.Address{
		GID:  [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 2},
		Path: verbs.Path{TrafficClass: 0x83, HopLimit: 9},
	}, true)
	if to == nil {
		t.Fatal("no destination")
	}
	return p, to.(*roce.Destination), of
}

func send(to *roce.Destination, n int, from verbs.Waiter) verbs.Sent {
	return to.Send(1e9, &verbs.Datagram{
		Datagram: transport.Datagram{To: 5, From: 6, QKey: 7, Imm: 0x01020304, HasImm: n == 3, Solicited: n == 2, Length: n},
		Inline:   make([]byte, n), From: from,
	})
}

// TestADatagramHasTheHeadersOfItsRequest: what a datagram's headers say.
func TestADatagramHasTheHeadersOfItsRequest(t *testing.T) {
	p, to, of := sender(t, 1500)
	bytes := uint64(0)
	for n := range 6 {
		if got := send(to, n, nil); got != verbs.Taken {
			t.Fatalf("%d bytes: %v", n, got)
		}
		bytes += uint64(n)
	}
	for n, h := range p.allSent() {
		op := ib.UD | ib.SendOnly
		if n == 3 {
			op = ib.UD | ib.SendOnlyImm
		}
		want := wire.BTH{
			Opcode: op, Solicited: n == 2, Migrated: true, Pad: uint8(-n & 3), PKey: wire.DefaultPKey, DestQP: 5, PSN: wire.PSN(n),
		}
		if h.BTH != want || h.Datagram != (ib.DETH{QKey: 7, SourceQP: 6}) || h.data != n || n == 3 && h.Imm.Data != 0x01020304 {
			t.Errorf("%d bytes: %+v", n, h)
		}
		if h.way.Class != 0x80 || h.way.Hops != 9 {
			t.Errorf("%d bytes: %+v", n, h.way)
		}
	}
	if c := of.Account.Counters; c.PushesTx != 6 || c.BytesTx != bytes {
		t.Errorf("%+v", c)
	}
	p.ports[0].NoteSent(true) // nobody traces
	p.ports[1].NoteSent(true) // nor has any datagrams
}

// TestTheLongestDatagramFitsOnePacket: the longest datagram is one whose packet fits whatever a packet may have around
// its data. A port that is closed takes none.
func TestTheLongestDatagramFitsOnePacket(t *testing.T) {
	p, to, _ := sender(t, 1500)
	const most = 1500 - 28 - wire.MaxDataHeaderLen - wire.ICRCLen
	for n, want := range map[int]verbs.Sent{most - 1: verbs.Taken, most: verbs.Taken, most + 1: verbs.Lost} {
		if got := send(to, n, nil); got != want {
			t.Errorf("%d bytes: %v, want %v", n, got, want)
		}
	}
	p.ports[0].Close()
	if got := send(to, 8, nil); got != verbs.Lost {
		t.Errorf("over a closed port: %v", got)
	}
	if list := p.allSent(); len(list) != 0 {
		t.Errorf("a closed port sends %d", len(list))
	}
}

// TestASenderOfDatagramsResumesWhenThereIsRoom: a function may have 128 datagrams waiting for the network. A sender without
// room gets Resume once.
func TestASenderOfDatagramsResumesWhenThereIsRoom(t *testing.T) {
	p, to, _ := sender(t, 1500)
	c := &crowd{}
	for i := range 128 {
		if got := send(to, 8, c); got != verbs.Taken {
			t.Fatalf("datagram %d: %v", i, got)
		}
	}
	for range 2 {
		if got := send(to, 8, c); got != verbs.Full {
			t.Fatalf("one more: %v", got)
		}
	}
	if c.waits != 2 || c.resumed != 0 {
		t.Fatalf("%+v", c)
	}
	p.next()
	p.next()
	if c.resumed != 1 {
		t.Errorf("told %d times", c.resumed)
	}
	if got := send(to, 8, c); got != verbs.Taken {
		t.Errorf("after one was sent: %v", got)
	}
	if n := len(p.allSent()); n != 127 {
		t.Errorf("%d more are sent, want 127", n)
	}
}

// TestDatagramsTakeTurns: datagrams and connections of a function send in turns.
func TestDatagramsTakeTurns(t *testing.T) {
	p, to, _ := sender(t, 1500)
	p.attach(&scripted{target: target{serving: true}})
	for range 10 {
		p.posts(abi.OpWrite, 8)
		send(to, 8, nil)
	}
	list := p.allSent()
	if len(list) != 20 {
		t.Fatalf("%d packets", len(list))
	}
	for i := range list {
		if i > 0 && list[i].BTH.Opcode&ib.ServiceMask == list[i-1].BTH.Opcode&ib.ServiceMask {
			t.Errorf("packets %d and %d are of one kind", i-1, i)
		}
	}
}

// TestAPortReachesOnlyItsOwnFamily: a port has destinations of its own family only.
func TestAPortReachesOnlyItsOwnFamily(t *testing.T) {
	v4, v6 := [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 2}, [16]byte{0: 0xfd, 15: 2}
	for _, is6 := range []bool{false, true} {
		port := newWorld(1, is6, 1500, sim.Impairment{}).ports[0]
		if (port.To(&verbs.Address{GID: v4}, true) != nil) == is6 || (port.To(&verbs.Address{GID: v6}, true) != nil) != is6 {
			t.Errorf("IPv6 %t: destinations of the other family", is6)
		}
	}
}
