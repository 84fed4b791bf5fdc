package conn

import (
	"errors"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// RequestKind is what a shard requests from the connection manager.
type RequestKind uint8

// Kinds of requests. The comments name the fields of Request that are used besides Function.
const (
	Begin      RequestKind = iota // Epoch: the function is in service
	Gone                          // the function is out of service
	Quota                         // N: CIDs that it may have
	Listen                        // Service
	Unlisten                      // Service
	Connect                       // Connect; the answer has the ID
	Accept                        // ID, N (queue pair), IRD, Private
	Reject                        // ID, N (reason), Private
	Disconnect                    // ID
	TakeCID                       // for a queue pair connected with itself; the answer's ID is the CID
	GiveCID                       // N: a CID from TakeCID
	PeerFault                     // N: the peer about whose connection a decision could not be carried out; the core handles it
)

// Request is a request of a shard to the connection manager.
type Request struct {
	Kind     RequestKind
	IRD      uint8
	Function uint32
	Epoch    uint32
	ID, N    uint32
	Question Question // what the expected Answer names; zero: none
	Service  uint64
	Private  []byte
	Connect  *cm.ConnectRequest
}

// Question names a request that has an answer.
type Question struct {
	Function, Epoch uint32
	N               uint32 // the function's, since it was put in service; from 1
}

// Answer is the result of a request.
type Answer struct {
	Question Question
	ID       uint32
	Err      error
}

// Requests passes the requests of functions to the connection manager, wherever it runs, in order.
// Ask does not wait: answers come to Connector.Answer, decisions to Connector.Decide.
type Requests interface{ Ask(r Request) }

// question is a request that waits for its answer, and the function to call with it.
type question struct {
	f    *Connections
	then func(now falcon.Time, a *Answer)
}

// tell sends a request that needs no answer.
func (f *Connections) tell(r Request) {
	r.Function = f.number()
	f.connector.cfg.Manager.Ask(r)
}

// ask sends a request and calls then with the answer, unless the function was reset meanwhile. The
// number of open questions is bounded by the callers: a driver's admin queue, a queue pair, a link.
func (f *Connections) ask(r Request, then func(now falcon.Time, a *Answer)) {
	f.asked++
	r.Question = Question{f.number(), f.epoch, f.asked}
	f.connector.questions[r.Question] = question{f, then}
	f.tell(r)
}

// Answer handles the answer to a request.
func (s *Connector) Answer(now falcon.Time, a *Answer) {
	q, ok := s.questions[a.Question]
	delete(s.questions, a.Question)
	if ok && a.Question.Epoch == q.f.epoch {
		q.then(now, a)
	}
}

// errorStatus translates an error of the connection manager to the driver's status.
func errorStatus(err error) abi.Status {
	for _, e := range []struct {
		err error
		st  abi.Status
	}{
		{nil, abi.StatusOK},
		{cm.ErrNoRoute, abi.StatusUnreachable},
		{cm.ErrPeerDown, abi.StatusUnreachable},
		{cm.ErrNotLocal, abi.StatusDenied},
		{cm.ErrLimit, abi.StatusNoResources},
		{ErrNoCID, abi.StatusNoResources},
		{cm.ErrNotFound, abi.StatusNotFound},
		{cm.ErrState, abi.StatusBadState},
		{cm.ErrInUse, abi.StatusAddressInUse},
		{cm.ErrInvalid, abi.StatusInvalidArgument},
	} {
		if errors.Is(err, e.err) {
			return e.st
		}
	}
	return abi.StatusNoResources
}

// reasonStatus translates a reason to the Status of an Unreachable event.
func reasonStatus(r cm.Reason) abi.Status {
	switch r {
	case cm.ReasonTimeout:
		return abi.StatusTimeout
	case cm.ReasonNoListener, cm.ReasonConsumer, cm.ReasonTenant, cm.ReasonGID:
		return abi.StatusRefused
	case cm.ReasonNoResources:
		return abi.StatusNoResources
	case cm.ReasonInvalid:
		return abi.StatusInvalidArgument
	case cm.ReasonCanceled, cm.ReasonFunctionGone, cm.ReasonLocal:
		return abi.StatusAborted
	}
	return abi.StatusUnreachable
}
