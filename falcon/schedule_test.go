package falcon_test

import (
	"fmt"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// TestSharesOfFunctionsEnd: a function's share lasts as long as one of its connections, and only a
// weight that matters is kept.
func TestSharesOfFunctionsEnd(t *testing.T) {
	s := newSingle(t, testProfile())
	cfg := connConfig(true)
	cfg.LocalCID++
	c, err := s.e.Open(s.now, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range []*falcon.Conn{s.c, c} {
		if n := s.e.Shares(); n != 1 {
			t.Errorf("%d shares with %d connections of one function", n, 2-i)
		}
		c.Close(s.now)
	}
	if n := s.e.Shares(); n != 0 {
		t.Errorf("%d shares without a connection", n)
	}
	s.e.SetWeight(7, 2)
	s.e.SetWeight(8, 1)
	if n := s.e.Weights(); n != 1 {
		t.Errorf("%d weights are kept, want that of function 7", n)
	}
}

// fairness is an engine with functions that have different numbers of connections and sizes of
// packets, all with more to send than the windows allow.
type fairness struct {
	*single
	sent    map[uint32]int // bytes by function
	packets map[uint32]int
}

func newFairness(t *testing.T) *fairness {
	t.Helper()
	p := windows(256, 256)
	p.ARPercent = 0
	return &fairness{single: newSingle(t, p), sent: map[uint32]int{}, packets: map[uint32]int{}}
}

// function opens n connections and gives each requests of a length.
func (f *fairness) function(id uint32, n, requests, length int, node *credit.Node) {
	f.t.Helper()
	for i := range n {
		cfg := connConfig(true)
		cfg.LocalCID, cfg.LocalFunction, cfg.Credits = id<<8|uint32(i), id, node
		c, err := f.e.Open(f.now, cfg)
		if err != nil {
			f.t.Fatal(err)
		}
		for tag := range uint64(requests) {
			if err := c.Push(f.now, tag, length); err != nil {
				f.t.Fatal(err)
			}
		}
	}
}

func (f *fairness) transmit(n int) (order []uint32) {
	f.t.Helper()
	for range n {
		size, c := f.e.Transmit(f.now, f.buf[:])
		if size == 0 {
			f.t.Fatal("nothing to send")
		}
		id := c.Config().LocalFunction
		f.sent[id] += size
		f.packets[id]++
		order = append(order, id)
	}
	return order
}

// TestFunctionsShareBytes: a function with one connection gets as many bytes as one with forty, and
// one with small packets as many as one with large ones.
func TestFunctionsShareBytes(t *testing.T) {
	f := newFairness(t)
	f.function(1, 1, 200, 4096, nil)
	f.function(2, 40, 50, 4096, nil)
	f.function(3, 3, 250, 512, nil)
	f.transmit(700)
	for _, id := range []uint32{2, 3} {
		if ratio := float64(f.sent[1]) / float64(f.sent[id]); ratio < 0.95 || ratio > 1.05 {
			t.Errorf("bytes by function %v: %.2f", f.sent, ratio)
		}
	}
	if f.packets[3] < 5*f.packets[1] {
		t.Errorf("packets by function %v", f.packets)
	}
}

// TestConnectionsTakeTurns: the connections of a function send one packet each in turn, although
// each was kicked for every one of its requests.
func TestConnectionsTakeTurns(t *testing.T) {
	f := newFairness(t)
	f.function(1, 3, 20, 512, nil)
	var order, want []uint32
	for i := range uint32(60) {
		_, c := f.e.Transmit(f.now, f.buf[:])
		order = append(order, c.Config().LocalCID)
		want = append(want, 1<<8|i%3)
	}
	equal(t, "order of connections", order, want)
}

// TestFunctionsShareByWeight: functions share bytes by weight, whatever number of connections each
// has. A new weight holds at once, also for connections opened later.
func TestFunctionsShareByWeight(t *testing.T) {
	f := newFairness(t)
	f.e.SetWeight(1, 3)
	f.function(1, 1, 250, 4096, nil)
	f.function(2, 40, 50, 4096, nil)
	f.transmit(200)
	if f.packets[1] < 148 || f.packets[1] > 152 {
		t.Errorf("packets of functions of weights 3 and 1: %v", f.packets)
	}
	f.e.SetWeight(2, 9)
	clear(f.packets)
	f.transmit(100)
	if f.packets[1] < 24 || f.packets[1] > 26 {
		t.Errorf("packets of functions of weights 3 and 9: %v", f.packets)
	}
	f.e.SetWeight(2, 0)
	clear(f.packets)
	f.transmit(80)
	if f.packets[1] < 50 || f.packets[1] > 65 {
		t.Errorf("packets of functions of weights 3 and 1 again: %v", f.packets)
	}
}

// TestGuaranteedGoFirst: a packet within its function's guarantee is sent before all others that
// wait; above the guarantee the function waits for its turn.
func TestGuaranteedGoFirst(t *testing.T) {
	f := newFairness(t)
	nic := credit.New(nil, credit.NoLimit())
	node := credit.New(nic, credit.NoLimit())
	if err := node.Guarantee(credit.Cost{credit.ReqPktTx: 2}); err != nil {
		t.Fatal(err)
	}
	for id := range uint32(30) {
		f.function(100+id, 2, 20, 4096, credit.New(nic, credit.NoLimit()))
	}
	f.transmit(45)
	f.function(7, 1, 2, 64, credit.New(node, credit.NoLimit()))
	if order := f.transmit(3); order[0] != 7 || order[1] != 7 || order[2] == 7 {
		t.Errorf("order %v, want 7 first", order)
	}
	f.function(8, 1, 8, 4096, credit.New(node, credit.NoLimit())) // of the same node: above its guarantee now
	order := f.transmit(60)
	if order[0] == 8 || order[1] == 8 {
		t.Errorf("order %v: more than is guaranteed went first", order)
	}
	n := 0
	for _, id := range order {
		if id == 8 {
			n++
		}
	}
	if n < 1 || n > 3 {
		t.Errorf("%d of 60 packets among 31 functions", n)
	}
}

// BenchmarkTransmitFunctions is a turn of the scheduler among functions.
func BenchmarkTransmitFunctions(b *testing.B) {
	for _, functions := range []int{1, 64, 4096} {
		b.Run(fmt.Sprint(functions), func(b *testing.B) { benchmarkFunctions(b, functions) })
	}
}

// benchmarkFunctions makes the peers acknowledge all packets between rounds, which are not timed,
// so that no connection is new and its windows have grown.
func benchmarkFunctions(b *testing.B, functions int) {
	p := windows(1024, 1024)
	p.ARPercent, p.MaxTxn = 0, 1024
	e := falcon.NewEngine(falcon.Config{Profile: p, TxContexts: 1 << 20}, noULP{})
	var conns []*falcon.Conn
	for i := range functions {
		cfg := connConfig(true)
		cfg.LocalCID, cfg.LocalFunction = uint32(i), uint32(i)
		c, err := e.Open(ms, cfg)
		if err != nil {
			b.Fatal(err)
		}
		conns = append(conns, c)
	}
	const per = 64
	var buf [5000]byte
	var ev falcon.Event
	acked := wire.Ack{ReqBase: connConfig(true).TxReqPSN, DataBase: connConfig(true).TxDataPSN}
	queue := func() {
		for _, c := range conns {
			for tag := range uint64(per) {
				if c.Push(ms, tag, 64) != nil {
					b.Fatal("refused")
				}
			}
		}
	}
	send := func() {
		if n, _ := e.Transmit(ms, buf[:]); n == 0 {
			b.Fatal("nothing to send")
		}
	}
	acknowledge := func() {
		acked.DataBase += per
		for i := range conns {
			acked.CID = uint32(i)
			if drop := e.Receive(ms, falcon.Packet{Data: acked.Append(nil)}); drop != wire.DropNone {
				b.Fatal(drop)
			}
			for e.Next(&ev) {
			}
		}
	}
	queue()
	for range per * functions {
		send()
	}
	left := 0
	for b.Loop() {
		if left == 0 {
			b.StopTimer()
			acknowledge()
			queue()
			left = per * functions
			b.StartTimer()
		}
		send()
		left--
	}
}

type noULP struct{}

func (noULP) Fill(_ *falcon.Conn, _ falcon.TxnKind, _ uint64, dst []byte) (int, error) {
	return len(dst), nil
}

// TestTurnUsedUpExactly: a turn ends with the byte that uses it up.
func TestTurnUsedUpExactly(t *testing.T) {
	probe := newFairness(t)
	probe.function(1, 1, 1, 4096, nil)
	probe.transmit(1)
	p := windows(256, 256)
	p.ARPercent, p.TurnBytes = 0, 4*probe.sent[1]
	f := &fairness{single: newSingle(t, p), sent: map[uint32]int{}, packets: map[uint32]int{}}
	f.function(1, 1, 20, 4096, nil)
	f.function(2, 1, 20, 4096, nil)
	equal(t, "order of functions", f.transmit(12), []uint32{1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 1, 1})
}

// TestConnectionsTurnUsedUpExactly: the same for the turn of a connection among those of its
// function.
func TestConnectionsTurnUsedUpExactly(t *testing.T) {
	probe := newFairness(t)
	probe.function(1, 1, 1, 4096, nil)
	probe.transmit(1)
	p := windows(256, 256)
	p.ARPercent, p.TurnBytes = 0, 3*probe.sent[1]
	f := &fairness{single: newSingle(t, p), sent: map[uint32]int{}, packets: map[uint32]int{}}
	f.function(1, 2, 20, 4096, nil)
	var order []uint32
	for range 9 {
		_, c := f.e.Transmit(f.now, f.buf[:])
		order = append(order, c.Config().LocalCID&0xff)
	}
	equal(t, "order of connections", order, []uint32{0, 0, 0, 1, 1, 1, 0, 0, 0})
}

func TestCase10_Arbiter(t *testing.T) {
	p := windows(256, 256)
	p.WeightAck, p.WeightRetransmit, p.WeightNew = 1, 1, 2
	p.AckCount = 1
	s := newSingle(t, p)
	s.push(100)
	acks, fresh := 0, 0
	for i := range uint32(60) {
		s.e.Receive(s.now, falcon.Packet{Data: pullBytes(s, 500+i, 7+i)}) // events are not taken: only its ACK goes out
		n, _ := s.e.Transmit(s.now, s.buf[:])
		if typ, _ := wire.Peek(s.buf[:n]); typ == wire.TypeBACK || typ == wire.TypeEACK {
			acks++
		} else {
			fresh++
		}
	}
	if acks != 20 || fresh != 40 {
		t.Errorf("%d ACKs and %d new packets, want 20 and 40", acks, fresh)
	}
}

func pullBytes(s *single, psn, rsn uint32) []byte {
	p := wire.PullRequest{Header: s.header(wire.TypePullRequest, psn, rsn, false), RequestLength: 64}
	return append(p.Append(nil), make([]byte, 44)...)
}

// TestRequestsAndResponsesAlternate: new packets of an initiator and of a target share the
// transmitter one by one.
func TestRequestsAndResponsesAlternate(t *testing.T) {
	s := newSingle(t, testProfile())
	for n := range uint32(3) {
		s.pullRequest(500+n, 7+n, false)
	}
	s.push(3)
	var got []wire.PacketType
	for _, p := range s.transmit() {
		if p.Type.HasBase() {
			got = append(got, p.Type)
		}
	}
	const push, data = wire.TypePushData, wire.TypePullData
	equal(t, "packets", got, []wire.PacketType{push, data, push, data, push, data})
}
