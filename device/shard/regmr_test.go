package shard

import (
	"encoding/binary"
	"testing"

	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// bigRegion is the registration of as much memory as there can be: a page list
// of three levels in which every entry names the same page.
func (d *driver) bigRegion() *abi.RegMR {
	const root, mid, leaf = 40, 41, 42
	for _, l := range []struct{ at, to int }{{root, mid}, {mid, leaf}, {leaf, pageData}} {
		for i := range abi.PageListEntries {
			binary.LittleEndian.PutUint64(d.page(l.at)[8*i:], d.addr(l.to))
		}
	}
	return &abi.RegMR{PDN: d.pdn, Access: abi.AccessLocalWrite, Length: abi.MaxMRSize, Pages: d.addr(root), Levels: 3}
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

// stepOnce is one Step of a driver's shard.
func (d *driver) stepOnce() *thread.Output {
	s, out := d.v.shards[d.side], &d.v.outs[d.side][0]
	in := thread.Input{}
	s.Step(d.v.now, &in, out)
	out.Do()
	return out
}

// TestRegMRInPieces: a registration of 2 GiB takes many Steps of bounded work
// and keeps commands of its own function in order, while those of another are
// served between (DEV-507).
func TestRegMRInPieces(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	a, b := newDriver(v, 0, 1), newDriver(v, 0, 2)
	for _, d := range []*driver{a, b} {
		d.enable()
		d.pdn = binary.LittleEndian.Uint32(d.must(abi.AdminOpAllocPD, nil))
	}
	big := a.post(abi.AdminOpRegMR, a.bigRegion())
	behind := a.post(abi.AdminOpAllocPD, nil)
	const least = abi.MaxMRSize / abi.PageSize / 4096 // page list entries of a Step
	steps, served, waits := 0, 0, 0
	b.post(abi.AdminOpAllocPD, nil)
	for {
		out := a.stepOnce()
		if steps++; steps > 3*least {
			t.Fatal("never done")
		}
		if waits++; waits > 3 {
			t.Fatal("another function waits for a registration")
		}
		if cqe, ok := b.answered(); ok {
			if cqe.Status != abi.StatusOK {
				t.Fatal(cqe.Status)
			}
			waits = 0
			served++
			if served < 100 {
				b.post(abi.AdminOpQueryDevice, nil)
			}
		}
		if served == 100 {
			waits = 0
		}
		if cqe, ok := a.answered(); ok {
			if cqe.ID != big || cqe.Status != abi.StatusOK {
				t.Fatalf("command %d ended first, with %s", cqe.ID, cqe.Status)
			}
			break
		}
		if !out.More {
			t.Fatal("the shard would sleep on an unfinished registration")
		}
	}
	if steps < least {
		t.Errorf("2 GiB registered in %d Steps, at least %d keep the bound", steps, least)
	}
	if cqe, ok := a.answered(); !ok {
		a.stepOnce()
		if cqe, ok = a.answered(); !ok || cqe.ID != behind {
			t.Errorf("command behind it: %+v", cqe)
		}
	}
	if n := a.fn.Verbs().Counts()[abi.ObjectMR]; n != 1 {
		t.Errorf("%d regions", n)
	}
}

// TestResetDuringRegMR: a registration in progress ends with the function, and
// a driver that resets and begins again and again does not fill the backlog.
func TestResetDuringRegMR(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	d := newDriver(v, 0, 1)
	put := func(reg, width uint32, value uint64) {
		d.put(reg, width, value)
	}
	d.enable()
	d.pdn = binary.LittleEndian.Uint32(d.must(abi.AdminOpAllocPD, nil)) // numbers begin anew after a reset
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
