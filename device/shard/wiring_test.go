package shard

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/queues/abi"
	rdmawire "github.com/falcon-vnic/vnic/rdma/rof/wire"
)

// toRTR names the peer, as a program that exchanged numbers and GIDs by other means.
func (d *driver) toRTR(peerQPN uint32, gid [16]byte) {
	d.v.t.Helper()
	p := &d.path
	d.must(abi.AdminOpModifyQP, &abi.ModifyQP{
		FlowLabel: p.FlowLabel, TrafficClass: p.TrafficClass, HopLimit: p.HopLimit, SL: p.SL, VLAN: p.VLAN, SGIDIndex: p.SGIDIndex,
		QPN: d.qpn, State: abi.QPStateRTR, PathMTU: abi.MTU1024, DestQPN: peerQPN, RQPSN: 1, DGID: gid, MaxDestRdAtomic: 4, MinRNRTimer: 12,
		Mask: abi.QPAttrState | abi.QPAttrAV | abi.QPAttrPathMTU | abi.QPAttrDestQPN | abi.QPAttrRQPSN | abi.QPAttrMaxDestRdAtomic | abi.QPAttrMinRNRTimer,
	})
}

func (d *driver) toRTS() {
	d.v.t.Helper()
	d.must(abi.AdminOpModifyQP, &abi.ModifyQP{
		QPN: d.qpn, State: abi.QPStateRTS, Timeout: 14, RetryCnt: 7, RNRRetry: 7, SQPSN: 1, MaxRdAtomic: 4,
		Mask: abi.QPAttrState | abi.QPAttrTimeout | abi.QPAttrRetryCnt | abi.QPAttrRNRRetry | abi.QPAttrSQPSN | abi.QPAttrMaxRdAtomic,
	})
}

// noEvents checks that the driver got no events.
func (d *driver) noEvents() {
	d.v.t.Helper()
	d.collect()
	if len(d.async) != 0 {
		d.v.t.Errorf("the driver was told %+v", d.async)
	}
}

// wiredPair connects two queue pairs whose drivers name each other, a first.
func wiredPair(v *virtual, a, b *driver, pause bool) {
	wiredBy(v, a, b, a.fn.GID(), b.fn.GID(), pause)
}

// wiredBy is wiredPair with other GIDs than the functions' own.
func wiredBy(v *virtual, a, b *driver, of, to [16]byte, pause bool) {
	a.toRTR(b.qpn, to)
	a.toRTS()
	if pause {
		v.idle(3e9)
	}
	b.toRTR(a.qpn, of)
	b.toRTS()
}

// TestQueuePairsConnectByNumberAndGID connects queue pairs by number and GID, with either side first and however late the
// other is. (DEV-910)
func TestQueuePairsConnectByNumberAndGID(t *testing.T) { eachShards(t, testWired) }

func testWired(t *testing.T) {
	eachDistance(t, func(t *testing.T) {
		for _, reverse := range []bool{false, true} {
			for _, pause := range []bool{false, true} {
				v := newVirtual(t, 1, wire100us)
				a, b := drivers(v)
				if reverse {
					a, b = b, a
				}
				wiredPair(v, a, b, pause)
				exchange(t, a, b, 50_000)
				exchange(t, b, a, 3000)
				a.noEvents()
				b.noEvents()
				for _, f := range v.functions(0) {
					if wirings, held := f.conns.Waiting(); wirings+held != 0 {
						t.Errorf("%s: %d wirings, %d held", f.ID, wirings, held)
					}
				}
				a.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: a.qpn})
				b.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: b.qpn})
				settled(t, v)
			}
		}
	})
}

// TestAQueuePairWhosePeersFunctionHasGoneFails: at once, also if it only waits for messages: nobody at the other
// end is left to tell its program.
func TestAQueuePairWhosePeersFunctionHasGoneFails(t *testing.T) {
	eachDistance(t, func(t *testing.T) {
		v := newVirtual(t, 1, wire100us)
		a, b := drivers(v)
		wiredPair(v, a, b, false)
		exchange(t, a, b, 3000)
		exchange(t, b, a, 3000)
		a.noEvents()
		nic, function := 1, "pf0.vf1"
		if oneNIC {
			nic, function = 0, "pf0.vf2"
		}
		before := v.now
		v.mustOperate(nic, function, "disable")
		if ev := a.event(abi.EventQPFatal); ev.Number != a.qpn || abi.WCStatus(ev.Status) != abi.WCRetryExcErr {
			t.Errorf("%+v", ev)
		}
		if took := v.now - before; took > 1e9 {
			t.Errorf("that took %v", time.Duration(took))
		}
	})
}

// TestWiredToItself names a queue pair as its own peer.
func TestWiredToItself(t *testing.T) { eachShards(t, testWiredToItself) }

func testWiredToItself(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	a := newDriver(v, 0, 1)
	a.setUp()
	a.toRTR(a.qpn, a.fn.GID())
	a.toRTS()
	copy(a.data(), "to myself")
	a.send(abi.OpWrite, 0, 9, a, 4096)
	if cqe := a.done(); cqe.Status != abi.WCSuccess || !bytes.Equal(a.data()[4096:4105], []byte("to myself")) {
		t.Fatalf("%s, %q", cqe.Status, a.data()[4096:4105])
	}
	if n, _ := v.core(a.shard()).Manager.CIDs(uint32(a.fn.ID)); n != 1 {
		t.Errorf("%d CIDs in use", n)
	}
	a.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: a.qpn})
	settled(t, v)
}

// TestWorkWithoutAPeerFailsAfterATime checks that without a peer, or with one that names another, nothing happens until
// there is work; that work then fails after a time, with an event that says why.
func TestWorkWithoutAPeerFailsAfterATime(t *testing.T) { eachShards(t, testWiredAlone) }

func testWiredAlone(t *testing.T) {
	for name, other := range map[string]func(a, b *driver){
		"nobody":        func(_, b *driver) { b.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: b.qpn}) },
		"never ready":   func(*driver, *driver) {},
		"another peer":  func(a, b *driver) { b.toRTR(a.qpn+1, a.fn.GID()) },
		"another GID":   func(a, b *driver) { b.toRTR(a.qpn, b.fn.GID()) },
		"no link":       func(a, _ *driver) { a.v.linkDown() },
		"no such route": nil,
	} {
		t.Run(name, func(t *testing.T) {
			for _, reverse := range []bool{false, true} {
				v := newVirtual(t, 1, wire100us)
				a, b := drivers(v)
				if reverse {
					a, b = b, a
				}
				gid, qpn := b.fn.GID(), b.qpn
				if other == nil {
					gid[15]++
				} else {
					other(a, b)
				}
				a.toRTR(qpn, gid)
				a.toRTS()
				v.idle(60e9)
				a.noEvents()
				if st := a.fn.Verbs().QP(a.qpn).State(); st != abi.QPStateRTS {
					t.Fatalf("the QP is in %s", st)
				}
				start := v.now
				a.send(abi.OpWrite, 0, 100, b, 0)
				if cqe := a.done(); cqe.Status != abi.WCRetryExcErr {
					t.Fatalf("%s", cqe.Status)
				}
				if took := v.now - start; took < 7e9 || took > 10e9 {
					t.Errorf("failed after %d ms", took/1e6)
				}
				e := a.event(abi.EventQPFatal)
				if e.Number != a.qpn || !bytes.HasPrefix(e.Priv[:], []byte("no answer from QP")) {
					t.Errorf("%+v %q", e, e.Priv[:e.PrivLen])
				}
			}
		})
	}
}

// TestWiredPeerLeaves: the peer's queue pair is destroyed when all work is done. Receives stay
// posted and there is no event, as with hardware; the next request fails.
func TestWiredPeerLeaves(t *testing.T) { eachShards(t, testWiredPeerLeaves) }

func testWiredPeerLeaves(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	a, b := drivers(v)
	wiredPair(v, a, b, false)
	exchange(t, a, b, 5000)
	a.receive(0, 4096)
	b.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: b.qpn})
	v.idle(5e9)
	if cqe, ok := a.completion(); ok {
		t.Fatalf("completion %+v", cqe)
	}
	a.noEvents()
	a.send(abi.OpWrite, 0, 100, b, 0)
	if cqe := a.done(); cqe.Status != abi.WCRetryExcErr {
		t.Fatalf("%s", cqe.Status)
	}
	a.event(abi.EventQPFatal)
	if cqe := a.done(); cqe.Status != abi.WCWRFlushErr {
		t.Fatalf("the receive: %s", cqe.Status)
	}
}

// TestDriversCannotUseTheNICsOwnServices checks that a driver can neither listen on the NICs' own services nor
// connect to them, and cannot use the IDs of their connections. (DEV-911)
func TestDriversCannotUseTheNICsOwnServices(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	a, b := drivers(v)
	for _, service := range []uint64{abi.FirstReservedService, ^uint64(0)} {
		if st, _ := a.command(abi.AdminOpCMListen, &abi.CMListen{Service: service}); st != abi.StatusDenied {
			t.Errorf("listen on %#x: %s", service, st)
		}
		if st, _ := a.command(abi.AdminOpCMConnect, &abi.CMConnect{QPN: a.qpn, Service: service, DGID: b.fn.GID()}); st != abi.StatusDenied {
			t.Errorf("connect to %#x: %s", service, st)
		}
		if st, _ := a.command(abi.AdminOpCMUnlisten, &abi.CMUnlisten{Service: service}); st != abi.StatusNotFound {
			t.Errorf("unlisten %#x: %s", service, st)
		}
	}
	wiredPair(v, a, b, false)
	exchange(t, a, b, 100)
	for _, d := range []*driver{a, b} {
		for _, id := range d.fn.conns.IDs() {
			for op, params := range map[abi.AdminOp]marshaler{
				abi.AdminOpCMDisconnect: &abi.CMDisconnect{CMID: id}, abi.AdminOpCMReject: &abi.CMReject{CMID: id},
				abi.AdminOpCMAccept: &abi.CMAccept{CMID: id, QPN: d.qpn},
			} {
				if st, _ := d.command(op, params); st != abi.StatusNotFound && op != abi.AdminOpCMAccept || st == abi.StatusOK {
					t.Errorf("%s of the NIC's own connection: %s", op, st)
				}
			}
		}
	}
	exchange(t, a, b, 100)
}

// TestWiringRequestsOfAHostilePeerAreBounded lets the other NIC ask for connections of queue pairs as it likes: with numbers
// that do not exist, for queue pairs that name another peer, with nonsense, and for any number of
// links. What is held is bounded and is released by itself, and honest pairs still find each other.
func TestWiringRequestsOfAHostilePeerAreBounded(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	a, b := drivers(v)
	from, r := v.shards[0], rand.New(rand.NewPCG(4, 5))
	for i := range 1500 {
		var priv []byte
		switch r.IntN(4) {
		case 0:
			priv = binary.BigEndian.AppendUint32(nil, b.qpn)
		case 1:
			priv = binary.BigEndian.AppendUint32(nil, r.Uint32())
		case 2:
			priv = []byte{byte(i), byte(i >> 8)}
		default:
			priv = make([]byte, r.IntN(65))
		}
		_, err := v.core(from).Manager.CM.Connect(v.now, cm.ConnectRequest{
			Function: uint32(a.fn.ID), Tenant: a.fn.Tenant, QPN: uint32(r.IntN(1 << 24)), Service: uint64(abi.FirstReservedService) + uint64(r.IntN(4)),
			SGID: a.fn.GID(), DGID: b.fn.GID(), MTU: 1024 + rdmawire.MaxDataHeaderLen, Ordered: true, Private: priv,
		})
		if err != nil && !errors.Is(err, cm.ErrLimit) && !errors.Is(err, conn.ErrNoCID) {
			t.Fatal(err)
		}
		v.core(from).Manager.Run(v.now)
		if i%50 == 0 {
			v.idle(1e6)
		}
		if _, n := b.fn.conns.Waiting(); n > conn.MaxHeld/2 {
			t.Fatalf("%d requests of one source held", n)
		}
	}
	v.idle(120e9)
	if _, n := b.fn.conns.Waiting(); n != 0 {
		t.Errorf("%d requests still held", n)
	}
	b.noEvents()
	a.collect()
	a.async = nil
	wiredPair(v, a, b, false)
	exchange(t, a, b, 5000)
}

// TestWiredReadLimits checks that the number of READs that the peer accepts limits a wired queue
// pair too, whether the connection or the driver's setting comes first. (DEV-953)
func TestWiredReadLimits(t *testing.T) {
	for _, late := range []bool{false, true} {
		v := newVirtual(t, 1, wire100us)
		a, b := drivers(v)
		a.toRTR(b.qpn, b.fn.GID())
		if !late {
			a.toRTS()
		}
		b.must(abi.AdminOpModifyQP, &abi.ModifyQP{
			QPN: b.qpn, State: abi.QPStateRTR, PathMTU: abi.MTU1024, DestQPN: a.qpn, RQPSN: 1, DGID: a.fn.GID(), MaxDestRdAtomic: 2, MinRNRTimer: 12,
			Mask: abi.QPAttrState | abi.QPAttrAV | abi.QPAttrPathMTU | abi.QPAttrDestQPN | abi.QPAttrRQPSN | abi.QPAttrMaxDestRdAtomic | abi.QPAttrMinRNRTimer,
		})
		v.idle(100e6)
		if late {
			a.toRTS()
		}
		var q abi.QueryQPResult
		q.Unmarshal(a.must(abi.AdminOpQueryQP, &abi.QueryQP{QPN: a.qpn}))
		if q.MaxRdAtomic != 2 {
			t.Errorf("driver late %t: %d READs in flight, the peer takes 2", late, q.MaxRdAtomic)
		}
	}
}

// TestWiredInSQD: a driver may stop its queue pair's sends (SQD) before the connection exists. The
// peer is served all the same, and sends continue when they are allowed.
func TestWiredInSQD(t *testing.T) {
	eachDistance(t, func(t *testing.T) {
		v := newVirtual(t, 44, wire100us)
		a, b := drivers(v)
		a.toRTR(b.qpn, b.fn.GID())
		a.toRTS()
		a.must(abi.AdminOpModifyQP, &abi.ModifyQP{QPN: a.qpn, State: abi.QPStateSQD, Mask: abi.QPAttrState})
		b.toRTR(a.qpn, a.fn.GID())
		b.toRTS()
		copy(a.data(), "what is there")
		b.send(abi.OpRead, 0, 100, a, 0)
		if cqe := b.done(); cqe.Status != abi.WCSuccess || string(b.data()[:13]) != "what is there" {
			t.Fatalf("a READ of the peer: %s", cqe.Status)
		}
		a.send(abi.OpWrite, 0, 100, b, 1000)
		v.idle(50e6)
		if _, ok := a.completion(); ok {
			t.Error("it sends in SQD")
		}
		a.must(abi.AdminOpModifyQP, &abi.ModifyQP{QPN: a.qpn, State: abi.QPStateRTS, Mask: abi.QPAttrState})
		if cqe := a.done(); cqe.Status != abi.WCSuccess || string(b.data()[1000:1013]) != "what is there" {
			t.Errorf("a WRITE: %s", cqe.Status)
		}
	})
}

// TestWiredByAnyNumbers checks which end asks for the connection: addresses decide first, and
// numbers between queue pairs of one function. (DEV-910)
func TestWiredByAnyNumbers(t *testing.T) {
	for _, higher := range []int{0, 1} { // which queue pair has the higher number
		for _, reverse := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d higher, reverse %t", higher, reverse), func(t *testing.T) {
				v := newVirtual(t, 1, wire100us)
				a, b := drivers(v)
				[]*driver{a, b}[higher].createQP()
				if a.qpn == b.qpn {
					t.Fatal("the numbers are equal")
				}
				if reverse {
					a, b = b, a
				}
				wiredPair(v, a, b, false)
				exchange(t, a, b, 3000)
				exchange(t, b, a, 3000)
			})
		}
	}
	for _, reverse := range []bool{false, true} {
		v := newVirtual(t, 1, wire100us)
		a, _ := drivers(v)
		ends := [2]uint32{0: a.qpn}
		a.createQP()
		ends[1] = a.qpn
		if reverse {
			ends[0], ends[1] = ends[1], ends[0]
		}
		for i, qpn := range ends {
			a.qpn = qpn
			a.toRTR(ends[1-i], a.fn.GID())
		}
		v.idle(1e9)
		for _, qpn := range ends {
			if !a.fn.Verbs().QP(qpn).Connected() {
				t.Errorf("reverse %t: queue pair %#x of two of one function is not connected", reverse, qpn)
			}
		}
		if wirings, held := a.fn.conns.Waiting(); wirings+held != 0 {
			t.Errorf("reverse %t: %d wirings, %d held", reverse, wirings, held)
		}
	}
}
