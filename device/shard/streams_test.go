package shard

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// iwarpNICs returns two NICs whose functions use iWARP, in virtual time.
func iwarpNICs(t testing.TB) *virtual {
	t.Helper()
	v := newVirtualWith(t, 5, wire100us, func(_ int, c *config.Config) {
		speakRoCE(c)
		c.RDMA.Transport = config.TransportIWARP
	})
	for i := range v.nics {
		for _, s := range v.nics[i] {
			t.Cleanup(s.Close)
		}
	}
	v.until("keys for the tunnels", func() bool { return v.keyless() == 0 })
	v.idle(5 * cmDelay)
	return v
}

// iwarpDrivers returns a driver of each of two NICs whose functions use iWARP, not connected.
func iwarpDrivers(t testing.TB) (v *virtual, a, b *driver) {
	t.Helper()
	v = iwarpNICs(t)
	a, b = newDriver(v, 0, 1), newDriver(v, 1, 1)
	for _, d := range []*driver{a, b} {
		d.b.Features |= abi.FeatureIWARP
		d.setUp()
	}
	return v, a, b
}

// streams returns what the shard has of a driver's connections over iWARP.
func (d *driver) streams() *streamPort {
	return d.shard().networks.streams[0].ports[uint32(d.fn.ID)]
}

// calls has a driver call a service of another one, and returns the number of the call and the request for it.
func (d *driver) calls(to *driver, c abi.CMConnect) (number uint32, request abi.AsyncEvent) {
	d.v.t.Helper()
	c.QPN, c.DGID = d.qpn, to.fn.GID()
	number = binary.LittleEndian.Uint32(d.must(abi.AdminOpCMConnect, &c))
	return number, to.event(abi.EventConnectRequest)
}

// accepts has a driver accept a request of another one, and waits until both are connected.
func (d *driver) accepts(from *driver, request uint32) {
	d.v.t.Helper()
	d.must(abi.AdminOpCMAccept, &abi.CMAccept{CMID: request, QPN: d.qpn})
	from.event(abi.EventEstablished)
	d.event(abi.EventEstablished)
}

// leavesNothing checks that drivers have nothing of any connection a while later, and no more TCP ports than they listen to.
func leavesNothing(t *testing.T, v *virtual, all ...*driver) {
	t.Helper()
	v.idle(20e9) // TIME_WAIT, and what is repeated
	for i, d := range all {
		p := d.streams()
		if len(p.conns) != 0 || len(p.ofQP) != 0 || len(p.s.asked) != 0 || len(p.uses) != len(p.services) || p.s.tcp.Stats().Conns != 0 {
			t.Errorf("driver %d: %d connections, %d of queue pairs, %d requests, ports %v in use of which it listens to %v, %d connections of TCP",
				i, len(p.conns), len(p.ofQP), len(p.s.asked), p.uses, p.services, p.s.tcp.Stats().Conns)
		}
		d.collect()
		if len(d.async) != 0 {
			t.Errorf("driver %d got events that nobody waited for: %+v", i, d.async)
		}
	}
}

// nowhere is an address where no driver has memory.
const nowhere = 1 << 50

// TestARefusedCommandOverIWARPChangesNothing: each command of connection management that is refused says why by its
// status, and what it was about can be done afterwards: the request that was not answered is still there, the port is
// free, and the queue pair can be connected. (DRV-902, DEV-970)
func TestARefusedCommandOverIWARPChangesNothing(t *testing.T) {
	const service, space = 5000, 0x106 << 16
	v, a, b := iwarpDrivers(t)
	refused := func(d *driver, what string, op abi.AdminOp, params marshaler, want abi.Status) {
		t.Helper()
		ports := maps.Clone(d.streams().uses)
		if st, _ := d.command(op, params); st != want {
			t.Errorf("%s: %s, want %s", what, st, want)
		}
		if is := d.streams().uses; !maps.Equal(is, ports) {
			t.Errorf("%s: ports %v are in use, before it %v", what, is, ports)
		}
	}
	connect := func(c abi.CMConnect) *abi.CMConnect { c.DGID = b.fn.GID(); return &c }

	for _, s := range []uint64{0, space, service | 0x107<<16, service | 1<<40} {
		refused(b, "listening to no TCP port", abi.AdminOpCMListen, &abi.CMListen{Service: s}, abi.StatusInvalidArgument)
		refused(a, "calling no TCP port", abi.AdminOpCMConnect, connect(abi.CMConnect{QPN: a.qpn, Service: s}), abi.StatusInvalidArgument)
	}
	refused(b, "a listener that is not there", abi.AdminOpCMUnlisten, &abi.CMUnlisten{Service: service}, abi.StatusNotFound)
	b.must(abi.AdminOpCMListen, &abi.CMListen{Service: service})
	refused(b, "a second listener", abi.AdminOpCMListen, &abi.CMListen{Service: service}, abi.StatusAddressInUse)
	refused(b, "the port by its other name", abi.AdminOpCMListen, &abi.CMListen{Service: space | service}, abi.StatusAddressInUse)
	refused(b, "to end it by its other name", abi.AdminOpCMUnlisten, &abi.CMUnlisten{Service: space | service}, abi.StatusNotFound)
	a.must(abi.AdminOpCMListen, &abi.CMListen{Service: 6000})

	refused(a, "no such queue pair", abi.AdminOpCMConnect, connect(abi.CMConnect{QPN: 77, Service: service}), abi.StatusNotFound)
	refused(a, "private data outside of memory", abi.AdminOpCMConnect, connect(abi.CMConnect{QPN: a.qpn, Service: service, Priv: nowhere, PrivLen: 8}), abi.StatusMemoryFault)
	refused(a, "too much private data", abi.AdminOpCMConnect, connect(abi.CMConnect{QPN: a.qpn, Service: service, Priv: a.addr(pageData), PrivLen: abi.PrivateMax + 1}), abi.StatusTooLarge)
	refused(a, "from a listener's port", abi.AdminOpCMConnect, connect(abi.CMConnect{QPN: a.qpn, Service: service, SrcPort: 6000}), abi.StatusAddressInUse)
	number, r := a.calls(b, abi.CMConnect{Service: service, SrcPort: 7000})
	if r.PeerPort != 7000 || r.Service != service || r.SrcGID != a.fn.GID() {
		t.Errorf("%+v", r)
	}
	refused(a, "the queue pair calls already", abi.AdminOpCMConnect, connect(abi.CMConnect{QPN: a.qpn, Service: service}), abi.StatusBadState)
	refused(a, "to accept an own call", abi.AdminOpCMAccept, &abi.CMAccept{CMID: number, QPN: a.qpn}, abi.StatusBadState)
	refused(a, "to reject an own call", abi.AdminOpCMReject, &abi.CMReject{CMID: number}, abi.StatusBadState)

	for _, id := range []uint32{0, r.Number + 1, 1 << 31} {
		refused(b, "to accept what is not there", abi.AdminOpCMAccept, &abi.CMAccept{CMID: id, QPN: b.qpn}, abi.StatusNotFound)
		refused(b, "to reject what is not there", abi.AdminOpCMReject, &abi.CMReject{CMID: id}, abi.StatusNotFound)
		refused(b, "to end what is not there", abi.AdminOpCMDisconnect, &abi.CMDisconnect{CMID: id}, abi.StatusNotFound)
	}
	refused(b, "to accept with no queue pair", abi.AdminOpCMAccept, &abi.CMAccept{CMID: r.Number, QPN: 77}, abi.StatusNotFound)
	refused(b, "to accept with private data outside of memory", abi.AdminOpCMAccept, &abi.CMAccept{CMID: r.Number, QPN: b.qpn, Priv: nowhere, PrivLen: 8}, abi.StatusMemoryFault)
	refused(b, "to reject with private data outside of memory", abi.AdminOpCMReject, &abi.CMReject{CMID: r.Number, Priv: nowhere, PrivLen: 8}, abi.StatusMemoryFault)
	b.accepts(a, r.Number)
	exchange(t, a, b, 5000)

	refused(b, "to accept twice", abi.AdminOpCMAccept, &abi.CMAccept{CMID: r.Number, QPN: b.qpn}, abi.StatusBadState)
	refused(b, "to reject what is accepted", abi.AdminOpCMReject, &abi.CMReject{CMID: r.Number}, abi.StatusBadState)
	refused(a, "the queue pair is connected", abi.AdminOpCMConnect, connect(abi.CMConnect{QPN: a.qpn, Service: service}), abi.StatusBadState)
	first := a.qpn
	a.createQP()
	refused(a, "from the port of a connection", abi.AdminOpCMConnect, connect(abi.CMConnect{QPN: a.qpn, Service: service, SrcPort: 7000}), abi.StatusAddressInUse)
	_, r = a.calls(b, abi.CMConnect{Service: service})
	refused(b, "to accept with a queue pair that is connected", abi.AdminOpCMAccept, &abi.CMAccept{CMID: r.Number, QPN: b.qpn}, abi.StatusBadState)
	b.must(abi.AdminOpCMReject, &abi.CMReject{CMID: r.Number})
	a.event(abi.EventRejected)
	refused(b, "to reject twice", abi.AdminOpCMReject, &abi.CMReject{CMID: r.Number}, abi.StatusNotFound)

	a.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: first})
	a.event(abi.EventDisconnected)
	b.event(abi.EventDisconnected)
	leavesNothing(t, v, a, b)
}

// TestAFunctionListensTo16ServicesOverIWARP: the next one is refused until one of them ends, and each of them takes calls.
func TestAFunctionListensTo16ServicesOverIWARP(t *testing.T) {
	v, a, b := iwarpDrivers(t)
	for i := range uint64(16) {
		b.must(abi.AdminOpCMListen, &abi.CMListen{Service: 5000 + i})
	}
	if st, _ := b.command(abi.AdminOpCMListen, &abi.CMListen{Service: 5016}); st != abi.StatusNoResources {
		t.Errorf("the 17th: %s", st)
	}
	b.must(abi.AdminOpCMUnlisten, &abi.CMUnlisten{Service: 5003})
	b.must(abi.AdminOpCMListen, &abi.CMListen{Service: 5016})
	for _, s := range []uint64{5000, 5015, 5016} {
		_, r := a.calls(b, abi.CMConnect{Service: s})
		b.must(abi.AdminOpCMReject, &abi.CMReject{CMID: r.Number})
		if e := a.event(abi.EventRejected); e.Status != 0 || r.Service != s {
			t.Errorf("service %d: %+v, %+v", s, r, e)
		}
	}
	leavesNothing(t, v, a, b)
}

// TestACallOverIWARPComesFromAPortThatTheFunctionDoesNotUse: neither from one that it listens to nor from that of another
// call, and from the first again after the last.
func TestACallOverIWARPComesFromAPortThatTheFunctionDoesNotUse(t *testing.T) {
	v, a, b := iwarpDrivers(t)
	b.must(abi.AdminOpCMListen, &abi.CMListen{Service: 5000})
	for _, s := range []uint64{firstLocal, firstLocal + 2, 65535} {
		a.must(abi.AdminOpCMListen, &abi.CMListen{Service: s})
	}
	var from []uint16
	for i := range 4 {
		if i == 2 {
			a.streams().next = 65534 // so many calls later
		}
		if i > 0 {
			a.createQP()
		}
		_, r := a.calls(b, abi.CMConnect{Service: 5000})
		from = append(from, r.PeerPort)
	}
	if want := []uint16{firstLocal + 1, firstLocal + 3, 65534, firstLocal + 4}; !slices.Equal(from, want) {
		t.Errorf("calls come from %v, want %v", from, want)
	}
	for range from {
		a.event(abi.EventRejected) // 10 s later
		b.event(abi.EventDisconnected)
	}
	leavesNothing(t, v, a, b)
}

// TestARequestOverIWARPThatIsNotAnsweredEndsAfter10s: the caller is rejected, the driver that did not answer is told, and its
// answer comes too late. One that came later has its own 10 s. (DEV-973)
func TestARequestOverIWARPThatIsNotAnsweredEndsAfter10s(t *testing.T) {
	v, a, b := iwarpDrivers(t)
	b.must(abi.AdminOpCMListen, &abi.CMListen{Service: 5000})
	late, first := a.calls(b, abi.CMConnect{Service: 5000})
	begun := v.now
	v.idle(6e9)
	a.createQP()
	_, second := a.calls(b, abi.CMConnect{Service: 5000})
	e := a.event(abi.EventRejected)
	if e.Number != late || e.Status != 0 || e.PrivLen != 0 {
		t.Errorf("%+v", e)
	}
	if took := v.now - begun; took < 10e9-1e6 || took > 10e9+10e6 {
		t.Errorf("it took %d ns", took)
	}
	if e := b.event(abi.EventDisconnected); e.Number != first.Number || e.Status != uint32(abi.StatusTimeout) {
		t.Errorf("%+v", e)
	}
	for op, params := range map[abi.AdminOp]marshaler{
		abi.AdminOpCMAccept: &abi.CMAccept{CMID: first.Number, QPN: b.qpn}, abi.AdminOpCMReject: &abi.CMReject{CMID: first.Number}, abi.AdminOpCMDisconnect: &abi.CMDisconnect{CMID: first.Number},
	} {
		if st, _ := b.command(op, params); st != abi.StatusNotFound {
			t.Errorf("%s when it is too late: %s", op, st)
		}
	}
	v.idle(3e9)
	b.accepts(a, second.Number)
	v.idle(15e9) // it does not end any more
	exchange(t, a, b, 5000)
	a.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: a.qpn})
	a.event(abi.EventDisconnected)
	b.event(abi.EventDisconnected)
	leavesNothing(t, v, a, b)
}

// TestACallerOverIWARPThatGoesBeforeTheAnswerIsNotConnected: the driver that was asked is told, its answer comes too late, and
// both can be connected afterwards.
func TestACallerOverIWARPThatGoesBeforeTheAnswerIsNotConnected(t *testing.T) {
	for name, leave := range map[string]func(a *driver, number uint32){
		"disconnects":       func(a *driver, number uint32) { a.must(abi.AdminOpCMDisconnect, &abi.CMDisconnect{CMID: number}) },
		"destroys its QP":   func(a *driver, _ uint32) { a.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: a.qpn}) },
		"moves it to ERR":   func(a *driver, _ uint32) { a.modify(abi.QPStateErr) },
		"moves it to RESET": func(a *driver, _ uint32) { a.modify(abi.QPStateReset) },
		"resets its function": func(a *driver, _ uint32) {
			a.write(abi.RegControl, 4, uint64(abi.ControlReset))
			a.setUp()
		},
	} {
		for _, heard := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, heard %t", name, heard), func(t *testing.T) {
				v, a, b := iwarpDrivers(t)
				b.must(abi.AdminOpCMListen, &abi.CMListen{Service: 5000})
				number, r := a.calls(b, abi.CMConnect{Service: 5000})
				leave(a, number)
				if heard {
					v.idle(1e9)
				}
				st, _ := b.command(abi.AdminOpCMAccept, &abi.CMAccept{CMID: r.Number, QPN: b.qpn})
				if want := map[bool]abi.Status{true: abi.StatusNotFound, false: abi.StatusOK}[heard]; st != want {
					t.Errorf("an answer: %s, want %s", st, want)
				}
				if e := b.event(abi.EventDisconnected); e.Number != r.Number || e.Status != uint32(abi.StatusAborted) {
					t.Errorf("%+v", e)
				}
				v.idle(20e9)
				a.collect()
				if name != "resets its function" && (len(a.async) != 1 || a.async[0].Number != number || !slices.Contains([]abi.EventType{abi.EventUnreachable, abi.EventDisconnected}, a.async[0].Type)) {
					t.Errorf("the caller is told %+v", a.async)
				}
				a.async, b.async = nil, nil
				if !heard {
					b.createQP() // the other is in ERR
				}
				a.createQP()
				_, r = a.calls(b, abi.CMConnect{Service: 5000})
				b.accepts(a, r.Number)
				exchange(t, a, b, 5000)
			})
		}
	}
}

func (d *driver) modify(state abi.QPState) {
	d.v.t.Helper()
	d.must(abi.AdminOpModifyQP, &abi.ModifyQP{QPN: d.qpn, Mask: abi.QPAttrState, State: state})
}

// TestACallOverIWARPThatNobodyAnswersEndsAfterHalfAMinute: to an address of nobody; one to an address of the other family ends at
// once. The queue pair can be connected then.
func TestACallOverIWARPThatNobodyAnswersEndsAfterHalfAMinute(t *testing.T) {
	v, a, b := iwarpDrivers(t)
	nobody, unroutable := b.fn.GID(), b.fn.GID()
	nobody[15] += 100
	unroutable[10], unroutable[11] = 0x20, 0x01 // IPv6
	for _, c := range []struct {
		what  string
		dgid  [16]byte
		want  abi.Status
		after falcon.Time
	}{{"an address of nobody", nobody, abi.StatusUnreachable, 31e9}, {"an address of the other family", unroutable, abi.StatusUnreachable, 1e6}} {
		begun := v.now
		number := binary.LittleEndian.Uint32(a.must(abi.AdminOpCMConnect, &abi.CMConnect{QPN: a.qpn, Service: 5000, DGID: c.dgid}))
		e := a.event(abi.EventUnreachable)
		if e.Number != number || e.QPN != a.qpn || abi.Status(e.Status) != c.want || v.now-begun > c.after {
			t.Errorf("%s: %+v after %d ns", c.what, e, v.now-begun)
		}
	}
	b.must(abi.AdminOpCMListen, &abi.CMListen{Service: 5000})
	_, r := a.calls(b, abi.CMConnect{Service: 5000})
	b.accepts(a, r.Number)
	exchange(t, a, b, 5000)
}

// TestADriverThatTakesNoEventsGetsNoCallsOverIWARP: it may not call, and whoever calls it is rejected. Both go
// on when it has taken them.
func TestADriverThatTakesNoEventsGetsNoCallsOverIWARP(t *testing.T) {
	v, a, b := iwarpDrivers(t)
	b.must(abi.AdminOpCMListen, &abi.CMListen{Service: 5000})
	a.must(abi.AdminOpCMListen, &abi.CMListen{Service: 5000})
	for n := range uint32(5000) {
		b.fn.AsyncEvent(abi.EventSRQLimit, n, 0, "")
	}
	if st, _ := b.command(abi.AdminOpCMConnect, &abi.CMConnect{QPN: b.qpn, Service: 5000, DGID: a.fn.GID()}); st != abi.StatusBusy {
		t.Errorf("a call: %s", st)
	}
	a.must(abi.AdminOpCMConnect, &abi.CMConnect{QPN: a.qpn, Service: 5000, DGID: b.fn.GID()})
	a.event(abi.EventRejected)
	b.collect()
	b.async = nil
	_, r := a.calls(b, abi.CMConnect{Service: 5000})
	b.accepts(a, r.Number)
	exchange(t, a, b, 5000)
	a.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: a.qpn})
	a.event(abi.EventDisconnected)
	b.event(abi.EventDisconnected)
	leavesNothing(t, v, a, b)
}

// TestWhoStopsListeningOverIWARPKeepsWhatItHas: the request that it was told of can be accepted, the connections live
// on, further calls are not taken, and it can listen there again.
func TestWhoStopsListeningOverIWARPKeepsWhatItHas(t *testing.T) {
	v, a, b := iwarpDrivers(t)
	b.must(abi.AdminOpCMListen, &abi.CMListen{Service: 5000})
	_, r := a.calls(b, abi.CMConnect{Service: 5000})
	b.must(abi.AdminOpCMUnlisten, &abi.CMUnlisten{Service: 5000})
	v.idle(1e9)
	b.accepts(a, r.Number)
	exchange(t, a, b, 5000)
	first := [2]uint32{a.qpn, b.qpn}
	a.createQP()
	b.createQP()
	a.must(abi.AdminOpCMConnect, &abi.CMConnect{QPN: a.qpn, Service: 5000, DGID: b.fn.GID()})
	if e := a.event(abi.EventUnreachable); abi.Status(e.Status) != abi.StatusRefused {
		t.Errorf("a call to nobody: %+v", e)
	}
	b.must(abi.AdminOpCMListen, &abi.CMListen{Service: 5000}) // beside the connection
	_, r = a.calls(b, abi.CMConnect{Service: 5000})
	b.accepts(a, r.Number)
	exchange(t, a, b, 5000)
	for _, qpn := range []uint32{first[0], a.qpn} {
		a.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: qpn})
		a.event(abi.EventDisconnected)
		b.event(abi.EventDisconnected)
	}
	leavesNothing(t, v, a, b)
}

// TestEachCallOverIWARPEndsOnce plays two drivers that call, answer, end, destroy and stop listening at random, over a network
// that loses packets: each CMConnect and CMAccept that succeeded ends in exactly one event, is established at most once and
// before that, and nothing is left of any. (DEV-903)
func TestEachCallOverIWARPEndsOnce(t *testing.T) {
	for seed := range uint64(4) {
		v, a, b := iwarpDrivers(t)
		rng := rand.New(rand.NewPCG(seed, 1))
		drivers := []*driver{a, b}
		type life struct{ began, established, ended int }
		lives := [2]map[uint32]*life{{}, {}}
		var asked [2][]uint32
		var qps [2][]uint32
		take := func() {
			for i, d := range drivers {
				d.collect()
				for _, e := range d.async {
					l := lives[i][e.Number]
					switch e.Type {
					case abi.EventConnectRequest:
						lives[i][e.Number] = &life{}
						asked[i] = append(asked[i], e.Number)
					case abi.EventEstablished:
						if l.established++; l.ended > 0 {
							t.Errorf("seed %d: call %d of %d is established after its end", seed, e.Number, i)
						}
					case abi.EventRejected, abi.EventUnreachable, abi.EventDisconnected:
						l.ended++
					}
				}
				d.async = nil
			}
		}
		v.tap = func(_ int, frame []byte) []byte {
			if rng.IntN(30) == 0 {
				return nil
			}
			return frame
		}
		for i, d := range drivers {
			qps[i] = []uint32{d.qpn}
			d.must(abi.AdminOpCMListen, &abi.CMListen{Service: 5000})
		}
		for range 300 {
			i := rng.IntN(2)
			d, to := drivers[i], drivers[1-i]
			qp := rng.IntN(len(qps[i]))
			known := append(slices.Collect(maps.Keys(d.streams().conns)), 0)
			slices.Sort(known)
			id := known[rng.IntN(len(known))]
			switch rng.IntN(10) {
			case 0, 1, 2:
				c := &abi.CMConnect{QPN: qps[i][qp], Service: 5000 + uint64(rng.IntN(8)/7), DGID: to.fn.GID(), SrcPort: uint16(rng.IntN(2) * (6000 + rng.IntN(3)))}
				if st, result := d.command(abi.AdminOpCMConnect, c); st == abi.StatusOK {
					number := binary.LittleEndian.Uint32(result)
					if l := lives[i][number]; l != nil && l.ended == 0 {
						t.Errorf("seed %d: the number %d of a call of %d is in use", seed, number, i)
					}
					lives[i][number] = &life{began: 1}
				}
			case 3, 4, 5:
				if len(asked[i]) > 0 {
					id = asked[i][len(asked[i])-1]
				}
				if st, _ := d.command(abi.AdminOpCMAccept, &abi.CMAccept{CMID: id, QPN: qps[i][qp]}); st == abi.StatusOK {
					lives[i][id].began++
				}
			case 6:
				_, _ = d.command(abi.AdminOpCMReject, &abi.CMReject{CMID: id})
			case 7:
				_, _ = d.command(abi.AdminOpCMDisconnect, &abi.CMDisconnect{CMID: id})
			case 8:
				d.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: qps[i][qp]})
				d.createQP()
				qps[i][qp] = d.qpn
				if len(qps[i]) < 4 {
					d.createQP()
					qps[i] = append(qps[i], d.qpn)
				}
			case 9:
				if st, _ := d.command(abi.AdminOpCMUnlisten, &abi.CMUnlisten{Service: 5000}); st == abi.StatusNotFound {
					d.must(abi.AdminOpCMListen, &abi.CMListen{Service: 5000})
				}
			}
			v.idle([]falcon.Time{0, 100_000, 1_000_000, 1_000_000, 3e9}[rng.IntN(5)])
			take()
		}
		v.tap = nil
		for i, d := range drivers {
			for _, qpn := range qps[i] {
				d.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: qpn})
			}
		}
		v.idle(90e9)
		take()
		made, established := 0, 0
		for i := range lives {
			for number, l := range lives[i] {
				if l.began > 0 && l.ended != 1 || l.ended > 1 || l.established > 1 || l.established > 0 && l.began == 0 {
					t.Errorf("seed %d: call %d of %d: %+v", seed, number, i, *l)
				}
				made, established = made+l.began, established+l.established
			}
		}
		if made < 30 || established < 5 {
			t.Errorf("seed %d: only %d calls and answers, %d established", seed, made, established)
		}
		leavesNothing(t, v, a, b)
	}
}

// TestADisconnectOverIWARPIsNoErrorAtThePeer: a driver that ends a connection whose work is done ends it in
// order, and no queue pair hears of a fault.
func TestADisconnectOverIWARPIsNoErrorAtThePeer(t *testing.T) {
	v, a, b := iwarpDrivers(t)
	b.must(abi.AdminOpCMListen, &abi.CMListen{Service: 5000})
	number, r := a.calls(b, abi.CMConnect{Service: 5000})
	b.accepts(a, r.Number)
	exchange(t, a, b, 5000)
	a.must(abi.AdminOpCMDisconnect, &abi.CMDisconnect{CMID: number})
	v.idle(1e9)
	for i, d := range []*driver{a, b} {
		d.collect()
		for _, e := range d.async {
			if e.Type == abi.EventQPFatal {
				t.Errorf("end %d: its queue pair has failed, status %d", i, e.Status)
			}
		}
	}
}
