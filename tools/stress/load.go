package main

import (
	"hash/crc32"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// load keeps all processors busy until the function that it returns is called, also while the tests
// that run at once wait for something: two threads for each processor, which give way to tests.
func load() (stop func()) {
	var done atomic.Bool
	var wg sync.WaitGroup
	n := 2 * runtime.NumCPU()
	before := runtime.GOMAXPROCS(n + 2)
	for range n {
		wg.Go(func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), 10)
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
