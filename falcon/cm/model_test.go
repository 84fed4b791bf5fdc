package cm

import (
	"errors"
	"testing"

	"pgregory.net/rapid"
)

// TestBothNICsKeepTheSameViewWhateverHappens makes random calls in random order on two NICs whose functions connect to each other
// and within their NIC, while their link breaks and their processes restart. After each run it
// checks that both NICs have the same view and that nothing leaks. drain checks every output.
func TestBothNICsKeepTheSameViewWhateverHappens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t.Fatalf)
		hosts := []PeerID{1, 2}
		for _, h := range hosts {
			n := w.add(h, 3-h)
			n.cfg.MaxPerFunction = 6
			n.maxCIDs = 10
			n.start()
		}
		anyNode := func(t *rapid.T) *node { return w.nodes[rapid.SampledFrom(hosts).Draw(t, "host")] }
		anyFn := func(t *rapid.T) uint32 { return rapid.Uint32Range(0, 1).Draw(t, "function") }
		pick := func(t *rapid.T, ids []uint32) uint32 {
			if len(ids) == 0 {
				t.Skip("none")
			}
			return rapid.SampledFrom(ids).Draw(t, "connection")
		}
		keep := func(n int) int { return rapid.IntRange(0, n).Draw(t, "kept") }
		allowed := func(t *rapid.T, err error, ok ...error) {
			for _, e := range ok {
				if errors.Is(err, e) {
					return
				}
			}
			if err != nil && err.Error() != "" && errors.Unwrap(err) != nil && errors.Unwrap(err).Error() == "no CID left" {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		listen := func(n *node) {
			for f := range uint32(2) {
				if err := n.m.Listen(fnOf(n.host, f), 1); err != nil && !errors.Is(err, ErrInUse) {
					t.Fatal(err)
				}
			}
		}
		for _, h := range hosts {
			listen(w.nodes[h])
		}
		w.setLink(1, 2, true, nil)
		w.settle()

		connect := func(t *rapid.T) {
			n := anyNode(t)
			_, err := n.connect(anyFn(t), anyNode(t).host, anyFn(t), 1)
			allowed(t, err, ErrPeerDown, ErrNoRoute, ErrLimit)
		}
		deliver := func(t *rapid.T) {
			if !anyNode(t).deliver() {
				t.Skip("nothing in flight")
			}
		}
		accept := func(t *rapid.T) {
			n := anyNode(t)
			allowed(t, n.accept(pick(t, n.waiting())))
		}
		t.Repeat(map[string]func(*rapid.T){
			"connect": connect, "connect2": connect,
			"deliver": deliver, "deliver2": deliver, "deliver3": deliver,
			"accept": accept, "accept2": accept,
			"settle": func(*rapid.T) { w.settle() },
			"reject": func(t *rapid.T) {
				n := anyNode(t)
				allowed(t, n.reject(pick(t, n.waiting()), 5))
			},
			"disconnect": func(t *rapid.T) {
				n := anyNode(t)
				id := pick(t, n.order)
				err := n.disconnect(id)
				if n.conns[id].live() {
					t.Fatalf("connection %d lives on after Disconnect: %v", id, err)
				}
				if err != nil && !errors.Is(err, ErrNotFound) {
					t.Fatal(err)
				}
			},
			"advance": func(t *rapid.T) { w.advance(Time(rapid.IntRange(1, 3000).Draw(t, "ms")) * ms) },
			"flap": func(t *rapid.T) {
				w.setLink(1, 2, false, keep)
				w.setLink(1, 2, true, nil)
			},
			"down": func(t *rapid.T) { w.setLink(1, 2, false, keep) },
			"up":   func(*rapid.T) { w.setLink(1, 2, true, nil) },
			"rekey": func(t *rapid.T) {
				n := anyNode(t)
				if !n.rekey(sealedBy(3-n.host, rapid.Uint8Range(0, 1).Draw(t, "shard"))) {
					t.Skip("not confirmed yet")
				}
				n.drain()
			},
			"used up": func(t *rapid.T) {
				n := anyNode(t)
				list := n.openTo(3 - n.host)
				if len(list) == 0 {
					t.Skip("no connection")
				}
				if err := n.m.RequestRekey(sealedBy(3-n.host, list[0].params.Shard), list[0].params.TxSPI); err != nil {
					t.Fatal(err)
				}
			},
			"function gone": func(t *rapid.T) {
				n := anyNode(t)
				n.functionGone(fnOf(n.host, anyFn(t)))
				listen(n)
			},
			"restart": func(t *rapid.T) {
				n := anyNode(t)
				w.setLink(1, 2, false, keep)
				n.start()
				listen(n)
			},
			"": func(t *rapid.T) {
				w.checkKeys()
				for _, n := range w.nodes {
					for _, err := range n.errs {
						if !errors.Is(err, ErrBeforeHello) {
							t.Fatalf("host %d: %v", n.host, err)
						}
					}
					if len(n.m.conns.byID) < len(n.cids) {
						t.Fatalf("host %d: %d connections, %d CIDs", n.host, len(n.m.conns.byID), len(n.cids))
					}
				}
			},
		})

		// One more flap, so that both sides compare notes; then rest.
		w.setLink(1, 2, false, keep)
		w.setLink(1, 2, true, nil)
		for range 100 {
			w.settle()
			w.advance(1000 * ms)
		}
		w.settle()
		w.checkRest()
		for _, n := range w.nodes {
			if p := n.m.peers.byID[3-n.host]; len(n.prevSPI)+len(p.rekeys)+len(p.wants) != 0 {
				t.Fatalf("host %d: left over: previous %v, unconfirmed %v, wanted %v", n.host, n.prevSPI, p.rekeys, p.wants)
			}
		}
	})
}
