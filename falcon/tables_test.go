package falcon

import (
	"math/rand/v2"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/credit"
)

// TestConnTableGrows: connections are found until they are removed, however many there are, and the
// chains stay short.
func TestConnTableGrows(t *testing.T) {
	var table connTable
	const most = 1000
	var conns [most]Conn
	for i := range conns {
		conns[i].cfg.LocalCID = CID(7 * i)
		table.add(&conns[i])
		if table.n != i+1 || len(table.chains) < table.n || len(table.chains) > max(64, 2*table.n) {
			t.Fatalf("%d chains for %d connections", len(table.chains), table.n)
		}
	}
	for i := range conns {
		if i%3 == 0 {
			table.remove(&conns[i])
		}
	}
	for i := range conns {
		want := &conns[i]
		if i%3 == 0 {
			want = nil
		}
		if got := table.find(CID(7 * i)); got != want {
			t.Fatalf("connection %d: found %v", i, got != nil)
		}
		if table.find(CID(7*i+1)) != nil {
			t.Fatalf("found what was never added, %d", 7*i+1)
		}
	}
	if table.n != most-(most+2)/3 {
		t.Errorf("%d connections are left", table.n)
	}
}

// TestSharesOfCellPool: a function is listed once, for as long as it holds cells.
func TestSharesOfCellPool(t *testing.T) {
	p := cellPool{size: 8, limit: 100}
	var shares [5]share
	var conns [5]Conn
	for i := range conns {
		conns[i].share = &shares[i]
	}
	held := [5][]*cell{}
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		i := rnd.IntN(len(conns))
		if n := len(held[i]); n > 0 && rnd.IntN(2) == 0 {
			p.put(held[i][n-1])
			held[i] = held[i][:n-1]
		} else if p.requests < p.limit {
			held[i] = append(held[i], p.copyRequest(&conns[i], []byte{1}))
		}
		holders, cells := 0, 0
		for i := range shares {
			n := len(held[i])
			cells += n
			if conns[i].requestCells != int32(n) || conns[i].cells != int32(n) || shares[i].cells.n != n {
				t.Fatalf("%d cells of connection %d, counted %d, its function %d", n, i, conns[i].cells, shares[i].cells.n)
			}
			if n > 0 {
				holders++
				if at := shares[i].cells.at; p.shares[at] != &shares[i] {
					t.Fatalf("function %d is not at %d", i, at)
				}
			}
		}
		if len(p.shares) != holders || p.requests != cells || p.inUse != cells {
			t.Fatalf("%d functions hold %d cells; counted %d and %d", holders, cells, len(p.shares), p.requests)
		}
	}
}

// TestSpacingIsRandom: the numbers are those of the generator with shifts 13, 17 and 5 of Marsaglia,
// "Xorshift RNGs", §4, from its seed on.
func TestSpacingIsRandom(t *testing.T) {
	s := sender{random: 2463534242}
	for _, want := range []uint32{723471715, 2497366906, 2064144800} {
		if got := s.nextRandom(); got != want {
			t.Errorf("%d, want %d", got, want)
		}
	}
}

// TestCreditErrorsAreCounted: returning what was not taken is a bug of this package, and is
// counted.
func TestCreditErrorsAreCounted(t *testing.T) {
	e := NewEngine(Config{Profile: Software(), Credits: credit.New(nil, credit.NoLimit())}, nil)
	c, err := e.Open(0, ConnConfig{Protocol: 2, MTU: 1000})
	if err != nil {
		t.Fatal(err)
	}
	c.credits.returnOne(credit.NetPktRx)
	cost := credit.PushCost(1, 1)
	c.credits.giveBackAll(&cost)
	if e.stats.CreditErrors != 2 || cost != (credit.Cost{}) {
		t.Errorf("%d errors counted, %v left to return", e.stats.CreditErrors, cost)
	}
}
