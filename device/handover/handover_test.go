package handover

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/falcon-vnic/vnic/internal/allocs"
)

// fill fills a frame according to its number.
func fill(b []byte, n uint32) {
	for i := range b {
		b[i] = byte(n) + byte(i*7)
	}
}

// TestFramesArriveWholeAndInOrder checks that frames arrive at the right shard, complete and in order, however the
// rings wrap, and that a full ring takes nothing and loses nothing it took.
func TestFramesArriveWholeAndInOrder(t *testing.T) {
	ends := New(3)
	rng := rand.New(rand.NewPCG(1, 2))
	var sent, got [3][3]uint32
	want := make([]byte, MaxFrame)
	full := 0
	for range 4_000 {
		from, to := rng.IntN(3), rng.IntN(3)
		n := rng.IntN(200)
		if rng.IntN(5) == 0 {
			n = rng.IntN(MaxFrame + 1)
		}
		h := Header{Kind: Local, A: sent[from][to], B: uint32(n), Aux: [16]byte{15: 9}}
		if b := ends[from].Put(to, &h, n); b != nil {
			if from == to {
				t.Fatal("a shard handed something to itself")
			}
			fill(b, h.A)
			ends[from].Commit()
			if ends[from].Given() != 1<<to {
				t.Fatal("who is to be woken is not told")
			}
			sent[from][to]++
		} else if from != to {
			full++
		}
		if rng.IntN(8) > 0 {
			continue
		}
		e := ends[rng.IntN(3)]
		for range rng.IntN(8) {
			var f Frame
			i, ok := e.Take(&f)
			if !ok {
				break
			}
			if f.Kind != Local || f.A != got[i][e.shard] || int(f.B) != len(f.Data) || f.Aux[15] != 9 {
				t.Fatalf("from %d to %d: %+v, want number %d", i, e.shard, f.Header, got[i][e.shard])
			}
			fill(want[:len(f.Data)], f.A)
			if !bytes.Equal(f.Data, want[:len(f.Data)]) {
				t.Fatal("data differs")
			}
			got[i][e.shard]++
		}
		e.Done()
	}
	if full == 0 {
		t.Error("no ring was ever full")
	}
	for _, e := range ends {
		var f Frame
		for i, ok := e.Take(&f); ok; i, ok = e.Take(&f) {
			got[i][e.shard]++
		}
		e.Done()
		if !e.Empty() {
			t.Error("not empty")
		}
	}
	if sent != got {
		t.Errorf("sent %v, got %v", sent, got)
	}
}

// TestTwoThreadsExchangeFramesInOrder is for the race detector.
func TestTwoThreadsExchangeFramesInOrder(t *testing.T) {
	ends := New(2)
	const frames = 100_000
	var both sync.WaitGroup
	for i, e := range ends {
		both.Go(func() {
			var f Frame
			for sent, got := uint32(0), uint32(0); sent < frames || got < frames; {
				if sent < frames {
					if b := e.Put(1-i, &Header{Kind: Uplink, A: sent}, 64); b != nil {
						binary.LittleEndian.PutUint32(b[60:], sent)
						e.Commit()
						sent++
					}
				}
				for _, ok := e.Take(&f); ok; _, ok = e.Take(&f) {
					if f.A != got || binary.LittleEndian.Uint32(f.Data[60:]) != got {
						t.Errorf("%+v, want %d", f.Header, got)
						return
					}
					got++
				}
				e.Done()
				runtime.Gosched()
			}
		})
	}
	both.Wait()
}

// TestNoAllocations checks that handing over allocates nothing.
func TestNoAllocations(t *testing.T) {
	ends := New(2)
	var f Frame
	if n := allocs.PerRun(1000, func() {
		ends[0].Put(1, &Header{Kind: Plain, A: 1}, 1500)
		ends[0].Commit()
		ends[1].Take(&f)
		ends[1].Done()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkHandover(b *testing.B) {
	ends := New(2)
	var f Frame
	data := make([]byte, 4200)
	b.SetBytes(4200)
	for b.Loop() {
		copy(ends[0].Put(1, &Header{Kind: Local, Flow: 7}, 4200), data)
		ends[0].Commit()
		ends[1].Take(&f)
		ends[1].Done()
	}
}

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
		if n := fill(Local, 1, whole(record)); n != Size/record/2 {
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

// TestFrameBeginsAnewAtTheEnd checks that a record that does not fit at the end of the ring goes to
// its beginning, and that the skipped bytes count as used.
func TestFrameBeginsAnewAtTheEnd(t *testing.T) {
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

// TestOnlyOtherShardsAreGivenFrames checks that nothing is handed to a missing shard or to the
// shard itself, and that no frame is longer than MaxFrame.
func TestOnlyOtherShardsAreGivenFrames(t *testing.T) {
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

// TestGivenNamesEachShardOnce checks that Given returns each shard that was given something since
// the last call, once.
func TestGivenNamesEachShardOnce(t *testing.T) {
	ends := New(4)
	for _, to := range []int{3, 0, 3} {
		ends[1].Put(to, &Header{Kind: Plain}, 1)
		ends[1].Commit()
	}
	if given, again := ends[1].Given(), ends[1].Given(); given != 1<<0|1<<3 || again != 0 {
		t.Errorf("given something are %#b, then %#b", given, again)
	}
	for i, empty := range []bool{false, true, true, false} {
		if ends[i].Empty() != empty {
			t.Errorf("shard %d has something: %v", i, empty)
		}
	}
}

// TestRingsTakeTurns checks that rings with frames take turns, each with one long frame or several
// short ones, from each shard and of each kind.
func TestRingsTakeTurns(t *testing.T) {
	ends := New(4)
	put := func(from int, kind Kind, n, frames int) {
		for range frames {
			ends[from].Put(2, &Header{Kind: kind}, n)
			ends[from].Commit()
		}
	}
	put(0, Plain, 60_000, 3)
	put(0, Local, 1, 40)
	put(3, Uplink, 1500, 40)
	turns := map[Header]int{}
	var f Frame
	for range 1 + 16 + 16 {
		from, _ := ends[2].Take(&f)
		turns[Header{Kind: f.Kind, A: uint32(from)}]++
	}
	if turns[Header{Kind: Plain}] != 1 || turns[Header{Kind: Local}] != 16 || turns[Header{Kind: Uplink, A: 3}] != 16 {
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

// TestAFlowThatHasNothingIsForgotten: the memory of a ring does not grow with the number of functions and peers that
// ever used it, and a flow that comes again has its whole part.
func TestAFlowThatHasNothingIsForgotten(t *testing.T) {
	ends := New(2)
	var f Frame
	for flow := range uint32(3 * maxFlows) {
		if ends[0].Put(1, &Header{Kind: Plain, Flow: flow}, 64) == nil {
			t.Fatalf("flow %d finds no room", flow)
		}
		ends[0].Commit()
		if _, ok := ends[1].Take(&f); !ok || f.Flow != flow {
			t.Fatalf("%+v, want one of flow %d", f.Header, flow)
		}
		ends[1].Done()
	}
	if n := len(ends[0].out[1][Plain.class()].flows); n > maxFlows {
		t.Errorf("%d flows are remembered", n)
	}
	for n := range FlowFrames {
		if ends[0].Put(1, &Header{Kind: Plain, Flow: 1}, 0) == nil {
			t.Fatalf("%d frames of a flow that came again", n)
		}
		ends[0].Commit()
	}
}
