package device

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/falcon-vnic/vnic/qemu"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// ringing is an attachment whose sessions can ring without messages.
type ringing struct {
	queues.Attachment
	mu   sync.Mutex
	f    func([]byte, error) // of the session that listens
	asks []uint32
}

type ringingSession struct {
	queues.Session
	a *ringing
}

func (a *ringing) Accept() (queues.Session, error) {
	s, err := a.Attachment.Accept()
	if err != nil {
		return nil, err
	}
	return &ringingSession{s, a}, nil
}

func (s *ringingSession) Bells(function uint32, f func([]byte, error)) (stop func(), err error) {
	s.a.mu.Lock()
	defer s.a.mu.Unlock()
	s.a.f = f
	s.a.asks = append(s.a.asks, function)
	return func() {
		s.a.mu.Lock()
		defer s.a.mu.Unlock()
		s.a.f = nil
	}, nil
}

func (a *ringing) ring(records []byte, err error) (heard bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.f != nil {
		a.f(records, err)
	}
	return a.f != nil
}

// TestBellsWithoutMessages rings by shared memory: records have the effect of a
// doorbell message, and a guest that breaks the rules there loses its function.
func TestBellsWithoutMessages(t *testing.T) {
	w := newWorld(t)
	bare, err := qemu.ListenUnix(w.sockets[0] + ".ring")
	if err != nil {
		t.Fatal(err)
	}
	a := &ringing{Attachment: bare}
	n := w.nics[0]
	var accepting sync.WaitGroup
	accepting.Go(func() { n.accept(Attachment{Name: "bare", Attachment: a}) })
	defer accepting.Wait()
	defer a.Close()

	c := dialRaw(t, w.sockets[0]+".ring")
	r := c.hello(abi.FunctionAssigned)
	if r.Status != abi.StatusOK {
		t.Fatal(r.Status)
	}
	if len(a.asks) != 1 || a.asks[0] != r.Function {
		t.Fatalf("asked for the bells of %#x, want %#x", a.asks, r.Function)
	}
	before := w.counter(0, "shard.doorbells")
	records := make([]byte, 2*abi.DoorbellSize)
	(&abi.Doorbell{Kind: abi.DoorbellSQ, Queue: 1}).Marshal(records)
	(&abi.Doorbell{Kind: abi.DoorbellRQ, Queue: 1}).Marshal(records[abi.DoorbellSize:])
	a.ring(records, nil)
	w.until("two doorbells", func() bool { return w.counter(0, "shard.doorbells") == before+2 })

	a.ring(nil, errors.New("the ring is nonsense"))
	if reason := c.expectEnd(); !strings.Contains(reason, "the ring is nonsense") {
		t.Errorf("the guest was told %q", reason)
	}
	if a.ring(records, nil) {
		t.Error("a session that has ended listens still")
	}
	// The function is free for the next.
	if r := dialRaw(t, w.sockets[0]+".ring").hello(abi.FunctionAssigned); r.Status != abi.StatusOK {
		t.Error(r.Status)
	}
}
