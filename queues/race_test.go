//go:build race

package queues

// With -race atomics run inside the race runtime, where a fault cannot be
// recovered: tests of faulting atomics leave them out.
const raceEnabled = true
