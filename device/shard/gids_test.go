package shard

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon/cm"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// linkLocal returns the link-local GID of the driver's function.
func (d *driver) linkLocal() [16]byte {
	m := d.fn.MAC
	return [16]byte{0xfe, 0x80, 8: m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]}
}

// gid4 returns an IPv4 address as a GID.
func gid4(text string) [16]byte { return netip.MustParseAddr(text).As16() }

// name adds a GID and makes the driver's queue pairs send from it.
func (d *driver) name(index uint16, gid [16]byte) {
	d.v.t.Helper()
	d.must(abi.AdminOpAddGID, &abi.GIDEntry{Index: index, GID: gid, VLAN: abi.NoVLAN})
	d.path.SGIDIndex = uint8(index)
}

// trusted lets the drivers of both NICs add any address.
func trusted(_ int, c *config.Config) {
	for i := range c.Functions[0].VFs {
		c.Functions[0].VFs[i].Trust = true
	}
}

// TestWiredByGIDs connects queue pairs by the link-local GIDs of both functions, with either side
// first. Packets inside the seal have those addresses. A queue pair and its peer have addresses of
// one version of IP. (DEV-910, DEV-946, DEV-949)
func TestWiredByGIDs(t *testing.T) { eachShards(t, testWiredByGIDs) }

func testWiredByGIDs(t *testing.T) {
	eachDistance(t, func(t *testing.T) {
		for _, reverse := range []bool{false, true} {
			for _, pause := range []bool{false, true} {
				v := newVirtual(t, 1, wire100us)
				a, b := drivers(v)
				if reverse {
					a, b = b, a
				}
				a.name(3, a.linkLocal())
				b.name(7, b.linkLocal())
				if st, _ := a.command(abi.AdminOpModifyQP, &abi.ModifyQP{
					QPN: a.qpn, State: abi.QPStateRTR, PathMTU: abi.MTU1024, DestQPN: b.qpn, DGID: b.fn.GID(), SGIDIndex: 3, MaxDestRdAtomic: 4, MinRNRTimer: 12,
					Mask: abi.QPAttrState | abi.QPAttrAV | abi.QPAttrPathMTU | abi.QPAttrDestQPN | abi.QPAttrRQPSN | abi.QPAttrMaxDestRdAtomic | abi.QPAttrMinRNRTimer,
				}); st != abi.StatusInvalidArgument {
					t.Errorf("from an IPv6 address to an IPv4 one: %s", st)
				}
				wiredBy(v, a, b, a.linkLocal(), b.linkLocal(), pause)
				exchange(t, a, b, 50_000)
				exchange(t, b, a, 3000)
				a.noEvents()
				b.noEvents()
				a.shard().falcon.table.Each(func(c *conn.Slot) {
					if c.Owner.Function != a.fn.Device.Function {
						return
					}
					if want := (underlay.Inner{Src: netip.AddrFrom16(a.linkLocal()), Dst: netip.AddrFrom16(b.linkLocal())}); c.Inner != want {
						t.Errorf("inner header %+v, want %+v", c.Inner, want)
					}
				})
				for _, d := range []*driver{a, b} {
					d.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: d.qpn})
				}
				settled(t, v)
			}
		}
	})
}

// TestWiredByAnotherGID checks that a queue pair gets no connection if its peer sends from another
// address than the one it names, even if both addresses belong to one function.
func TestWiredByAnotherGID(t *testing.T) {
	eachDistance(t, func(t *testing.T) {
		for _, reverse := range []bool{false, true} {
			v := newVirtualWith(t, 1, wire100us, trusted)
			a, b := drivers(v)
			if reverse {
				a, b = b, a
			}
			b.name(1, gid4("192.168.100.99"))
			b.path.SGIDIndex = 0
			a.toRTR(b.qpn, gid4("192.168.100.99"))
			a.toRTS()
			b.toRTR(a.qpn, a.fn.GID())
			b.toRTS()
			a.send(abi.OpWrite, 0, 100, b, 0)
			if cqe := a.done(); cqe.Status != abi.WCRetryExcErr {
				t.Errorf("%s", cqe.Status)
			}
		}
	})
}

// TestDatagramsFromGIDs checks that a datagram to a GID that was added arrives and shows the GID
// that its sender named, and that other datagrams of the same queue pair show theirs. (DEV-949)
func TestDatagramsFromGIDs(t *testing.T) { eachShards(t, testDatagramsFromGIDs) }

func testDatagramsFromGIDs(t *testing.T) {
	eachDistance(t, func(t *testing.T) {
		v := newVirtualWith(t, 1, wire100us, trusted)
		a, b := drivers(v)
		a.createUD(b.fn.GID(), 0, 0)
		b.createUD(a.fn.GID(), 0, 0)
		const other = "192.168.100.77"
		a.name(3, a.linkLocal())
		a.name(4, gid4(other))
		b.name(1, b.linkLocal())
		v.idle(2 * cmDelay) // the other NIC learns them
		for round := range 2 {
			for index, c := range map[uint8]struct{ from, to [16]byte }{
				0: {a.fn.GID(), b.fn.GID()}, 3: {a.linkLocal(), b.linkLocal()}, 4: {gid4(other), b.fn.GID()},
			} {
				in := abi.CreateAH{PDN: a.pdn, DGID: c.to, SGIDIndex: index}
				var out abi.CreateAHResult
				out.Unmarshal(a.must(abi.AdminOpCreateAH, &in))
				b.receive(8192, 4096)
				a.datagram(out.AHN, b.qpn, 100)
				if cqe := a.done(); cqe.Status != abi.WCSuccess {
					t.Fatal(cqe.Status)
				}
				cqe := b.done()
				h := b.data()[8192:][:40]
				from, to := h[8:24], h[24:40]
				if netip.AddrFrom16(c.to).Is4In6() {
					from, to = h[32:36], h[36:40]
				}
				if cqe.Status != abi.WCSuccess || string(from) != string(c.from[16-len(from):]) || string(to) != string(c.to[16-len(to):]) {
					t.Errorf("round %d, entry %d: %s, GRH % x", round, index, cqe.Status, h)
				}
				in.DGID, in.SGIDIndex = b.fn.GID(), 3
				if st, _ := a.command(abi.AdminOpCreateAH, &in); st != abi.StatusInvalidArgument {
					t.Errorf("from an IPv6 address to an IPv4 one: %s", st)
				}
			}
		}
		a.noEvents()
		b.noEvents()
	})
}

// TestNoTwoFunctionsOfATenantShareAnAddress checks that no function can have an address of another one of its tenant, here or at
// a peer, enabled or not, that a removed address is free, and that no setting can use one that a
// driver has added. (DEV-949)
func TestNoTwoFunctionsOfATenantShareAnAddress(t *testing.T) { eachShards(t, testGIDTaken) }

func testGIDTaken(t *testing.T) {
	v := newVirtualWith(t, 1, wire100us, trusted)
	a, b, far := newDriver(v, 0, 1), newDriver(v, 0, 2), newDriver(v, 1, 1)
	for _, d := range []*driver{a, b, far} {
		d.enable()
	}
	add := func(what string, d *driver, index uint16, gid [16]byte, want abi.Status) {
		t.Helper()
		if st, _ := d.command(abi.AdminOpAddGID, &abi.GIDEntry{Index: index, GID: gid}); st != want {
			t.Errorf("%s: %s, want %s", what, st, want)
		}
	}
	add("that of a neighbour", a, 1, b.fn.GID(), abi.StatusAddressInUse)
	add("that of one nobody drives", a, 1, v.function(0, 3).GID(), abi.StatusAddressInUse)
	add("that of a peer's function", a, 1, far.fn.GID(), abi.StatusAddressInUse)
	x, y := gid4("192.168.100.99"), gid4("192.168.100.98")
	add("free", a, 1, x, abi.StatusOK)
	v.idle(1e9)
	add("added by a neighbour", b, 1, x, abi.StatusAddressInUse)
	add("added by a peer's function", far, 1, x, abi.StatusAddressInUse)
	var refused error
	v.cores[0].Operate(v.function(0, 3).ID, &control.FunctionChange{Set: map[string]string{"address": "192.168.100.99"}}, func(err error) { refused = err })
	v.idle(1e6)
	if refused == nil || !strings.Contains(refused.Error(), "h1.pf0.vf3") || !strings.Contains(refused.Error(), "driver of h1.pf0.vf1") {
		t.Errorf("a function is set to it: %v", refused)
	}
	add("another in its place", a, 1, y, abi.StatusOK)
	v.idle(1e9)
	add("what was replaced", b, 1, x, abi.StatusOK)
	a.must(abi.AdminOpDelGID, &abi.GIDIndex{Index: 1})
	v.idle(1e9)
	add("what was taken back", far, 1, y, abi.StatusOK)
	b.write(abi.RegControl, 4, uint64(abi.ControlReset))
	v.idle(1e9)
	add("what a reset gave up", a, 1, x, abi.StatusOK)
	a.ch.Close(nil)
	v.idle(1e9)
	add("what a driver left", far, 2, x, abi.StatusOK)
}

// TestGIDsOfTheConfiguration checks that the addresses that the configuration lists for a
// function's port belong to the function: its driver can add them without trust, and peers are
// told. No other function can have them, whether a driver has added them or not. Other addresses
// need trust. (DEV-949)
func TestGIDsOfTheConfiguration(t *testing.T) { eachShards(t, testGIDsOfTheConfiguration) }

func testGIDsOfTheConfiguration(t *testing.T) {
	const listed = "192.168.100.201"
	v := newVirtualWith(t, 1, wire100us, func(nic int, c *config.Config) {
		if nic == 0 {
			devicetest.AddPort(c, 0, &config.Port{Name: "vp1", Addresses: devicetest.Addrs(listed)})
		}
		c.Functions[0].VFs[1].Trust = true
	})
	a, neighbour, far := newDriver(v, 0, 1), newDriver(v, 0, 2), newDriver(v, 1, 2)
	for _, d := range []*driver{a, neighbour, far} {
		d.enable()
	}
	add := func(what string, d *driver, index uint16, gid string, want abi.Status) {
		t.Helper()
		if st, _ := d.command(abi.AdminOpAddGID, &abi.GIDEntry{Index: index, GID: gid4(gid)}); st != want {
			t.Errorf("%s: %s, want %s", what, st, want)
		}
	}
	add("a neighbour, before the function's driver", neighbour, 1, listed, abi.StatusAddressInUse)
	var refused error
	v.cores[0].Operate(v.function(0, 3).ID, &control.FunctionChange{Set: map[string]string{"address": listed}}, func(err error) { refused = err })
	v.idle(1e6)
	if refused == nil || !strings.Contains(refused.Error(), listed+" in tenant 7 is already used by h1.pf0.vf1") {
		t.Errorf("another function is set to it: %v", refused)
	}
	add("without trust, one that is not listed", a, 1, "192.168.100.99", abi.StatusDenied)
	add("without trust, a listed one", a, 1, listed, abi.StatusOK)
	v.idle(1e9)
	for nic, core := range v.cores {
		if !core.Manager.CM.Known().Has(7, gid4(listed)) {
			t.Errorf("NIC %d does not know the address", nic+1)
		}
	}
	add("a peer's function", far, 1, listed, abi.StatusAddressInUse)
}

// TestTwoEntriesMayHaveTheSameGID checks that two entries may have the same address, like an interface and one above
// it. Peers know it until neither has it.
func TestTwoEntriesMayHaveTheSameGID(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	d := newDriver(v, 0, 1)
	d.enable()
	for _, order := range [][2]uint16{{1, 2}, {2, 1}} {
		for _, i := range order {
			d.must(abi.AdminOpAddGID, &abi.GIDEntry{Index: i, GID: d.linkLocal()})
		}
		for n, i := range []uint16{1, 2} {
			d.must(abi.AdminOpDelGID, &abi.GIDIndex{Index: i})
			v.idle(1e9)
			if known := v.cores[1].Manager.CM.Known().Has(7, d.linkLocal()); known != (n == 0) {
				t.Errorf("added to entries %v: with %d of them left, the peer knows the address: %t", order, 1-n, known)
			}
		}
	}
	d.must(abi.AdminOpAddGID, &abi.GIDEntry{Index: 1, GID: d.fn.GID()}) // entry 0 has it
	d.must(abi.AdminOpDelGID, &abi.GIDIndex{Index: 1})
	v.idle(1e9)
	if !v.cores[1].Manager.CM.Known().Has(7, d.fn.GID()) {
		t.Error("the peer has forgotten the function's own address")
	}
}

// TestGIDsAreToldSeldom checks that a driver that adds and removes GIDs, or resets its function,
// without end does not flood peers.
func TestGIDsAreToldSeldom(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	d := newDriver(v, 0, 1)
	d.enable()
	v.idle(1e9)
	messages := func() uint64 { return v.cores[1].Manager.CM.Stats().Received }
	before, start := messages(), v.now
	for v.now < start+1e9 {
		d.must(abi.AdminOpAddGID, &abi.GIDEntry{Index: 1, GID: d.linkLocal()})
		d.must(abi.AdminOpDelGID, &abi.GIDIndex{Index: 1})
	}
	if n := messages() - before; n > 22 {
		t.Errorf("%d messages in a second of commands", n)
	}
	before, start = messages(), v.now
	for v.now < start+1e9 {
		d.post(abi.AdminOpAddGID, &abi.GIDEntry{Index: 1, GID: d.linkLocal()})
		v.idle(1e6)
		d.write(abi.RegControl, 4, uint64(abi.ControlReset))
		d.enable()
	}
	if n := messages() - before; n > 22 {
		t.Errorf("%d messages in a second of resets", n)
	}
}

// TestPeersKnowExactlyTheAddressesOfFunctions checks, after any actions of drivers and the operator, also while commands are in
// progress, that a NIC and its peer finally know the functions by exactly the addresses in their
// settings and in their drivers' tables, and that no two functions have the same.
func TestPeersKnowExactlyTheAddressesOfFunctions(t *testing.T) { eachShards(t, testGIDModel) }

func testGIDModel(t *testing.T) {
	v := newVirtualWith(t, 5, wire100us, trusted)
	v.tell = false
	ds := []*driver{newDriver(v, 0, 1), newDriver(v, 0, 2)}
	var pool [][16]byte
	for i := range 5 {
		pool = append(pool, gid4(fmt.Sprintf("192.168.100.%d", 201+i)))
	}
	pool = append(pool, ds[0].linkLocal(), ds[1].linkLocal(), ds[0].fn.GID(), ds[1].fn.GID())
	const entries = 3
	open := map[*driver]int{}
	drain := func(d *driver) {
		for d.sq != nil {
			if _, ok := d.answered(); !ok {
				return
			}
			open[d]--
		}
	}
	ready := func(d *driver) bool { return d.fn.Lifecycle.State() == abi.StateReady }
	enable := func(d *driver) {
		if d.fn.Lifecycle.State() == abi.StateReset {
			open[d] = 0
			d.enable()
		}
	}
	check := func(t *rapid.T) {
		v.idle(1e9)
		has := map[[16]byte]pfvf.ID{}
		enter := func(d *driver, gid [16]byte) {
			if other, taken := has[gid]; taken && other != d.fn.ID {
				t.Fatalf("%s and %s both have %s", other, d.fn.ID, netip.AddrFrom16(gid))
			}
			has[gid] = d.fn.ID
		}
		for _, d := range ds {
			if d.fn.Lifecycle.State() == abi.StateDisabled {
				continue
			}
			enter(d, d.fn.GID())
			if !ready(d) {
				continue
			}
			drain(d)
			for i := range uint16(entries) {
				var e abi.GIDEntry
				if st, b := d.command(abi.AdminOpQueryGID, &abi.GIDIndex{Index: i}); st == abi.StatusOK {
					e.Unmarshal(b)
					enter(d, e.GID)
				}
			}
		}
		for _, gid := range pool {
			want, is := has[gid]
			for nic, core := range v.cores {
				if core.Manager.CM.Known().Has(7, gid) != is {
					t.Fatalf("NIC %d: %s is a function's: %t, want %t (%s)", nic+1, netip.AddrFrom16(gid), !is, is, want)
				}
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		some := func(t *rapid.T) *driver { return rapid.SampledFrom(ds).Draw(t, "driver") }
		post := func(d *driver, op abi.AdminOp, p marshaler) {
			if drain(d); ready(d) && open[d] < 8 {
				d.post(op, p)
				open[d]++
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				e := abi.GIDEntry{Index: uint16(rapid.IntRange(0, entries-1).Draw(t, "entry")), GID: rapid.SampledFrom(pool).Draw(t, "GID")}
				post(some(t), abi.AdminOpAddGID, &e)
			},
			"del": func(t *rapid.T) {
				post(some(t), abi.AdminOpDelGID, &abi.GIDIndex{Index: uint16(rapid.IntRange(0, entries-1).Draw(t, "entry"))})
			},
			"enable": func(t *rapid.T) { enable(some(t)) },
			"reset": func(t *rapid.T) {
				d := some(t)
				if d.put(abi.RegControl, 4, uint64(abi.ControlReset)); rapid.Bool().Draw(t, "and again") {
					v.step()
					enable(d)
				}
			},
			"leave": func(t *rapid.T) {
				d := some(t)
				d.ch.Close(nil)
				v.step()
				if d.fn.Lifecycle.State() != abi.StateDisabled {
					d.attach(d, abi.FeatureFunctionEvents|abi.FeatureDatagrams, nil)
				}
			},
			"move": func(t *rapid.T) {
				to := netip.AddrFrom16(rapid.SampledFrom(pool[:5]).Draw(t, "address")).Unmap().String()
				v.cores[0].Operate(some(t).fn.ID, &control.FunctionChange{Set: map[string]string{"address": to}}, func(error) {})
			},
			"wait": func(t *rapid.T) {
				for range rapid.IntRange(1, 4).Draw(t, "steps") {
					v.advance(v.now + 30e6)
				}
			},
			"calm": check,
			"": func(t *rapid.T) {
				for _, d := range ds {
					d.collect()
				}
			},
		})
		check(t)
	})
}

// TestGIDsOfMany checks that peers are told of no more addresses than fit into one Hello; one more
// is refused.
func TestGIDsOfMany(t *testing.T) {
	v := newVirtualWith(t, 1, wire100us, trusted)
	d := newDriver(v, 0, 1)
	d.enable()
	core := v.cores[0]
	n := 0
	for ; core.Functions.AddGID(d.fn.ID, [16]byte{0xfd, 14: byte(n >> 8), 15: byte(n)}, [16]byte{}) == nil; n++ {
	}
	if n != cm.MaxEndpoints-3 { // VFs 1 to 3 are in the tenant
		t.Errorf("%d further addresses", n)
	}
	if st, _ := d.command(abi.AdminOpAddGID, &abi.GIDEntry{Index: 1, GID: d.linkLocal()}); st != abi.StatusNoResources {
		t.Errorf("one more: %s", st)
	}
}
