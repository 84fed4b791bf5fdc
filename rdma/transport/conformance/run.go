package conformance

import (
	"testing"

	"github.com/falcon-vnic/vnic/rdma/transport"
)

// Options describes the connection that a case needs.
type Options struct {
	Ordered    bool
	Unreliable bool // an unreliable connection
	Unordered  bool // messages complete as they arrive
	InError    bool // a request that fails completes in error
	PathMTU    int
	Narrow     bool // credit for only a few packets at a time
}

// Pair is a connection: both of its ends, and the network between them.
type Pair struct {
	A, B  transport.Conn
	Lossy bool // the network loses packets of unreliable connections
	// Step does all work that is possible now and returns when something happens next.
	Step func(now transport.Time) (next transport.Time)
}

// Open makes a connection for a case.
type Open func(t testing.TB, o Options) *Pair

// stage is a pair with its endpoints.
type stage struct {
	testing.TB
	*Pair
	a, b    *end
	now     transport.Time
	open    Open
	options Options
}

// again returns a new stage like s.
func (s *stage) again() *stage { return s.open.stage(s.TB, s.options) }

func (open Open) stage(t testing.TB, o Options) *stage {
	t.Helper()
	if o.PathMTU == 0 {
		o.PathMTU = 256
	}
	p := open(t, o)
	s := &stage{TB: t, Pair: p, a: newEnd(t, p.A), b: newEnd(t, p.B), now: 1e9, open: open, options: o}
	if p.A.Ordered() != o.Ordered {
		t.Fatalf("ordered: %t", p.A.Ordered())
	}
	s.a.attach(&o, 17, 18)
	s.b.attach(&o, 18, 17)
	return s
}

// until lets time pass until done returns true, at most ten seconds.
func (s *stage) until(done func() bool) {
	s.Helper()
	if !s.pass(10e9, done) {
		for _, e := range []*end{s.a, s.b} {
			s.Logf("%d of %d requests over, %d messages", e.over, len(e.requests), len(e.messages))
		}
		s.Fatal("not done after ten seconds")
	}
}

// wait lets d pass.
func (s *stage) wait(d transport.Time) { s.pass(d, func() bool { return false }) }

func (s *stage) pass(d transport.Time, done func() bool) bool {
	s.Helper()
	for deadline := s.now + d; ; {
		next := s.Step(s.now)
		for s.issue() {
			next = s.Step(s.now)
		}
		for _, e := range []*end{s.a, s.b} {
			if e.unsettled {
				s.Error("calls without a Settle")
				e.unsettled = false
			}
		}
		if done() {
			return true
		}
		if next > deadline {
			s.now = deadline
			return false
		}
		s.now = max(s.now, next)
	}
}

// issue makes both ends issue what they can, and reports whether they issued anything.
func (s *stage) issue() bool {
	before := s.a.packets + s.b.packets
	_, _ = s.a.issue(s.now), s.b.issue(s.now)
	return s.a.packets+s.b.packets > before
}

// allOver reports whether all requests of an end are over.
func (e *end) allOver() bool { return e.over == len(e.requests) }

// can reports whether the wire has a feature.
func (s *stage) can(f transport.Features) bool { return s.A.Features()&f == f }

// Run tests a transport against the contract, as far as its wire has the features. What it does not
// have, it must refuse.
func Run(t *testing.T, open Open) {
	features := open(t, Options{Ordered: true, PathMTU: 256}).A.Features()
	for _, c := range cases {
		if features&c.needs != c.needs {
			continue
		}
		for _, ordered := range []bool{true, false} {
			if !ordered && (features&transport.Unordered == 0 || c.options.Unreliable) {
				continue
			}
			name := c.name + "/unordered"
			if ordered {
				name = c.name + "/ordered"
			}
			t.Run(name, func(t *testing.T) {
				o := c.options
				o.Ordered = ordered
				c.run(open.stage(t, o))
			})
		}
	}
	t.Run("Lacking", func(t *testing.T) { lacking(t, open, features) })
}
