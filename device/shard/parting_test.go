package shard

import (
	"testing"

	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestPartInPeace checks that requests that the peer's driver has received complete with success,
// although the acknowledgements were lost and the peer ends the connection right away, and that
// others are flushed. It tests each way to end a connection, for connections made by connection
// management and for wired queue pairs. (DEV-905, DEV-912)
func TestPartInPeace(t *testing.T) {
	for name, end := range map[string]func(b *driver, id uint32){
		"CMDisconnect":   func(b *driver, id uint32) { b.must(abi.AdminOpCMDisconnect, &abi.CMDisconnect{CMID: id}) },
		"DestroyQP":      func(b *driver, _ uint32) { b.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: b.qpn}) },
		"ModifyQP RESET": func(b *driver, _ uint32) { b.state(abi.QPStateReset) },
		"ModifyQP ERR":   func(b *driver, _ uint32) { b.state(abi.QPStateErr) },
	} {
		for _, wired := range []bool{false, true} {
			if wired && name == "CMDisconnect" {
				continue
			}
			t.Run(name+map[bool]string{true: ", wired"}[wired], func(t *testing.T) {
				v := newVirtual(t, 1, wire100us)
				var a, b *driver
				var id uint32
				if wired {
					a, b = drivers(v)
					wiredPair(v, a, b, false)
				} else {
					a, b = pair(v)
					id = b.connID()
				}
				v.idle(10e6)
				v.tap = func(from int, frame []byte) []byte {
					if from == 1 {
						return nil
					}
					return frame
				}
				const delivered = 4
				for i := range delivered {
					b.receive(4096*i, 4096)
					a.send(abi.OpSend, 0, 100, b, 0)
				}
				for i := range delivered {
					if cqe := b.done(); cqe.Status != abi.WCSuccess {
						t.Fatalf("receive %d: %s", i, cqe.Status)
					}
				}
				a.send(abi.OpSend, 0, 100, b, 0) // there is no receive for it
				v.idle(1e6)
				end(b, id)
				v.tap = nil
				start := v.now
				for i := range delivered {
					if cqe := a.done(); cqe.Status != abi.WCSuccess {
						t.Errorf("request %d: %s", i, cqe.Status)
					}
				}
				want := abi.WCWRFlushErr
				if wired {
					want = abi.WCRetryExcErr
				}
				if cqe := a.done(); cqe.Status != want {
					t.Errorf("what was not received: %s, want %s", cqe.Status, want)
				}
				if took := v.now - start; took > 2*conn.PartTime {
					t.Errorf("took %d ms", took/1e6)
				}
				if !wired {
					a.event(abi.EventDisconnected)
				}
				settled(t, v)
			})
		}
	}
}

// state moves the driver's queue pair to a state.
func (d *driver) state(to abi.QPState) {
	d.v.t.Helper()
	d.must(abi.AdminOpModifyQP, &abi.ModifyQP{QPN: d.qpn, Mask: abi.QPAttrState, State: to})
}

// TestPartingEndsWithItsFunction checks that a reset leaves no connection behind, whichever side
// ended it. (DEV-303)
func TestPartingEndsWithItsFunction(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	a, b := pair(v)
	b.must(abi.AdminOpCMDisconnect, &abi.CMDisconnect{CMID: b.connID()})
	a.event(abi.EventDisconnected)
	b.event(abi.EventDisconnected)
	if v.shards[1].falcon.Stats().Conns != 1 {
		t.Fatal("the side that ended it does not wait: the test tests nothing")
	}
	b.write(abi.RegControl, 4, uint64(abi.ControlReset))
	if n := v.shards[1].falcon.Stats().Conns; n != 0 {
		t.Errorf("%d transport connections after the reset", n)
	}
	settled(t, v)
}

// TestAttributesEndNothing checks that a ModifyQP without a state in its mask ends no connection,
// whatever its state field holds, and that a refused one ends none either.
func TestAttributesEndNothing(t *testing.T) {
	for name, connect := range map[string]func(v *virtual) (a, b *driver){
		"wired": func(v *virtual) (a, b *driver) {
			a, b = drivers(v)
			wiredPair(v, a, b, false)
			return a, b
		},
		"by connection management": pair,
	} {
		t.Run(name, func(t *testing.T) {
			v := newVirtual(t, 1, wire100us)
			a, b := connect(v)
			for _, state := range []abi.QPState{abi.QPStateReset, abi.QPStateErr} {
				b.must(abi.AdminOpModifyQP, &abi.ModifyQP{QPN: b.qpn, Mask: abi.QPAttrTimeout, Timeout: 14, State: state})
			}
			refused := &abi.ModifyQP{QPN: b.qpn, Mask: abi.QPAttrState | abi.QPAttrTimeout, Timeout: 99, State: abi.QPStateErr}
			if st, _ := b.command(abi.AdminOpModifyQP, refused); st == abi.StatusOK {
				t.Fatal("a timeout of 99 was taken")
			}
			v.idle(10e6)
			b.receive(0, 4096)
			a.send(abi.OpSend, 0, 100, b, 0)
			if got, sent := b.done().Status, a.done().Status; got != abi.WCSuccess || sent != abi.WCSuccess {
				t.Errorf("received: %s, sent: %s", got, sent)
			}
		})
	}
}
