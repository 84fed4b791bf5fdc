package falcon_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// crowded is an engine whose contexts for network requests are all held by requests of another
// connection, and whose ULP does not answer: the red zone.
func crowded(t *testing.T, ordered bool) *single {
	t.Helper()
	s := &single{t: t, now: ms, ulp: &sim.ULP{Record: true}}
	s.ulp.OnPush, s.ulp.OnPull = noAnswer, noAnswer
	s.e = falcon.NewEngine(falcon.Config{Profile: testProfile(), RxContexts: 2}, s.ulp)
	cfg := connConfig(true)
	var err error
	if s.c, err = s.e.Open(s.now, cfg); err != nil {
		t.Fatal(err)
	}
	s.want(s.pushData(200, 7, false), wire.DropNone)
	s.want(s.pullRequest(500, 8, false), wire.DropNone)
	cfg.LocalCID++
	cfg.Ordered = ordered
	if s.c, err = s.e.Open(s.now, cfg); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestCase72_HeadOfLine: in the red zone only heads of line are accepted. On an ordered connection
// that is the RSN expected next, on an unordered one every request is, and the first has a context
// reserved, and so has the oldest push of the window.
func TestCase72_HeadOfLine(t *testing.T) {
	for _, push := range []bool{true, false} {
		request := func(s *single, n uint32) wire.Drop {
			if push {
				return s.pushData(200+n, 7+n, false)
			}
			return s.pullRequest(500+n, 7+n, false)
		}
		s := crowded(t, true)
		s.want(request(s, 1), wire.DropResource)
		s.want(request(s, 0), wire.DropNone)
		s.want(request(s, 2), wire.DropResource)
		s.want(request(s, 1), wire.DropNone) // now it is the head
		s = crowded(t, false)
		s.want(request(s, 1), wire.DropNone)
		s.want(request(s, 2), wire.DropResource)
		refused := uint64(1)
		if push {
			s.want(request(s, 0), wire.DropNone)
		} else {
			s.want(request(s, 0), wire.DropResource)
			refused++
		}
		if st := s.e.Stats(); st.RedZone != refused || st.Drops[wire.DropResource] != refused {
			t.Errorf("push %v: %d in the red zone, %d dropped, want %d", push, st.RedZone, st.Drops[wire.DropResource], refused)
		}
		if n := len(only(s.transmit(), wire.TypeNACK)); n != int(refused) {
			t.Errorf("push %v: %d NACKs, want %d", push, n, refused)
		}
	}
}

// TestCase76_RedZoneOfBuffers: if all cells are taken, a push that must wait for its turn is
// refused. The head of line needs no cell, and its arrival frees the cells of those behind it.
func TestCase76_RedZoneOfBuffers(t *testing.T) {
	s := &single{t: t, now: ms, ulp: &sim.ULP{Record: true}}
	s.e = falcon.NewEngine(falcon.Config{Profile: testProfile(), RxCells: 2}, s.ulp)
	var err error
	if s.c, err = s.e.Open(s.now, connConfig(true)); err != nil {
		t.Fatal(err)
	}
	s.want(s.pushData(201, 8, false), wire.DropNone)
	s.want(s.pushData(203, 10, false), wire.DropNone)
	s.want(s.pushData(202, 9, false), wire.DropResource)
	s.want(s.pullRequest(500, 11, false), wire.DropNone) // needs none
	if st := s.e.Stats(); st.RxCells != 2 || st.RedZone != 1 {
		t.Errorf("%d cells, %d refused", st.RxCells, st.RedZone)
	}
	s.want(s.pushData(200, 7, false), wire.DropNone)
	s.want(s.pushData(202, 9, false), wire.DropNone)
	if n := s.count(falcon.EvPush) + s.count(falcon.EvPull); n != 5 || s.e.Stats().RxCells != 0 {
		t.Errorf("%d delivered, %d cells held", n, s.e.Stats().RxCells)
	}
}

// TestCase73_CreditsOfATransaction: what each kind takes when it is issued (Falcon §8.2.3), and
// that it comes back.
func TestCase73_CreditsOfATransaction(t *testing.T) {
	nodes := [2]*credit.Node{credit.New(nil, credit.NoLimit()), credit.New(nil, credit.NoLimit())}
	p := newPair(t, func(cfg *[2]falcon.Config, _ *falcon.ConnConfig, _ *sim.Impairment) {
		for i := range cfg {
			cfg[i].Credits, cfg[i].CreditCell = nodes[i], 64
		}
	})
	p.ulp[1].OnPush, p.ulp[1].OnPull = noAnswer, noAnswer
	p.push(p.a, 200, 1)
	if got, want := nodes[0].InUse(), (credit.Cost{1, 4, 1, 0, 0, 0}); got != want {
		t.Errorf("push: %v, want %v", got, want)
	}
	p.pull(p.a, 1000, 2)
	if got, want := nodes[0].InUse(), (credit.Cost{2, 5, 2, 16, 0, 0}); got != want {
		t.Errorf("push and pull: %v, want %v", got, want)
	}
	p.run(20 * us)
	p.b.AckPush(p.Now, 1)
	if err := p.b.RespondPull(p.Now, 2, 2, 100); err != nil {
		t.Fatal(err)
	}
	if got, want := nodes[1].InUse(), (credit.Cost{0, 0, 0, 0, 1, 2}); got != want {
		t.Errorf("response: %v, want %v", got, want)
	}
	p.run(ms)
	for i, n := range nodes {
		if n.InUse() != (credit.Cost{}) {
			t.Errorf("node %d holds %v", i, n.InUse())
		}
	}
	p.wantIdle()
}

// TestCase74_Xoff: a pool of one. The second request gets Xoff until the first is done; the second
// response waits for the first (what isekai calls global Xoff). Neither blocks the other kind.
func TestCase74_Xoff(t *testing.T) {
	limit := credit.Cost{1, 100, 1, 100, 1, 100}
	p := newPair(t, func(cfg *[2]falcon.Config, _ *falcon.ConnConfig, _ *sim.Impairment) {
		cfg[0].Credits = credit.New(nil, limit)
		cfg[0].Profile.AckTimeout, cfg[1].Profile.AckTimeout = 100*us, 100*us
	})
	p.pull(p.a, 100, 1)
	if err := p.a.Pull(p.Now, 2, 10, 10); !errors.Is(err, falcon.ErrXoff) || !p.a.Info().Xoff {
		t.Errorf("second pull: %v, Xoff %v", err, p.a.Info().Xoff)
	}
	p.pull(p.b, 100, 3, 4)
	p.run(6 * us)
	if n := len(p.packets(0, wire.TypePullData)); n != 1 {
		t.Errorf("%d responses sent with a pool of one, want 1", n)
	}
	if n := len(p.events(0, falcon.EvCredit)); n != 0 {
		t.Error("Xon before the pull is over")
	}
	p.run(ms)
	if n := len(p.events(0, falcon.EvCredit)); n != 1 || p.a.Info().Xoff {
		t.Errorf("%d Xon, Xoff %v", n, p.a.Info().Xoff)
	}
	p.push(p.a, 100, 2)
	p.run(ms)
	p.wantTags(0, falcon.EvPushDone, 2)
	p.wantTags(1, falcon.EvPullDone, 3, 4)
	p.wantIdle()
}

// TestCase76_NetworkPools: the pools for requests from the network are counted at every level. A
// function that has used up its own pool is in its red zone. Another function continues, and one
// with a guarantee gets it whatever the others hold.
func TestCase76_NetworkPools(t *testing.T) {
	limit := func(contexts, cells uint32) credit.Cost {
		c := credit.NoLimit()
		c[credit.NetPktRx], c[credit.NetBufRx] = contexts, cells
		return c
	}
	nic := credit.New(nil, limit(6, 3))
	host := credit.New(nic, credit.NoLimit())
	fns := [3]*credit.Node{credit.New(host, limit(4, 2)), credit.New(host, credit.NoLimit()), credit.New(host, credit.NoLimit())}
	if err := fns[2].Guarantee(credit.Cost{credit.NetPktRx: 1, credit.NetBufRx: 1}); err != nil {
		t.Fatal(err)
	}
	s := &single{t: t, now: ms, ulp: &sim.ULP{Record: true}}
	s.ulp.OnPush, s.ulp.OnPull = noAnswer, noAnswer
	s.e = falcon.NewEngine(falcon.Config{Profile: testProfile()}, s.ulp)
	var conns [3]*falcon.Conn
	for i := range conns {
		cfg := connConfig(true)
		cfg.LocalCID, cfg.LocalFunction, cfg.Credits = uint32(i+1), uint32(i+1), fns[i]
		var err error
		if conns[i], err = s.e.Open(s.now, cfg); err != nil {
			t.Fatal(err)
		}
	}
	ahead := func(i int, n uint32) wire.Drop { // not the head of line: takes a context and a cell
		s.c = conns[i]
		return s.pushData(200+n, 7+n, false)
	}
	s.want(ahead(0, 1), wire.DropNone)
	s.want(ahead(0, 2), wire.DropNone)
	s.want(ahead(0, 3), wire.DropResource) // its cells
	s.want(ahead(1, 1), wire.DropResource) // the NIC's third is set aside
	s.want(ahead(2, 1), wire.DropNone)     // for this one
	s.want(ahead(2, 2), wire.DropResource)
	s.c = conns[1]
	for n := range uint32(3) { // pulls need contexts only
		s.want(s.pullRequest(500+n, 10+n, false), wire.DropNone)
	}
	s.want(s.pullRequest(503, 13, false), wire.DropResource) // the NIC's contexts
	s.want(ahead(1, 0), wire.DropNone)                       // but its head of line is taken
	if got := nic.InUse(); got[credit.NetPktRx] != 7 || got[credit.NetBufRx] != 3 {
		t.Errorf("NIC holds %v", got)
	}
	for _, c := range conns {
		c.Close(s.now)
	}
	s.drain()
	if nic.InUse() != (credit.Cost{}) || s.e.Stats().CreditErrors != 0 {
		t.Errorf("left: %v, %d errors", nic.InUse(), s.e.Stats().CreditErrors)
	}
}

// TestCreditIsOfferedOnce: of many connections that wait, as many get EvCredit, in order, as can
// have what was freed. What one of them does not use goes to the next when CreditsChanged is
// called.
func TestCreditIsOfferedOnce(t *testing.T) {
	limit := credit.NoLimit()
	limit[credit.ReqPktTx] = 4
	s := &single{t: t, now: ms, ulp: &sim.ULP{Record: true}}
	root := credit.New(nil, limit)
	s.e = falcon.NewEngine(falcon.Config{Profile: testProfile(), Credits: root}, s.ulp)
	var conns []*falcon.Conn
	for i := range uint32(20) {
		cfg := connConfig(true)
		cfg.LocalCID = i + 1
		c, err := s.e.Open(s.now, cfg)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		if err := c.Push(s.now, 1, 10); (i < 4) != (err == nil) {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	offered := func() (list []uint32) {
		var ev falcon.Event
		for s.e.Next(&ev) {
			if ev.Kind == falcon.EvCredit {
				list = append(list, ev.Conn.Config().LocalCID)
			}
		}
		return list
	}
	conns[0].Close(s.now)
	conns[1].Close(s.now)
	equal(t, "offered", offered(), []uint32{5, 6})
	if err := conns[4].Push(s.now, 1, 10); err != nil {
		t.Fatal(err)
	}
	conns[10].Close(s.now)
	equal(t, "offered while 6 has not taken it up", offered(), nil)
	s.e.CreditsChanged()
	equal(t, "offered when 6 does not", offered(), []uint32{7})
	s.e.HoldCredit(true)
	conns[2].Close(s.now)
	conns[3].Close(s.now)
	equal(t, "offered while held", offered(), nil)
	s.e.HoldCredit(false)
	equal(t, "offered then", offered(), []uint32{8, 9})
	if n := root.Refusals(); n != 16 { // who waits is refused once, however often it is looked at
		t.Errorf("%d refusals where 16 connections waited", n)
	}
}

// TestCase102_CountersOfTheEngine: each of the six counters, at the connection, function, host and
// NIC, is what stops a transaction when it is used up, and lets it go when it comes back.
func TestCase102_CountersOfTheEngine(t *testing.T) {
	for counter := range credit.NetPktRx {
		for level := range 4 {
			t.Run(fmt.Sprintf("%v at level %d", counter, level), func(t *testing.T) {
				limits := [4]credit.Cost{credit.NoLimit(), credit.NoLimit(), credit.NoLimit(), credit.NoLimit()}
				limits[level][counter] = 2 // one transaction of 100 bytes and no second one of 300
				var node *credit.Node
				for _, l := range limits[:3] {
					node = credit.New(node, l)
				}
				p := newPair(t, func(cfg *[2]falcon.Config, _ *falcon.ConnConfig, _ *sim.Impairment) {
					cfg[0].Credits = node
				}, func(_ *[2]falcon.Config, conn *falcon.ConnConfig, _ *sim.Impairment) { conn.MTU = 4000 })
				cfg := connConfig(true)
				cfg.LocalCID, cfg.RemoteCID, cfg.CreditLimit = 1, 2, limits[3]
				c, err := p.Nodes[0].Engine.Open(p.Now, cfg)
				if err != nil {
					t.Fatal(err)
				}
				m := sim.Mirror(cfg)
				if _, err = p.Nodes[1].Engine.Open(p.Now, m); err != nil {
					t.Fatal(err)
				}
				switch counter {
				case credit.DataPktTx, credit.DataBufTx:
					exhaustData(t, p, c)
				default:
					exhaustRequests(t, p, c, counter)
				}
				if node.InUse() != (credit.Cost{}) {
					t.Errorf("left: %v", node.InUse())
				}
			})
		}
	}
}

func exhaustRequests(t *testing.T, p *pair, c *falcon.Conn, counter credit.Counter) {
	issue := func(tag uint64) error {
		switch counter {
		case credit.ReqBufTx:
			return c.Push(p.Now, tag, 256)
		case credit.ReqBufRx:
			return c.Pull(p.Now, tag, 44, 256)
		}
		return c.Push(p.Now, tag, 100)
	}
	n := uint64(0)
	for issue(n+1) == nil {
		if n++; n > 2 {
			t.Fatal("not exhausted")
		}
	}
	if want := map[bool]uint64{true: 1, false: 2}[counter == credit.ReqBufTx || counter == credit.ReqBufRx]; n != want {
		t.Errorf("%d transactions, want %d", n, want)
	}
	p.run(ms)
	if len(p.events(0, falcon.EvCredit)) != 1 {
		t.Errorf("%d EvCredit, want 1", len(p.events(0, falcon.EvCredit)))
	}
	if err := issue(9); err != nil {
		t.Errorf("not recovered: %v", err)
	}
	p.run(ms)
}

func exhaustData(t *testing.T, p *pair, c *falcon.Conn) {
	peer := p.Nodes[1].Engine.Conn(c.Config().RemoteCID)
	const length = 130 // two cells
	for tag := range uint64(4) {
		if err := peer.Pull(p.Now, tag, 44, length); err != nil {
			t.Fatal(err)
		}
	}
	p.run(6 * us)
	if n := len(p.packets(0, wire.TypePullData)); n > 2 || n == 0 {
		t.Errorf("%d responses at once", n)
	}
	p.run(5 * ms)
	if n := len(p.events(1, falcon.EvPullDone)); n != 4 {
		t.Errorf("%d pulls completed, want 4", n)
	}
}

// TestCase78_RequestsDoNotStarveResponses: all contexts of the initiator are taken by requests that
// wait for the peer's responses, and both sides are in that state; responses have contexts of their
// own (CR rules 1 and 2).
func TestCase78_RequestsDoNotStarveResponses(t *testing.T) {
	p := newPair(t, func(cfg *[2]falcon.Config, _ *falcon.ConnConfig, _ *sim.Impairment) {
		cfg[0].TxContexts, cfg[1].TxContexts = 1, 1
	})
	p.pull(p.a, 100, 1)
	p.pull(p.b, 100, 2)
	if err := p.a.Push(p.Now, 3, 10); !errors.Is(err, falcon.ErrXoff) {
		t.Errorf("second transaction: %v", err)
	}
	p.run(ms)
	p.wantTags(0, falcon.EvPullDone, 1)
	p.wantTags(1, falcon.EvPullDone, 2)
	p.wantIdle()
}
