package verbs

import (
	"encoding/binary"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// TestQueuesHaveBoundsOfSizeAndStride: a queue has 2 entries at least and as many as the function
// may have at most, in strides of powers of two that hold what is read of an entry.
func TestQueuesHaveBoundsOfSizeAndStride(t *testing.T) {
	const most, least = 64, 6
	for _, c := range []struct {
		name string
		p    queueParams
		want abi.Status
	}{
		{"smallest", queueParams{Log2Entries: 1, Log2Stride: least}, abi.StatusOK},
		{"one entry", queueParams{Log2Entries: 0, Log2Stride: least}, abi.StatusInvalidArgument},
		{"all entries", queueParams{Log2Entries: 6, Log2Stride: least}, abi.StatusOK},
		{"twice as many", queueParams{Log2Entries: 7, Log2Stride: least}, abi.StatusTooLarge},
		{"no number", queueParams{Log2Entries: 255, Log2Stride: least}, abi.StatusTooLarge},
		{"small stride", queueParams{Log2Entries: 1, Log2Stride: least - 1}, abi.StatusInvalidArgument},
		{"largest stride", queueParams{Log2Entries: 1, Log2Stride: 12}, abi.StatusOK},
		{"larger", queueParams{Log2Entries: 1, Log2Stride: 13}, abi.StatusInvalidArgument},
		{"full entries", queueParams{Log2Entries: 1, Log2Stride: 7, Read: 128}, abi.StatusOK},
		{"a byte too many", queueParams{Log2Entries: 1, Log2Stride: 7, Read: 129}, abi.StatusInvalidArgument},
	} {
		if st := c.p.Check(most, least); st != c.want {
			t.Errorf("%s: %v, want %v", c.name, st, c.want)
		}
	}
	largest := queueParams{Log2Entries: abi.MaxQueueLog2, Log2Stride: least}
	if st := largest.Check(1<<abi.MaxQueueLog2, least); st != abi.StatusOK {
		t.Errorf("the largest queue there is: %v", st)
	}
	var o Owner
	o.limits.CQEntries = 1 << abi.MaxQueueLog2
	cqs := CQs{owner: &o}
	for log2, want := range map[uint8]abi.Status{
		0: abi.StatusInvalidArgument, 1: abi.StatusOK, abi.MaxQueueLog2: abi.StatusOK, abi.MaxQueueLog2 + 1: abi.StatusTooLarge, 64: abi.StatusTooLarge,
	} {
		if st := cqs.checkSize(log2); st != want {
			t.Errorf("completion queue of 2^%d: %v, want %v", log2, st, want)
		}
	}
}

// TestACommandMustNotDescribeAQueueItDoesNotMake: a command that must not make a queue must not
// describe one.
func TestACommandMustNotDescribeAQueueItDoesNotMake(t *testing.T) {
	for _, c := range []struct {
		p    queueParams
		want abi.Status
	}{
		{queueParams{}, abi.StatusOK},
		{queueParams{Read: 16, Flags: 1}, abi.StatusOK}, // not said of a queue of its own
		{queueParams{Log2Entries: 1}, abi.StatusInvalidArgument},
		{queueParams{Log2Stride: 1}, abi.StatusInvalidArgument},
		{queueParams{Levels: 1}, abi.StatusInvalidArgument},
		{queueParams{Pages: 1}, abi.StatusInvalidArgument},
	} {
		if st := c.p.checkNone(); st != c.want {
			t.Errorf("%+v: %v, want %v", c.p, st, c.want)
		}
	}
}

// openQueue is a queue of 4 entries of 64 bytes with its driver's side.
func (g *guest) openQueue() (u WorkQueue, p *ring.Producer, mem []byte) {
	g.t.Helper()
	layout := ring.QueueLayout(2, 6)
	at := g.pages(1)
	mem = g.mem(at, int(layout.Size()))
	u, st := g.Owner.openQueue(abi.RingSQ, queueParams{Log2Entries: 2, Log2Stride: 6, Read: 48, Levels: 1, Pages: g.run(at, 1)})
	g.good(st)
	u.number = 0x42
	return u, ring.NewProducer(ring.Mem(mem), layout), mem
}

// TestEntriesAreReadOnceInOrder: entries are read in order, each once, and the driver sees how far.
// Sleep reports whether an entry is there already.
func TestEntriesAreReadOnceInOrder(t *testing.T) {
	g := newGuest(t, Limits{})
	u, p, mem := g.openQueue()
	consumer := func() uint32 { return binary.LittleEndian.Uint32(mem[64:]) }
	buf := make([]byte, 64)
	if _, ok := u.Next(buf); ok || u.Sleep() || u.Ready() != 0 {
		t.Fatal("an empty queue has entries")
	}
	for i := range byte(20) { // round and round
		for k := range byte(3) {
			if err := p.Push([]byte{i, k}); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := p.Publish(); err != nil {
			t.Fatal(err)
		}
		if n, ok := u.Poll(); n != 3 || !ok || u.Ready() != 3 || !u.Sleep() {
			t.Fatalf("%d entries seen of 3", n)
		}
		for k := range byte(3) {
			entry, ok := u.Next(buf)
			if !ok || len(entry) != 48 || entry[0] != i || entry[1] != k || u.Ready() != uint32(2-k) {
				t.Fatalf("entry %d of round %d: %t, % x", k, i, ok, entry)
			}
			if u.Commit(); consumer() != u.Index() || u.Index() != uint32(i)*3+uint32(k)+1 {
				t.Fatalf("the driver sees %d entries read of %d", consumer(), u.Index())
			}
		}
		if _, ok := u.Next(buf); ok || u.Sleep() {
			t.Fatal("more entries than were posted")
		}
	}
}

// TestABrokenQueueYieldsNoEntries: an impossible index, or missing memory, breaks a queue for good:
// it yields no entries, and the driver is told once, with the clause. (DRV-602, DRV-603)
func TestABrokenQueueYieldsNoEntries(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(g *guest, u *WorkQueue, mem []byte)
		want  abi.Clause
		index uint32
	}{
		"producer too far": {func(_ *guest, u *WorkQueue, mem []byte) {
			mem[0] = 6 // one is read, and four are in the queue at most
			u.Poll()
		}, abi.DRV602, 6},
		"producer moved back": {func(_ *guest, u *WorkQueue, mem []byte) {
			mem[0] = 1
			u.Doorbell(1)
		}, abi.DRV602, 1},
		"doorbell ahead": {func(_ *guest, u *WorkQueue, _ []byte) { u.Doorbell(3) }, abi.DRV603, 2},
		"memory gone": {func(g *guest, u *WorkQueue, _ []byte) {
			g.Owner.mem.SetRegions(nil)
			u.Sleep()
		}, abi.DRV402, 1},
		"memory gone before it sleeps": {func(g *guest, u *WorkQueue, _ []byte) {
			u.Commit()
			g.Owner.mem.SetRegions(nil)
			u.Sleep()
		}, abi.DRV402, 1},
	} {
		g := newGuest(t, Limits{})
		u, p, mem := g.openQueue()
		for range 2 {
			if err := p.Push([]byte{1}); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := p.Publish(); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 64)
		if !u.Doorbell(2) || u.Ready() != 2 {
			t.Fatal("a good doorbell is refused")
		}
		u.Next(buf)
		c.spoil(g, &u, mem)
		if !g.Unsettled() {
			t.Errorf("%s: nobody is to settle that", name)
		}
		c.spoil(g, &u, mem)
		if v := g.violations; len(v) != 1 || v[0].Clause != uint16(c.want) || v[0].Queue != 0x42 || v[0].Index != c.index || g.Unsettled() {
			t.Errorf("%s: violations %+v", name, v)
		}
		u.Commit()
		_, next := u.Next(buf)
		_, polled := u.Poll()
		if u.Broken() == "" || next || polled || u.Ready() != 0 || u.Doorbell(2) || u.Sleep() {
			t.Errorf("%s: it is used on", name)
		}
	}
}

// TestAQueueThatWasNeverOpenedYieldsNoEntries: a queue that a queue pair does not have yields no
// entries.
func TestAQueueThatWasNeverOpenedYieldsNoEntries(t *testing.T) {
	var u WorkQueue
	u.Reset()
	u.Commit()
	u.Name(5)
	_, next := u.Next(make([]byte, 64))
	if u.Open() || next || u.Ready() != 0 || u.Doorbell(0) || u.Sleep() || u.Broken() != "" {
		t.Errorf("%+v", u)
	}
}

// TestAQueueOfAClosedFunctionAsksForNoDoorbell asks for no doorbell any more.
func TestAQueueOfAClosedFunctionAsksForNoDoorbell(t *testing.T) {
	g := newGuest(t, Limits{})
	u, p, _ := g.openQueue()
	if err := p.Push([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.Publish(); err != nil {
		t.Fatal(err)
	}
	g.Close(0)
	if u.Sleep() {
		t.Error("there is an entry for a function that has ended")
	}
}

// TestAStrictFunctionReportsAreasThatAreNotZero: a strict function reports the first byte that is
// not zero in an area that must be zero, up to 64 KiB. Other functions do not check.
func TestAStrictFunctionReportsAreasThatAreNotZero(t *testing.T) {
	const pages = 18
	g := newGuest(t, Limits{})
	at := g.pages(pages)
	area, st := g.area(g.run(at, pages), 1, pages*abi.PageSize)
	g.good(st)
	for _, c := range []struct {
		length uint64
		at     uint32
		told   bool
	}{
		{1000, 0, true},
		{1000, 5, true},
		{1000, 511, true},
		{1000, 512, true},
		{1000, 999, true},
		{1000, 1000, false},
		{1024, 1023, true},
		{1024, 1024, false},
		{pages * abi.PageSize, 64<<10 - 1, true},
		{pages * abi.PageSize, 64 << 10, false},
	} {
		for _, strict := range []bool{true, false} {
			g.UseStrict(strict)
			g.violations = nil
			mem := g.mem(at, pages*abi.PageSize)
			clear(mem)
			mem[c.at], mem[c.at+1] = 0xab, 0xcd
			g.zero(abi.DRV701, abi.RingCQ, 9, area, c.length)
			if told := len(g.violations) > 0; told != (c.told && strict) {
				t.Errorf("strict %t, byte %d of %d: told %t", strict, c.at, c.length, told)
			} else if told {
				v := g.violations[0]
				if v.Clause != 701 || v.Queue != 9 || v.Index != c.at || v.Bytes[c.at%8] != 0xab || len(g.violations) != 1 {
					t.Errorf("byte %d: %+v", c.at, g.violations)
				}
			}
		}
	}
	g.UseStrict(true)
	g.violations = nil
	g.zero(abi.DRV701, abi.RingCQ, 9, nil, 100) // there is none
	g.Owner.mem.SetRegions(nil)
	g.zero(abi.DRV701, abi.RingCQ, 9, area, 100)
	if len(g.violations) != 0 {
		t.Errorf("memory that is not there: %+v", g.violations)
	}
}

// TestABadDoorbellIsReportedForItsQueue: a violation by a doorbell names the kind of queue that it
// was for. In RESET a doorbell with index 0 is no violation. (DRV-601, DRV-801)
func TestABadDoorbellIsReportedForItsQueue(t *testing.T) {
	g := newGuest(t, Limits{})
	for kind, ring := range map[abi.DoorbellKind]abi.Ring{
		abi.DoorbellSQ: abi.RingSQ, abi.DoorbellRQ: abi.RingRQ, abi.DoorbellCQArm: abi.RingCQ, abi.DoorbellSRQ: abi.RingSRQ, abi.DoorbellAdmin: abi.RingAdmin,
		99: abi.RingDoorbell,
	} {
		g.violations = nil
		g.Objects.Doorbell(0, &abi.Doorbell{Kind: kind, Queue: 0x777, Index: 3})
		if v := g.violations; len(v) != 1 || v[0].Clause != 801 || v[0].Ring != ring || v[0].Queue != 0x777 || v[0].Index != 3 || v[0].Length != abi.DoorbellSize {
			t.Errorf("%v: %+v", kind, v)
		}
	}
	if g.Stats.Doorbells != 6 || g.Stats.BadDoorbells != 6 {
		t.Errorf("%d doorbells, %d wrong", g.Stats.Doorbells, g.Stats.BadDoorbells)
	}
	s := g.newQP(abi.QPTypeRC, nil)
	s.reset(0)
	for kind, ring := range map[abi.DoorbellKind]abi.Ring{abi.DoorbellSQ: abi.RingSQ, abi.DoorbellRQ: abi.RingRQ} {
		for index, told := range []bool{false, true} {
			g.violations = nil
			g.Objects.Doorbell(0, &abi.Doorbell{Kind: kind, Queue: s.number, Index: uint32(index)})
			if v := g.violations; (len(v) == 1) != told || told && (v[0].Clause != 601 || v[0].Ring != ring || v[0].Index != 1) {
				t.Errorf("%v %d in RESET: %+v", kind, index, v)
			}
		}
	}
	g.Close(0)
	g.violations = nil
	g.Objects.Doorbell(0, &abi.Doorbell{Kind: abi.DoorbellSQ, Queue: 0x777})
	if len(g.violations) != 0 {
		t.Error("a function that has ended looks at doorbells")
	}
}
