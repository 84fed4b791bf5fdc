package shard

import (
	"bytes"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// theGroup is the GID of 239.1.2.3.
var theGroup = [16]byte{10: 0xff, 11: 0xff, 12: 239, 13: 1, 14: 2, 15: 3}

// join attaches the driver's queue pair to a group.
func (d *driver) join(group [16]byte) {
	d.v.t.Helper()
	d.must(abi.AdminOpAttachMcast, &abi.Mcast{QPN: d.qpn, GID: group})
}

// hears sends a text to a group, and waits until the driver has received it.
func (d *driver) hears(from *driver, text string) {
	d.v.t.Helper()
	cqe := d.done()
	if cqe.Status != abi.WCSuccess || cqe.Opcode != abi.WCOpRecv || cqe.SrcQP != from.qpn || cqe.QPN != d.qpn {
		d.v.t.Fatalf("%s: %+v", text, cqe)
	}
	if b := d.data()[4096:]; !bytes.Equal(b[36:40], theGroup[12:]) || !bytes.HasPrefix(b[40:], []byte(text)) {
		d.v.t.Fatalf("want %q, header and data are % x", text, b[:64])
	}
}

// TestMulticast checks that a datagram to a group reaches all queue pairs attached to it, at both
// NICs and the sender's own, once each, and none in another tenant (DEV-954).
func TestMulticast(t *testing.T) { eachShards(t, testMulticast) }

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
				t.Fatalf("%s heard %+v", d.fn.ID, cqe)
			}
		}
	}
	say("to all")
	for _, d := range all[:3] {
		d.hears(a, "to all")
	}
	silent(all...)

	c.must(abi.AdminOpDetachMcast, &abi.Mcast{QPN: c.qpn, GID: theGroup})
	if st, _ := c.command(abi.AdminOpDetachMcast, &abi.Mcast{QPN: c.qpn, GID: theGroup}); st != abi.StatusNotFound {
		t.Errorf("detached twice: %s", st)
	}
	a.must(abi.AdminOpDetachMcast, &abi.Mcast{QPN: a.qpn, GID: theGroup})
	say("to one")
	b.hears(a, "to one")
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

// TestMulticastRefused checks that addresses that are no group, queue pairs that are not for
// datagrams, too many groups, and functions without a network are refused.
func TestMulticastRefused(t *testing.T) {
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
