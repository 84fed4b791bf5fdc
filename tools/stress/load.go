package main

import (
	"hash/crc32"
	"runtime"
	"sync"
	"sync/atomic"
)

// load keeps all processors busy until the function that it returns is called: two threads for
// each, so that whoever else wants one has to wait for it.
func load() (stop func()) {
	var done atomic.Bool
	var wg sync.WaitGroup
	n := 2 * runtime.NumCPU()
	before := runtime.GOMAXPROCS(n + 2)
	for range n {
		wg.Go(func() {
			block := make([]byte, 1<<20) // more than the first caches hold
			for sum := uint32(0); !done.Load(); {
				sum = crc32.Update(sum, crc32.IEEETable, block)
				block[sum%uint32(len(block))]++
			}
		})
	}
	return func() {
		done.Store(true)
		wg.Wait()
		runtime.GOMAXPROCS(before)
	}
}
