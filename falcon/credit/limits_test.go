package credit

import "testing"

// TestBucketToTheByte: a bucket lets its burst through at once, and then waits for one byte. A
// change of its rate fills it only if it had none.
func TestBucketToTheByte(t *testing.T) {
	var b Bucket
	const now = 1000
	ready := func(at, want int64) {
		t.Helper()
		if got := b.Ready(at); got != want {
			t.Errorf("asked at %d: ready at %d, want %d", at, got, want)
		}
	}
	b.SetRate(now, 1e9) // a byte each nanosecond, and 2 ms at once
	if b.Rate() != 1e9 || !b.Limited() {
		t.Errorf("rate %d, limited %v", b.Rate(), b.Limited())
	}
	b.Charge(2e6 - 1)
	ready(now, now)
	b.Charge(1)
	ready(now, now+1)
	ready(now+1, now+1)
	b.Charge(1)
	ready(now+1, now+2)
	b.SetRate(now+1, 2e9)
	ready(now+1, now+2) // half of it would do
	b.SetRate(now+1, 1e6)
	ready(now+1, now+1+1000)
	ready(now+1+999, now+1+1000)
	ready(now+1+1000, now+1+1000)
	b.SetRate(now+1001, 0)
	b.SetRate(now+1001, 1e6) // from no limit: full
	b.Charge(leastBurst - 1)
	ready(now+1001, now+1001)
	b.Charge(1)
	ready(now+1001, now+2001)
}

// TestBucketWithASmallRate: a bucket of a small rate lets a superframe through at once.
func TestBucketWithASmallRate(t *testing.T) {
	for rate, burst := range map[uint64]int64{1: leastBurst, 500 * leastBurst: leastBurst, 500 * (leastBurst + 1): leastBurst + 1} {
		var b Bucket
		b.SetRate(5, rate)
		b.Charge(int(burst) - 1)
		if b.Ready(5) != 5 {
			t.Errorf("rate %d: less than %d bytes at once", rate, burst)
		}
		b.Charge(1)
		if b.Ready(5) == 5 {
			t.Errorf("rate %d: more than %d bytes at once", rate, burst)
		}
	}
}

// TestCovered: a node is covered as long as the use at the level of the nearest guarantee, its own
// or above, is within that guarantee. The root has none.
func TestCovered(t *testing.T) {
	root := New(nil, NoLimit())
	function := New(root, NoLimit())
	a, b := New(function, NoLimit()), New(function, NoLimit())
	if a.Covered(ReqPktTx) || root.Covered(ReqPktTx) {
		t.Error("covered without a guarantee")
	}
	if err := function.Guarantee(one(ReqPktTx, 2)); err != nil {
		t.Fatal(err)
	}
	for held, want := range []bool{true, true, true, false} {
		if a.Covered(ReqPktTx) != want || b.Covered(ReqPktTx) != want || a.Covered(ReqBufTx) {
			t.Errorf("%d of 2 held: covered %v and %v, want %v", held, a.Covered(ReqPktTx), b.Covered(ReqPktTx), want)
		}
		a.TakeOne(ReqPktTx, false)
	}
}

// TestSpareAndReserved: the unused part of a node's guarantee is available to the node, and set
// aside in its parent.
func TestSpareAndReserved(t *testing.T) {
	root := New(nil, NoLimit())
	n := New(root, NoLimit())
	if err := n.Guarantee(one(NetPktRx, 2)); err != nil {
		t.Fatal(err)
	}
	for held, want := range []uint32{2, 1, 0, 0} {
		if got := n.Spare(NetPktRx); got != want || root.Reserved(NetPktRx) != (want > 0) {
			t.Errorf("%d of 2 held: %d to spare, reserved %v", held, got, root.Reserved(NetPktRx))
		}
		n.TakeOne(NetPktRx, false)
	}
}

// TestPoolLeasesInChunks: a tree leases a chunk, an eighth of its equal part, or what it needs if
// that is more, and keeps two unused chunks.
func TestPoolLeasesInChunks(t *testing.T) {
	const k = ReqPktTx
	g := newGrove(all(64), all(64), 2, 1) // chunks of 4
	f := g.functions[0][0]
	free := func(what string, want uint32) {
		t.Helper()
		if got := g.host.Free()[k]; got != want {
			t.Errorf("%s: %d free, want %d", what, got, want)
		}
	}
	take := func(n uint32) {
		t.Helper()
		if c := one(k, n); !f.Take(&c) {
			t.Fatalf("%d refused", n)
		}
	}
	take(1)
	free("one taken", 60)
	take(3)
	free("four taken", 60)
	take(6)
	free("ten taken", 54)
	take(3)
	free("thirteen taken", 50) // 14 leased
	for held := uint32(12); held > 0; held-- {
		f.ReturnOne(k)
		want := uint32(50)
		if held < 6 { // more than two chunks of the 14 are not in use: all but one go back
			want = 64 - 5 - 4
		}
		free("returned", want)
	}
}

// TestPoolOfOneTree: a single tree leases all at once, and keeps it.
func TestPoolOfOneTree(t *testing.T) {
	g := newGrove(all(64), all(64), 1, 1)
	f := g.functions[0][0]
	f.TakeOne(ReqPktTx, false)
	if n := g.host.Free()[ReqPktTx]; n != 0 {
		t.Errorf("%d are not leased", n)
	}
	f.ReturnOne(ReqPktTx)
	g.trees[0].Settle()
	if n := g.host.Free()[ReqPktTx]; n != 0 {
		t.Errorf("%d went back", n)
	}
	if c := all(65); f.Take(&c) {
		t.Error("more than there is")
	}
	if g.trees[0].Called() || g.trees[0].Offered() || g.trees[0].Waiters() != 0 {
		t.Error("one that is alone is called")
	}
}

// TestPoolSmallerThanItsChunks: a pool of fewer than there are chunks is leased one by one.
func TestPoolSmallerThanItsChunks(t *testing.T) {
	g := newGrove(all(3), all(3), 2, 1)
	for i, f := range []*Node{g.functions[0][0], g.functions[1][0], g.functions[0][0]} {
		if !f.TakeOne(ReqPktTx, false) || g.host.Free()[ReqPktTx] != uint32(2-i) {
			t.Errorf("%d: %d left", i, g.host.Free()[ReqPktTx])
		}
	}
}

// TestPoolPart: while another tree waits, a tree may have its equal part, rounded up, of what is
// not guaranteed, in addition to its own guarantees.
func TestPoolPart(t *testing.T) {
	for _, guaranteed := range []uint32{0, 4} {
		total := 5 + guaranteed
		g := newGrove(all(total), all(total), 2, 2)
		greedy, modest := g.functions[0][0], g.functions[1][0]
		if err := g.functions[0][1].Guarantee(one(ReqPktTx, guaranteed)); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			if !greedy.TakeOne(ReqPktTx, false) {
				t.Fatal("one alone has less than there is")
			}
		}
		if modest.TakeOne(ReqPktTx, false) {
			t.Fatal("more than there is")
		}
		for range 5 {
			greedy.ReturnOne(ReqPktTx)
		}
		taken := 0
		for greedy.TakeOne(ReqPktTx, false) {
			taken++
		}
		if taken != 3 {
			t.Errorf("%d guaranteed to another function: %d of 5 taken while another waits, want 3", guaranteed, taken)
		}
		for range guaranteed {
			if !g.functions[0][1].TakeOne(ReqPktTx, false) {
				t.Error("a guarantee is refused while another waits")
			}
		}
	}
}

// TestPoolNothingGiven: a waiting tree is not called as long as nothing was given back.
func TestPoolNothingGiven(t *testing.T) {
	g := newGrove(all(16), all(16), 2, 1)
	greedy, modest := g.functions[0][0], g.functions[1][0]
	for range 16 {
		greedy.TakeOne(ReqPktTx, false)
	}
	if modest.TakeOne(ReqPktTx, false) {
		t.Fatal("more than there is")
	}
	if w := g.trees[0].Waiters(); w != 0 || g.trees[1].Called() {
		t.Errorf("%b are called for nothing", w)
	}
	greedy.ReturnOne(ReqPktTx)
	if w := g.trees[0].Waiters(); w != 1<<1 || !g.trees[1].Called() || g.trees[0].Called() {
		t.Errorf("%b are called", w)
	}
}

// TestCellsOfLengths: the cells of a length, at the borders of a cell.
func TestCellsOfLengths(t *testing.T) {
	for _, c := range []struct {
		length, cell int
		want         uint32
	}{{-1, 128, 0}, {0, 128, 0}, {1, 128, 1}, {127, 128, 1}, {128, 128, 1}, {129, 128, 2}, {256, 128, 2}, {257, 128, 3}, {7, 1, 7}, {7, 0, 7}, {7, -1, 7}} {
		if got := Cells(c.length, c.cell); got != c.want {
			t.Errorf("%d bytes in cells of %d: %d, want %d", c.length, c.cell, got, c.want)
		}
	}
}

// TestCounterNames: each counter has a name of its own, which no other value has.
func TestCounterNames(t *testing.T) {
	seen := map[string]bool{}
	for c := range Counter(NumCounters) {
		if seen[c.String()] || c.String() == "" {
			t.Errorf("counter %d is called %q", c, c)
		}
		seen[c.String()] = true
	}
	for _, c := range []Counter{NumCounters, 255} {
		if seen[c.String()] {
			t.Errorf("no counter %d, but it is called %q", c, c)
		}
	}
}

// TestPoolOfEverything: all of a pool may be taken at once, also where its limit is the largest
// there is, and not one more.
func TestPoolOfEverything(t *testing.T) {
	everything, k := one(ReqPktTx, Unlimited), ReqPktTx
	g := newGrove(NoLimit(), NoLimit(), 2, 1)
	f := g.functions[0][0]
	if !f.Take(&everything) || f.TakeOne(k, false) {
		t.Error("not all of it, or more")
	}
	if err := f.Return(&everything); err != nil {
		t.Fatal(err)
	}
	if !f.TakeOne(k, false) || f.Take(&everything) {
		t.Error("one and all of it were taken")
	}
}
