package shard

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Tests of a guest that attacks its neighbours with everything that the ABI allows it to send. The
// attack may affect its own function only: the bystander's memory, keys, queue pairs, events and
// credits do not change, and its traffic goes on.

// attacked is a working pair of functions, with a copy of their state before an attack.
type attacked struct {
	a, b   *driver
	memory []byte
	events int
	resets uint64
}

func newAttacked(v *virtual) *attacked {
	v.t.Helper()
	x := &attacked{}
	x.a, x.b = pair(v)
	x.traffic(v)
	x.a.collect()
	x.memory, x.events, x.resets = bytes.Clone(x.a.mem), len(x.a.async), x.a.fn.Lifecycle.Resets()
	return x
}

// traffic does one WRITE each way.
func (x *attacked) traffic(v *virtual) {
	v.t.Helper()
	x.a.send(abi.OpWrite, 0, 8192, x.b, 0)
	if cqe := x.a.done(); cqe.Status != abi.WCSuccess {
		v.t.Fatalf("the bystander's WRITE: %s", cqe.Status)
	}
}

// unharmed compares the bystander with its copy and runs its traffic again.
func (x *attacked) unharmed(v *virtual, attack string) {
	v.t.Helper()
	x.a.collect()
	switch f := x.a.fn; {
	case !bytes.Equal(x.memory, x.a.mem):
		v.t.Errorf("%s: the bystander's memory changed", attack)
	case len(x.a.async) != x.events:
		v.t.Errorf("%s: the bystander got events %+v", attack, x.a.async[x.events:])
	case f.Lifecycle.State() != abi.StateReady || f.Lifecycle.Resets() != x.resets:
		v.t.Errorf("%s: the bystander is in %s", attack, f.Lifecycle.State())
	case f.Credits.InUse() != (credit.Cost{}):
		v.t.Errorf("%s: the bystander holds credits %v", attack, f.Credits.InUse())
	}
	x.traffic(v)
	x.memory = bytes.Clone(x.a.mem)
}

// TestAttackByNumbers uses the numbers of the bystander's objects, which it knows, from another
// function of the same NIC.
func TestAttackByNumbers(t *testing.T) {
	v := newVirtual(t, 40, wire100us)
	x := newAttacked(v)
	var cm uint32
	for _, id := range x.a.fn.conns.IDs() {
		cm = id
	}
	d := newDriver(v, 0, 2)
	fresh := func() {
		d.write(abi.RegControl, 4, uint64(abi.ControlReset))
		clear(d.mem)
		d.enable()
	}
	fresh()
	for name, attack := range map[string]func() abi.Status{
		"DeallocPD":    func() abi.Status { st, _ := d.command(abi.AdminOpDeallocPD, &abi.DeallocPD{PDN: x.a.pdn}); return st },
		"DeregMR":      func() abi.Status { st, _ := d.command(abi.AdminOpDeregMR, &abi.DeregMR{LKey: x.a.lkey}); return st },
		"DestroyCQ":    func() abi.Status { st, _ := d.command(abi.AdminOpDestroyCQ, &abi.DestroyCQ{CQN: x.a.cqn}); return st },
		"DestroyQP":    func() abi.Status { st, _ := d.command(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: x.a.qpn}); return st },
		"QueryQP":      func() abi.Status { st, _ := d.command(abi.AdminOpQueryQP, &abi.QueryQP{QPN: x.a.qpn}); return st },
		"CMDisconnect": func() abi.Status { st, _ := d.command(abi.AdminOpCMDisconnect, &abi.CMDisconnect{CMID: cm}); return st },
		"CMReject":     func() abi.Status { st, _ := d.command(abi.AdminOpCMReject, &abi.CMReject{CMID: cm}); return st },
		"CMUnlisten":   func() abi.Status { st, _ := d.command(abi.AdminOpCMUnlisten, &abi.CMUnlisten{Service: 99}); return st },
		"ModifyQP": func() abi.Status {
			st, _ := d.command(abi.AdminOpModifyQP, &abi.ModifyQP{QPN: x.a.qpn, Mask: abi.QPAttrState, State: abi.QPStateErr})
			return st
		},
		"CreateQP": func() abi.Status {
			st, _ := d.command(abi.AdminOpCreateQP, &abi.CreateQP{
				PDN: x.a.pdn, SendCQ: x.a.cqn, RecvCQ: x.a.cqn, Type: abi.QPTypeRC, SQLog2Entries: 2, RQLog2Entries: 2, SQLog2Stride: 7, RQLog2Stride: 5,
				MaxSendSGE: 1, MaxRecvSGE: 1, SQLevels: 1, RQLevels: 1, SQPages: d.list(0, 64, 1), RQPages: d.list(1, 66, 1),
			})
			return st
		},
	} {
		if st := attack(); st != abi.StatusNotFound {
			t.Errorf("%s of another function's object: %s", name, st)
		}
		x.unharmed(v, name)
	}
	for name, bell := range map[string]abi.Doorbell{
		"SQ doorbell": {Kind: abi.DoorbellSQ, Queue: x.a.qpn, Index: 9},
		"RQ doorbell": {Kind: abi.DoorbellRQ, Queue: x.a.qpn, Index: 9},
		"CQ arming":   {Kind: abi.DoorbellCQArm, Queue: x.a.cqn, Index: 0},
	} {
		fresh()
		d.ch.Ring(bell.Kind, bell.Queue, bell.Index)
		v.step()
		if state := d.fn.Lifecycle.State(); state != abi.StateReady { // DEV-801: it has no effect
			t.Errorf("%s for another function's queue: %s", name, state)
		}
		x.unharmed(v, name)
	}
}

// TestAttackByKeys uses the bystander's keys: locally, where they are not valid, and at a peer of
// the attacker's own, which has not issued them.
func TestAttackByKeys(t *testing.T) {
	v := newVirtual(t, 41, wire100us)
	x := newAttacked(v)
	// The attackers' keys must differ from the bystanders', or using those would be legal.
	d, e := newDriver(v, 0, 2), newDriver(v, 1, 2)
	for _, y := range []*driver{d, e} {
		y.enable()
		y.must(abi.AdminOpAllocPD, nil)
		for range 3 {
			y.must(abi.AdminOpRegMR, &abi.RegMR{PDN: 1, Access: abi.AccessLocalWrite, IOVA: y.addr(300), Length: pageSize, Pages: y.list(0, 300, 1), Levels: 1})
		}
		y.must(abi.AdminOpDeregMR, &abi.DeregMR{LKey: x.a.lkey})
		y.objects()
	}
	service := uint64(7)
	again := func() {
		d.createQP()
		e.createQP()
		d.connectTo(e, service)
		service++
	}
	d.connectTo(e, service)
	service++
	remote := bytes.Clone(x.b.mem)
	for name, attack := range map[string]func() abi.WCStatus{
		"local key": func() abi.WCStatus {
			mine := d.lkey
			d.lkey = x.a.lkey
			d.send(abi.OpWrite, 0, 64, e, 0)
			d.lkey = mine
			return d.done().Status
		},
		"remote key, READ": func() abi.WCStatus {
			theirs := *e
			theirs.rkey = x.b.rkey
			d.send(abi.OpRead, 0, 64, &theirs, 0)
			return d.done().Status
		},
		"remote key, WRITE": func() abi.WCStatus {
			theirs := *e
			theirs.rkey = x.b.rkey
			d.send(abi.OpWrite, 0, 64, &theirs, 0)
			return d.done().Status
		},
	} {
		if st := attack(); st != abi.WCLocProtErr && st != abi.WCRemAccessErr {
			t.Errorf("%s: %s", name, st)
		}
		x.unharmed(v, name)
		v.idle(1e9)
		d.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: d.qpn})
		e.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: e.qpn})
		clear(d.page(pageSQ)[:4*pageSize])
		clear(e.page(pageSQ)[:4*pageSize])
		clear(d.page(pageRQ)[:pageSize])
		clear(e.page(pageRQ)[:pageSize])
		again()
	}
	if i := pageData * pageSize; !bytes.Equal(remote[:i/2], x.b.mem[:i/2]) {
		t.Error("the memory of the bystander's peer changed")
	}
}

// TestAttackOtherTenant connects to an address that another tenant has too, and to one that only
// another tenant has.
func TestAttackOtherTenant(t *testing.T) {
	v := newVirtual(t, 42, wire100us)
	x := newAttacked(v)
	x.b.must(abi.AdminOpCMListen, &abi.CMListen{Service: 5})
	d := newDriver(v, 0, 4) // tenant 8, with the address of VF 1
	d.setUp()
	for _, to := range []*driver{x.a, x.b} {
		if st, _ := d.command(abi.AdminOpCMConnect, &abi.CMConnect{QPN: d.qpn, Service: 5, DGID: to.fn.GID()}); st != abi.StatusUnreachable && st != abi.StatusOK {
			t.Errorf("connect to %s: %s", to.fn.ID, st)
		}
		v.idle(1e9)
	}
	x.unharmed(v, "connect across tenants")
	x.b.collect()
	for _, e := range x.b.async {
		if e.Type == abi.EventConnectRequest {
			t.Errorf("a request of another tenant arrived: %+v", e)
		}
	}
}

// TestAttackByFaults stops its own function by every fault, again and again, and fills every
// bounded queue: a WRITE of the bystander takes no longer than without.
func TestAttackByFaults(t *testing.T) {
	v := newVirtual(t, 43, wire100us)
	x := newAttacked(v)
	timed := func() falcon.Time {
		start := v.now
		x.traffic(v)
		return v.now - start
	}
	alone := timed()
	d := newDriver(v, 0, 2)
	r := rand.New(rand.NewPCG(1, 2))
	faults := 0
	for range 300 {
		if d.fn.Lifecycle.State() != abi.StateReset {
			if d.fn.Lifecycle.State() == abi.StateError {
				faults++
			}
			d.write(abi.RegControl, 4, uint64(abi.ControlReset))
		}
		d.enable()
		for range 20 {
			it := guest.Request{Kind: guest.RequestKind(r.IntN(3)), Tag: 1, Offset: uint32(r.IntN(0x200)), Width: 4 << r.IntN(2), Value: r.Uint64()}
			it.Doorbell = abi.Doorbell{Kind: abi.DoorbellKind(r.IntN(5)), Queue: uint32(r.IntN(8)), Index: r.Uint32()}
			if it.Kind == guest.RegWrite && it.Offset == abi.RegControl {
				continue
			}
			d.ch.Ask(it)
		}
		for i := range d.page(pageAdminSQ)[:pageSize] {
			d.page(pageAdminSQ)[i] = byte(r.Uint32())
		}
		x.a.send(abi.OpWrite, 0, 8192, x.b, 0) // under way while the attack is handled
		if cqe := x.a.done(); cqe.Status != abi.WCSuccess {
			t.Fatal(cqe.Status)
		}
		d.collect()
	}
	if faults < 100 {
		t.Errorf("only %d faults", faults)
	}
	x.a.collect()
	x.events = len(x.a.async)
	x.memory = bytes.Clone(x.a.mem)
	x.unharmed(v, "faults")
	if beside := timed(); beside > alone*11/10 {
		t.Errorf("a WRITE takes %d ns, alone %d", beside, alone)
	}
	if n := v.shards[0].guests.Unfinished(); n > 1 {
		t.Errorf("%d entries left in the shard's lists", n)
	}
}

// arpReply returns an ARP reply to a NIC, sent by a host with this MAC in the name of the other
// NIC.
func arpReply(v *virtual, nic int, mac [6]byte) []byte {
	to, of := v.shards[nic].cfg.Uplink, v.shards[1-nic].cfg.Uplink
	f := append(append(to.MAC[:len(to.MAC):len(to.MAC)], mac[:]...), 8, 6, 0, 1, 8, 0, 6, 4, 0, 2)
	f = append(append(f, mac[:]...), of.Address.Addr().AsSlice()...)
	return append(append(f, to.MAC[:]...), to.Address.Addr().AsSlice()...)
}

// TestForgedARPDoesNotMoveAPeer lets a host on the underlay answer ARP in a peer's name. The peer's address
// stays the one from which its packets authenticate.
func TestForgedARPDoesNotMoveAPeer(t *testing.T) {
	thief := [6]byte{2, 0xbd, 0, 0, 0, 0x66}
	write := func(t *testing.T, v *virtual, a, b *driver, within falcon.Time) {
		t.Helper()
		began := v.now
		a.send(abi.OpWrite, 0, 4096, b, 0)
		if cqe := a.done(); cqe.Status != abi.WCSuccess {
			t.Fatalf("WRITE: %s", cqe.Status)
		}
		if took := v.now - began; took > within {
			t.Errorf("a WRITE took %d µs", took/1000)
		}
	}
	t.Run("while packets pass", func(t *testing.T) {
		v := newVirtual(t, 51, wire100us)
		a, b := pair(v)
		write(t, v, a, b, 1e6)
		for range 50 {
			v.inject(0, arpReply(v, 0, thief))
			v.inject(1, arpReply(v, 1, thief))
			write(t, v, a, b, 1e6)
			v.idle(500e6)
		}
		for i := range v.nics { // a frame to a shard that does not know the peer is no claim of its address
			n := v.sum(i, func(s *Shard) uint64 { return s.uplink.underlay.Stats()[underlay.Claim] })
			if n > 50 || n < 50 && len(v.nics[i]) == 1 || n == 0 {
				t.Errorf("NIC %d counted %d claims, want 50", i, n)
			}
		}
	})
	t.Run("while nothing passes", func(t *testing.T) {
		v := newVirtual(t, 52, wire100us)
		a, b := pair(v)
		for range 5 {
			write(t, v, a, b, 1e9)
			v.idle(40e9)
			for range 20 {
				v.inject(0, arpReply(v, 0, thief))
				v.idle(30e6)
			}
		}
	})
	t.Run("before the peer answers", func(t *testing.T) {
		v := newVirtual(t, 53, wire100us)
		a, b := pair(v)
		v.idle(100e9) // the neighbours are forgotten
		answers := 0
		v.tap = func(from int, f []byte) []byte {
			if from == 1 && binary.BigEndian.Uint16(f[12:]) == 0x0806 && f[21] == 2 {
				answers++
				v.links[1].Send(v.now, arpReply(v, 0, thief))
			}
			return f
		}
		write(t, v, a, b, 1e9)
		write(t, v, a, b, 1e6)
		if answers == 0 {
			t.Error("nobody was asked")
		}
	})
	t.Run("with a packet of the peer's", func(t *testing.T) {
		v := newVirtual(t, 54, wire100us)
		a, b := pair(v)
		var seen []byte
		v.tap = func(from int, f []byte) []byte {
			if from == 1 && binary.BigEndian.Uint16(f[12:]) == 0x0800 {
				seen = bytes.Clone(f)
			}
			return f
		}
		for range 20 {
			write(t, v, a, b, 1e6)
			copy(seen[6:], thief[:])
			v.inject(0, arpReply(v, 0, thief))
			v.inject(0, bytes.Clone(seen))
		}
		write(t, v, a, b, 1e6)
	})
	t.Run("the peer moves", func(t *testing.T) {
		v := newVirtual(t, 55, wire100us)
		a, b := pair(v)
		write(t, v, a, b, 1e6)
		moved := [6]byte{2, 0xbd, 0, 0, 0, 0x77}
		v.tap = func(from int, f []byte) []byte {
			f = bytes.Clone(f)
			switch {
			case from == 1:
				copy(f[6:], moved[:])
			case bytes.Equal(f[:6], moved[:]):
				copy(f, v.shards[1].cfg.Uplink.MAC[:])
			case f[0]&1 == 0:
				return nil // the other side is gone
			}
			return f
		}
		v.inject(0, arpReply(v, 0, moved))
		b.send(abi.OpWrite, 0, 4096, a, 0)
		if cqe := b.done(); cqe.Status != abi.WCSuccess {
			t.Fatalf("WRITE: %s", cqe.Status)
		}
		write(t, v, a, b, 1e6)
	})
}

// put puts a complete frame of the function's guest into a port.
func (v *virtual) put(nic, port int, dst [6]byte, etherType uint16, packet []byte, off gateway.Offload) {
	p := v.portAt(nic, port)
	f := append(append(dst[:len(dst):len(dst)], p.MAC[:]...), byte(etherType>>8), byte(etherType))
	v.ports[nic] = append(v.ports[nic], gateway.PortInput{From: p.Endpoint, Frame: append(f, packet...), Offload: off})
}

// dhcpDiscover returns a packet with a DHCP message of a client with this MAC, whose last option
// claims a length of n bytes.
func dhcpDiscover(mac [6]byte, n uint8) []byte {
	b := make([]byte, 28+240)
	b[0], b[8], b[9] = 0x45, 64, 17
	copy(b[16:], []byte{255, 255, 255, 255})
	m := b[28:]
	m[0], m[1], m[2] = 1, 1, 6
	copy(m[28:], mac[:])
	copy(m[236:], []byte{99, 130, 83, 99})
	b = append(b, 53, 1, 1, 12, n)
	b = append(b, make([]byte, n)...)
	b = append(b, 255)
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	binary.BigEndian.PutUint16(b[20:], 68)
	binary.BigEndian.PutUint16(b[22:], 67)
	binary.BigEndian.PutUint16(b[24:], uint16(len(b)-20))
	devicetest.FinishHeader(b[:20])
	return b
}

// TestDHCPOptionsOfAllLengthsGetAnAnswer sends DHCP options of all lengths, from a guest of a NIC that others use too.
func TestDHCPOptionsOfAllLengthsGetAnAnswer(t *testing.T) {
	v := newPortWorld(t, 31)
	all := [6]byte{255, 255, 255, 255, 255, 255}
	for n := range 256 {
		v.put(0, 0, all, 0x0800, dhcpDiscover(v.portAt(0, 0).MAC, uint8(n)), gateway.Offload{})
		if got := v.received(0); len(got) != 1 {
			t.Errorf("option of %d bytes: %d answers", n, len(got))
		}
	}
	v.say(0, 1, host1, host2, 1000)
	if len(v.received(1)) != 1 {
		t.Error("another function's traffic does not pass")
	}
}

// TestAttackChecksumOverAddress: a guest requests checksums at any offset, with data chosen such
// that the checksum changes the end of its address to a neighbour's. The peer's guest gets packets
// from the function's own address only.
func TestAttackChecksumOverAddress(t *testing.T) {
	const neighbour = 0x13 // fd00:100::13
	v := newPortWorldWith(t, 32, func(i int, c *config.Config) {
		if i == 0 {
			devicetest.AddPort(c, 1, &config.Port{Name: "vp2", Addresses: devicetest.Addrs("fd00:100::13")})
		}
	})
	v.ports[0] = nil
	own := v.portAt(0, 0)
	src, dst := netip.MustParseAddr("fd00:100::11"), netip.MustParseAddr("fd00:100::21")
	arrived := 0
	for start := 14; start < 14+40+24; start++ {
		for at := range uint16(26) {
			b := make([]byte, 40+24)
			b[0], b[6], b[7] = 0x60, 17, 64
			binary.BigEndian.PutUint16(b[4:], 24)
			s, d := src.As16(), dst.As16()
			copy(b[8:], s[:])
			copy(b[24:], d[:])
			binary.BigEndian.PutUint16(b[44:], 24)
			sum := uint32(0)
			for i := start - 14; i+1 < len(b); i += 2 {
				sum += uint32(binary.BigEndian.Uint16(b[i:]))
			}
			binary.BigEndian.PutUint16(b[62-start%2:], uint16((2*0xffff-neighbour-sum%0xffff)%0xffff))
			v.put(0, 0, own.Gateway, 0x86dd, b, gateway.Offload{NeedsCsum: true, CsumStart: uint16(start), CsumOffset: at})
			for _, f := range v.received(1) {
				arrived++
				if from := netip.AddrFrom16([16]byte(f[22:38])); from != src {
					t.Errorf("checksum from %d on, at +%d: the peer's guest got a packet from %s", start, at, from)
				}
			}
		}
	}
	if arrived == 0 {
		t.Error("nothing arrived")
	}
}

// The objects that a function can leave behind are bounded in every state, and never take the last
// of what others need.

// TestAttackConnectionIDs: VFs that connect and disconnect without pause leave resting connections
// behind, limited per peer NIC and per VF. Another VF connects as often as it likes.
func TestAttackConnectionIDs(t *testing.T) {
	for _, inside := range []bool{false, true} {
		for _, qps := range []uint32{0, 4000} { // 0: the default limits
			t.Run(fmt.Sprintf("inside=%v qp=%d", inside, qps), func(t *testing.T) {
				v := newVirtualWith(t, 41, sim.Impairment{Delay: 1000}, func(_ int, c *config.Config) {
					for i := range c.Functions[0].VFs {
						c.Functions[0].VFs[i].Limits.QP, c.Functions[0].VFs[i].Limits.AH = qps, qps
					}
				})
				honest, peer := drivers(v)
				s := v.shards[0]
				for _, vf := range []int{2, 3} {
					rude := newDriver(v, 0, vf)
					rude.setUp()
					to := peer.fn.GID()
					if inside {
						to = honest.fn.GID()
					}
					for range conn.MaxSlots {
						id, err := v.core(s).Manager.CM.Connect(v.now, cm.ConnectRequest{
							Function: uint32(rude.fn.ID), Tenant: rude.fn.Tenant, QPN: rude.qpn, Service: 1, SGID: rude.fn.GID(), DGID: to,
						})
						if err != nil && !errors.Is(err, cm.ErrLimit) && !errors.Is(err, conn.ErrNoCID) {
							t.Fatal(err)
						}
						if err == nil {
							_ = v.core(s).Manager.CM.Disconnect(v.now, uint32(rude.fn.ID), id)
						}
						if inside {
							v.core(s).Manager.Run(v.now)
							continue
						}
						for o := (cm.Output{}); v.core(s).Manager.CM.Next(&o); { // no message arrives
						}
					}
					if n, quota := v.core(s).Manager.CIDs(uint32(rude.fn.ID)); n > quota || n > conn.MaxSlots*3/4 {
						t.Errorf("%s holds %d connection identifiers, %d are its quota", rude.fn.ID, n, quota)
					}
				}
				peer.must(abi.AdminOpCMListen, &abi.CMListen{Service: 9})
				for i := range 230 {
					st, _ := honest.command(abi.AdminOpCMConnect, &abi.CMConnect{QPN: honest.qpn, Service: 9, DGID: peer.fn.GID()})
					if st != abi.StatusOK {
						t.Fatalf("the honest function's connect %d: %s", i, st)
					}
					e := peer.event(abi.EventConnectRequest)
					peer.must(abi.AdminOpCMReject, &abi.CMReject{CMID: e.Number})
					honest.event(abi.EventRejected)
				}
				v.idle(10e9)
				if n := v.core(s).Manager.CIDsInUse(); n != 0 {
					t.Errorf("%d connection identifiers are never given back", n)
				}
			})
		}
	}
}
