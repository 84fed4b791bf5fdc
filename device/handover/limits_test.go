package handover

import (
	"slices"
	"testing"
)

// whole is the length of a frame whose record takes so many bytes.
func whole(record int) int { return record - recordHeader }

// TestRingFillsToTheLastByte: a ring takes frames as long as there is room for the whole record, at
// its end and at its beginning, and has room for one more when one was given back.
func TestRingFillsToTheLastByte(t *testing.T) {
	const record = 8192
	ends := New(2)
	put := func(n int) bool {
		if ends[0].Put(1, &Header{Kind: Plain}, n) == nil {
			return false
		}
		ends[0].Commit()
		return true
	}
	take := func(n int) {
		t.Helper()
		var f Frame
		if _, ok := ends[1].Take(&f); !ok || len(f.Data) != n {
			t.Fatalf("a frame of %d bytes, %v; want %d", len(f.Data), ok, n)
		}
		ends[1].Done()
	}
	for round := range 3 {
		for i := range Size / record {
			if !put(whole(record)) {
				t.Fatalf("round %d: full after %d bytes of %d", round, i*record, Size)
			}
		}
		if put(0) || put(whole(record)) {
			t.Errorf("round %d: a full ring takes a frame", round)
		}
		take(whole(record))
		if put(whole(record)+1) || !put(whole(record)) || put(0) {
			t.Errorf("round %d: not as much room as was given back", round)
		}
		for range Size / record {
			take(whole(record))
		}
	}
	// A record that does not fit in front of the end of the ring begins it anew; what is skipped is
	// room that counts.
	ends = New(2)
	for range Size/record - 1 {
		put(whole(record))
	}
	for range 3 {
		take(whole(record))
	}
	if !put(whole(record-8)) || put(whole(3*record+8)) || !put(whole(3*record)) || put(0) {
		t.Error("not as much room as there is behind what is skipped")
	}
	for range Size/record - 4 {
		take(whole(record))
	}
	take(whole(record - 8))
	take(whole(3 * record))
	if !ends[1].Empty() {
		t.Error("something is left")
	}
}

// TestWhatIsNoShard: nothing is handed to a shard that there is not, or to itself, and no frame is
// longer than the longest.
func TestWhatIsNoShard(t *testing.T) {
	ends := New(3)
	for _, c := range []struct {
		to, n int
		takes bool
	}{{0, 10, true}, {1, 10, false}, {2, 10, true}, {3, 10, false}, {-1, 10, false}, {2, MaxFrame, true}, {2, MaxFrame + 1, false}} {
		if b := ends[1].Put(c.to, &Header{Kind: Plain}, c.n); (b != nil) != c.takes || len(b) != cap(b) ||
			b != nil && len(b) != c.n {
			t.Errorf("a frame of %d bytes for shard %d: %d bytes", c.n, c.to, len(b))
		}
	}
	if ends[1].Given() != 0 || !ends[2].Empty() || ends[1].Shards() != 3 {
		t.Error("what was not committed is there")
	}
}

// TestWhoIsToBeWoken: all that got something since the last time are told of, each once.
func TestWhoIsToBeWoken(t *testing.T) {
	ends := New(4)
	for _, to := range []int{3, 0, 3} {
		ends[1].Put(to, &Header{Kind: Plain}, 1)
		ends[1].Commit()
	}
	var woken []int
	Each(ends[1].Given(), func(shard int) { woken = append(woken, shard) })
	if !slices.Equal(woken, []int{0, 3}) || ends[1].Given() != 0 {
		t.Errorf("woken are %v", woken)
	}
	for i, empty := range []bool{false, true, true, false} {
		if ends[i].Empty() != empty {
			t.Errorf("shard %d has something: %v", i, empty)
		}
	}
}

// TestTurnsOfShards: what one shard has handed over comes in one piece; after Done it is another's
// turn.
func TestTurnsOfShards(t *testing.T) {
	ends := New(4)
	for _, from := range []int{0, 1, 3} {
		for range 3 {
			ends[from].Put(2, &Header{Kind: Plain}, 1)
			ends[from].Commit()
		}
	}
	var order []int
	for range 5 {
		for range 2 {
			var f Frame
			if from, ok := ends[2].Take(&f); ok {
				order = append(order, from)
			}
		}
		ends[2].Done()
	}
	if !slices.Equal(order, []int{0, 0, 1, 1, 3, 3, 0, 1, 3}) {
		t.Errorf("frames of shards %v", order)
	}
}
