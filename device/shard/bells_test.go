package shard

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestADriverThatRingsWhenAskedLosesNoRequest lets a driver that rings only when asked post at the worst moments of virtual
// time, over a bad wire: after a shard's last poll of its rings and before it sleeps. No request is
// left behind (DRV-604, DEV-607).
func TestADriverThatRingsWhenAskedLosesNoRequest(t *testing.T) {
	for seed := range uint64(10) {
		v := newVirtual(t, seed, sim.Impairment{Delay: 30_000, Jitter: 20_000, Loss: 0.02})
		a, b := newDriverWith(v, 0, 1, abi.FeatureEventIndex), newDriver(v, 1, 1)
		a.setUp()
		b.setUp()
		a.connectTo(b, 99)
		r := rand.New(rand.NewPCG(seed, 1))
		const total = 400
		posted, done := 0, 0
		post := func(n int) {
			for range n {
				if posted < total && posted-done < 1<<sqLog2 {
					a.send(abi.OpWrite, 0, 1+r.IntN(5000), b, 0)
					posted++
				}
			}
		}
		v.gap = func(nic int) {
			if nic == 0 && r.IntN(2) == 0 {
				post(r.IntN(4))
			}
		}
		v.until(fmt.Sprintf("seed %d: all completions", seed), func() bool {
			for {
				cqe, ok := a.completion()
				if !ok {
					break
				}
				if cqe.Status != abi.WCSuccess {
					t.Fatal(cqe.Status)
				}
				done++
			}
			if done == posted { // else a later request would wake the device for a lost one
				post(1 + r.IntN(3))
				v.step()
			}
			return done == total
		})
		if a.rung == 0 || a.rung > total*9/10 {
			t.Errorf("seed %d: %d doorbells for %d requests", seed, a.rung, total)
		}
	}
}

// TestBusyDriverRingsNoBell checks that requests that the shard finds by polling need no record,
// and that the driver rings a shard that no longer polls.
func TestBusyDriverRingsNoBell(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	a, b := newDriverWith(v, 0, 1, abi.FeatureEventIndex), newDriver(v, 1, 1)
	a.setUp()
	b.setUp()
	a.connectTo(b, 99)
	a.send(abi.OpWrite, 0, 64, b, 0)
	if a.rung != 1 {
		t.Fatal("an idle device was not rung for")
	}
	s := v.shards[0]
	step := func() bool {
		in := thread.Input{}
		s.Step(v.now, &in, v.out(s))
		v.out(s).Do()
		return v.out(s).Worked
	}
	step()
	for i := range 20 {
		a.send(abi.OpWrite, 0, 64, b, 0)
		if !step() {
			t.Fatalf("request %d not found", i)
		}
	}
	if a.rung != 1 {
		t.Errorf("%d doorbells for a device that was looking", a.rung-1)
	}
	for range 21 {
		if cqe := a.done(); cqe.Status != abi.WCSuccess {
			t.Fatal(cqe.Status)
		}
	}
	a.send(abi.OpWrite, 0, 64, b, 0)
	if a.rung != 2 {
		t.Error("a device that went to sleep was not rung for")
	}
}

// bigPages is the number of pages of bigRegion.
const bigPages = 1 << 19

// bigRegion returns the registration of 2 GiB by small pages: a page list of three levels in which
// every entry names the same page.
func (d *driver) bigRegion() *abi.RegMR {
	const root, mid, leaf = 40, 41, 42
	for _, l := range []struct{ at, to int }{{root, mid}, {mid, leaf}, {leaf, pageData}} {
		for i := range abi.PageListEntries {
			binary.LittleEndian.PutUint64(d.page(l.at)[8*i:], d.addr(l.to))
		}
	}
	return &abi.RegMR{PDN: d.pdn, Access: abi.AccessLocalWrite, Length: bigPages * abi.PageSize, Pages: d.addr(root), Levels: 3}
}

// post submits a command and returns its ID.
func (d *driver) post(op abi.AdminOp, params marshaler) uint32 {
	d.v.t.Helper()
	d.id++
	cmd, b := abi.AdminCmd{Opcode: op, ID: d.id}, [abi.AdminCmdSize]byte{}
	if params != nil {
		params.Marshal(cmd.Params[:])
	}
	cmd.Marshal(b[:])
	if err := d.sq.Push(b[:]); err != nil {
		d.v.t.Fatal(err)
	}
	index, _, _ := d.sq.Publish()
	d.ring(abi.DoorbellAdmin, 0, index)
	return d.id
}

// answered takes an admin completion if there is one.
func (d *driver) answered() (cqe abi.AdminCQE, ok bool) {
	var b [abi.AdminCQESize]byte
	ok, err := d.cq.Poll(b[:])
	if err != nil {
		d.v.t.Fatal(err)
	}
	if ok {
		cqe.Unmarshal(b[:])
		_ = d.cq.Commit()
	}
	return cqe, ok
}

// stepOnce runs one Step of a driver's shard.
func (d *driver) stepOnce() *thread.Output {
	s, in := d.v.shardOf(d.fn), thread.Input{}
	out := d.v.out(s)
	s.Step(d.v.now, &in, out)
	out.Do()
	return out
}

// TestRegMRInPieces checks that a registration of 2 GiB takes many Steps of bounded work. Meanwhile
// commands of another function are served, and later ones of its own (DEV-507).
func TestRegMRInPieces(t *testing.T) {
	v := newVirtualWith(t, 1, wire100us, together)
	a, b := newDriver(v, 0, 1), newDriver(v, 0, 2)
	for _, d := range []*driver{a, b} {
		d.enable()
		d.pdn = binary.LittleEndian.Uint32(d.must(abi.AdminOpAllocPD, nil))
	}
	big := a.post(abi.AdminOpRegMR, a.bigRegion())
	const least = bigPages / 4096 // least page list entries per Step
	others := map[*driver]int{a: 0, b: 0}
	waits := map[*driver]int{}
	for _, d := range []*driver{a, b} {
		d.post(abi.AdminOpQueryDevice, nil)
	}
	for steps := 1; ; steps++ {
		out := a.stepOnce()
		if steps > 3*least {
			t.Fatal("never done")
		}
		for _, d := range []*driver{a, b} {
			if waits[d]++; waits[d] > 3 {
				t.Fatal("a command waits for a registration")
			}
			for cqe, ok := d.answered(); ok; cqe, ok = d.answered() {
				if cqe.Status != abi.StatusOK {
					t.Fatal(cqe.Status)
				}
				if d == a && cqe.ID == big {
					if steps < least {
						t.Errorf("2 GiB registered in %d Steps, at least %d keep the bound", steps, least)
					}
					if n := a.fn.Verbs().Counts()[abi.ObjectMR]; n != 1 {
						t.Errorf("%d regions", n)
					}
					if others[a] < least/4 || others[b] < least/4 {
						t.Errorf("served meanwhile: %d commands of the function, %d of another", others[a], others[b])
					}
					return
				}
				waits[d] = 0
				others[d]++
				d.post(abi.AdminOpQueryDevice, nil)
			}
		}
		if !out.More {
			t.Fatal("the shard would sleep on an unfinished registration")
		}
	}
}

// TestManyRegMR checks that as many long registrations as the admin queue holds take turns, and
// that a short one behind them is done long before the first of them. The objects they belong to
// cannot go meanwhile, they count as regions, and one that fails leaves nothing behind.
func TestManyRegMR(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	d := newDriver(v, 0, 1)
	d.enable()
	d.pdn = binary.LittleEndian.Uint32(d.must(abi.AdminOpAllocPD, nil))
	region := d.bigRegion()
	region.Length = bigPages / 8 * abi.PageSize
	long := map[uint32]bool{}
	for range 12 { // of 16 entries
		long[d.post(abi.AdminOpRegMR, region)] = true
	}
	small := *region
	small.Length = 3 * abi.PageSize
	short := d.post(abi.AdminOpRegMR, &small)
	busy := d.post(abi.AdminOpDeallocPD, &abi.DeallocPD{PDN: d.pdn})
	for steps := 0; len(long) > 0; steps++ {
		d.stepOnce()
		for cqe, ok := d.answered(); ok; cqe, ok = d.answered() {
			switch {
			case cqe.ID == short:
				if cqe.Status != abi.StatusOK || len(long) != 12 {
					t.Fatalf("the short one: %s, %d long ones are left", cqe.Status, len(long))
				}
				short = 0
			case cqe.ID == busy:
				if cqe.Status != abi.StatusBusy {
					t.Fatalf("a domain of registrations in progress is deallocated: %s", cqe.Status)
				}
				busy = 0
			case cqe.Status != abi.StatusOK || !long[cqe.ID]:
				t.Fatalf("%+v", cqe)
			}
			delete(long, cqe.ID)
		}
		if steps > 3*12*bigPages/8/4096 {
			t.Fatal("never done")
		}
	}
	if short != 0 || busy != 0 {
		t.Error("a command was not completed")
	}
	if n := d.fn.Verbs().Counts()[abi.ObjectMR]; n != 13 {
		t.Errorf("%d regions", n)
	}

	before := d.fn.Verbs().PageListBytes()
	region.Length = 1 << 37 // 2^25 pages take 128 MiB: more than page lists may
	fails := d.post(abi.AdminOpRegMR, region)
	for {
		d.stepOnce()
		if n := d.fn.Verbs().PageListBytes(); n > 64<<20 {
			t.Fatalf("page lists take %d bytes", n)
		}
		if cqe, ok := d.answered(); ok {
			if cqe.ID != fails || cqe.Status != abi.StatusNoResources {
				t.Fatalf("%+v", cqe)
			}
			break
		}
	}
	if n := d.fn.Verbs().PageListBytes(); n != before {
		t.Errorf("%d bytes are counted for a list that was given up", n-before)
	}
}

// TestResetDuringRegMR checks that a registration in progress ends with the function, and that a
// driver that resets and starts again and again does not fill the backlog.
func TestResetDuringRegMR(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	d := newDriver(v, 0, 1)
	put := func(reg, width uint32, value uint64) {
		d.put(reg, width, value)
	}
	d.enable()
	d.pdn = binary.LittleEndian.Uint32(d.must(abi.AdminOpAllocPD, nil)) // numbers start anew after a reset
	for range 50 {
		region := d.bigRegion()
		for range 5 { // in one Step
			put(abi.RegControl, 4, uint64(abi.ControlReset))
			put(abi.RegAdminSQ, 8, d.list(listAdminSQ, pageAdminSQ, 1))
			put(abi.RegAdminCQ, 8, d.list(listAdminCQ, pageAdminCQ, 1))
			put(abi.RegAdminEntries, 4, 16)
			put(abi.RegControl, 4, uint64(abi.ControlEnable))
			for i, op := range []abi.AdminOp{abi.AdminOpAllocPD, abi.AdminOpRegMR} {
				cmd := abi.AdminCmd{Opcode: op, ID: uint32(i)}
				if op == abi.AdminOpRegMR {
					region.Marshal(cmd.Params[:])
				}
				cmd.Marshal(d.page(pageAdminSQ)[abi.QueueHeaderSize+i*abi.AdminCmdSize:])
			}
			binary.LittleEndian.PutUint32(d.page(pageAdminSQ), 2)
			d.ring(abi.DoorbellAdmin, 0, 2)
		}
		d.stepOnce()
		d.collect()
		if n := v.shards[0].guests.Unfinished(); n > 1 {
			t.Fatalf("one function stands in the backlog %d times", n)
		}
	}
	if d.stepOnce(); !d.fn.Registering() {
		t.Fatal("no registration in progress: the test is void")
	}
	put(abi.RegControl, 4, uint64(abi.ControlReset))
	d.stepOnce()
	if d.fn.Registering() || d.fn.Verbs() != nil {
		t.Error("a registration outlived the reset")
	}
	if d.stepOnce(); v.shards[0].guests.Unfinished() != 0 {
		t.Error("a function without commands stands in the backlog")
	}
}
