package allocs

import (
	"sync/atomic"
	"testing"

	"github.com/falcon-vnic/vnic/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

var sink atomic.Pointer[[64]byte]

func allocate() { sink.Store(new([64]byte)) }

// TestEachAllocationCounts: what a function allocates at each call is counted, in all of as many calls
// as are asked for, and one before.
func TestEachAllocationCounts(t *testing.T) {
	for _, runs := range []int{1, 6, 99} {
		for _, want := range []int{0, 1, 3} {
			calls := 0
			n := PerRun(runs, func() {
				calls++
				for range want {
					allocate()
				}
			})
			if n != uint64(want) || calls != runs+1 {
				t.Errorf("%d allocations in each of %d calls: %d counted, %d calls", want, runs, n, calls)
			}
		}
	}
}

// TestOthersDoNotCount: a goroutine that allocates during a part of the calls, however much, changes
// nothing.
func TestOthersDoNotCount(t *testing.T) {
	for _, busy := range []int{1, 50, 85} {
		calls, others := 0, 0
		n := PerRun(100, func() {
			if calls++; calls > busy {
				return
			}
			done := make(chan struct{}) // allocated, too
			go func() {
				defer close(done)
				for range 1000 {
					allocate()
				}
				others++
			}()
			<-done
		})
		if n != 0 || others != busy {
			t.Errorf("%d allocations were counted, while others allocated in %d of 100 calls", n, others)
		}
	}
}
