package roce_test

import (
	"math/rand/v2"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// asking is one end that sends requests to another one that answers only when asked, as Linux does,
// over a line that loses nothing.
type asking struct {
	*world
	t      *testing.T
	now    transport.Time
	from   *roce.Conn
	own    target // its queue pair
	credit int    // packets with data may be posted while fewer are not answered

	asked  int // packets that asked for an answer
	quiet  int // since
	widest int // the most of those
}

func newAsking(t *testing.T) *asking {
	a := &asking{world: newWorld(1, false, 1500, sim.Impairment{Delay: 100e3, Rate: 1e9}), t: t, now: 1e9, credit: 1000}
	to := a.connect(1)
	a.from = a.connect(0)
	attach(t, a.from, &a.own, 17, 18)
	attach(t, to, &store{}, 18, 17)
	a.sees = func(from int, packet []byte) {
		_, b, err := wire.Parse(packet)
		var h wire.Headers
		if err == nil {
			_, err = h.Parse(b)
		}
		switch {
		case err != nil:
			t.Fatal(err)
		case from != 0:
		case h.BTH.AckReq:
			a.asked++
			a.widest, a.quiet = max(a.widest, a.quiet), 0
		default:
			a.quiet++
		}
	}
	return a
}

// store is a sink that any READ may read.
type store struct{ sink }

func (*store) Read(uint32, uint64, uint32) (transport.Memory, transport.Refusal) {
	return zeros{}, transport.Accepted
}

type zeros struct{}

func (zeros) Read(_ uint64, dst []byte) error {
	clear(dst)
	return nil
}

// carry posts requests as soon as they are taken, and waits for their ends. Nothing may wait for a
// timer meanwhile.
func (a *asking) carry(requests []transport.Request) {
	a.t.Helper()
	begun, over := 0, 0
	for over < len(requests) {
		for begun < len(requests) && (requests[begun].WQE.Opcode == abi.OpRead || a.pending(requests[over:begun+1]) < a.credit) {
			if _, err := a.from.Issue(a.now, &requests[begun]); err != nil {
				break
			}
			if requests[begun].Issued {
				begun++
			}
		}
		done := a.own.done
		next := a.step(a.now)
		for over < begun && requests[over].Pending == 0 {
			if st := requests[over].Status; st != abi.WCSuccess {
				a.t.Fatal(st)
			}
			over++
		}
		if a.own.done == done { // else more may be posted at once
			if a.now = max(a.now+1, next); a.now > 1000e9 {
				a.t.Fatalf("%d of %d requests after a thousand seconds", over, len(requests))
			}
		}
	}
	if s := a.ports[0].Stats(); s.Timeouts+s.Again != 0 || a.quiet != 0 {
		a.t.Errorf("%d timeouts, %d sent again, %d packets behind the last that asked", s.Timeouts, s.Again, a.quiet)
	}
}

func (a *asking) pending(requests []transport.Request) (n int) {
	for i := range requests {
		n += requests[i].Pending
	}
	return n
}

func writes(count, length int) []transport.Request {
	requests := make([]transport.Request, count)
	for i := range requests {
		requests[i].Length, requests[i].WQE = uint32(length), abi.SendWQE{Opcode: abi.OpWrite, RKey: 7}
	}
	return requests
}

// TestAsksSeldom: a message asks for one answer. If many messages wait, not each one asks, since an
// answer costs the peer a packet.
func TestAsksSeldom(t *testing.T) {
	a := newAsking(t)
	a.carry(writes(1, 8*256))
	if a.asked != 1 {
		t.Errorf("one message asks for %d answers", a.asked)
	}
	a.carry(writes(8, 256)) // the window has room
	if a.asked != 9 {
		t.Errorf("eight small ones ask for %d", a.asked-1)
	}
	for range 4 { // the window grows
		a.carry(writes(200, 256))
	}
	a.asked, a.widest = 0, 0
	const packets = 1000 * 16
	a.carry(writes(1000, 16*256))
	if a.asked > packets/32+64 || a.widest > 32 {
		t.Errorf("%d packets ask for %d answers, %d at most between two", packets, a.asked, a.widest)
	}
}

// TestAsksInTime: whatever requests follow each other, if sending stops, the last packet or one
// before it has asked for an answer.
func TestAsksInTime(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		a := newAsking(t)
		if rng.IntN(2) == 0 {
			a.credit = 1 + rng.IntN(40)
		}
		requests := writes(1+rng.IntN(60), 0)
		for i := range requests {
			r := &requests[i]
			switch rng.IntN(4) {
			case 0:
				r.Length, r.WQE.Opcode = uint32(rng.IntN(64*256)), abi.OpRead
			case 1:
				r.Length, r.WQE.Opcode = 8, abi.OpFetchAdd
			default:
				r.Length = uint32(rng.IntN(1 << (4 + rng.IntN(12))))
			}
		}
		a.carry(requests)
	}
}
