package roce_test

import (
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// crowded is connections of one function that share credit for so many packets.
type crowded struct {
	t     *testing.T
	node  *credit.Node
	peers []*peer
	ends  []*scripted
}

func newCrowded(t *testing.T, packets uint32, conns int) *crowded {
	limit := credit.NoLimit()
	limit[credit.ReqPktTx] = packets
	c := &crowded{t: t, node: credit.New(nil, limit)}
	w := newWorld(1, false, 1500, sim.Impairment{})
	for i := range conns {
		p, e := &peer{world: w, t: t, now: 1e9, credits: c.node}, &scripted{target: target{serving: true}}
		p.attach(e, func(x *transport.Terms) { x.QPN = uint32(17 + i) })
		c.peers, c.ends = append(c.peers, p), append(c.ends, e)
	}
	return c
}

// issue makes connection i take a WRITE of one packet, and reports whether it did.
func (c *crowded) issue(i int) bool {
	c.t.Helper()
	_, err := c.peers[i].conn.Issue(1e9, &transport.Request{Length: 8, WQE: abi.SendWQE{Opcode: abi.OpWrite, RKey: 7}})
	if err != nil && err != transport.ErrBlocked {
		c.t.Fatal(err)
	}
	return err == nil
}

// run runs the engine once, and fails the test unless the connections got these numbers of
// Unblocked calls.
func (c *crowded) run(want ...int) {
	c.t.Helper()
	c.peers[0].engines[0].Run(1e9)
	for i, e := range c.ends {
		if e.unblocked != want[i] {
			c.t.Fatalf("connection %d was told %d times of credit, want %v", i, e.unblocked, want)
		}
	}
}

func (c *crowded) inUse() uint32 { return c.node.InUse()[credit.ReqPktTx] }

// TestCreditComesBackWhenRequestsEnd: the credit of requests of any size and kind is returned when they end or are
// dropped.
func TestCreditComesBackWhenRequestsEnd(t *testing.T) {
	for _, dropped := range []bool{false, true} {
		c := newCrowded(t, 1000, 1)
		p := c.peers[0]
		for _, n := range []int{0, 1, segment, segment + 1, 5 * segment} {
			p.posts(abi.OpWrite, n)
			p.posts(abi.OpRead, n)
		}
		p.posts(abi.OpFetchAdd, 8)
		held := c.node.InUse()
		if held[credit.ReqPktTx] != 2*(1+1+1+2+5)+1 || held[credit.ReqBufRx] != 0+1+2+3+10+1 { // cells of 128 bytes
			t.Errorf("%v in use", held)
		}
		if list := p.allSent(); dropped {
			p.conn.Forget()
		} else {
			p.serves(list)
		}
		if got := c.node.InUse(); got != (credit.Cost{}) {
			t.Errorf("dropped %t: %v in use at the end", dropped, got)
		}
	}
}

// TestEachWaitForCreditIsCounted: each time that a request waits for credit is counted; one that could never have
// it fails.
func TestEachWaitForCreditIsCounted(t *testing.T) {
	c := newCrowded(t, 2, 1)
	for range 2 {
		if !c.issue(0) {
			t.Fatal("no credit for two")
		}
	}
	for i := range 3 {
		if c.issue(0) {
			t.Fatal("credit for three")
		}
		if n := c.peers[0].acct.CreditWaits; n != uint64(i+1) {
			t.Errorf("%d waits counted, want %d", n, i+1)
		}
	}
	limit := credit.NoLimit()
	limit[credit.ReqBufTx] = 1
	p := &peer{world: newWorld(1, false, 1500, sim.Impairment{}), t: t, now: 1e9, credits: credit.New(nil, limit)}
	p.attach(&scripted{target: target{serving: true}})
	r := transport.Request{Length: 129, WQE: abi.SendWQE{Opcode: abi.OpWrite}}
	if _, err := p.conn.Issue(1e9, &r); err != transport.ErrFailed || r.Status != abi.WCGeneralErr {
		t.Errorf("more than there ever is: %v, %v", err, r.Status)
	}
	p.posts(abi.OpWrite, 128)
}

// TestWaitingConnectionsGetCreditInOrder: waiting connections get Unblocked in order, no more than the credit is enough
// for. One that does not take it leaves it to the next, and comes first when it tries again.
func TestWaitingConnectionsGetCreditInOrder(t *testing.T) {
	c := newCrowded(t, 1, 4)
	c.issue(0)
	for i := 1; i < 4; i++ {
		if c.issue(i) {
			t.Fatal("credit for two")
		}
	}
	c.run(0, 0, 0, 0)
	if c.peers[0].engines[0].Ready() {
		t.Error("there is something to do while nothing came back")
	}
	c.peers[0].allSent()
	c.peers[0].acks(100)
	c.run(0, 1, 0, 0)
	if c.inUse() != 1 {
		t.Errorf("%d in use, want what is kept for the first", c.inUse())
	}
	c.run(0, 1, 1, 0) // the first did not take it
	if c.issue(1) {
		t.Error("took what is kept for another")
	}
	if !c.issue(2) {
		t.Error("did not get what it was told of")
	}
	c.run(0, 1, 1, 0)
	c.peers[2].allSent()
	c.peers[2].acks(100)
	c.run(0, 2, 1, 0) // before the one that waited longer
	if !c.issue(1) {
		t.Error("did not get it in the end")
	}
	c.peers[1].allSent()
	c.peers[1].acks(100)
	c.run(0, 2, 1, 1)
	c.run(0, 2, 1, 1) // takes nothing, and nobody else waits
	c.run(0, 2, 1, 1)
	if c.inUse() != 0 || c.peers[0].engines[0].Ready() {
		t.Errorf("%d in use at the end, or something to do", c.inUse())
	}
}

// TestAConnectionThatForgetsItsRequestsWaitsNoMore: a connection that drops its requests gets no Unblocked, and no credit
// is reserved for it.
func TestAConnectionThatForgetsItsRequestsWaitsNoMore(t *testing.T) {
	c := newCrowded(t, 2, 2)
	c.issue(0)
	c.issue(0)
	c.issue(1)
	c.peers[1].conn.Forget()
	c.peers[0].allSent()
	c.peers[0].acks(101)
	c.run(0, 0)
	if c.inUse() != 0 {
		t.Errorf("%d in use", c.inUse())
	}
}

// TestAConnectionThatForgetsAndAsksAgainWaitsOnce: a connection that drops its requests while it waits, and has new ones,
// waits once and gets what it needs once.
func TestAConnectionThatForgetsAndAsksAgainWaitsOnce(t *testing.T) {
	c := newCrowded(t, 2, 2)
	c.issue(0)
	c.issue(0)
	for range 3 {
		if c.issue(1) {
			t.Fatal("credit for three")
		}
		c.peers[1].conn.Forget()
	}
	c.issue(1)
	c.peers[0].allSent()
	c.peers[0].acks(101)
	c.run(0, 1)
	if !c.issue(1) || c.inUse() != 1 {
		t.Errorf("%d in use, want 1", c.inUse())
	}
	c.run(0, 1)
	c.peers[1].conn.Forget()
	if c.inUse() != 0 {
		t.Errorf("%d in use at the end", c.inUse())
	}
}

// TestALoweredLimitFailsARequestBeyondIt: a connection that waits for more credit than a lowered limit allows gets
// Unblocked, and fails when it tries again.
func TestALoweredLimitFailsARequestBeyondIt(t *testing.T) {
	c := newCrowded(t, 2, 3)
	for i := range 2 {
		c.issue(i)
	}
	limit := credit.NoLimit()
	limit[credit.ReqPktTx], limit[credit.ReqBufTx] = 2, 1 // half of what the next takes
	r := transport.Request{Length: 256, WQE: abi.SendWQE{Opcode: abi.OpWrite, RKey: 7}}
	if _, err := c.peers[2].conn.Issue(1e9, &r); err != transport.ErrBlocked {
		t.Fatal(err)
	}
	c.node.SetLimit(limit)
	c.run(0, 0, 0)
	c.peers[0].engines[0].CreditsChanged()
	c.run(0, 0, 1)
	if _, err := c.peers[2].conn.Issue(1e9, &r); err != transport.ErrFailed || r.Status != abi.WCGeneralErr {
		t.Errorf("%v, %v", err, r.Status)
	}
	if n := c.inUse(); n != 2 {
		t.Errorf("%d in use, want those of the others", n)
	}
}

// TestPeerThatIsNotReadyHoldsNoCredit: while a peer is not ready, its requests hold no credit, sent
// or not, and none are added, so others can have all of it. A request that is sent again takes its
// credit, whoever has it. In the end all are done and nothing is leaked.
func TestPeerThatIsNotReadyHoldsNoCredit(t *testing.T) {
	c := newCrowded(t, 8, 2)
	p, other := c.peers[0], c.peers[1]
	for range 3 {
		p.posts(abi.OpSend, 10)
	}
	p.posts(abi.OpRead, 5*segment)
	if c.inUse() != 8 {
		t.Fatalf("%d in use", c.inUse())
	}
	p.allSent()
	p.naks(100, ib.SynRNR|1)
	if c.inUse() != 0 || c.node.Parked() != 8 {
		t.Fatalf("%d in use, %d parked while the peer is not ready", c.inUse(), c.node.Parked())
	}
	if c.issue(0) {
		t.Error("a request is taken that could only wait")
	}
	for range 8 {
		if !c.issue(1) {
			t.Fatal("another cannot have the credit")
		}
	}
	p.allSent()
	p.now += falconwire.RNRTimeout(1)
	if at := psns(p.allSent()); !slices.Equal(at, []int{0}) || c.inUse() != 9 {
		t.Errorf("%v goes again, %d in use", at, c.inUse())
	}
	p.acks(100)
	p.serves(p.allSent())
	p.engines[0].Run(p.now)
	if c.inUse() != 8 || c.node.Parked() != 0 || len(c.ends[0].statuses) != 8 || c.ends[0].unblocked != 0 {
		t.Errorf("%d in use, %d parked at the end, %d ended, told %d times of credit that another has",
			c.inUse(), c.node.Parked(), len(c.ends[0].statuses), c.ends[0].unblocked)
	}
	other.conn.Forget()
	p.engines[0].Run(p.now)
	if c.ends[0].unblocked != 1 || !c.issue(0) || c.inUse() != 1 {
		t.Errorf("told %d times of credit, %d in use", c.ends[0].unblocked, c.inUse())
	}
	p.allSent()
	p.acks(108)
	p.posts(abi.OpSend, 10)
	p.allSent()
	p.naks(109, ib.SynRNR|1)
	p.conn.Forget()
	if c.inUse() != 0 || c.node.Parked() != 0 {
		t.Errorf("%d in use, %d parked when it was forgotten", c.inUse(), c.node.Parked())
	}
}
