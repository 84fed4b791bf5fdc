package conn

import (
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
	open   []Question
	events []abi.AsyncEvent
	done   []abi.Status
	behind bool
}

// Ask implements Requests.
func (a *asked) Ask(r Request) {
	if r.Question != (Question{}) {
		a.open = append(a.open, r.Question)
	}
	text := [...]string{
		Begin: "begin", Gone: "gone", Quota: "quota %d", Listen: "listen %#x", Unlisten: "unlisten %#x", Connect: "connect",
		Accept: "accept %d", Reject: "reject %d", Disconnect: "disconnect %d", TakeCID: "take", GiveCID: "give %d", PeerFault: "fault of %d",
	}[r.Kind]
	switch r.Kind {
	case Listen, Unlisten:
		text = fmt.Sprintf(text, r.Service)
	case Accept, Reject, Disconnect:
		text = fmt.Sprintf(text, r.ID)
	case Quota, GiveCID, PeerFault:
		text = fmt.Sprintf(text, r.N)
	}
	a.list = append(a.list, text)
}

// answer answers the oldest question.
func (a *asked) answer(f *Connections, id uint32, err error) {
	q := a.open[0]
	a.open = a.open[1:]
	f.connector.Answer(1, &Answer{Question: q, ID: id, Err: err})
}

// Complete implements abi.Ticket.
func (a *asked) Complete(st abi.Status, _ abi.Result) { a.done = append(a.done, st) }

func (a *asked) later() abi.Ticket { return a }

// decision returns a decision of the present epoch, for a function in service.
func decision(f *Connections, o *cm.Output) *Decision { return &Decision{Output: *o, Epoch: f.epoch} }

func (a *asked) Notify(e *abi.AsyncEvent, _ string)               { a.events = append(a.events, *e) }
func (a *asked) Behind() bool                                     { return a.behind }
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
func newFunction(t *testing.T, inService bool) (*shard, *asked, *Connections) {
	s, a := newShard(t, 3), &asked{}
	engine := rdma.NewEngine(rdma.Config{})
	set := NewConnector(ConnectorConfig{MTU: 4096, Table: s.Table, Manager: a, RDMA: rdma.Wire[*rof.Engine](engine), Log: s.cfg.Log})
	s.owner.LinkUp = true
	s.owner.Addr = netip.MustParseAddr("192.168.1.1")
	f := set.Add(*s.owner, a)
	s.owner = &f.Owner
	if inService {
		mem := queues.NewMemory(nil)
		f.Start(engine.NewFunction(f.number(), mem, verbs.Limits{}.WithDefaults(), a), mem)
		if got := a.take(); !slices.Equal(got, []string{"begin"}) {
			t.Fatal(got)
		}
	}
	return s, a, f
}

// request returns another function's request for a connection, to a service of the NICs or of a
// driver.
func request(f *Connections, id uint32, service uint64, private []byte) *cm.Output {
	return &cm.Output{Kind: cm.OutRequest, ID: id, Function: f.number(), Service: service, PeerQPN: 9, Private: private}
}

// TestNobodyConnectsToAFunctionOutOfService: nobody can connect to a function whose link is down,
// or that is not in service. After a reset, answers and decisions of the earlier epoch have no
// effect.
func TestNobodyConnectsToAFunctionOutOfService(t *testing.T) {
	_, a, f := newFunction(t, true)
	f.LinkUp = false
	f.connector.Decide(1, decision(f, request(f, 5, 100, nil)))
	if got := a.take(); !slices.Equal(got, []string{"reject 5"}) || len(a.events) != 0 {
		t.Errorf("%v, %d events", got, len(a.events))
	}
	p := &cm.Params{ID: 6, Function: f.number()}
	f.connector.Decide(1, decision(f, &cm.Output{Kind: cm.OutOpen, ID: 6, Function: f.number(), Params: p}))
	if got := a.take(); !slices.Equal(got, []string{"disconnect 6"}) {
		t.Error(got)
	}

	_, a, f = newFunction(t, true)
	f.connector.Decide(1, decision(f, request(f, 5, 100, nil)))
	if st := f.Commands(1, a.later).CMListen(9); st != abi.StatusPending {
		t.Fatal(st)
	}
	late, keys := decision(f, request(f, 7, 100, nil)), new(released)
	opening := decision(f, &cm.Output{Kind: cm.OutOpen, ID: 5, Function: f.number(), Params: p})
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
	f.connector.Decide(3, late)
	f.connector.Decide(3, opening)
	if got := a.take(); !slices.Equal(got, []string{"begin"}) || len(a.events) != 1 || len(a.done) != 0 || len(f.IDs()) != 0 || *keys != 1 {
		t.Errorf("%v, %d events, %v, %v, keys released %d times", got, len(a.events), a.done, f.IDs(), *keys)
	}
	reset()
	f.connector.Remove(f)
	f.connector.Decide(4, late)
	if got := a.take(); !slices.Equal(got, []string{"gone", "quota 0"}) {
		t.Errorf("a function that is gone: %v", got)
	}
}

// released counts how often keys were released.
type released int

func (r *released) Release() { *r++ }

// TestTheManagerIsToldOfEndedConnections: a connection that the transport ends is disconnected. If
// the connection manager never knew it, its CID is released.
func TestTheManagerIsToldOfEndedConnections(t *testing.T) {
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
	f.connector.Ended()
	got := a.take()
	slices.Sort(got)
	if !slices.Equal(got, []string{fmt.Sprint("disconnect ", id), fmt.Sprint("give ", cid)}) {
		t.Error(got)
	}
	s.Close(3, id, cm.ReasonLocal)
	s.empty()
}

// TestALinkThatGoesDownEndsLoopbacks: when a link goes down, connections inside the NIC end, and no
// others.
func TestALinkThatGoesDownEndsLoopbacks(t *testing.T) {
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

// TestAFunctionHasTwoCIDsPerQueuePairAndAddressHandle: a function may have two connections for each
// queue pair and address handle, and those that others open to it.
func TestAFunctionHasTwoCIDsPerQueuePairAndAddressHandle(t *testing.T) {
	_, a, f := newFunction(t, true)
	l := verbs.Limits{Links: 1000}
	l.Objects[abi.ObjectQP], l.Objects[abi.ObjectAH] = 10, 7
	f.SetLimits(&l)
	if got := a.take(); !slices.Equal(got, []string{"quota 1034"}) {
		t.Errorf("%v", got)
	}
}

// TestAConnectionBelongsToOneQueuePair: a connection belongs to one queue pair at a time.
func TestAConnectionBelongsToOneQueuePair(t *testing.T) {
	_, _, f := newFunction(t, true)
	for id := range uint32(3) {
		f.conns[id] = &connection{}
	}
	has := func(what string, qps int, pending ...bool) {
		t.Helper()
		for qpn, want := range pending {
			if f.pending(uint32(qpn)) != want {
				t.Errorf("%s: queue pair %d is being connected: %t", what, qpn, !want)
			}
		}
		if f.QPs() != qps {
			t.Errorf("%s: %d queue pairs", what, f.QPs())
		}
	}
	has("nothing", 0, false, false, false)
	f.bind(0, 1)
	f.bind(1, 1)
	f.bind(2, 2)
	has("three", 2, false, true, true)
	f.bind(0, 1)
	f.bind(0, 2)
	has("one moves", 2, false, true, true)
	f.forget(1)
	has("one ends", 1, false, false, true)
	f.forget(2)
	f.forget(2)
	has("another", 1, false, false, true)
	f.unbind(0)
	f.unbind(77)
	has("all", 0, false, false, false)
}
