package conn

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// asked is a connection manager that notes what it is asked, and a driver that notes what it hears.
type asked struct {
	list   []string
	events []abi.AsyncEvent
	err    error
}

func (a *asked) note(format string, args ...any) error {
	a.list = append(a.list, fmt.Sprintf(format, args...))
	return a.err
}

func (a *asked) Listen(_ uint32, service uint64) error   { return a.note("listen %#x", service) }
func (a *asked) Unlisten(_ uint32, service uint64) error { return a.note("unlisten %#x", service) }
func (a *asked) Connect(_ falcon.Time, r cm.ConnectRequest) (uint32, error) {
	return 77, a.note("connect %#x", r.Service)
}

func (a *asked) Accept(_ falcon.Time, _, id, qpn uint32, _ uint8, _ []byte) error {
	return a.note("accept %d with %d", id, qpn)
}

func (a *asked) Reject(_ falcon.Time, _, id, _ uint32, _ []byte) error {
	return a.note("reject %d", id)
}

func (a *asked) Disconnect(_ falcon.Time, _, id uint32) error     { return a.note("disconnect %d", id) }
func (a *asked) FunctionGone(falcon.Time, uint32)                 { _ = a.note("gone") }
func (a *asked) Run(falcon.Time)                                  {}
func (a *asked) Notify(e *abi.AsyncEvent, _ string)               { a.events = append(a.events, *e) }
func (a *asked) NextLink() *rof.Link                              { return nil }
func (a *asked) Fault(abi.Fault, string)                          {}
func (a *asked) CQEvent(uint32)                                   {}
func (a *asked) Violation(*abi.Violation)                         {}
func (a *asked) AsyncEvent(abi.EventType, uint32, uint32, string) {}

// take returns what was asked since the last call.
func (a *asked) take() []string {
	l := a.list
	a.list = nil
	return l
}

// newFunction is a function of a shard, in service or not.
func newFunction(t *testing.T, inService bool) (*shard, *asked, *Function) {
	s, a := newShard(t, 3), &asked{}
	set := NewFunctions(FunctionsConfig{MTU: 4096, Table: s.Table, CIDs: s.cids, Manager: a, Links: a, Log: s.cfg.Log})
	s.owner.LinkUp = true
	s.owner.Addr = netip.MustParseAddr("192.168.1.1")
	f := set.Add(*s.owner, a)
	s.owner = &f.Owner
	if inService {
		mem := queues.NewMemory(nil)
		f.Start(rdma.NewEngine(rdma.Config{}).NewFunction(f.number(), mem, verbs.Limits{}.WithDefaults(), a), mem)
		if got := a.take(); len(got) != 2 {
			t.Fatalf("listens: %v", got)
		}
	}
	return s, a, f
}

// request is what another function asks, for a service of the NICs or of a driver.
func request(f *Function, id uint32, service uint64, private []byte) *cm.Output {
	return &cm.Output{Kind: cm.OutRequest, ID: id, Function: f.number(), Service: service, PeerQPN: 9, Private: private}
}

// TestOutOfService: nobody connects to a function that no driver has enabled, or whose link is down.
func TestOutOfService(t *testing.T) {
	for _, inService := range []bool{false, true} {
		_, a, f := newFunction(t, inService)
		f.LinkUp = false
		f.set.Output(1, request(f, 5, 100, nil), netip.Addr{})
		if got := a.take(); !slices.Equal(got, []string{"reject 5"}) || len(a.events) != 0 {
			t.Errorf("in service %t: %v, %d events", inService, got, len(a.events))
		}
		p := &cm.Params{ID: 6, Function: f.number()}
		f.set.Output(1, &cm.Output{Kind: cm.OutOpen, ID: 6, Function: f.number(), Params: p}, netip.Addr{})
		if got := a.take(); !slices.Equal(got, []string{"disconnect 6"}) {
			t.Errorf("in service %t: %v", inService, got)
		}
	}
	_, a, f := newFunction(t, true)
	f.set.Output(1, request(f, 5, 100, nil), netip.Addr{})
	f.Stop(2)
	f.Forget()
	if got := a.take(); !slices.Equal(got, []string{"gone"}) || len(f.IDs()) != 0 {
		t.Errorf("%v, %v", got, f.IDs())
	}
	f.set.Remove(f)
	f.set.Output(3, request(f, 5, 100, nil), netip.Addr{}) // nobody
	if _, quota := f.set.cfg.CIDs.Held(f.number()); quota != 0 || len(a.take()) != 0 {
		t.Error("a function that is gone has a quota, or answers")
	}
}

// TestDriverHears: each end of a driver's connection becomes an event with a status, and is
// forgotten.
func TestDriverHears(t *testing.T) {
	for kind, want := range map[cm.OutputKind]abi.AsyncEvent{
		cm.OutEstablished:  {Type: abi.EventEstablished},
		cm.OutRejected:     {Type: abi.EventRejected, Status: 42},
		cm.OutDisconnected: {Type: abi.EventDisconnected, Status: uint32(abi.StatusRefused)},
		cm.OutUnreachable:  {Type: abi.EventUnreachable, Status: uint32(abi.StatusRefused)},
	} {
		_, a, f := newFunction(t, true)
		f.set.Output(1, request(f, 5, 100, nil), netip.Addr{})
		f.set.Output(2, &cm.Output{Kind: kind, ID: 5, Function: f.number(), Reason: cm.ReasonConsumer, Consumer: 42}, netip.Addr{})
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

// TestReservedRequests: what a NIC asks for queue pairs that do not exist, or says in no known way,
// is refused, and the driver hears nothing.
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
		f.set.Output(1, request(f, 5, tc.service, tc.private), netip.Addr{})
		if got := a.take(); !slices.Equal(got, []string{"reject 5"}) || len(a.events) != 0 || len(f.IDs()) != 0 {
			t.Errorf("%#x %x: %v, %d events, known %v", tc.service, tc.private, got, len(a.events), f.IDs())
		}
	}
}

// TestEndedIsTold: a connection that ends below is disconnected; the CID of one that the connection
// manager never knew comes back.
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
	before := s.cids.InUse()
	f.set.Ended(2)
	if got := a.take(); !slices.Equal(got, []string{fmt.Sprint("disconnect ", id)}) || s.cids.InUse() != before-1 {
		t.Errorf("%v, %d CIDs of %d left", got, s.cids.InUse(), before)
	}
	s.Close(3, id, cm.ReasonLocal)
	s.empty()
}

// TestEndLoopbacks: a link that goes down ends what is inside the NIC, and nothing else.
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

// TestCommandsRefuse: commands that name what is not there, or the NICs' own, are refused before the
// connection manager is asked.
func TestCommandsRefuse(t *testing.T) {
	_, a, f := newFunction(t, true)
	f.conns[8] = &connection{wired: true}
	c := f.Commands(1)
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
	a.err = bytes.ErrTooLarge
	if st := c.CMListen(100); st != abi.StatusNoResources {
		t.Errorf("an error without a name: %s", st)
	}
	a.err = errors.Join(cm.ErrNotFound)
	if st := c.CMDisconnect(5); st != abi.StatusNotFound {
		t.Errorf("nobody's connection: %s", st)
	}
}
