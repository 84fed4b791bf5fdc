package shard

import (
	"bytes"
	"testing"

	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestDisconnectFinishes checks that requests that the transport took before its driver disconnects
// complete, and that the peer is told. (DEV-912)
func TestDisconnectFinishes(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	a, b := pair(v)
	id, size := a.connID(), 100_000
	for i := range 3 * size {
		a.data()[i] = byte(i>>8 ^ i)
	}
	for i := range 3 {
		a.send(abi.OpWrite, i*size, size, b, i*size)
	}
	sent := v.shards[0].falcon.Stats().DataSent
	v.until("first packets", func() bool { return v.shards[0].falcon.Stats().DataSent > sent+20 })
	a.must(abi.AdminOpCMDisconnect, &abi.CMDisconnect{CMID: id})
	whole := 0
	for i := range 3 {
		switch cqe := a.done(); {
		case cqe.Status == abi.WCSuccess && whole == i:
			whole++
		case cqe.Status != abi.WCWRFlushErr:
			t.Errorf("request %d: %s", i, cqe.Status)
		}
	}
	if whole == 0 {
		t.Error("nothing of what was under way completed")
	}
	if !bytes.Equal(b.data()[:whole*size], a.data()[:whole*size]) {
		t.Error("completed, but not there")
	}
	b.event(abi.EventDisconnected)
	a.event(abi.EventDisconnected)
	settled(t, v)
	for side, want := range []falcon.CloseReason{falcon.CloseLocal, falcon.ClosePeer} {
		if n := v.shards[side].falcon.Stats().ConnsClosed; n[want] != 1 {
			t.Errorf("side %d: connections by why they ended: %v, want one %s", side, n, want)
		}
	}
}

// TestDisconnectIsBounded checks that a peer that is never ready delays a disconnect only for a
// short time, and not at all if the driver asks twice. (DEV-912)
func TestDisconnectIsBounded(t *testing.T) {
	for _, twice := range []bool{false, true} {
		v := newVirtual(t, 1, wire100us)
		a, b := pair(v)
		id := a.connID()
		a.send(abi.OpSend, 0, 100, b, 0) // there is no receive for it
		v.until("a refusal", func() bool { return v.shards[0].falcon.Stats().NacksReceived > 0 })
		start := v.now
		a.must(abi.AdminOpCMDisconnect, &abi.CMDisconnect{CMID: id})
		limit := conn.DrainMost + conn.DrainMost/10
		if twice {
			a.must(abi.AdminOpCMDisconnect, &abi.CMDisconnect{CMID: id})
			limit = conn.DrainMost / 10
		}
		if cqe := a.done(); cqe.Status != abi.WCWRFlushErr {
			t.Errorf("twice %v: %s", twice, cqe.Status)
		}
		if took := v.now - start; took > limit {
			t.Errorf("twice %v: took %d µs", twice, took/1000)
		}
		b.event(abi.EventDisconnected)
		settled(t, v)
	}
}
