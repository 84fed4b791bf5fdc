package guest

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// longAdmin returns a pair of admin queues with room for many commands.
func longAdmin(t *testing.T) *slowAdmin {
	t.Helper()
	const entries = 32
	layout := ring.AdminLayout(entries)
	area := (int(layout.Size()) + abi.PageSize - 1) &^ (abi.PageSize - 1)
	mem := make([]byte, 2*area+2*abi.PageSize) // the areas, and their page lists
	for i := range area / abi.PageSize {
		binary.LittleEndian.PutUint64(mem[2*area+8*i:], uint64(i*abi.PageSize))
		binary.LittleEndian.PutUint64(mem[2*area+abi.PageSize+8*i:], uint64(area+i*abi.PageSize))
	}
	u := &slowUser{a: &admin{entries: entries, sqRoot: uint64(2 * area), cqRoot: uint64(2*area + abi.PageSize)}}
	u.a.user = u
	if err := u.a.start(queues.NewMemory([]queues.Region{{Mem: mem}}), nil, true); err != nil {
		t.Fatal(err)
	}
	return &slowAdmin{slowUser: u, t: t, sq: ring.NewProducer(ring.Mem(mem), layout), cq: ring.NewCQReader(ring.Mem(mem[area:]), layout)}
}

// TestCommandsOfAStep checks that a Step starts a limited number of commands of one function, in
// order, while there are pages to read, and leaves the others for the next Step.
func TestCommandsOfAStep(t *testing.T) {
	s := longAdmin(t)
	ops := slices.Repeat([]abi.AdminOp{abi.AdminOpAllocPD}, adminCommands+3)
	for _, op := range ops {
		s.id++
		var b [abi.AdminCmdSize]byte
		(&abi.AdminCmd{Opcode: op, ID: s.id}).Marshal(b[:])
		if err := s.sq.Push(b[:]); err != nil {
			t.Fatal(err)
		}
	}
	index, _, _ := s.sq.Publish()
	if !s.a.ring(index) || !s.a.waits() {
		t.Fatal("nothing waits")
	}
	for _, c := range []struct{ pages, done, left int }{ // each command reads one page
		{0, 0, adminCommands + 3}, {-1, 0, adminCommands + 3}, {100, adminCommands, 3}, {2, 2, 1}, {100, 1, 0}, {100, 0, 0},
	} {
		pages := c.pages
		done, completed := s.a.run(0, &pages)
		if done != c.done || completed != (c.done > 0) || s.a.waits() != (c.left > 0) ||
			int(s.a.sq.Ready()) != c.left || pages != c.pages-c.done {
			t.Errorf("with %d pages: %d commands, completions %v, %d left, %d pages left; want %d and %d", c.pages, done, completed, s.a.sq.Ready(), pages, c.done, c.left)
		}
	}
	var want []uint32
	for id := range s.id {
		want = append(want, id+1)
	}
	if ids, _ := s.got(); !slices.Equal(ids, want) {
		t.Errorf("completions of %v", ids)
	}
}

// TestDoorbellsOfAdminQueues checks that an impossible doorbell stops the function and records the
// clause that it breaks, and that an old or repeated one is harmless.
func TestDoorbellsOfAdminQueues(t *testing.T) {
	s := longAdmin(t)
	s.post(abi.AdminOpAllocPD, abi.AdminOpAllocPD)
	for _, index := range []uint32{2, 1, 0} {
		if !s.a.ring(index) || s.fault != abi.FaultNone {
			t.Errorf("doorbell %d: %v", index, s.fault)
		}
	}
	if s.a.ring(3) || s.fault != abi.FaultCommand || !slices.Equal(s.broke, []abi.Clause{abi.DRV502}) {
		t.Errorf("a doorbell ahead of the queue: %v, %v", s.fault, s.broke)
	}
	if done, _ := s.a.run(0, new(int)); done != 0 {
		t.Error("a function that is to be stopped goes on")
	}
}

// TestViolationsOfACommand checks that a violation that the engine finds is assigned to the current
// command, whose bytes are shown if the violation has none of its own, and that violations of other
// rings are left alone.
func TestViolationsOfACommand(t *testing.T) {
	a := &admin{}
	own := abi.Violation{Ring: abi.RingAdmin, Clause: 5, Index: 77}
	v := own
	if a.describe(&v); v != own {
		t.Errorf("without a command: %+v", v)
	}
	a.doing = &pending{in: a, index: 9, cmd: abi.AdminCmd{Opcode: abi.AdminOpAllocPD, ID: 3}}
	elsewhere := abi.Violation{Ring: abi.RingStream, Clause: 5, Index: 77}
	v = elsewhere
	if a.describe(&v); v != elsewhere || a.doing.told != 0 {
		t.Errorf("elsewhere: %+v", v)
	}
	v = own
	if a.describe(&v); v.Index != 9 || a.doing.told != 5 ||
		!slices.Equal(v.Bytes[:v.Length], commandBytes(&a.doing.cmd)[:v.Length]) || v.Length == 0 {
		t.Errorf("%+v", v)
	}
	v = own
	v.Length, v.Bytes[0] = 1, 0xaa
	if a.describe(&v); v.Index != 9 || v.Length != 1 || v.Bytes[0] != 0xaa {
		t.Errorf("with bytes of its own: %+v", v)
	}
}

// TestAddressesThatWillBe checks that while an entry is being changed, neither its old nor its new
// address is settled. Addresses of other entries are.
func TestAddressesThatWillBe(t *testing.T) {
	gid := func(n byte) [16]byte { return [16]byte{15: n} }
	table := newGIDTable(gid(1), [6]byte{2})
	table.set(3, &abi.GIDEntry{GID: gid(3)})
	table.set(abi.GIDEntries-1, &abi.GIDEntry{GID: gid(4)})
	table.changing[5] = gid(5)
	table.changing[3] = [16]byte{} // to be emptied
	for n, want := range map[byte]bool{0: false, 1: false, 3: true, 4: false, 5: true, 6: false} {
		if got := table.unsettled(gid(n)); got != want {
			t.Errorf("address %d is unsettled: %t", n, got)
		}
	}
	for n, want := range map[byte]bool{1: false, 3: true, 4: true, 5: false, 6: false} {
		if got := table.elsewhere(0, gid(n)); got != want {
			t.Errorf("an entry beside the first has address %d: %t", n, got)
		}
	}
	for index, want := range map[uint16]bool{0: false, 3: true, 5: true, 6: false} {
		if table.busy(index) != want {
			t.Errorf("entry %d is being changed: %v", index, !want)
		}
	}
	table.set(3, nil)
	if table.has(3) || !table.has(0) || !table.has(abi.GIDEntries-1) || table.has(abi.GIDEntries) {
		t.Errorf("entries %b", table.used)
	}
}

// TestNodeGUID: the device's GUID is the EUI-64 of its MAC address.
func TestNodeGUID(t *testing.T) {
	f, _ := newFunction(t, 0x01_1001)
	f.MAC = [6]byte{0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc}
	r, st := (&commands{f: f}).QueryDevice()
	if st != abi.StatusOK || r.NodeGUID != 0x1034_56ff_fe78_9abc {
		t.Errorf("%#x, %v", r.NodeGUID, st)
	}
}

// TestBehind checks that a driver that does not take its events gets no connections, which is
// counted and recorded as a violation. A driver that takes its events gets them.
func TestBehind(t *testing.T) {
	f, _ := newFunction(t, 0x01_1001)
	if f.Behind() {
		t.Error("nobody is behind")
	}
	o := newOutbox()
	f.driver = &Binding{Channel: boxed{o}}
	for n := range uint32(maxBehind + 1) {
		if behind := f.Behind(); behind != (n == maxBehind) {
			t.Errorf("behind with %d events: %v", n, behind)
		}
		o.AsyncEvent(&abi.AsyncEvent{Type: abi.EventQPFatal, Number: n})
	}
	if v, ok := f.violations.Newest(0); f.behind != 1 || !ok || abi.Clause(v.Clause) != abi.DRV205 {
		t.Errorf("%d connections were refused, %+v", f.behind, v)
	}
}
