package conn

import (
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

// RequestKind says what a shard asks of the connection manager.
type RequestKind uint8

// What is asked, and the fields of Request it uses beside Function.
const (
	Begin      RequestKind = iota // Epoch: the function is in service
	Gone                          // it is not any more
	Quota                         // N: CIDs that it may have
	Listen                        // Service
	Unlisten                      // Service
	Connect                       // Connect; the answer has the ID
	Accept                        // ID, N (queue pair), IRD, Private
	Reject                        // ID, N (reason), Private
	Disconnect                    // ID
	TakeCID                       // for a queue pair connected with itself; the answer has it as ID
	GiveCID                       // N: that CID
)

// Request is what a shard asks of the connection manager.
type Request struct {
	Kind     RequestKind
	IRD      uint8
	Function uint32
	Epoch    uint32
	ID, N    uint32
	Question uint64 // number of the Answer that is waited for; 0: none is
	Service  uint64
	Private  []byte
	Connect  *cm.ConnectRequest
}

// Answer is what became of a request.
type Answer struct {
	Question uint64
	ID       uint32
	Err      error
}

// Requests takes what functions ask of the connection manager, wherever that runs, in order.
// Nothing waits: an answer comes to Functions.Answer, what is decided to Functions.Order.
type Requests interface{ Ask(r Request) }

// question is asked for a function, and what is done with the answer.
type question struct {
	f     *Function
	epoch uint32
	then  func(now falcon.Time, a *Answer)
}

// tell asks what needs no answer.
func (f *Function) tell(r Request) {
	r.Function = f.number()
	f.set.cfg.Manager.Ask(r)
}

// ask asks, and does then with the answer unless the function was reset meanwhile. What asks bounds
// the questions that are open: a driver's admin queue, a queue pair, a link.
func (f *Function) ask(r Request, then func(now falcon.Time, a *Answer)) {
	s := f.set
	s.asked++
	s.questions[s.asked] = question{f, f.epoch, then}
	r.Question = s.asked
	f.tell(r)
}

// Answer takes the answer to a request.
func (s *Functions) Answer(now falcon.Time, a *Answer) {
	q, ok := s.questions[a.Question]
	delete(s.questions, a.Question)
	if ok && q.epoch == q.f.epoch {
		q.then(now, a)
	}
}
