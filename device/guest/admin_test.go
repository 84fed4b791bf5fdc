package guest

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// adminDriver is the driver of a function in service, with its ends of the admin queues.
type adminDriver struct {
	*owner // the function's connections: CMConnect is completed later, by a ticket
	t      *testing.T
	f      *Device
	out    *outbox
	sq     *ring.Producer
	cq     *ring.CQReader
	id     uint32
}

// newAdminDriver enables a function with admin queues of so many entries. Where the caller gives
// bytes, the queues' areas begin with them.
func newAdminDriver(t *testing.T, entries uint32, begin ...byte) *adminDriver {
	t.Helper()
	layout := ring.AdminLayout(entries)
	area := (int(layout.Size()) + abi.PageSize - 1) &^ (abi.PageSize - 1)
	mem := make([]byte, 2*area+2*abi.PageSize) // the areas, and their page lists
	copy(mem, begin)
	for i := range area / abi.PageSize {
		binary.LittleEndian.PutUint64(mem[2*area+8*i:], uint64(i*abi.PageSize))
		binary.LittleEndian.PutUint64(mem[2*area+abi.PageSize+8*i:], uint64(area+i*abi.PageSize))
	}
	f, h := newDevice(t, 0x01_1001)
	f.Adopt(0, Settings{Limits: verbs.Limits{}.WithDefaults()})
	f.set.cfg.Strict = len(begin) > 0
	d := &adminDriver{
		owner: h, t: t, f: f, out: newOutbox(), sq: ring.NewProducer(ring.Mem(mem), layout), cq: ring.NewCQReader(ring.Mem(mem[area:]), layout),
	}
	b := f.set.Bind(&Binding{Memory: queues.NewMemory([]queues.Region{{Mem: mem}}), Channel: boxed{d.out}}, nil)
	if st := f.Attach(b); st != abi.StatusOK {
		t.Fatal(st)
	}
	for _, w := range []struct {
		offset, width uint32
		v             uint64
	}{
		{abi.RegAdminSQ, 8, uint64(2 * area)},
		{abi.RegAdminCQ, 8, uint64(2*area + abi.PageSize)},
		{abi.RegAdminEntries, 4, uint64(entries)},
		{abi.RegControl, 4, uint64(abi.ControlEnable)},
	} {
		if st := f.Registers().Write(0, w.offset, w.width, w.v); st != abi.StatusOK {
			t.Fatalf("register %#x: %v", w.offset, st)
		}
	}
	return d
}

// push writes commands, numbered from 1, and returns the producer index of the doorbell for them.
func (d *adminDriver) push(ops ...abi.AdminOp) uint32 {
	d.t.Helper()
	for _, op := range ops {
		d.id++
		var b [abi.AdminCmdSize]byte
		(&abi.AdminCmd{Opcode: op, ID: d.id}).Marshal(b[:])
		if err := d.sq.Push(b[:]); err != nil {
			d.t.Fatal(err)
		}
	}
	index, _, _ := d.sq.Publish()
	return index
}

// ring is a doorbell in a Step of its own.
func (d *adminDriver) ring(producer uint32) {
	d.f.set.adminPages = adminPages
	d.f.doorbell(0, &abi.Doorbell{Kind: abi.DoorbellAdmin, Index: producer})
}

func (d *adminDriver) post(ops ...abi.AdminOp) {
	d.t.Helper()
	d.ring(d.push(ops...))
}

// got returns the IDs of the completions that have come, and the last completion.
func (d *adminDriver) got() (ids []uint32, last abi.AdminCQE) {
	d.t.Helper()
	var b [abi.AdminCQESize]byte
	for {
		ok, err := d.cq.Poll(b[:])
		if err != nil {
			d.t.Fatal(err)
		}
		if !ok {
			return ids, last
		}
		last.Unmarshal(b[:])
		ids = append(ids, last.ID)
		_ = d.cq.Commit()
	}
}

func (d *adminDriver) want(ids ...uint32) abi.AdminCQE {
	d.t.Helper()
	got, last := d.got()
	if !slices.Equal(got, ids) {
		d.t.Fatalf("completions of %v, want %v", got, ids)
	}
	return last
}

// broke returns the clauses that the driver broke, the oldest first.
func (d *adminDriver) broke() (list []abi.Clause) {
	for _, v := range d.f.violations.All() {
		list = append(list, abi.Clause(v.Clause))
	}
	return list
}

// told reports whether the driver got an event of its admin queue since the last call.
func (d *adminDriver) told() bool {
	is := slices.Contains(d.out.events.CQs(), abi.AdminCQ)
	d.out.events.Taken()
	return is
}

// TestAPendingCommandHoldsUpNoOther checks that other commands complete while one waits for an
// answer, and that its completion then has the answer and makes an event. The rules that it broke
// are recorded then.
func TestAPendingCommandHoldsUpNoOther(t *testing.T) {
	d := newAdminDriver(t, 4)
	d.post(abi.AdminOpCMConnect, abi.AdminOpAllocPD, abi.AdminOpCMConnect, abi.AdminOpAllocPD)
	if d.want(2, 4); !d.told() || d.broke() != nil {
		t.Errorf("an event: no, or rules %v are broken", d.broke())
	}
	d.tickets[1].Complete(abi.StatusMemoryFault, &abi.CMConnectResult{CMID: 9})
	if c := d.want(3); c.Status != abi.StatusMemoryFault || c.Result != [len(c.Result)]byte{} || !d.told() {
		t.Errorf("%+v", c)
	}
	if v, _ := d.f.violations.Newest(0); abi.Clause(v.Clause) != abi.DRV401 || v.Index != 2 || v.Ring != abi.RingAdmin {
		t.Errorf("the rule that the third command broke: %+v", v)
	}
	d.tickets[0].Complete(abi.StatusOK, &abi.CMConnectResult{CMID: 7})
	if c := d.want(1); c.Status != abi.StatusOK || c.Result[0] != 7 || !d.told() {
		t.Errorf("%+v", c)
	}
	d.tickets[0].Complete(abi.StatusOK, nil)
	if d.want(); d.told() {
		t.Error("a second answer is an event")
	}
}

// TestOutstandingCommandsAreBounded checks that as many commands may be outstanding as the queues
// have entries, pending or with completions not taken. One more is a fault (DRV-501, DEV-501,
// DEV-502).
func TestOutstandingCommandsAreBounded(t *testing.T) {
	const entries = 4
	for pending := range entries + 1 {
		d := newAdminDriver(t, entries)
		op := func(i int) abi.AdminOp {
			if i < pending {
				return abi.AdminOpCMConnect
			}
			return abi.AdminOpAllocPD
		}
		for range 3 { // each round leaves nothing behind
			for i := range entries {
				d.post(op(i))
			}
			for _, c := range d.tickets {
				c.Complete(abi.StatusOK, nil)
			}
			if d.got(); d.f.faulted() || len(d.f.admin.pending) != 0 {
				t.Fatalf("%d pending: stopped by %q, %d left", pending, d.f.faultReason, len(d.f.admin.pending))
			}
		}
		d.tickets = nil
		for i := range entries + 1 {
			if d.post(op(i)); d.f.faulted() != (i == entries) {
				t.Fatalf("%d pending: stopped %v after %d", pending, d.f.faulted(), i+1)
			}
		}
		if len(d.tickets) != min(pending, entries) || d.f.faultCode != abi.FaultCommand || !slices.Equal(d.broke(), []abi.Clause{abi.DRV501}) {
			t.Error(len(d.tickets), d.f.faultCode, d.broke())
		}
	}
}

// TestAResetForgetsPendingCommands checks that an answer has no effect after a reset, or if the
// function has a fault.
func TestAResetForgetsPendingCommands(t *testing.T) {
	d := newAdminDriver(t, 4)
	d.post(abi.AdminOpCMConnect, abi.AdminOpCMConnect)
	d.f.Fault(abi.FaultMemory, "")
	d.tickets[0].Complete(abi.StatusMemoryFault, nil)
	d.f.Reset(0)
	d.tickets[1].Complete(abi.StatusMemoryFault, nil)
	if d.want(); d.told() || d.broke() != nil {
		t.Errorf("an event, or rules are broken: %v", d.broke())
	}
}

// TestAStepStartsAFewCommandsOfAFunction checks that a Step starts a limited number of commands of
// one function, in order, while there are pages to read, and leaves the others for the next Step.
func TestAStepStartsAFewCommandsOfAFunction(t *testing.T) {
	d := newAdminDriver(t, 32)
	s := d.f.set
	index := d.push(slices.Repeat([]abi.AdminOp{abi.AdminOpAllocPD}, adminCommands+3)...)
	s.adminPages = 0
	d.f.doorbell(0, &abi.Doorbell{Kind: abi.DoorbellAdmin, Index: index})
	for _, c := range []struct{ pages, done, left int }{ // each command reads one page
		{0, 0, adminCommands + 3}, {-1, 0, adminCommands + 3}, {100, adminCommands, 3}, {2, 2, 1}, {100, 1, 0}, {100, 0, 0},
	} {
		before := s.Commands
		s.adminPages = c.pages
		d.f.admin.run(0)
		if done := int(s.Commands - before); done != c.done || d.told() != (c.done > 0) || int(d.f.admin.sq.Ready()) != c.left || s.adminPages != c.pages-c.done {
			t.Errorf("with %d pages: %d commands, %d left, %d pages left; want %d and %d", c.pages, done, d.f.admin.sq.Ready(), s.adminPages, c.done, c.left)
		}
		if c.left > 0 && s.Unfinished() != 1 {
			t.Errorf("%d functions have work for the next Step", s.Unfinished())
		}
	}
	var want []uint32
	for id := range d.id {
		want = append(want, id+1)
	}
	if ids, _ := d.got(); !slices.Equal(ids, want) {
		t.Errorf("completions of %v", ids)
	}
}

// TestAnImpossibleAdminDoorbellStopsTheFunction checks that an impossible doorbell stops the
// function and records the clause that it breaks, and that an old or repeated one is harmless.
func TestAnImpossibleAdminDoorbellStopsTheFunction(t *testing.T) {
	d := newAdminDriver(t, 32)
	d.post(abi.AdminOpAllocPD, abi.AdminOpAllocPD)
	for _, index := range []uint32{2, 1, 0} {
		if d.ring(index); d.f.faulted() {
			t.Errorf("doorbell %d: %v", index, d.f.faultReason)
		}
	}
	d.want(1, 2)
	d.push(abi.AdminOpAllocPD)
	if d.ring(4); d.f.faultCode != abi.FaultCommand || !slices.Equal(d.broke(), []abi.Clause{abi.DRV502}) {
		t.Errorf("a doorbell ahead of the queue: %v, %v", d.f.faultCode, d.broke())
	}
	d.ring(3)
	if d.f.admin.run(0); d.f.set.Commands != 2 {
		t.Error("a function that is to be stopped goes on")
	}
}

// TestStrictModeRecordsAreasThatAreNotZero checks that strict mode records the first byte of an
// admin queue's area that is not zero, with the eight aligned bytes around it. The function is
// enabled all the same.
func TestStrictModeRecordsAreasThatAreNotZero(t *testing.T) {
	for _, at := range []int{0, 5, 8, 100} {
		b := make([]byte, at+1)
		b[at] = 7
		d := newAdminDriver(t, 32, b...)
		v, ok := d.f.violations.Newest(0)
		if !ok || abi.Clause(v.Clause) != abi.DRV301 || v.Ring != abi.RingAdmin || v.Index != uint32(at) || v.Bytes[at%8] != 7 {
			t.Errorf("byte %d: %v, %+v", at, ok, v)
		}
	}
	if d := newAdminDriver(t, 32); d.broke() != nil {
		t.Errorf("areas that are zero: %v", d.broke())
	}
}

// TestAViolationBelongsToTheCurrentCommand checks that a violation that the engine finds is
// assigned to the current command, whose bytes are shown if the violation has none of its own, and
// that violations of other rings are left alone.
func TestAViolationBelongsToTheCurrentCommand(t *testing.T) {
	a := &admin{}
	own := abi.Violation{Ring: abi.RingAdmin, Clause: 5, Index: 77}
	v := own
	if a.describe(&v); v != own {
		t.Errorf("without a command: %+v", v)
	}
	a.doing = &pending{in: a, index: 9, cmd: abi.AdminCmd{Opcode: abi.AdminOpAllocPD, ID: 3}}
	elsewhere := abi.Violation{Ring: abi.RingStream, Clause: 5, Index: 77}
	v = elsewhere
	if a.describe(&v); v != elsewhere || a.doing.recorded != 0 {
		t.Errorf("elsewhere: %+v", v)
	}
	v = own
	if a.describe(&v); v.Index != 9 || a.doing.recorded != 5 ||
		!slices.Equal(v.Bytes[:v.Length], commandBytes(&a.doing.cmd)[:v.Length]) || v.Length == 0 {
		t.Errorf("%+v", v)
	}
	v = own
	v.Length, v.Bytes[0] = 1, 0xaa
	if a.describe(&v); v.Index != 9 || v.Length != 1 || v.Bytes[0] != 0xaa {
		t.Errorf("with bytes of its own: %+v", v)
	}
}
