package ring_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/falcon-vnic/vnic/queues/ring"
)

// armed is a completion queue of 4 entries with n written, all of them taken by its driver.
func armed(t *testing.T, n int) (*ring.CQWriter, ring.Mem) {
	t.Helper()
	layout := ring.CQLayout(2)
	mem := ring.Mem(make([]byte, layout.Size()))
	w := ring.NewCQWriter(mem, layout)
	for i := range n {
		if err := w.Write(make([]byte, ring.CQEntrySize)); err != nil {
			t.Fatal(err)
		}
		binary.LittleEndian.PutUint32(mem, uint32(i+1))
	}
	return w, mem
}

// arm writes the arm word.
func arm(mem ring.Mem, number, index uint32, solicited bool) {
	word := uint64(number)<<33 | uint64(index)
	if solicited {
		word |= 1 << 32
	}
	binary.LittleEndian.PutUint64(mem[72:], word)
}

// TestAnArmWordAsksForOneEvent: when an arm word asks for an event, and when it names an entry nobody can have
// polled.
func TestAnArmWordAsksForOneEvent(t *testing.T) {
	for name, c := range map[string]struct {
		number, index    uint32
		only, solicited  bool // solicited entries only; the entry is
		wanted, armAhead bool
	}{
		"never armed":                    {0, 3, false, true, false, false},
		"the entry just written":         {1, 2, false, false, true, false},
		"an earlier one":                 {1, 0, false, false, true, false},
		"the next one":                   {1, 3, false, true, false, false},
		"one nobody can have polled":     {1, 4, false, true, false, true},
		"never armed, ahead":             {0, 4, false, true, false, false},
		"solicited":                      {1, 2, true, true, true, false},
		"not solicited":                  {1, 2, true, false, false, false},
		"not solicited, ahead":           {1, 4, true, false, false, true},
		"number with all its bits":       {1<<31 - 1, 2, false, false, true, false},
		"number with all its bits, late": {1<<31 - 1, 9, false, false, false, true},
	} {
		w, mem := armed(t, 3)
		arm(mem, c.number, c.index, c.only)
		if index, ahead := w.ArmedAhead(); ahead != c.armAhead || index != c.index {
			t.Errorf("%s: ahead %t at %d", name, ahead, index)
		}
		for i, want := range []bool{c.wanted, false} { // once for each arming
			got, err := w.Wanted(c.solicited)
			if err != nil || got != want {
				t.Errorf("%s: look %d: wanted %t, %v", name, i, got, err)
			}
		}
		if _, ahead := w.ArmedAhead(); c.wanted && ahead {
			t.Errorf("%s: ahead after it was served", name)
		}
	}
}

// TestServedArmingIsOver: an arming that was served says nothing any more, wherever its index is
// moved.
func TestServedArmingIsOver(t *testing.T) {
	w, mem := armed(t, 3)
	arm(mem, 1, 2, false)
	if got, _ := w.Wanted(false); !got {
		t.Fatal("not wanted")
	}
	arm(mem, 1, 9, false)
	if _, ahead := w.ArmedAhead(); ahead {
		t.Error("the number of a served arming is looked at again")
	}
}

// TestConsumerOfFullQueue: a full queue believes a consumer that moved on, and no other.
func TestConsumerOfFullQueue(t *testing.T) {
	for name, c := range map[string]struct {
		consumer uint32
		full     bool
		err      error
	}{
		"where it was":                {3, true, nil},
		"one further":                 {4, false, nil},
		"at the end":                  {7, false, nil},
		"one back":                    {2, false, ring.ErrIndex},
		"past the entries":            {8, false, ring.ErrIndex},
		"far back, by half the range": {1 << 31, false, ring.ErrIndex},
	} {
		w, mem := armed(t, 3)
		if full, err := w.Full(); full || err != nil {
			t.Fatal(full, err)
		}
		for range 4 {
			if err := w.Write(make([]byte, ring.CQEntrySize)); err != nil {
				t.Fatal(err)
			}
		}
		binary.LittleEndian.PutUint32(mem, c.consumer)
		if full, err := w.Full(); full != c.full || !errors.Is(err, c.err) {
			t.Errorf("%s: full %t, %v", name, full, err)
		}
	}
}
