package verbs

import "github.com/falcon-vnic/vnic/queues/abi"

// Shared is what the functions of one shard use together, since one goroutine owns them all.
type Shared struct {
	Timers Timers
	Entry  [4096]byte // one queue entry, as read from guest memory
	cqe    [abi.CQESize]byte
}
