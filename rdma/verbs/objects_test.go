package verbs

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestTableBehavesLikeAMap: a table behaves like a map whose numbers are chosen for it. Whatever is
// added and removed, each number names its object alone, old numbers name nothing, slots are used
// again the oldest first, and no number leaves its bits or falls below low.
func TestTableBehavesLikeAMap(t *testing.T) {
	const (
		slotBits, low = 4, 3
		room          = 1<<slotBits - low // more slots there are not, whatever the limit
	)
	for n := range 100 {
		limit := []int{1, 2, 7, room - 1, room, room + 1, 1000}[n%7]
		rng := rand.New(rand.NewPCG(uint64(n), 12))
		table := NewTable[int](limit, slotBits, low)
		first := uint32(low)
		if n >= 7 {
			at := rng.Uint64()
			first = uint32(at)
			table.StartAt(at)
		}
		limit = min(limit, room)
		live, gone := map[uint32]*int{}, map[uint32]bool{}
		var fresh, free []uint32 // slots never used, and slots given back, the oldest first
		for slot := first; len(fresh) < limit; slot++ {
			if slot %= 1 << slotBits; slot >= low {
				fresh = append(fresh, slot)
			}
		}
		next := func() (slot uint32) {
			from := &fresh
			if len(fresh) == 0 {
				from = &free
			}
			slot, *from = (*from)[0], (*from)[1:]
			return slot
		}
		for range 4000 {
			if rng.IntN(2) == 0 {
				object := new(int)
				full := table.Full()
				number, ok := table.Add(object)
				if ok != (len(live) < limit) || ok == full {
					t.Fatalf("limit %d: Add with %d in use: %t, Full %t", limit, len(live), ok, full)
				}
				if !ok {
					continue
				}
				if slot := number & (1<<slotBits - 1); slot != next() || number >= 1<<(slotBits+8) || live[number] != nil {
					t.Fatalf("limit %d: number %#x is not that of the slot longest free", limit, number)
				}
				live[number] = object
				delete(gone, number) // after 256 owners
			} else if len(live) > 0 {
				numbers := make([]uint32, 0, len(live))
				for n := range live {
					numbers = append(numbers, n)
				}
				slices.Sort(numbers)
				number := numbers[rng.IntN(len(numbers))]
				table.Remove(number)
				delete(live, number)
				gone[number] = true
				free = append(free, number&(1<<slotBits-1))
			}
			seen := 0
			table.Each(func(o *int) { seen++ })
			if table.InUse() != len(live) || seen != len(live) {
				t.Fatalf("limit %d: %d in use, %d seen, want %d", limit, table.InUse(), seen, len(live))
			}
		}
		for n, o := range live {
			if table.Get(n) != o || table.At(n) != o || table.At(n^1<<slotBits) != o || table.Get(n^1<<slotBits) != nil {
				t.Fatalf("limit %d: number %#x", limit, n)
			}
		}
		for n := range gone {
			if table.Get(n) != nil {
				t.Fatalf("limit %d: %#x names the next owner of its slot", limit, n)
			}
		}
		for n := range uint32(low) {
			if table.Get(n) != nil || table.At(n) != nil {
				t.Fatalf("number %d is reserved", n)
			}
		}
	}
}

// TestALowerLimitKeepsObjects: a smaller limit keeps existing objects and refuses new ones until
// they fit.
func TestALowerLimitKeepsObjects(t *testing.T) {
	table := NewTable[int](4, 8, 0)
	var numbers []uint32
	for range 4 {
		n, _ := table.Add(new(int))
		numbers = append(numbers, n)
	}
	table.SetLimit(2)
	for _, n := range numbers[:2] {
		if table.Remove(n); !table.Full() {
			t.Error("room while as many are there as the limit allows")
		}
	}
	table.Remove(numbers[2])
	if n, ok := table.Add(new(int)); !ok || n != numbers[0]+1<<8 {
		t.Errorf("%#x, %t: want the slot longest free", n, ok)
	}
	table.SetLimit(6)
	for range 4 {
		if _, ok := table.Add(new(int)); !ok {
			t.Fatal("no room below the limit")
		}
	}
	if !table.Full() || table.InUse() != 6 {
		t.Errorf("%d of 6 in use", table.InUse())
	}
}

// TestNumbersThatBeginAtRandomAreOthers: the numbers of two tables that begin at random differ, also those of
// their first objects.
func TestNumbersThatBeginAtRandomAreOthers(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	seen := map[uint32]int{}
	for range 1000 {
		table := NewTable[int](256, 16, 2)
		table.StartAt(rng.Uint64())
		n, _ := table.Add(new(int))
		seen[n]++
	}
	if len(seen) < 998 {
		t.Errorf("1000 tables begin with %d numbers", len(seen))
	}
}

// TestAReplacedObjectKeepsItsNumber: an object taken over from another process keeps its number,
// generation and all.
func TestAReplacedObjectKeepsItsNumber(t *testing.T) {
	table := NewTable[int](4, 4, 2)
	a, b := new(int), new(int)
	table.Add(a)
	n, _ := table.Add(new(int))
	if got := table.Replace(n, b, 7); got != 7<<4|3 || table.Get(got) != b || table.Get(n) != nil || table.InUse() != 2 {
		t.Errorf("%#x, %d in use", got, table.InUse())
	}
}

// TestLimitsHaveDefaultsAndMaxima: a limit that is not configured has its default, one above the
// maximum is cut, and queues have a power of two of entries.
func TestLimitsHaveDefaultsAndMaxima(t *testing.T) {
	usual := Limits{}.WithDefaults()
	for k, n := range usual.Objects {
		if info := abi.Object(k).Info(); n != int(info.Initial) {
			t.Errorf("%s: %d, usually %d", abi.Object(k), n, info.Initial)
		}
	}
	if usual.SGEs != 16 || usual.Inline != 224 || usual.ReadAtomic != MaxReadAtomic || usual.MTU != MaxDatagram {
		t.Errorf("usual limits %+v", usual)
	}
	negative := Limits{SGEs: -1, Links: -1}.WithDefaults()
	if negative.SGEs != usual.SGEs || negative.Links != usual.Links {
		t.Errorf("limits below nothing: %+v", negative)
	}
	one := Limits{SGEs: 1, Inline: 1, ReadAtomic: 1, MTU: 1, Links: 1, PageListBytes: 1, QPEntries: 1, CQEntries: 1}
	one.Objects[abi.ObjectAH] = 1
	if got := one.WithDefaults(); got.SGEs != 1 || got.Inline != 1 || got.ReadAtomic != 1 || got.MTU != 1 || got.Links != 1 ||
		got.PageListBytes != 1 || got.QPEntries != 1 || got.CQEntries != 1 || got.Objects[abi.ObjectAH] != 1 {
		t.Errorf("limits of 1: %+v", got)
	}
	huge := Limits{SGEs: 1 << 40, Inline: 1 << 40, ReadAtomic: 1 << 40, MTU: 1 << 40, QPEntries: 1 << 40, CQEntries: 1 << 40}
	huge.Objects[abi.ObjectQP] = 1 << 40
	if got := huge.WithDefaults(); got.SGEs != 64 || got.Inline != 1024 || got.ReadAtomic != MaxReadAtomic || got.MTU != MaxDatagram ||
		got.QPEntries != 1<<abi.MaxQueueLog2 || got.CQEntries != 1<<abi.MaxQueueLog2 || got.Objects[abi.ObjectQP] != 1<<16-2 {
		t.Errorf("limits above everything: %+v", got)
	}
	for n, want := range map[int]int{1: 1, 2: 2, 3: 2, 4: 4, 63: 32, 64: 64, 65: 64} {
		if got := (Limits{QPEntries: n, CQEntries: n}).WithDefaults(); got.QPEntries != want || got.CQEntries != want {
			t.Errorf("%d entries: %d and %d, want %d", n, got.QPEntries, got.CQEntries, want)
		}
	}
}

// TestAnEndedFunctionRefusesCommands: a function that has ended has no objects and makes none, and
// commands that change objects fail with StatusBadState.
func TestAnEndedFunctionRefusesCommands(t *testing.T) {
	g := newGuest(t, Limits{})
	s := g.newUD(nil)
	m := g.region(g.pdn, 64, allRights)
	g.bound(abi.MWType1, &Bindings{}, m)
	q := g.newSRQ(abi.CreateSRQ{})
	if _, st := g.OpenXRCD(); st != abi.StatusOK {
		t.Fatal(st)
	}
	ahn, st := g.CreateAH(0, &abi.CreateAH{PDN: g.pdn, DGID: gid(1)})
	g.good(st)
	group := abi.Mcast{QPN: s.number, GID: [16]byte{10: 0xff, 11: 0xff, 12: 239}}
	g.good(g.AttachMcast(&group))
	g.newRC(nil)
	for k, n := range g.Counts() {
		if n == 0 {
			t.Errorf("there is no %s: the test tests nothing", abi.Object(k))
		}
	}
	g.Close(0)
	if n := g.Counts(); n != (Counts{}) {
		t.Errorf("%v objects are left", n)
	}
	for name, st := range map[string]abi.Status{
		"AllocPD":     second(g.AllocPD()),
		"OpenXRCD":    second(g.OpenXRCD()),
		"CreateCQ":    second(g.CreateCQ(&abi.CreateCQ{})),
		"CreateQP":    second(g.CreateQP(&abi.CreateQP{})),
		"CreateSRQ":   second(g.CreateSRQ(&abi.CreateSRQ{})),
		"CreateAH":    second(g.CreateAH(0, &abi.CreateAH{})),
		"AllocMW":     second(g.AllocMW(&abi.AllocMW{})),
		"AllocMR":     second(g.AllocMR(&abi.AllocMR{})),
		"RegMR":       second(g.StartRegMR(&abi.RegMR{})),
		"ReregMR":     second(g.StartReregMR(&abi.ReregMR{})),
		"ModifySRQ":   second(g.ModifySRQ(&abi.ModifySRQ{SRQN: q.number})),
		"ModifyQP":    g.ModifyQP(0, &abi.ModifyQP{}),
		"ModifyCQ":    g.ModifyCQ(&abi.ModifyCQ{}),
		"ResizeCQ":    g.ResizeCQ(&abi.ResizeCQ{}),
		"AttachMcast": g.AttachMcast(&group),
	} {
		if st != abi.StatusBadState {
			t.Errorf("%s: %v", name, st)
		}
	}
	if g.DestroyAH(0, ahn) != abi.StatusNotFound || g.DetachMcast(&group) != abi.StatusNotFound || s.Turn(0) {
		t.Error("something is left")
	}
	s.Unblocked(0)
	if s.sent.poll() != nil || g.shared.Lingering() != 0 {
		t.Error("completions of a function that has ended")
	}
}

// second returns the status of a command with a result.
func second[T any](_ T, st abi.Status) abi.Status { return st }
