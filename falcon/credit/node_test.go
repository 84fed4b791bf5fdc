package credit

import (
	"errors"
	"testing"

	"pgregory.net/rapid"
)

func one(c Counter, n uint32) Cost {
	var x Cost
	x[c] = n
	return x
}

func all(n uint32) Cost {
	var x Cost
	for i := range x {
		x[i] = n
	}
	return x
}

// Falcon §8.2.3: each counter exhausts and recovers on its own, at each level.
func TestCase102_EachCounterAtEachLevel(t *testing.T) {
	for c := range Counter(NumCounters) {
		for level := range 4 {
			var chain [4]*Node
			for i := range chain {
				var parent *Node
				if i > 0 {
					parent = chain[i-1]
				}
				limit := NoLimit()
				if i == level {
					limit[c] = 3
				}
				chain[i] = New(parent, limit)
			}
			leaf, cost := chain[3], one(c, 1)
			for range 3 {
				if !leaf.Take(&cost) {
					t.Fatalf("%v level %d: refused below the limit", c, level)
				}
			}
			if leaf.Take(&cost) {
				t.Fatalf("%v level %d: taken above the limit", c, level)
			}
			for i, n := range chain {
				if n.InUse() != one(c, 3) {
					t.Fatalf("%v level %d: node %d holds %v after a refusal", c, level, i, n.InUse())
				}
			}
			if other := one((c+1)%NumCounters, 1); !leaf.Take(&other) {
				t.Fatalf("%v: another counter was refused", c)
			}
			if err := leaf.Return(&cost); err != nil || !leaf.Take(&cost) {
				t.Fatalf("%v level %d: not recovered (%v)", c, level, err)
			}
		}
	}
}

func TestCase73_Costs(t *testing.T) {
	for _, tc := range []struct {
		got, want Cost
	}{
		{PushCost(4096, 128), Cost{1, 32, 1, 0, 0, 0}},
		{PushCost(4097, 128), Cost{1, 33, 1, 0, 0, 0}},
		{PushCost(0, 128), Cost{1, 0, 1, 0, 0, 0}},
		{PushCost(-1, 128), Cost{1, 0, 1, 0, 0, 0}},
		{PullCost(129, 128), Cost{1, 1, 1, 2, 0, 0}},
		{PullDataCost(1, 128), Cost{0, 0, 0, 0, 1, 1}},
		{PullDataCost(5, 0), Cost{0, 0, 0, 0, 1, 5}},
	} {
		if tc.got != tc.want {
			t.Errorf("got %v, want %v", tc.got, tc.want)
		}
	}
}

func TestCase73_DoubleReturn(t *testing.T) {
	root := New(nil, all(10))
	a, b := New(root, all(10)), New(root, all(10))
	cost := PushCost(3, 1)
	if !a.Take(&cost) || !b.Take(&cost) {
		t.Fatal("take refused")
	}
	if err := a.Return(&cost); err != nil {
		t.Fatal(err)
	}
	if err := a.Return(&cost); !errors.Is(err, ErrUnderflow) {
		t.Fatalf("second return: %v", err)
	}
	if root.InUse() != cost || a.InUse() != (Cost{}) || a.Underflows() != 1 {
		t.Fatalf("after a double return: root %v, a %v, underflows %d", root.InUse(), a.InUse(), a.Underflows())
	}
}

func TestResizeBelowUseRefusesUntilReturned(t *testing.T) {
	n := New(nil, all(4))
	c := one(ReqPktTx, 1)
	for range 4 {
		n.Take(&c)
	}
	n.SetLimit(all(2))
	for held := uint32(4); held >= 2; held-- {
		if n.Take(&c) {
			t.Fatalf("taken with %d in use and a limit of 2", held)
		}
		if err := n.Return(&c); err != nil {
			t.Fatal(err)
		}
	}
	if free := one(DataPktTx, 1); !n.Take(&free) || !n.Take(&c) {
		t.Fatal("refused below the new limit")
	}
}

// A flooding sibling never takes another's guarantee, through all levels.
func TestCase76_GuaranteeSurvivesAFlood(t *testing.T) {
	nic := New(nil, all(10))
	host := New(nic, all(10))
	quiet, flooder := New(host, NoLimit()), New(host, NoLimit())
	conn := New(quiet, NoLimit())
	if err := quiet.Guarantee(all(4)); err != nil {
		t.Fatal(err)
	}
	c, got := all(1), 0
	for flooder.Take(&c) {
		got++
	}
	if got != 6 {
		t.Fatalf("flooder got %d of 10 with 4 guaranteed to another", got)
	}
	for i := range 4 {
		if !conn.Take(&c) {
			t.Fatalf("guaranteed take %d refused", i)
		}
	}
	if conn.Take(&c) {
		t.Fatal("took above everything there is")
	}
	if err := flooder.Guarantee(all(7)); !errors.Is(err, ErrGuarantee) {
		t.Fatalf("guarantee above what is left: %v", err)
	}
	conn.Drop()
	quiet.Drop()
	flooder.Drop()
	if nic.Charged() != (Cost{}) || nic.InUse() != (Cost{}) {
		t.Fatalf("left behind: charged %v in use %v", nic.Charged(), nic.InUse())
	}
}

func TestGuaranteeAboveOwnLimit(t *testing.T) {
	n := New(New(nil, all(9)), all(3))
	if err := n.Guarantee(all(4)); !errors.Is(err, ErrGuarantee) {
		t.Fatal(err)
	}
}

// Model: a NIC, two functions, four connections; every operation is checked against recomputation
// from scratch.
func TestATreeOfCreditsEqualsItsSimpleModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		small := rapid.Custom(func(t *rapid.T) (c Cost) {
			for i := range c {
				c[i] = rapid.Uint32Range(0, 6).Draw(t, "n")
			}
			return c
		})
		limit := func(name string) Cost {
			c := small.Draw(t, name)
			for i := range c {
				c[i] *= 3
			}
			return c
		}
		type model struct {
			limit, guarantee, own Cost
			parent                int
		}
		parents := []int{-1, 0, 0, 1, 1, 2, 2}
		var nodes []*Node
		var ms []model
		for _, p := range parents {
			m := model{limit: limit("limit"), parent: p}
			var parent *Node
			if p >= 0 {
				parent = nodes[p]
			}
			nodes, ms = append(nodes, New(parent, m.limit)), append(ms, m)
		}
		charged := func(ms []model, i int) (inUse, ch Cost) {
			var rec func(i int) (Cost, Cost)
			rec = func(i int) (u, c Cost) {
				u, c = ms[i].own, ms[i].own
				for j := range ms {
					if ms[j].parent == i {
						ju, jc := rec(j)
						for k := range u {
							u[k] += ju[k]
							c[k] += max(jc[k], ms[j].guarantee[k])
						}
					}
				}
				return u, c
			}
			return rec(i)
		}
		// fits compares before and after: only counters that rise must be below the limit.
		fits := func(before, after []model) bool {
			for i := range ms {
				_, was := charged(before, i)
				_, now := charged(after, i)
				for k := range now {
					if now[k] > was[k] && now[k] > before[i].limit[k] {
						return false
					}
				}
			}
			return true
		}
		leaf := rapid.IntRange(3, 6)
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				i, c := leaf.Draw(t, "leaf"), small.Draw(t, "cost")
				after := append([]model(nil), ms...)
				for k := range c {
					after[i].own[k] += c[k]
				}
				// At the taking node and above, what is asked must fit, whether or not the sum
				// rises there.
				want := fits(ms, after)
				if got := nodes[i].Take(&c); got != want {
					t.Fatalf("Take(%v) at %d = %v, want %v", c, i, got, want)
				}
				if want {
					ms = after
				}
			},
			"take one": func(t *rapid.T) {
				i, k := leaf.Draw(t, "leaf"), rapid.IntRange(0, NumCounters-1).Draw(t, "counter")
				force := rapid.Bool().Draw(t, "force")
				after := append([]model(nil), ms...)
				after[i].own[k]++
				want := force || fits(ms, after)
				if got := nodes[i].TakeOne(Counter(k), force); got != want {
					t.Fatalf("TakeOne(%v) at %d = %v, want %v", Counter(k), i, got, want)
				}
				if want {
					ms = after
				}
			},
			"return one": func(t *rapid.T) {
				i, k := leaf.Draw(t, "leaf"), rapid.IntRange(0, NumCounters-1).Draw(t, "counter")
				want := ms[i].own[k] > 0
				if got := nodes[i].ReturnOne(Counter(k)); got != want {
					t.Fatalf("ReturnOne(%v) at %d = %v, want %v", Counter(k), i, got, want)
				}
				if want {
					ms[i].own[k]--
				}
			},
			"return": func(t *rapid.T) {
				i, c := leaf.Draw(t, "leaf"), small.Draw(t, "cost")
				want := true
				for k := range c {
					want = want && c[k] <= ms[i].own[k]
				}
				if err := nodes[i].Return(&c); (err == nil) != want {
					t.Fatalf("Return(%v) at %d = %v, want ok %v", c, i, err, want)
				}
				if want {
					for k := range c {
						ms[i].own[k] -= c[k]
					}
				}
			},
			"resize": func(t *rapid.T) {
				i := rapid.IntRange(0, 6).Draw(t, "node")
				ms[i].limit = limit("limit")
				nodes[i].SetLimit(ms[i].limit)
			},
			"guarantee": func(t *rapid.T) {
				i, g := rapid.IntRange(1, 6).Draw(t, "node"), small.Draw(t, "guarantee")
				after := append([]model(nil), ms...)
				after[i].guarantee = g
				want := fits(ms, after)
				for k := range g {
					want = want && g[k] <= ms[i].limit[k]
				}
				if err := nodes[i].Guarantee(g); (err == nil) != want {
					t.Fatalf("Guarantee(%v) at %d = %v, want ok %v", g, i, err, want)
				}
				if want {
					ms = after
				}
			},
			"": func(t *rapid.T) {
				for i, n := range nodes {
					inUse, ch := charged(ms, i)
					if n.InUse() != inUse || n.Charged() != ch {
						t.Fatalf("node %d: in use %v charged %v, model %v %v", i, n.InUse(), n.Charged(), inUse, ch)
					}
				}
			},
		})
	})
}

func tree() *Node {
	nic := New(nil, NoLimit())
	return New(New(New(nic, NoLimit()), NoLimit()), all(1000))
}

func TestTakeAndReturnDoNotAllocate(t *testing.T) {
	n := tree()
	if a := testing.AllocsPerRun(100, func() {
		c := PushCost(4096, DefaultCell)
		if !n.Take(&c) || n.Return(&c) != nil {
			t.Fatal("refused")
		}
	}); a != 0 {
		t.Fatalf("%v allocations", a)
	}
}

func BenchmarkTakeReturn(b *testing.B) {
	n, c := tree(), PushCost(4096, DefaultCell)
	for b.Loop() {
		if !n.Take(&c) || n.Return(&c) != nil {
			b.Fatal("refused")
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N), "credits/take_return_ns")
}

func TestACostWithinAllLimitsIsPossible(t *testing.T) {
	root := New(nil, all(10))
	n := New(root, all(20))
	c := all(10)
	if !n.Possible(&c) || !n.Take(&c) || !n.Possible(&c) {
		t.Error("what the limits allow is possible, also while it is taken")
	}
	if c = one(DataBufTx, 11); n.Possible(&c) {
		t.Error("more than a level above has is not possible")
	}
}

// TestHeadroomAndLevel: what a node could take now, with its own guarantees and without those of
// others, and how full the fullest level is.
func TestHeadroomAndLevel(t *testing.T) {
	const i = NetPktRx
	limit := func(v uint32) Cost { c := NoLimit(); c[i] = v; return c }
	root := New(nil, limit(100))
	a, b := New(root, limit(80)), New(root, NoLimit())
	if err := a.Guarantee(Cost{i: 30}); err != nil {
		t.Fatal(err)
	}
	check := func(what string, n *Node, headroom uint32, level uint8) {
		t.Helper()
		if h, l := n.Headroom(i), n.Level(i, 32); h != headroom || l != level {
			t.Errorf("%s: headroom %d, level %d, want %d and %d", what, h, l, headroom, level)
		}
		taken := uint32(0)
		for n.TakeOne(i, false) {
			taken++
		}
		for range taken {
			n.ReturnOne(i)
		}
		if taken != headroom {
			t.Errorf("%s: %d could be taken, headroom was %d", what, taken, headroom)
		}
	}
	check("empty, with a guarantee", a, 80, 0)
	check("empty, beside one", b, 70, 0)
	for range 60 {
		b.TakeOne(i, false)
	}
	check("60 taken by the other", a, 40, 19)
	check("60 taken", b, 10, 19)
	for range 40 {
		a.TakeOne(i, false)
	}
	check("full", a, 0, 31)
	check("full", b, 0, 31)
	a.SetLimit(limit(0))
	check("limit lowered to nothing", a, 0, 31)
}

// TestANodeBelowAStarvedOneTakesNothing: a node takes nothing while one above it is starved. Each refusal is counted
// once, where there was no room.
func TestANodeBelowAStarvedOneTakesNothing(t *testing.T) {
	root := New(nil, all(1))
	leaf := New(New(root, all(9)), all(9))
	cost := all(1)
	root.Starve(true)
	if leaf.Take(&cost) {
		t.Error("taken below a starved node")
	}
	root.Starve(false)
	if !leaf.Take(&cost) {
		t.Error("refused when the node starves no more")
	}
	if leaf.Take(&cost) || leaf.TakeOne(NetPktRx, false) {
		t.Error("taken above the limit of the root")
	}
	if leaf.Retry(&cost) {
		t.Error("taken when tried again")
	}
	for name, n := range map[string]struct{ got, want uint64 }{
		"leaf": {leaf.Refusals(), 0}, "the node above": {leaf.Parent().Refusals(), 0}, "root": {root.Refusals(), 3},
	} {
		if n.got != n.want {
			t.Errorf("%s counted %d refusals, want %d", name, n.got, n.want)
		}
	}
	root.SetLimit(all(9))
	if !leaf.Retry(&cost) || root.Refusals() != 3 {
		t.Error("not taken when there was room again")
	}
}

// TestOnlyTheGrowthOfAGuaranteeMustFit: only what a guarantee grows by must fit, up to the node's own limit.
func TestOnlyTheGrowthOfAGuaranteeMustFit(t *testing.T) {
	root := New(nil, all(10))
	n := New(root, all(7))
	for _, g := range []uint32{4, 7} {
		if err := n.Guarantee(all(g)); err != nil {
			t.Fatal(err)
		}
		if root.Charged() != all(g) {
			t.Fatalf("charged %v with %d guaranteed", root.Charged(), g)
		}
	}
}

// TestANodeIsCoveredWhileUseIsBelowTheNearestGuarantee: a node is covered as long as the use at the
// level of the nearest guarantee, its own or above, is within that guarantee. The root has none.
func TestANodeIsCoveredWhileUseIsBelowTheNearestGuarantee(t *testing.T) {
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

// TestTheUnusedPartOfAGuaranteeIsSetAside: the unused part of a node's guarantee is available to
// the node, and set aside in its parent.
func TestTheUnusedPartOfAGuaranteeIsSetAside(t *testing.T) {
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

// TestCellsOfALengthAreRoundedUp: the cells of a length, at the borders of a cell.
func TestCellsOfALengthAreRoundedUp(t *testing.T) {
	for _, c := range []struct {
		length, cell int
		want         uint32
	}{{-1, 128, 0}, {0, 128, 0}, {1, 128, 1}, {127, 128, 1}, {128, 128, 1}, {129, 128, 2}, {256, 128, 2}, {257, 128, 3}, {7, 1, 7}, {7, 0, 7}, {7, -1, 7}} {
		if got := Cells(c.length, c.cell); got != c.want {
			t.Errorf("%d bytes in cells of %d: %d, want %d", c.length, c.cell, got, c.want)
		}
	}
}
