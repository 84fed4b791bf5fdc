package verbs

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestTableAgainstModel: a table behaves like a map whose numbers are chosen for it. Whatever is
// added and removed, each number names its object alone, old numbers name nothing, slots are used
// again the oldest first, and no number leaves its bits or falls below low.
func TestTableAgainstModel(t *testing.T) {
	const (
		slotBits, low = 4, 3
		room          = 1<<slotBits - low // more slots there are not, whatever the limit
	)
	for _, limit := range []int{1, 2, 7, room - 1, room, room + 1, 1000} {
		rng := rand.New(rand.NewPCG(uint64(limit), 12))
		table := NewTable[int](limit, slotBits, low)
		limit = min(limit, room)
		live, gone := map[uint32]*int{}, map[uint32]bool{}
		var fresh, free []uint32 // slots never used, and slots given back, the oldest first
		for slot := range uint32(limit) {
			fresh = append(fresh, slot+low)
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

// TestTableShrinksAndGrows: a smaller limit keeps existing objects and refuses new ones until they
// fit.
func TestTableShrinksAndGrows(t *testing.T) {
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

// TestTableRestored: an object taken over from another process keeps its number, generation and
// all.
func TestTableRestored(t *testing.T) {
	table := NewTable[int](4, 4, 2)
	a, b := new(int), new(int)
	table.Add(a)
	n, _ := table.Add(new(int))
	if got := table.Replace(n, b, 7); got != 7<<4|3 || table.Get(got) != b || table.Get(n) != nil || table.InUse() != 2 {
		t.Errorf("%#x, %d in use", got, table.InUse())
	}
}
