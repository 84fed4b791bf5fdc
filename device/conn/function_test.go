package conn

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// asked is a connection manager that records requests, and a driver that records its events and how
// its commands end.
type asked struct {
	list   []string
	open   []uint64 // questions
	events []abi.AsyncEvent
	done   []abi.Status
	behind bool
}

// Ask implements Requests.
func (a *asked) Ask(r Request) {
	if r.Question != 0 {
		a.open = append(a.open, r.Question)
	}
	text := [...]string{
		Begin: "begin", Gone: "gone", Quota: "quota %d", Listen: "listen %#x", Unlisten: "unlisten %#x", Connect: "connect",
		Accept: "accept %d", Reject: "reject %d", Disconnect: "disconnect %d", TakeCID: "take", GiveCID: "give %d",
	}[r.Kind]
	switch r.Kind {
	case Listen, Unlisten:
		text = fmt.Sprintf(text, r.Service)
	case Accept, Reject, Disconnect:
		text = fmt.Sprintf(text, r.ID)
	case Quota, GiveCID:
		text = fmt.Sprintf(text, r.N)
	}
	a.list = append(a.list, text)
}

// answer answers the oldest question.
func (a *asked) answer(f *Function, id uint32, err error) {
	q := a.open[0]
	a.open = a.open[1:]
	f.set.Answer(1, &Answer{Question: q, ID: id, Err: err})
}

// Complete implements abi.Ticket.
func (a *asked) Complete(st abi.Status, _ abi.Result) { a.done = append(a.done, st) }

func (a *asked) later() abi.Ticket { return a }

// order returns an order of the present epoch, for a function in service.
func order(f *Function, o *cm.Output) *Order { return &Order{Output: *o, Epoch: f.epoch} }

func (a *asked) Notify(e *abi.AsyncEvent, _ string)               { a.events = append(a.events, *e) }
func (a *asked) Behind() bool                                     { return a.behind }
func (a *asked) NextLink() *rof.Link                              { return nil }
func (a *asked) Fault(abi.Fault, string)                          {}
func (a *asked) CQEvent(uint32)                                   {}
func (a *asked) Violation(*abi.Violation)                         {}
func (a *asked) Mistake(*verbs.Mistake)                           {}
func (a *asked) AsyncEvent(abi.EventType, uint32, uint32, string) {}

// take returns the requests since the last call.
func (a *asked) take() []string {
	l := a.list
	a.list = nil
	return l
}

// newFunction returns a function of a shard, in service or not.
func newFunction(t *testing.T, inService bool) (*shard, *asked, *Function) {
	s, a := newShard(t, 3), &asked{}
	set := NewFunctions(FunctionsConfig{MTU: 4096, Table: s.Table, Manager: a, Links: a, Log: s.cfg.Log})
	s.owner.LinkUp = true
	s.owner.Addr = netip.MustParseAddr("192.168.1.1")
	f := set.Add(*s.owner, a)
	s.owner = &f.Owner
	if inService {
		mem := queues.NewMemory(nil)
		f.Start(rdma.NewEngine(rdma.Config{}).NewFunction(f.number(), mem, verbs.Limits{}.WithDefaults(), a), mem)
		if got := a.take(); !slices.Equal(got, []string{"begin"}) {
			t.Fatal(got)
		}
	}
	return s, a, f
}

// request returns another function's request for a connection, to a service of the NICs or of a
// driver.
func request(f *Function, id uint32, service uint64, private []byte) *cm.Output {
	return &cm.Output{Kind: cm.OutRequest, ID: id, Function: f.number(), Service: service, PeerQPN: 9, Private: private}
}

// TestOutOfService: nobody can connect to a function whose link is down, or that is not in service.
// After a reset, answers and orders of the earlier epoch have no effect.
func TestOutOfService(t *testing.T) {
	_, a, f := newFunction(t, true)
	f.LinkUp = false
	f.set.Order(1, order(f, request(f, 5, 100, nil)))
	if got := a.take(); !slices.Equal(got, []string{"reject 5"}) || len(a.events) != 0 {
		t.Errorf("%v, %d events", got, len(a.events))
	}
	p := &cm.Params{ID: 6, Function: f.number()}
	f.set.Order(1, order(f, &cm.Output{Kind: cm.OutOpen, ID: 6, Function: f.number(), Params: p}))
	if got := a.take(); !slices.Equal(got, []string{"disconnect 6"}) {
		t.Error(got)
	}

	_, a, f = newFunction(t, true)
	f.set.Order(1, order(f, request(f, 5, 100, nil)))
	if st := f.Commands(1, a.later).CMListen(9); st != abi.StatusPending {
		t.Fatal(st)
	}
	late, keys := order(f, request(f, 7, 100, nil)), new(released)
	opening := order(f, &cm.Output{Kind: cm.OutOpen, ID: 5, Function: f.number(), Params: p})
	opening.Keys = keys
	reset := func() {
		f.Stop()
		f.Close(2)
		f.Forget()
	}
	reset()
	if got := a.take(); !slices.Equal(got, []string{"listen 0x9", "gone"}) || len(f.IDs()) != 0 {
		t.Errorf("%v, %v", got, f.IDs())
	}
	a.answer(f, 0, nil)
	f.Start(f.verbs, queues.NewMemory(nil)) // another driver's turn
	f.set.Order(3, late)
	f.set.Order(3, opening)
	if got := a.take(); !slices.Equal(got, []string{"begin"}) || len(a.events) != 1 || len(a.done) != 0 || len(f.IDs()) != 0 || *keys != 1 {
		t.Errorf("%v, %d events, %v, %v, keys released %d times", got, len(a.events), a.done, f.IDs(), *keys)
	}
	reset()
	f.set.Remove(f)
	f.set.Order(4, late)
	if got := a.take(); !slices.Equal(got, []string{"gone", "quota 0"}) {
		t.Errorf("a function that is gone: %v", got)
	}
}

// released counts how often keys were released.
type released int

func (r *released) Release() { *r++ }

// TestDriverHears: each end of a driver's connection becomes an event with a status, and the
// connection is forgotten.
func TestDriverHears(t *testing.T) {
	for kind, want := range map[cm.OutputKind]abi.AsyncEvent{
		cm.OutEstablished:  {Type: abi.EventEstablished},
		cm.OutRejected:     {Type: abi.EventRejected, Status: 42},
		cm.OutDisconnected: {Type: abi.EventDisconnected, Status: uint32(abi.StatusRefused)},
		cm.OutUnreachable:  {Type: abi.EventUnreachable, Status: uint32(abi.StatusRefused)},
	} {
		_, a, f := newFunction(t, true)
		f.set.Order(1, order(f, request(f, 5, 100, nil)))
		f.set.Order(2, order(f, &cm.Output{Kind: kind, ID: 5, Function: f.number(), Reason: cm.ReasonConsumer, Consumer: 42}))
		if len(a.events) != 2 || a.events[0].Type != abi.EventConnectRequest || a.events[0].PeerQPN != 9 {
			t.Fatalf("%v: %+v", kind, a.events)
		}
		if e := a.events[1]; e.Type != want.Type || e.Status != want.Status || e.Number != 5 {
			t.Errorf("%v: %+v", kind, e)
		}
		if left := len(f.IDs()); (left == 1) != (kind == cm.OutEstablished) {
			t.Errorf("%v: %d connections known", kind, left)
		}
	}
}

// TestReservedRequests: a NIC's request for a queue pair that does not exist, or in an unknown
// form, is rejected, and the driver gets no event.
func TestReservedRequests(t *testing.T) {
	for _, tc := range []struct {
		service uint64
		private []byte
	}{
		{serviceWire, binary.BigEndian.AppendUint32(nil, 0x1234)},
		{serviceWire, nil},
		{serviceWire, make([]byte, 5)},
		{serviceUD, nil},
		{serviceUD, make([]byte, 3)},
		{serviceUD + 1, make([]byte, 4)},
	} {
		_, a, f := newFunction(t, true)
		f.set.Order(1, order(f, request(f, 5, tc.service, tc.private)))
		if got := a.take(); !slices.Equal(got, []string{"reject 5"}) || len(a.events) != 0 || len(f.IDs()) != 0 {
			t.Errorf("%#x %x: %v, %d events, known %v", tc.service, tc.private, got, len(a.events), f.IDs())
		}
	}
}

// TestEndedIsTold: a connection that the transport ends is disconnected. If the connection manager
// never knew it, its CID is released.
func TestEndedIsTold(t *testing.T) {
	s, a, f := newFunction(t, true)
	u := &sitter{}
	_, id, err := s.open(u, true)
	if err != nil {
		t.Fatal(err)
	}
	self := &sitter{}
	cid, err := s.cids.Alloc(f.number())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Open(1, &Opening{Params: &cm.Params{LocalCID: cid, RemoteCID: cid, MTU: 1024 + headers}, Owner: &f.Owner, User: self}); err != nil {
		t.Fatal(err)
	}
	u.over.Close(2)
	self.over.Close(2)
	f.set.Ended()
	got := a.take()
	slices.Sort(got)
	if !slices.Equal(got, []string{fmt.Sprint("disconnect ", id), fmt.Sprint("give ", cid)}) {
		t.Error(got)
	}
	s.Close(3, id, cm.ReasonLocal)
	s.empty()
}

// TestEndLoopbacks: when a link goes down, connections inside the NIC end, and no others.
func TestEndLoopbacks(t *testing.T) {
	s, a, f := newFunction(t, true)
	var ids [2]uint32
	for i, inside := range []bool{false, true} {
		var err error
		if _, ids[i], err = s.open(&sitter{}, inside); err != nil {
			t.Fatal(err)
		}
		f.conns[ids[i]] = &connection{}
	}
	f.EndLoopbacks(2)
	if got := a.take(); !slices.Equal(got, []string{fmt.Sprint("disconnect ", ids[1])}) {
		t.Errorf("%v", got)
	}
}

// TestBehind: a driver that does not take its events gets no connections, neither from a peer nor
// by its own request. (DEV-211)
func TestBehind(t *testing.T) {
	_, a, f := newFunction(t, true)
	a.take()
	a.behind = true
	f.set.Order(1, order(f, request(f, 5, 100, nil)))
	if got := a.take(); !slices.Equal(got, []string{"reject 5"}) || len(a.events) != 0 {
		t.Errorf("%v, events %+v", got, a.events)
	}
	a.behind = false
	f.set.Order(1, order(f, request(f, 6, 100, nil)))
	if got := a.take(); len(got) != 0 || len(a.events) != 1 {
		t.Errorf("%v, events %+v", got, a.events)
	}
}

// TestWireSelfInVain: a queue pair that is its own peer requests a CID. If the queue pair has ended
// when the CID comes, or cannot be opened, the CID is released. If there is no CID, nothing of the
// attempt remains.
func TestWireSelfInVain(t *testing.T) {
	for _, x := range []struct {
		name  string
		ended bool
		err   error
		want  []string
	}{
		{"ended", true, nil, []string{"take", "give 77"}},
		{"another shard's CID", false, nil, []string{"take", "give 77"}},
		{"no CID", false, cm.ErrNotFound, []string{"take"}},
		{"neither", true, cm.ErrNotFound, []string{"take"}},
	} {
		_, a, f := newFunction(t, true)
		q := &verbs.QP{}
		f.wireSelf(q)
		if !f.pending(q.Number()) {
			t.Errorf("%s: nothing is asked", x.name)
		}
		if x.ended {
			f.EndQP(2, q.Number())
		}
		a.answer(f, 77, x.err)
		if got := a.take(); !slices.Equal(got, x.want) || f.pending(q.Number()) {
			t.Errorf("%s: asked %v, want %v; still pending: %t", x.name, got, x.want, f.pending(q.Number()))
		}
	}
}

// TestCommandsRefuse: commands that name objects that do not exist, or that belong to the NICs, are
// refused before the connection manager is asked.
func TestCommandsRefuse(t *testing.T) {
	_, a, f := newFunction(t, true)
	f.conns[8] = &connection{wired: true}
	c := f.Commands(1, a.later)
	_, noQP := c.CMConnect(&abi.CMConnect{QPN: 3, Service: 100})
	for what, got := range map[string][2]abi.Status{
		"listen":              {c.CMListen(firstReserved), abi.StatusDenied},
		"unlisten":            {c.CMUnlisten(firstReserved), abi.StatusNotFound},
		"connect":             {noQP, abi.StatusNotFound},
		"accept":              {c.CMAccept(&abi.CMAccept{CMID: 8, QPN: 3}), abi.StatusNotFound},
		"reject":              {c.CMReject(&abi.CMReject{CMID: 8}), abi.StatusNotFound},
		"reject, much to say": {c.CMReject(&abi.CMReject{CMID: 5, PrivLen: abi.PrivateMax + 1}), abi.StatusTooLarge},
		"disconnect":          {c.CMDisconnect(8), abi.StatusNotFound},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: %s, want %s", what, got[0], got[1])
		}
	}
	if got := a.take(); len(got) != 0 {
		t.Errorf("asked: %v", got)
	}
	if c.CMListen(100) != abi.StatusPending || c.CMDisconnect(5) != abi.StatusPending || len(a.done) != 0 {
		t.Errorf("answered before the connection manager did: %v", a.done)
	}
	a.answer(f, 0, bytes.ErrTooLarge) // an error without a name
	a.answer(f, 0, errors.Join(cm.ErrNotFound))
	if !slices.Equal(a.done, []abi.Status{abi.StatusNoResources, abi.StatusNotFound}) {
		t.Error(a.done)
	}
}
