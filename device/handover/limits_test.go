package handover

import (
	"bytes"
	"slices"
	"testing"
)

// whole returns the length of a frame whose record takes record bytes.
func whole(record int) int { return record - recordHeader }

// TestFlowLeavesAsMuchFree checks that a flow uses no more of a ring than it leaves free, to the
// byte, after any number of rounds, and no more than FlowFrames frames, and that what the consumer
// releases counts at once. Other flows find room, and other kinds have all of theirs.
func TestFlowLeavesAsMuchFree(t *testing.T) {
	const record = 8192
	ends := New(2)
	put := func(kind Kind, flow uint32, n int) bool {
		if ends[0].Put(1, &Header{Kind: kind, Flow: flow}, n) == nil {
			return false
		}
		ends[0].Commit()
		return true
	}
	fill := func(kind Kind, flow uint32, n int) (frames int) {
		for put(kind, flow, n) {
			frames++
		}
		return frames
	}
	take := func(frames int) {
		t.Helper()
		for range frames {
			var f Frame
			if _, ok := ends[1].Take(&f); !ok {
				t.Fatal("no frame")
			}
		}
		ends[1].Done()
	}
	for round := range 5 {
		left := Size / record
		for flow := range uint32(4) {
			if n := fill(Plain, flow, whole(record)); n != left/2 {
				t.Fatalf("round %d: flow %d has %d frames, want half of %d", round, flow, n, left)
			}
			left -= left / 2
		}
		if n := fill(Inside, 1, whole(record)); n != Size/record/2 {
			t.Errorf("round %d: %d frames of another kind", round, n)
		}
		take(Size/record - left + Size/record/2)
		if !ends[1].Empty() {
			t.Fatal("something is left")
		}
	}
	ends = New(2)
	if n := fill(Plain, 9, 0); n != FlowFrames {
		t.Errorf("%d of the shortest frames, want %d", n, FlowFrames)
	}
	take(10)
	if n := fill(Plain, 9, 0); n != 10 || !put(Plain, 8, MaxFrame) {
		t.Errorf("%d frames in the place of 10", n)
	}
}

// TestSkippedRoom checks that a record that does not fit at the end of the ring goes to its
// beginning, and that the skipped bytes count as used.
func TestSkippedRoom(t *testing.T) {
	ends := New(2)
	var f Frame
	for at := 0; at+MaxFrame < Size; at += recordHeader + MaxFrame { // near the end
		if ends[0].Put(1, &Header{Kind: Plain}, MaxFrame) == nil {
			t.Fatal("not taken")
		}
		ends[0].Commit()
		ends[1].Take(&f)
		ends[1].Done()
	}
	copy(ends[0].Put(1, &Header{Kind: Plain}, MaxFrame), "begins anew")
	ends[0].Commit()
	if ends[1].Take(&f); !bytes.HasPrefix(f.Data, []byte("begins anew")) || len(f.Data) != MaxFrame {
		t.Errorf("%d bytes, %q", len(f.Data), f.Data[:11])
	}
	n := 1
	for ends[0].Put(1, &Header{Kind: Plain}, MaxFrame) != nil {
		ends[0].Commit()
		n++
	}
	skipped := Size % (recordHeader + MaxFrame)
	if want := (Size - skipped) / (recordHeader + MaxFrame) / 2; n != want {
		t.Errorf("%d frames beside %d bytes that are skipped, want %d", n, skipped, want)
	}
}

// TestWhatIsNoShard checks that nothing is handed to a missing shard or to the shard itself, and
// that no frame is longer than MaxFrame.
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

// TestWhoIsToBeWoken checks that Given returns each shard that was given something since the last
// call, once.
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

// TestTurnsOfRings checks that rings with frames take turns, each with one long frame or several
// short ones, from each shard and of each kind.
func TestTurnsOfRings(t *testing.T) {
	ends := New(4)
	put := func(from int, kind Kind, n, frames int) {
		for range frames {
			ends[from].Put(2, &Header{Kind: kind}, n)
			ends[from].Commit()
		}
	}
	put(0, Plain, 60_000, 3)
	put(0, Inside, 1, 40)
	put(3, Uplink, 1500, 40)
	turns := map[Header]int{}
	var f Frame
	for range 1 + 16 + 16 {
		from, _ := ends[2].Take(&f)
		turns[Header{Kind: f.Kind, A: uint32(from)}]++
	}
	if turns[Header{Kind: Plain}] != 1 || turns[Header{Kind: Inside}] != 16 || turns[Header{Kind: Uplink, A: 3}] != 16 {
		t.Errorf("turns: %v", turns)
	}
	left := 0
	for _, ok := ends[2].Take(&f); ok; _, ok = ends[2].Take(&f) {
		left++
	}
	if left != 83-33 {
		t.Errorf("%d frames are left, want %d", left, 83-33)
	}
}
