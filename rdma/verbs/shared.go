package verbs

import (
	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/pool"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Shared holds what the functions of one shard use together; one goroutine owns all of them.
type Shared struct {
	Timers Timers
	Bounds

	polled    list.List[QP] // QPs whose send queue became empty a short while ago
	lingering list.List[QP] // failed QPs whose connection is still open, oldest first
	sends     pool.Pool[SendWR]

	entry    [4096]byte // one queue entry, as read from guest memory
	cqe      [abi.CQESize]byte
	datagram Datagram
	address  abi.DatagramWQE // address vector of the current entry
}

// Bounds limits how much queue pairs do at a time, and for how long.
type Bounds struct {
	TurnOps   int        // work requests one QP starts per turn
	TurnBytes int        // data bytes one QP issues per turn
	Linger    vtime.Time // how long a failed QP keeps its connection to tell the peer
	PollTime  vtime.Time // how long an empty send queue is polled before it is armed
}

// Scheduler gives the queue pairs of a function their turns.
type Scheduler interface {
	// Ready queues q for a call of QP.Turn, because it has something to do.
	Ready(q *QP)
	// May reports whether the function may issue another packet now. Spend charges one of n bytes.
	May(now vtime.Time) bool
	Spend(n int)
	// AnswerAt returns when the function's rate lets it answer a READ or atomic. Answered charges
	// the answer.
	AnswerAt(now vtime.Time) vtime.Time
	Answered(n int)
	// Freed reports that a queue pair does not want credit that it may have been offered.
	Freed()
}
