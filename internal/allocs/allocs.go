package allocs

import (
	"runtime"
	"time"
)

// parts is the number of measurements.
const parts = 10

// PerRun returns how many allocations a call of f makes on average, rounded down. Like
// testing.AllocsPerRun it calls f once before it counts, and then runs times, which must be more than 0.
//
// Only the allocations of the whole process can be counted, so a goroutine of a library, or one that an
// earlier test left, may add some. Therefore PerRun measures parts of the runs, with pauses that grow
// as long as somebody allocates, and returns the least: what f allocates each time is in all of them.
func PerRun(runs int, f func()) uint64 {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	f()
	least, pause := ^uint64(0), time.Millisecond
	for left := min(parts, runs); left > 0; left-- {
		n := runs / left
		runs -= n
		before := mallocs()
		for range n {
			f()
		}
		if least = min(least, (mallocs()-before)/uint64(n)); least > 0 && left > 1 {
			time.Sleep(pause)
			pause *= 2
		}
	}
	return least
}

func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}
