package falcon_test

import (
	"errors"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/psp"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// TestDrain: transactions in progress are finished, in both directions, and no new ones begin.
func TestDrain(t *testing.T) {
	p := newPair(t)
	p.ulp[0].OnPull = noAnswer
	p.push(p.a, 100, 1, 2)
	p.pull(p.a, 100, 3)
	p.pull(p.b, 100, 4)
	p.dropNth(0, wire.TypePushData, 2)
	p.run(20 * us)
	p.a.Drain(p.Now)
	p.a.Drain(p.Now)
	if err := p.a.Push(p.Now, 9, 10); !errors.Is(err, falcon.ErrDraining) {
		t.Errorf("push while draining: %v", err)
	}
	if err := p.a.Pull(p.Now, 9, 10, 10); !errors.Is(err, falcon.ErrDraining) {
		t.Errorf("pull while draining: %v", err)
	}
	p.push(p.b, 100, 5) // the peer may not know yet
	p.run(3 * ms)
	p.wantTags(0, falcon.EvPushDone, 1, 2)
	p.wantTags(0, falcon.EvPullDone, 3)
	if n := len(p.events(0, falcon.EvDrained)); n != 0 {
		t.Fatalf("drained with a request of the peer unanswered")
	}
	for _, e := range p.events(0, falcon.EvPull) {
		if err := p.a.RespondPull(p.Now, e.RSN, e.Key, e.Length); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(p.events(0, falcon.EvDrained)); n != 0 {
		t.Fatalf("drained with a response not acknowledged")
	}
	p.run(5 * ms)
	p.wantTags(1, falcon.EvPullDone, 4)
	p.wantTags(1, falcon.EvPushDone, 5)
	if n := len(p.events(0, falcon.EvDrained)); n != 1 {
		t.Errorf("%d drained events, want 1", n)
	}
	p.wantIdle()
	p.a.Close(p.Now)
	p.run(us)
	if last := p.ulp[0].Events[len(p.ulp[0].Events)-1]; last.Kind != falcon.EvClosed || last.Reason != falcon.CloseLocal {
		t.Errorf("last event %+v", last.Event)
	}
	// An idle connection is drained at once.
	p.b.Drain(p.Now)
	p.run(us)
	if n := len(p.events(1, falcon.EvDrained)); n != 1 {
		t.Errorf("idle: %d drained events", n)
	}
}

func TestAbort(t *testing.T) {
	for _, reason := range []falcon.CloseReason{falcon.ClosePeer, falcon.CloseULP, falcon.CloseKeys} {
		s := newSingle(t, testProfile())
		s.push(1)
		s.transmit()
		s.c.Abort(s.now, reason)
		s.c.Abort(s.now, falcon.CloseLocal)
		s.drain()
		ev := s.ulp.Events
		if len(ev) != 2 || ev[0].Kind != falcon.EvPushDone || ev[0].Code != falcon.CmplDeadConn {
			t.Fatalf("%v: %+v", reason, ev)
		}
		if last := ev[1]; last.Kind != falcon.EvClosed || last.Reason != reason || last.Code != falcon.CmplDeadConn {
			t.Errorf("%v: %+v", reason, last.Event)
		}
	}
}

// TestFailureStaysOnItsConnection: one connection of two engines is cut off and dies. Its
// neighbour, which shares their credits, contexts and cells, is not affected.
func TestFailureStaysOnItsConnection(t *testing.T) {
	nodes := [2]*credit.Node{credit.New(nil, credit.NoLimit()), credit.New(nil, credit.NoLimit())}
	p := newPair(t, func(cfg *[2]falcon.Config, _ *falcon.ConnConfig, _ *sim.Impairment) {
		for i := range cfg {
			cfg[i].Credits = nodes[i]
			cfg[i].Profile.MaxRetransmits, cfg[i].Profile.TxnTimeout = 2, 0
		}
	})
	cfg := connConfig(true)
	cfg.LocalCID++
	cfg.RemoteCID++
	neighbour, other, err := p.Connect(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.Filter = func(_ int, b []byte) sim.Verdict {
		cid, _ := wire.PeekCID(b)
		return sim.Verdict{Drop: cid == connConfig(true).LocalCID || cid == connConfig(true).RemoteCID}
	}
	p.push(p.a, 100, 1, 2, 3)
	p.pull(p.a, 100, 4)
	p.push(p.b, 100, 5)
	for i := range uint64(100) {
		p.push(neighbour, 100, 1000+i)
		p.pull(other, 100, 2000+i)
		p.run(ms / 2)
	}
	if !p.a.Closed() || !p.b.Closed() {
		t.Fatal("the connection that was cut off lives")
	}
	if neighbour.Closed() || other.Closed() {
		t.Fatal("its neighbour died")
	}
	good := [2]int{}
	for i := range 2 {
		for _, e := range p.ulp[i].Events {
			if (e.Conn == neighbour || e.Conn == other) && (e.Kind == falcon.EvPushDone || e.Kind == falcon.EvPullDone) {
				if e.Code != falcon.CmplAck {
					t.Errorf("neighbour: %+v", e.Event)
				}
				good[i]++
			}
		}
		if st := p.Nodes[i].Engine.Stats(); st.ConnsClosed != [falcon.CloseReasons]uint64{falcon.CloseResync: 1} || st.Conns != 1 || st.TxContexts != 0 || st.RxContexts != 0 || st.RxCells != 0 {
			t.Errorf("node %d: %+v", i, st)
		}
		if nodes[i].InUse() != (credit.Cost{}) {
			t.Errorf("node %d: credits left: %v", i, nodes[i].InUse())
		}
	}
	if good != [2]int{100, 100} {
		t.Errorf("neighbour completed %v, want 100 on each side", good)
	}
}

// TestRekeyDoesNotDisturb: the engine's packets use security associations that are replaced twice
// in the middle of a transfer, the second time in the other phase. Nothing is lost, retransmitted
// or reordered because of it (Falcon §9.2.2.3).
func TestRekeyDoesNotDisturb(t *testing.T) {
	b := newBackToBack(t)
	var rx [2]*psp.RxSADB
	var tx [2]*psp.TxSA
	var sides [2]*psp.Association
	var guards [2]psp.Guard
	var open [2]*psp.Opener
	rekey := func(i int) { // node i receives with a new SPI, its peer seals with it
		spi, key, err := rx[i].Issue(0, psp.ClassFalcon)
		if err != nil {
			t.Fatal(err)
		}
		if tx[1-i], err = psp.NewTransportTxSA(0, spi, key, 1); err != nil {
			t.Fatal(err)
		}
		if sides[i] == nil {
			sides[i] = psp.NewAssociation(psp.AssociationConfig{SPI: spi, Generation: rx[i].Generation().Current, AnyPCID: true, Margin: 1e9})
			guards[i] = sides[i].Guard(0)
			return
		}
		sides[i].Rekey(spi, rx[i].Generation().Current)
	}
	for i := range rx {
		rx[i] = psp.NewRxSADB(psp.Master{}, 1000, 1)
		open[i] = rx[i].Opener(0)
		rekey(i)
	}
	packets := 0
	b.through = func(to int, packet []byte) falcon.Packet {
		if packets++; packets%50 == 0 {
			rekey(to)
		}
		if packets%120 == 0 {
			rx[to].Rotate(&[32]byte{byte(packets)})
			rekey(to)
		}
		sa := tx[1-to]
		sealed := append(make([]byte, sa.HeaderLen()), packet...)
		sealed = append(sealed, make([]byte, sa.Overhead()-sa.HeaderLen())...)
		n, err := sa.Seal(b.now, 252, sealed, len(packet))
		if err != nil {
			t.Fatal(err)
		}
		h, _, clear, err := open[to].Open(sealed[:n])
		if err != nil {
			t.Fatal(err)
		}
		if err := guards[to].Check(&h, open[to]); err != nil {
			t.Fatalf("packet %d: %v", packets, err)
		}
		return falcon.Packet{T1: uint32(h.IV >> 17), Data: clear}
	}
	for range 10 {
		b.pushes(t, 40, 1000)
		b.pulls(t, 40, 1000)
	}
	for i, e := range b.e {
		if st := e.Stats(); st.TimeoutRetransmits+st.EarlyRetransmits+st.ResyncsSent+st.NacksSent != 0 || st.PacketsReceived != st.Drops[wire.DropNone] {
			t.Errorf("node %d was disturbed: %+v", i, st)
		}
	}
}

// TestDrainAcknowledges: everything that the peer sent is acknowledged before the connection counts
// as drained. Otherwise the peer would take it for lost when the connection closes.
func TestDrainAcknowledges(t *testing.T) {
	s := newSingle(t, ackProfile(100, 100*us))
	s.ulp.OnPush = noAnswer
	s.pushData(200, 7, false)
	s.c.AckPush(s.now, 7)
	s.c.Drain(s.now)
	s.drain()
	if n := s.count(falcon.EvDrained); n != 0 {
		t.Fatal("drained with an acknowledgement held back")
	}
	if got := s.transmit(); len(got) != 1 || got[0].Type != wire.TypeBACK || ack(t, got[0].Packet).DataBase != 201 {
		t.Fatalf("sent %v, want a BACK", got)
	}
	s.drain()
	if n := s.count(falcon.EvDrained); n != 1 {
		t.Errorf("%d drained events, want 1", n)
	}
}
