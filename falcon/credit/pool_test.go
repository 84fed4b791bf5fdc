package credit

import (
	"math/rand/v2"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// grove is some trees on the pools of a NIC and its host, with functions each.
type grove struct {
	nic, host *Pool
	trees     []*Node // at the level of the host
	functions [][]*Node
	held      [][]Cost
}

func newGrove(nic, host Cost, trees, functions int) *grove {
	g := &grove{nic: NewPool(nic, trees), host: NewPool(host, trees)}
	for i := range trees {
		g.trees = append(g.trees, g.host.Node(g.nic.Node(nil, i), i))
		g.functions, g.held = append(g.functions, nil), append(g.held, make([]Cost, functions))
		for range functions {
			g.functions[i] = append(g.functions[i], New(g.trees[i], NoLimit()))
		}
	}
	return g
}

// end returns all credit to the pools and returns what is left in them.
func (g *grove) end() (nic, host Cost) {
	for _, list := range g.functions {
		for _, f := range list {
			f.Drop()
		}
	}
	for _, n := range g.trees {
		n.Settle()
	}
	return g.nic.Free(), g.host.Free()
}

// TestTreesNeverHaveMoreThanTheirPool: whatever one to four trees do, guarantees are available at once, all trees
// together never have more than the pool, no tree is refused available credit for long, and nothing
// leaks.
func TestTreesNeverHaveMoreThanTheirPool(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const functions = 3
		some := func(most uint32) *rapid.Generator[Cost] {
			return rapid.Custom(func(t *rapid.T) (c Cost) {
				for i := range c {
					c[i] = rapid.Uint32Range(0, most).Draw(t, "n")
				}
				return c
			})
		}
		trees := rapid.IntRange(1, 4).Draw(t, "trees")
		host := some(60).Draw(t, "limit")
		nic := host
		for i := range nic {
			nic[i] += rapid.Uint32Range(0, 9).Draw(t, "more")
		}
		g := newGrove(nic, host, trees, functions)
		// A tree's step ends; those it names have their turn.
		step := func(i int) {
			for w := g.trees[i].Waiters(); w != 0; w &= w - 1 {
				for j := range trees {
					if w&-w == 1<<j && !g.trees[j].Offered() {
						t.Fatalf("tree %d is called for nothing", j)
					}
				}
			}
		}
		charged := func(k int) (sum uint32) {
			for _, n := range g.trees {
				sum += n.Charged()[k]
			}
			return sum
		}
		which := func(t *rapid.T) (i, j int) {
			return rapid.IntRange(0, trees-1).Draw(t, "tree"), rapid.IntRange(0, functions-1).Draw(t, "function")
		}
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				i, j := which(t)
				c, f := some(5).Draw(t, "cost"), g.functions[i][j]
				spare := f.Guaranteed()
				covered := true
				for k := range c {
					covered = covered && c[k] <= spare[k]-min(g.held[i][j][k], spare[k])
				}
				got := f.Take(&c)
				if covered && !got {
					t.Fatalf("tree %d: %v was guaranteed (%v, %v held) and is refused", i, c, spare, g.held[i][j])
				}
				if !got {
					return
				}
				for k := range c {
					g.held[i][j][k] += c[k]
				}
			},
			"one": func(t *rapid.T) {
				i, j := which(t)
				k := rapid.IntRange(0, NumCounters-1).Draw(t, "counter")
				if g.functions[i][j].TakeOne(Counter(k), false) {
					g.held[i][j][k]++
				}
			},
			"return": func(t *rapid.T) {
				i, j := which(t)
				c := some(5).Draw(t, "cost")
				for k := range c {
					c[k] = min(c[k], g.held[i][j][k])
					g.held[i][j][k] -= c[k]
				}
				if err := g.functions[i][j].Return(&c); err != nil {
					t.Fatal(err)
				}
			},
			"guarantee": func(t *rapid.T) {
				i, j := which(t)
				_ = g.functions[i][j].Guarantee(some(6).Draw(t, "guarantee"))
			},
			"step": func(t *rapid.T) {
				i, _ := which(t)
				step(i)
			},
			"rest": func(t *rapid.T) {
				i, _ := which(t)
				g.trees[i].Settle()
				step(i)
			},
			// When every tree has given back what it does not use and no other wants anything, only
			// what is not available is refused.
			"all of it": func(t *rapid.T) {
				i, j := which(t)
				k := rapid.IntRange(0, NumCounters-1).Draw(t, "counter")
				for n := range trees {
					g.trees[n].Settle()
				}
				for n := range trees {
					step(n)
					g.trees[n].Offered()
				}
				for _, p := range []*Pool{g.nic, g.host} {
					for n := range p.wants {
						p.wants[n].Store(0)
					}
					p.wanted.Store(0)
					p.called.Store(0)
				}
				f, n := g.functions[i][j], uint32(0)
				aside := f.Spare(Counter(k))
				left := host[k] - charged(k)
				for f.TakeOne(Counter(k), false) {
					n++
				}
				if n != aside+left {
					t.Fatalf("%d could be taken of the %d that are left and %d set aside", n, left, aside)
				}
				for range n {
					f.ReturnOne(Counter(k))
				}
			},
			"": func(t *rapid.T) {
				for k := range host {
					leased, free := uint32(0), g.host.Free()[k]
					for _, n := range g.trees {
						leased += n.of[k].limit
						if n.of[k].charged > n.of[k].limit {
							t.Fatalf("%v: %d charged, %d leased", Counter(k), n.of[k].charged, n.of[k].limit)
						}
						if free > 0 && n.Headroom(Counter(k)) < min(free, g.nic.Free()[k]) {
							t.Fatalf("%v: headroom %d with %d free", Counter(k), n.Headroom(Counter(k)), free)
						}
					}
					if leased+free != host[k] {
						t.Fatalf("%v: %d leased and %d free of %d", Counter(k), leased, free, host[k])
					}
				}
				for i, n := range g.trees {
					var held Cost
					for _, h := range g.held[i] {
						for k := range h {
							held[k] += h[k]
						}
					}
					if n.InUse() != held {
						t.Fatalf("tree %d: %v in use, %v taken", i, n.InUse(), held)
					}
				}
			},
		})
		for _, n := range g.trees {
			n.Settle()
		}
		if n, h := g.end(); trees > 1 && (n != nic || h != host) {
			t.Fatalf("%v and %v are back of %v and %v", n, h, nic, host)
		}
	})
}

// TestAGreedyTreeDoesNotStarveAnother: a tree that always takes again what it returns does not keep another from its
// part.
func TestAGreedyTreeDoesNotStarveAnother(t *testing.T) {
	g := newGrove(all(16), all(16), 2, 1)
	greedy, modest := g.functions[0][0], g.functions[1][0]
	c := one(ReqPktTx, 1)
	take := func(n *Node) (got int) {
		for n.Take(&c) {
			got++
		}
		return got
	}
	if n := take(greedy); n != 16 {
		t.Fatalf("one alone has %d of 16", n)
	}
	if take(modest) != 0 {
		t.Fatal("more than there is")
	}
	has := 0
	for range 8 {
		if err := greedy.Return(&c); err != nil {
			t.Fatal(err)
		}
		for w := range 3 {
			if got := g.trees[0].Waiters(); (got == 1<<1) != (w == 0) {
				t.Fatalf("look %d: %b are called", w, got)
			}
		}
		if greedy.Take(&c) {
			t.Fatal("took what another waits for")
		}
		if !g.trees[1].Offered() || g.trees[1].Offered() {
			t.Fatal("not offered once")
		}
		has += take(modest)
	}
	if has != 8 {
		t.Fatalf("the other has %d of its 8", has)
	}
	if n, _ := g.end(); n != all(16) {
		t.Errorf("%v are back", n)
	}
}

// TestATreeLeavesWhatAnotherWaitsFor: a tree with more than its part leaves what another tree waits for, also within a
// step, before it was asked for it; only of the counter that the other waits for.
func TestATreeLeavesWhatAnotherWaitsFor(t *testing.T) {
	g := newGrove(all(16), all(16), 2, 1)
	greedy, modest := g.functions[0][0], g.functions[1][0]
	c, other := one(ReqPktTx, 1), one(ReqBufTx, 1)
	for range 16 {
		if !greedy.Take(&c) || !greedy.TakeOne(ReqBufTx, false) {
			t.Fatal("one alone has less than there is")
		}
	}
	if modest.Take(&c) {
		t.Fatal("more than there is")
	}
	if greedy.Return(&c) != nil || greedy.Return(&other) != nil {
		t.Fatal("cannot return")
	}
	if greedy.Take(&c) || greedy.TakeOne(ReqPktTx, false) {
		t.Error("took what another waits for")
	}
	if !greedy.Take(&other) {
		t.Error("refused what nobody else waits for")
	}
	if g.trees[0].Waiters() != 1<<1 || !g.trees[1].Offered() || !modest.Take(&c) {
		t.Error("the other did not get it")
	}
}

// TestTheLevelCountsWhatOtherTreesLease: what other trees have leased counts.
func TestTheLevelCountsWhatOtherTreesLease(t *testing.T) {
	g := newGrove(all(64), all(64), 2, 1)
	for range 32 {
		g.functions[0][0].TakeOne(NetPktRx, false)
	}
	for i, f := range []*Node{g.functions[0][0], g.functions[1][0]} {
		if l := f.Level(NetPktRx, 32); l < 16 || l > 18 {
			t.Errorf("tree %d: level %d of half", i, l)
		}
	}
	if c := all(65); g.functions[1][0].Possible(&c) {
		t.Error("more than there is is possible")
	}
	if g.trees[1].Limit() != all(64) {
		t.Errorf("limit %v", g.trees[1].Limit())
	}
	for range 100 { // a head of line goes before all limits
		g.functions[1][0].TakeOne(NetPktRx, true)
	}
	if g.trees[1].InUse()[NetPktRx] != 100 || g.functions[0][0].TakeOne(NetPktRx, false) {
		t.Error("what was forced is not counted")
	}
	for range 100 {
		g.functions[1][0].ReturnOne(NetPktRx)
	}
	if n, _ := g.end(); n != all(64) {
		t.Errorf("%v are back", n)
	}
}

// TestConcurrentTreesNeitherShareNorLoseCredits: trees of threads of their own neither share a credit nor lose one.
func TestConcurrentTreesNeitherShareNorLoseCredits(t *testing.T) {
	const limit, functions = 40, 3
	g := newGrove(all(limit), all(limit), 4, functions)
	for i := range g.trees {
		if err := g.functions[i][0].Guarantee(all(4)); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for i := range g.trees {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(i)))
			for n := range 20_000 {
				j, c := r.IntN(functions), one(Counter(r.IntN(NumCounters)), uint32(r.IntN(4)))
				f := g.functions[i][j]
				if r.IntN(2) == 0 {
					was := f.InUse()
					if !f.Take(&c) && j == 0 && was == (Cost{}) {
						t.Errorf("tree %d: a guarantee was refused", i)
						return
					}
				} else {
					_ = f.Return(&c)
				}
				if n%16 == 0 {
					g.trees[i].Waiters()
					g.trees[i].Offered()
				}
				if n%256 == 0 {
					g.trees[i].Settle()
				}
			}
		})
	}
	wg.Wait()
	if n, h := g.end(); n != all(limit) || h != all(limit) {
		t.Errorf("%v and %v are back", n, h)
	}
}

func TestPoolDoesNotAllocate(t *testing.T) {
	g := newGrove(all(64), all(64), 2, 2)
	c := PushCost(4096, DefaultCell)
	if a := testing.AllocsPerRun(100, func() {
		for i := range g.trees {
			if !g.functions[i][0].Take(&c) {
				g.trees[1-i].Settle()
			} else if g.functions[i][0].Return(&c) != nil {
				t.Fatal("refused")
			}
			g.trees[i].Settle()
			g.trees[i].Waiters()
			g.trees[i].Offered()
		}
	}); a != 0 {
		t.Fatalf("%v allocations", a)
	}
}

// TestATreeLeasesAnEighthOfItsPartOrWhatItNeeds: a tree leases a chunk, an eighth of its equal
// part, or what it needs if that is more, and keeps two unused chunks.
func TestATreeLeasesAnEighthOfItsPartOrWhatItNeeds(t *testing.T) {
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

// TestASingleTreeLeasesEverything: a single tree leases all at once, and keeps it.
func TestASingleTreeLeasesEverything(t *testing.T) {
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

// TestAPoolSmallerThanItsChunksIsLeasedOneByOne: a pool of fewer than there are chunks is leased
// one by one.
func TestAPoolSmallerThanItsChunksIsLeasedOneByOne(t *testing.T) {
	g := newGrove(all(3), all(3), 2, 1)
	for i, f := range []*Node{g.functions[0][0], g.functions[1][0], g.functions[0][0]} {
		if !f.TakeOne(ReqPktTx, false) || g.host.Free()[ReqPktTx] != uint32(2-i) {
			t.Errorf("%d: %d left", i, g.host.Free()[ReqPktTx])
		}
	}
}

// TestATreeHasItsEqualPartWhileAnotherWaits: while another tree waits, a tree may have its equal
// part, rounded up, of what is not guaranteed, in addition to its own guarantees.
func TestATreeHasItsEqualPartWhileAnotherWaits(t *testing.T) {
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

// TestAWaitingTreeIsNotCalledWhileNothingIsGivenBack: a waiting tree is not called as long as
// nothing was given back.
func TestAWaitingTreeIsNotCalledWhileNothingIsGivenBack(t *testing.T) {
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

// TestAllOfAPoolMayBeTakenAtOnce: all of a pool may be taken at once, also where its limit is the
// largest there is, and not one more.
func TestAllOfAPoolMayBeTakenAtOnce(t *testing.T) {
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
