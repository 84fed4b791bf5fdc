package handover

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
)

// fill fills a frame according to its number.
func fill(b []byte, n uint32) {
	for i := range b {
		b[i] = byte(n) + byte(i*7)
	}
}

// TestInOrder checks that frames arrive at the right shard, complete and in order, however the
// rings wrap, and that a full ring takes nothing and loses nothing it took.
func TestInOrder(t *testing.T) {
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
		h := Header{Kind: Inside, A: sent[from][to], B: uint32(n), Aux: [16]byte{15: 9}}
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
			if f.Kind != Inside || f.A != got[i][e.shard] || int(f.B) != len(f.Data) || f.Aux[15] != 9 {
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

// TestTwoThreads is for the race detector.
func TestTwoThreads(t *testing.T) {
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
	if n := testing.AllocsPerRun(1000, func() {
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
		copy(ends[0].Put(1, &Header{Kind: Inside, Flow: 7}, 4200), data)
		ends[0].Commit()
		ends[1].Take(&f)
		ends[1].Done()
	}
}
