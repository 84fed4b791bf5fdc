package falcon_test

import (
	"errors"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// sized is a single whose engine has other sizes than the defaults.
func sized(t *testing.T, cfg falcon.Config, edit ...func(*falcon.ConnConfig)) *single {
	t.Helper()
	s := &single{t: t, now: ms, ulp: &sim.ULP{Record: true}}
	s.e = falcon.NewEngine(cfg, s.ulp)
	conn := connConfig(true)
	for _, f := range edit {
		f(&conn)
	}
	var err error
	if s.c, err = s.e.Open(s.now, conn); err != nil {
		t.Fatal(err)
	}
	return s
}

// beside opens another connection like that of s on its engine.
func (s *single) beside(edit ...func(*falcon.ConnConfig)) *falcon.Conn {
	s.t.Helper()
	cfg := *s.c.Config()
	cfg.LocalCID++
	for _, f := range edit {
		f(&cfg)
	}
	c, err := s.e.Open(s.now, cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// with makes s speak for another connection during do.
func (s *single) with(c *falcon.Conn, do func()) {
	was := s.c
	s.c = c
	do()
	s.c = was
}

// TestOpenBorders: the first and the last value of each parameter, and those beyond.
func TestOpenBorders(t *testing.T) {
	e := falcon.NewEngine(falcon.Config{Profile: testProfile(), CellBytes: 1 << 17}, &sim.ULP{})
	next := falcon.CID(0)
	for i, c := range []struct {
		edit func(*falcon.ConnConfig)
		ok   bool
	}{
		{func(c *falcon.ConnConfig) { c.LocalCID = wire.MaxCID }, true},
		{func(c *falcon.ConnConfig) { c.RemoteCID = wire.MaxCID }, true},
		{func(c *falcon.ConnConfig) { c.LocalFunction = wire.MaxFunction }, true},
		{func(c *falcon.ConnConfig) { c.RemoteFunction = wire.MaxFunction }, true},
		{func(c *falcon.ConnConfig) { c.MTU = 0 }, false},
		{func(c *falcon.ConnConfig) { c.MTU = 1 }, true},
		{func(c *falcon.ConnConfig) { c.MTU = 0xffff }, true},
		{func(c *falcon.ConnConfig) { c.MTU = 1 << 16 }, false},
		{func(c *falcon.ConnConfig) { c.GiveUp = 0 }, true},
	} {
		cfg := connConfig(true)
		next++
		cfg.LocalCID = next
		c.edit(&cfg)
		if _, err := e.Open(0, cfg); (err == nil) != c.ok {
			t.Errorf("case %d: %v", i, err)
		}
	}
	small := falcon.NewEngine(falcon.Config{Profile: testProfile(), CellBytes: 100}, &sim.ULP{})
	cfg := connConfig(true)
	for mtu, ok := range map[int]bool{100: true, 101: false} {
		cfg.LocalCID++
		cfg.MTU = mtu
		if _, err := small.Open(0, cfg); (err == nil) != ok {
			t.Errorf("MTU %d with cells of 100 bytes: %v", mtu, err)
		}
	}
}

// TestLengthBorders: a packet may carry 0 bytes up to the MTU; a pull's headers also have their own
// limit.
func TestLengthBorders(t *testing.T) {
	for _, c := range []struct{ mtu, header int }{{4200, falcon.MaxPullHeader}, {100, 100}} {
		s := newSingle(t, testProfile(), func(cfg *falcon.ConnConfig) { cfg.MTU = c.mtu })
		for i, err := range []error{
			s.c.Push(s.now, 1, 0), s.c.Push(s.now, 2, c.mtu), s.c.Pull(s.now, 3, 0, 0), s.c.Pull(s.now, 4, c.header, c.mtu),
		} {
			if err != nil {
				t.Errorf("MTU %d, good length %d: %v", c.mtu, i, err)
			}
		}
		for i, err := range []error{s.c.Push(s.now, 1, c.mtu+1), s.c.Pull(s.now, 3, c.header+1, 0), s.c.Pull(s.now, 4, 0, c.mtu+1)} {
			if !errors.Is(err, falcon.ErrTooLong) {
				t.Errorf("MTU %d, bad length %d: %v", c.mtu, i, err)
			}
		}
	}
}

// TestResponseBorders: a response may be empty, as long as what was asked for, and no longer than
// the MTU whatever was asked for.
func TestResponseBorders(t *testing.T) {
	s := newSingle(t, testProfile(), func(cfg *falcon.ConnConfig) { cfg.MTU = 50 })
	s.ulp.OnPull = noAnswer
	s.pullRequest(500, 7, false) // for 64 bytes
	s.pullRequest(501, 8, false)
	for length, want := range map[int]error{-1: falcon.ErrTooLong, 51: falcon.ErrTooLong, 65: falcon.ErrTooLong} {
		if err := s.c.RespondPull(s.now, 7, 1, length); !errors.Is(err, want) {
			t.Errorf("%d bytes: %v", length, err)
		}
	}
	if err := errors.Join(s.c.RespondPull(s.now, 7, 1, 50), s.c.RespondPull(s.now, 8, 1, 0)); err != nil {
		t.Error(err)
	}
}

// TestTransactionsAtOnce: a connection has as many transactions as the profile allows, and gets
// EvCredit when another can begin.
func TestTransactionsAtOnce(t *testing.T) {
	p := testProfile()
	p.MaxTxn = 8
	s := newSingle(t, p)
	s.push(8)
	if err := s.c.Push(s.now, 9, 32); !errors.Is(err, falcon.ErrXoff) {
		t.Fatalf("a ninth of eight: %v", err)
	}
	s.transmit()
	if s.drain(); s.count(falcon.EvCredit) != 0 {
		t.Error("told of room where there is none")
	}
	s.ack(wire.Ack{DataBase: 301})
	if s.count(falcon.EvCredit) != 1 {
		t.Errorf("%d times told", s.count(falcon.EvCredit))
	}
	s.push(1)
}

// TestPullHeaderBorder: a request's headers may be as long as its context holds.
func TestPullHeaderBorder(t *testing.T) {
	s := newSingle(t, testProfile())
	for n, want := range []wire.Drop{wire.DropNone, wire.DropLength} {
		p := wire.PullRequest{Header: s.header(wire.TypePullRequest, 500, 7, false), RequestLength: 64}
		s.want(s.receive(append(p.Append(nil), make([]byte, falcon.MaxPullHeader+n)...)), want)
	}
}

// TestCellBorder: a push that waits may be as long as a cell.
func TestCellBorder(t *testing.T) {
	s := sized(t, falcon.Config{Profile: testProfile(), CellBytes: 40}, func(cfg *falcon.ConnConfig) { cfg.MTU = 40 })
	for n, want := range map[int]wire.Drop{40: wire.DropNone, 41: wire.DropResource} {
		seq := uint32(n - 39)
		p := wire.PushData{Header: s.header(wire.TypePushData, 200+seq, 7+seq, false), RequestLength: uint16(n)}
		s.want(s.receive(append(p.Append(nil), make([]byte, n)...)), want)
	}
	if st := s.e.Stats(); st.RxCells != 1 || st.RxContexts != 1 {
		t.Errorf("%d cells, %d contexts", st.RxCells, st.RxContexts)
	}
}

// TestContextsBehindTheHead: behind its head of line a connection holds an eighth of the contexts
// that are then free, and four in any case, whatever limits them.
func TestContextsBehindTheHead(t *testing.T) {
	for _, c := range []struct{ engine, function, want int }{
		{80, 1000, 9}, {1000, 80, 9}, {79, 1000, 8}, {10, 1000, 4}, {5, 1000, 4}, {3, 1000, 3},
	} {
		limit := credit.NoLimit()
		limit[credit.NetPktRx] = uint32(c.function)
		s := sized(t, falcon.Config{Profile: testProfile(), RxContexts: c.engine, Credits: credit.New(nil, limit)})
		taken := 0
		for n := uint32(1); n < 30; n++ {
			if s.pullRequest(500+n, 7+n, false) == wire.DropNone {
				taken++
			}
		}
		if taken != c.want {
			t.Errorf("%d contexts, %d of the function: a connection holds %d, want %d", c.engine, c.function, taken, c.want)
		}
	}
}

// TestRequestsOfAPeer: unanswered requests and unacknowledged responses have one common limit.
func TestRequestsOfAPeer(t *testing.T) {
	s := newSingle(t, testProfile(), func(cfg *falcon.ConnConfig) { cfg.Ordered = false })
	s.ulp.OnPull = noAnswer
	const most = 2 * falcon.MaxTxWindow
	for n := range uint32(most) {
		s.want(s.pullRequest(500+n, 7+n, false), wire.DropNone)
		if n < most/2+100 {
			if err := s.c.RespondPull(s.now, 7+n, 1, 8); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.want(s.pullRequest(500+most, 7+most, false), wire.DropResource)
	s.transmit()
	s.ack(wire.Ack{DataBase: 301}) // one response is done
	s.want(s.pullRequest(500+most, 7+most, false), wire.DropNone)
	s.want(s.pullRequest(501+most, 8+most, false), wire.DropResource)
}

// TestCellsMoveToThoseWithFewer: of five cells two connections of a function end up with three and
// two, and so do two functions. Then no cell moves any more.
func TestCellsMoveToThoseWithFewer(t *testing.T) {
	for _, function := range []uint32{0, 1} { // of the second connection, added to that of the first
		s := sized(t, falcon.Config{Profile: testProfile(), RxCells: 5})
		other := s.beside(func(cfg *falcon.ConnConfig) { cfg.LocalFunction += function })
		for n := range uint32(5) {
			s.want(s.pushData(201+n, 8+n, false), wire.DropNone)
		}
		s.want(s.pushData(206, 13, false), wire.DropResource)
		s.with(other, func() {
			for n, want := range []wire.Drop{wire.DropNone, wire.DropNone, wire.DropResource} {
				s.want(s.pushData(201+uint32(n), 8+uint32(n), false), want)
			}
		})
		if a, b := s.c.Info().WaitingForOrder, other.Info().WaitingForOrder; a != 3 || b != 2 {
			t.Errorf("function %d apart: they have %d and %d cells, want 3 and 2", function, a, b)
		}
		s.want(s.pushData(201, 8, false), wire.DropResource) // it was given up, and finds no room
		if st := s.e.Stats(); st.Evicted != 2 {
			t.Errorf("function %d apart: %d cells changed hands, want 2", function, st.Evicted)
		}
	}
}

// TestTheLargestGivesUpCells: of several functions that hold more, the one with the most gives up
// cells.
func TestTheLargestGivesUpCells(t *testing.T) {
	s := sized(t, falcon.Config{Profile: testProfile(), RxCells: 12})
	conns := []*falcon.Conn{s.c}
	for i, cells := range []uint32{3, 6, 3} {
		if i > 0 {
			conns = append(conns, s.beside(func(cfg *falcon.ConnConfig) { cfg.LocalCID += uint32(i); cfg.LocalFunction += uint32(i) }))
		}
		s.with(conns[i], func() {
			for n := range cells {
				s.want(s.pushData(201+n, 8+n, false), wire.DropNone)
			}
		})
	}
	last := s.beside(func(cfg *falcon.ConnConfig) { cfg.LocalCID += 9; cfg.LocalFunction += 9 })
	s.with(last, func() {
		for n := range uint32(2) {
			s.want(s.pushData(201+n, 8+n, false), wire.DropNone)
		}
	})
	var got []int
	for _, c := range append(conns, last) {
		got = append(got, c.Info().WaitingForOrder)
	}
	equal(t, "cells", got, []int{3, 4, 3, 2})
}

// TestCellOfAFunctionWithoutCredit: if the function's own cells are used up, one of its connections
// takes a cell of another one, and the cell stays counted once.
func TestCellOfAFunctionWithoutCredit(t *testing.T) {
	limit := credit.NoLimit()
	limit[credit.NetBufRx] = 4
	node := credit.New(nil, limit)
	s := sized(t, falcon.Config{Profile: testProfile(), Credits: node})
	other := s.beside()
	for n := range uint32(4) {
		s.want(s.pushData(201+n, 8+n, false), wire.DropNone)
	}
	s.with(other, func() { s.want(s.pushData(201, 8, false), wire.DropNone) })
	if n := node.InUse()[credit.NetBufRx]; n != 4 {
		t.Errorf("%d cells are counted, want 4", n)
	}
	s.c.Close(s.now)
	other.Close(s.now)
	s.drain()
	if node.InUse() != (credit.Cost{}) || s.e.Stats().CreditErrors != 0 {
		t.Errorf("left: %v, %d errors", node.InUse(), s.e.Stats().CreditErrors)
	}
}

// TestLevelOfAFunctionsCells: the level reported to the peer also covers the function's cells.
func TestLevelOfAFunctionsCells(t *testing.T) {
	limit := credit.NoLimit()
	limit[credit.NetBufRx] = 64
	node := credit.New(nil, limit)
	s := sized(t, falcon.Config{Profile: testProfile(), Credits: node})
	for range 48 {
		node.TakeOne(credit.NetBufRx, false)
	}
	s.want(s.pushData(201, 8, true), wire.DropNone)
	got := s.transmit()
	if len(got) != 1 || ack(t, got[0].Packet).RxOccupancy != 24 {
		t.Errorf("sent %v, want level 24 of 32 with 49 of 64 cells in use", got)
	}
}

// TestPullDataStaysInPlace: only data that must wait for its turn is copied.
func TestPullDataStaysInPlace(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		s := newSingle(t, testProfile(), func(cfg *falcon.ConnConfig) { cfg.Ordered = ordered })
		s.pull(3)
		s.transmit()
		for i, c := range []struct {
			rsn   uint32
			cells int // on an ordered connection
		}{{3, 1}, {1, 1}, {2, 1}} {
			h := s.header(wire.TypePullData, 200+uint32(i), c.rsn, false)
			s.e.Receive(s.now, falcon.Packet{Data: append(h.Append(nil), make([]byte, 8)...)})
			want := 0
			if ordered {
				want = c.cells
			}
			if n := s.e.Stats().RxCells; n != want {
				t.Errorf("ordered %v, data of %d: %d cells, want %d", ordered, c.rsn, n, want)
			}
		}
		if s.drain(); s.e.Stats().RxCells != 0 || s.count(falcon.EvPullDone) != 3 {
			t.Errorf("ordered %v: %d cells left, %d pulls done", ordered, s.e.Stats().RxCells, s.count(falcon.EvPullDone))
		}
	}
}

// TestTransmitNeedsRoom: a packet is written where exactly its length is free, and left alone where
// a byte is missing.
func TestTransmitNeedsRoom(t *testing.T) {
	for what, c := range map[string]struct {
		prepare func(*single)
		length  int
	}{
		"ACK":          {func(s *single) { s.pullRequest(500, 7, true) }, wire.EACKLen},
		"push":         {func(s *single) { s.push(1) }, wire.PushDataLen + 32},
		"pull request": {func(s *single) { s.pull(1) }, wire.PullRequestLen + 44},
		"Resync": {func(s *single) {
			s.ulp.FillError = func(falcon.TxnKind, uint64) bool { return true }
			if err := s.c.Push(s.now, 1, 0); err != nil {
				s.t.Fatal(err)
			}
		}, wire.ResyncLen},
	} {
		for missing, sends := range map[int]bool{0: true, 1: false} {
			s := newSingle(t, testProfile())
			s.ulp.OnPull = noAnswer
			c.prepare(s)
			if n, _ := s.e.Transmit(s.now, s.buf[:c.length-missing]); (n > 0) != sends {
				t.Errorf("%s of at most %d bytes with %d missing: %d bytes sent", what, c.length, missing, n)
			}
		}
	}
}

// starved is a single without credits.
func starved(t *testing.T) *single {
	t.Helper()
	node := credit.New(nil, credit.NoLimit())
	node.Starve(true)
	return newSingle(t, testProfile(), func(cfg *falcon.ConnConfig) { cfg.Credits = node })
}
