package falcon

import (
	"math/rand/v2"
	"testing"
)

// Falcon §10.2: the average moves by alpha with each change, and 31 thresholds make 32 half-open
// steps.
func TestOccupancyIsAveragedAndQuantised(t *testing.T) {
	p := newPoolLevel(&Occupancy{Alpha: 0.5}, 65536)
	for _, c := range []struct {
		ema  float64
		want uint8
	}{{0, 0}, {2047.9, 0}, {2048, 1}, {4095.9, 1}, {4096, 2}, {31 * 2048, 31}, {1e9, 31}} {
		p.ema = c.ema
		if got := p.quantised(); got != c.want {
			t.Errorf("average %v: level %d, want %d", c.ema, got, c.want)
		}
	}
	p.ema = 0
	for _, want := range []float64{5000, 7500, 8750} {
		if p.update(10000); p.ema != want {
			t.Errorf("average %v, want %v", p.ema, want)
		}
	}
	now := newPoolLevel(&Occupancy{Alpha: 1}, 32)
	now.update(17)
	if now.ema != 17 || now.quantised() != 17 {
		t.Errorf("alpha 1: average %v, level %d", now.ema, now.quantised())
	}
	own := make([]uint32, OccupancyLevels)
	for i := range own {
		own[i] = 5
	}
	own[30] = 100
	steps := newPoolLevel(&Occupancy{Alpha: 1, Levels: own}, 65536)
	for inUse, want := range map[int]uint8{4: 0, 5: 30, 99: 30, 100: 31} {
		if steps.update(inUse); steps.quantised() != want {
			t.Errorf("%d in use: level %d, want %d", inUse, steps.quantised(), want)
		}
	}
}

func TestInvalidOccupancySettingsAreRefused(t *testing.T) {
	falling := make([]uint32, OccupancyLevels)
	falling[0] = 1
	for _, o := range []Occupancy{{}, {Alpha: 1.1}, {Alpha: -1}, {Alpha: 1, Levels: make([]uint32, 30)}, {Alpha: 1, Levels: falling}} {
		for i := range 2 {
			p := Software()
			*[]*Occupancy{&p.RxPackets, &p.RxBuffers}[i] = o
			if p.Check() == nil {
				t.Errorf("%+v accepted", o)
			}
		}
	}
}

// Thresholds may be equal: levels between them are then left out.
func TestOccupancyOfEqualThresholds(t *testing.T) {
	p := Software()
	p.RxPackets = Occupancy{Alpha: 1, Levels: make([]uint32, OccupancyLevels)}
	if err := p.Check(); err != nil {
		t.Error(err)
	}
}

// TestCellsAreCounted: a function is listed once, for as long as it holds cells; payloads of all
// lengths are counted by the cells they take, and the memory of the pool stays within its limit, of
// which only payloads that wait for their turn hold part.
func TestCellsAreCounted(t *testing.T) {
	const bytes, longest = 8, 60
	p := cellPool{bytes: bytes, limit: 100}
	var shares [5]share
	var conns [5]Conn
	for i := range conns {
		conns[i].share = &shares[i]
	}
	held := [5][]*cell{}
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 5000 {
		i, length := rnd.IntN(len(conns)), rnd.IntN(longest+1)
		if n := len(held[i]); n > 0 && rnd.IntN(2) == 0 {
			p.put(held[i][n-1])
			held[i] = held[i][:n-1]
		} else if payload := make([]byte, length); p.requests+p.of(payload) <= p.limit {
			k := p.copyRequest(&conns[i], payload)
			if want := max(1, (length+bytes-1)/bytes); k.size != want || len(k.buf) != length || cap(k.buf) != want*bytes {
				t.Fatalf("%d bytes are in %d cells with room for %d", length, k.size, cap(k.buf))
			}
			held[i] = append(held[i], k)
		}
		holders, cells, free := 0, 0, 0
		for i := range shares {
			n := 0
			for _, k := range held[i] {
				n += k.size
			}
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
		for size, of := range p.free {
			free += (size + 1) * len(of)
		}
		if len(p.shares) != holders || p.requests != cells || p.inUse != cells {
			t.Fatalf("%d functions hold %d cells; counted %d and %d", holders, cells, len(p.shares), p.requests)
		}
		if p.memory != cells+free || p.memory > p.limit {
			t.Fatalf("memory of %d cells, %d in use and %d free, limit %d", p.memory, cells, free, p.limit)
		}
	}
}

// TestMemoryForPullDataIsGivenBack: pull data takes as many cells as it needs. What is beyond the
// limit is not kept.
func TestMemoryForPullDataIsGivenBack(t *testing.T) {
	p := cellPool{bytes: 8, limit: 10}
	c := Conn{share: &share{}}
	var held []*cell
	for range 10 {
		held = append(held, p.copyData(&c, make([]byte, 30)))
	}
	if p.memory != 40 || p.inUse != 40 || p.requests != 0 {
		t.Errorf("memory of %d cells, %d in use, %d of requests", p.memory, p.inUse, p.requests)
	}
	for _, k := range held {
		p.put(k)
	}
	if p.memory > p.limit || p.inUse != 0 || c.cells != 0 {
		t.Errorf("memory of %d cells is kept, %d in use, %d of the connection", p.memory, p.inUse, c.cells)
	}
}
