package shard

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
)

const datagramQKey = 0x11111111

// createUD turns the driver's queue pair into one for datagrams, in RTS, and creates an address
// handle for a GID.
func (d *driver) createUD(gid [16]byte, class, hops uint8) (ahn uint32) {
	d.v.t.Helper()
	if d.qpn != 0 {
		d.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: d.qpn})
	}
	d.newQP(abi.QPTypeUD)
	for _, m := range []abi.ModifyQP{
		{Mask: abi.QPAttrState | abi.QPAttrQKey, State: abi.QPStateInit, QKey: datagramQKey},
		{Mask: abi.QPAttrState, State: abi.QPStateRTR},
		{Mask: abi.QPAttrState | abi.QPAttrSQPSN, State: abi.QPStateRTS},
	} {
		m.QPN = d.qpn
		d.must(abi.AdminOpModifyQP, &m)
	}
	return binary.LittleEndian.Uint32(d.must(abi.AdminOpCreateAH, &abi.CreateAH{PDN: d.pdn, DGID: gid, TrafficClass: class, HopLimit: hops}))
}

// datagram posts a datagram of n bytes from the beginning of the data pages.
func (d *driver) datagram(ahn, qpn uint32, n int) {
	d.v.t.Helper()
	b := d.scratch[:1<<sqStride]
	(&abi.SendWQE{
		WRID: 1, Opcode: abi.OpSend, Flags: abi.SendSignaled, NumSGE: 1, AHN: ahn, RemoteQPN: qpn, RemoteQKey: datagramQKey,
	}).Marshal(b)
	(&abi.SGE{Addr: d.addr(pageData), Length: uint32(n), LKey: d.lkey}).Marshal(b[abi.SendWQEHeader:])
	if err := d.sendQ.Push(b); err != nil {
		d.v.t.Fatal(err)
	}
	index, _, _ := d.sendQ.Publish()
	d.ring(abi.DoorbellSQ, d.qpn, index)
}

// TestDatagramsArriveAsTheirAddressHandleSays sends datagrams between two NICs and inside one, over a bad wire; packets have the
// traffic class and hop limit of the address handle.
func TestDatagramsArriveAsTheirAddressHandleSays(t *testing.T) { eachShards(t, testDatagrams) }

func testDatagrams(t *testing.T) {
	eachDistance(t, func(t *testing.T) {
		v := newVirtual(t, 1, sim.Impairment{Delay: 50_000, Loss: 0.05, Duplicate: 0.05})
		a, b := drivers(v)
		for _, d := range []*driver{a, b} {
			d.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: d.qpn})
			d.qpn = 0
		}
		ha := a.createUD(b.fn.GID(), 0x2b, 7)
		hb := b.createUD(a.fn.GID(), 0x2b, 7)
		for round := range 10 {
			for _, c := range []struct {
				from, to *driver
				ahn      uint32
			}{{a, b, ha}, {b, a, hb}} {
				n := 4096 * round / 9 // up to the MTU
				for i := range n {
					c.from.data()[i] = byte(i * (round + 3))
				}
				c.to.receive(8192, 40+4096)
				c.from.datagram(c.ahn, c.to.qpn, n)
				if cqe := c.from.done(); cqe.Status != abi.WCSuccess {
					t.Fatal(cqe.Status)
				}
				cqe := c.to.done()
				if cqe.Status != abi.WCSuccess || int(cqe.ByteLen) != n+40 || cqe.SrcQP != c.from.qpn || cqe.SL != abi.SLRoCEIPv4 {
					t.Fatalf("%+v", cqe)
				}
				got := c.to.data()[8192:]
				if string(got[40:40+n]) != string(c.from.data()[:n]) || got[21] != 0x28 || got[28] != 7 || string(got[32:36]) != string(c.from.fn.Addr.AsSlice()) {
					t.Fatalf("GRH % x", got[:40])
				}
			}
		}
		a.noEvents()
		b.noEvents()
		for nic, s := range v.all() {
			s.falcon.table.Each(func(c *conn.Slot) {
				if nic == 0 && (c.Inner.Class != 0x28 || c.Inner.TTL != 7) {
					t.Errorf("inner header %+v", c.Inner)
				}
			})
		}
		a.must(abi.AdminOpDestroyAH, &abi.DestroyAH{AHN: ha})
		b.must(abi.AdminOpDestroyAH, &abi.DestroyAH{AHN: hb})
		v.idle(120e9)
		settled(t, v)
	})
}

// TestDatagramsToNobody checks that datagrams to addresses without a function, in another tenant,
// or whose function has no driver complete with success and do not arrive. (DEV-941)
func TestDatagramsToNobody(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	a := newDriver(v, 0, 1)
	a.setUp()
	a.createQPAgain()
	nobody := a.fn.GID()
	nobody[15] = 0xee
	for name, gid := range map[string][16]byte{
		"no function": nobody,
		"not driven":  v.function(1, 1).GID(),
	} {
		ahn := a.createUD(gid, 0, 0)
		start := v.now
		a.datagram(ahn, 5, 100)
		if cqe := a.done(); cqe.Status != abi.WCSuccess {
			t.Fatalf("%s: %s", name, cqe.Status)
		}
		if v.now-start > 3e9 {
			t.Errorf("%s: after %d ms", name, (v.now-start)/1e6)
		}
	}
	v.idle(3e9)
	if n := a.fn.Verbs().Stats().DatagramsLost; n != 2 {
		t.Errorf("%d lost", n)
	}
}

// TestDatagramsArriveAgainAfterAReset checks that links are opened again after a reset of the peer's function.
func TestDatagramsArriveAgainAfterAReset(t *testing.T) { eachShards(t, testDatagramsSurvive) }

func testDatagramsSurvive(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	a, b := drivers(v)
	ha := a.createUD(b.fn.GID(), 0, 0)
	b.createUD(a.fn.GID(), 0, 0)
	b.receive(0, 4096)
	a.datagram(ha, b.qpn, 10)
	a.done()
	b.done()
	b.write(abi.RegControl, 4, uint64(abi.ControlReset))
	clear(b.mem)
	b.async, b.qpn = nil, 0
	b.id = 0
	a.datagram(ha, 2, 10) // lost
	if cqe := a.done(); cqe.Status != abi.WCSuccess {
		t.Fatal(cqe.Status)
	}
	v.idle(3e9)
	b.setUp()
	b.createUD(a.fn.GID(), 0, 0)
	v.idle(3e9)
	b.receive(0, 4096)
	a.datagram(ha, b.qpn, 10)
	if cqe := a.done(); cqe.Status != abi.WCSuccess {
		t.Fatal(cqe.Status)
	}
	if cqe := b.done(); cqe.Status != abi.WCSuccess || cqe.ByteLen != 50 {
		t.Fatalf("%+v", cqe)
	}
}

func TestTheClassOfAPathLeavesECNAlone(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	f := v.function(0, 1)
	h := underlay.Inner{Src: f.Addr, Dst: f.Addr, ECN: 1, Class: 0xff, TTL: 3}
	if b := h.Append(nil, 10); b[1] != 0xfd || b[8] != 3 {
		t.Errorf("% x", b)
	}
	h.Class, h.TTL = 0, 0
	if b := h.Append(nil, 10); b[1] != 1 || b[8] != 64 {
		t.Errorf("% x", b)
	}
}

// theGroup is the GID of 239.1.2.3.
var theGroup = [16]byte{10: 0xff, 11: 0xff, 12: 239, 13: 1, 14: 2, 15: 3}

// join attaches the driver's queue pair to a group.
func (d *driver) join(group [16]byte) {
	d.v.t.Helper()
	d.must(abi.AdminOpAttachMcast, &abi.Mcast{QPN: d.qpn, GID: group})
}

// gets sends a text to a group, and waits until the driver has received it.
func (d *driver) gets(from *driver, text string) {
	d.v.t.Helper()
	cqe := d.done()
	if cqe.Status != abi.WCSuccess || cqe.Opcode != abi.WCOpRecv || cqe.SrcQP != from.qpn || cqe.QPN != d.qpn {
		d.v.t.Fatalf("%s: %+v", text, cqe)
	}
	if b := d.data()[4096:]; !bytes.Equal(b[36:40], theGroup[12:]) || !bytes.HasPrefix(b[40:], []byte(text)) {
		d.v.t.Fatalf("want %q, header and data are % x", text, b[:64])
	}
}

// TestAGroupsMembersGetEachDatagramOnce checks that a datagram to a group reaches all queue pairs attached to it, at both
// NICs and the sender's own, once each, and none in another tenant (DEV-954).
func TestAGroupsMembersGetEachDatagramOnce(t *testing.T) { eachShards(t, testMulticast) }

func testMulticast(t *testing.T) {
	v := newRoCEWorld(t, config.TransportAuto, sim.Impairment{Delay: 50_000})
	a, b, c, stranger := newDriver(v, 0, 1), newDriver(v, 1, 1), newDriver(v, 0, 2), newDriver(v, 1, 4)
	all := []*driver{a, b, c, stranger}
	var ahn uint32
	for _, d := range all {
		d.setUp()
		if n := d.createUD(theGroup, 0, 1); d == a {
			ahn = n
		}
		d.join(theGroup)
		d.join(theGroup) // joining again has no effect
	}
	say := func(text string) {
		t.Helper()
		for _, d := range all {
			d.receive(4096, 4096)
		}
		copy(a.data(), text)
		a.datagram(ahn, abi.GroupQPN, 100)
		if cqe := a.done(); cqe.Status != abi.WCSuccess {
			t.Fatal(cqe.Status)
		}
	}
	silent := func(list ...*driver) {
		t.Helper()
		v.idle(1e9)
		for _, d := range list {
			if cqe, ok := d.completion(); ok {
				t.Fatalf("%s got %+v", d.fn.ID, cqe)
			}
		}
	}
	say("to all")
	for _, d := range all[:3] {
		d.gets(a, "to all")
	}
	silent(all...)

	c.must(abi.AdminOpDetachMcast, &abi.Mcast{QPN: c.qpn, GID: theGroup})
	if st, _ := c.command(abi.AdminOpDetachMcast, &abi.Mcast{QPN: c.qpn, GID: theGroup}); st != abi.StatusNotFound {
		t.Errorf("detached twice: %s", st)
	}
	a.must(abi.AdminOpDetachMcast, &abi.Mcast{QPN: a.qpn, GID: theGroup})
	say("to one")
	b.gets(a, "to one")
	silent(all...)

	n := b.fn.Verbs().Counts()[abi.ObjectMCG]
	b.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: b.qpn})
	if left := b.fn.Verbs().Counts()[abi.ObjectMCG]; n != 1 || left != 0 {
		t.Errorf("%d attachments, %d without the queue pair", n, left)
	}
	b.qpn = 0
	all = []*driver{a, c, stranger}
	say("to nobody")
	silent(all...)
	if n := v.reason(1, gateway.DropWrongSource) + v.reason(1, gateway.DropMulticast); n != 0 {
		t.Errorf("%d copies were dropped", n)
	}
}

// TestWrongJoinsOfAGroupAreRefused checks that addresses that are no group, queue pairs that are not for
// datagrams, too many groups, and functions without a network are refused.
func TestWrongJoinsOfAGroupAreRefused(t *testing.T) {
	v := newRoCEWorld(t, config.TransportAuto, sim.Impairment{Delay: 50_000})
	a := newDriver(v, 0, 1)
	a.setUp()
	refused := func(want abi.Status, p abi.Mcast) {
		t.Helper()
		if st, _ := a.command(abi.AdminOpAttachMcast, &p); st != want {
			t.Errorf("%+v: %s, want %s", p, st, want)
		}
	}
	refused(abi.StatusInvalidArgument, abi.Mcast{QPN: a.qpn, GID: theGroup}) // an RC queue pair
	ahn := a.createUD(theGroup, 0, 0)
	refused(abi.StatusInvalidArgument, abi.Mcast{QPN: a.qpn, GID: a.fn.GID()})
	refused(abi.StatusNotFound, abi.Mcast{QPN: a.qpn + 1, GID: theGroup})
	refused(abi.StatusUnsupported, abi.Mcast{QPN: a.qpn, GID: [16]byte{0: 0xff, 1: 5, 15: 1}}) // of the other address family
	v.mustOperate(0, "pf0.vf1", "", "max_mcg", "1")
	a.join(theGroup)
	another := theGroup
	another[15]++
	refused(abi.StatusNoResources, abi.Mcast{QPN: a.qpn, GID: another})
	a.datagram(ahn, b1, 8)
	if cqe := a.done(); cqe.Status != abi.WCLocQPOpErr {
		t.Errorf("a queue pair at a group's address: %s", cqe.Status)
	}

	v = newVirtual(t, 5, wire100us) // without ports
	a = newDriver(v, 0, 1)
	a.setUp()
	a.createUD(a.fn.GID(), 0, 0)
	refused(abi.StatusUnsupported, abi.Mcast{QPN: a.qpn, GID: theGroup})
	if st, _ := a.command(abi.AdminOpCreateAH, &abi.CreateAH{PDN: a.pdn, DGID: theGroup}); st != abi.StatusUnsupported {
		t.Errorf("a handle: %s", st)
	}
}

// b1 is the number of some queue pair.
const b1 = 17
