package directory

import (
	"container/heap"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/internal/vtime"
)

var seed = flag.Uint64("directory.seed", 0, "play this seed alone")

// world is etcd as a session may rely on it, and NICs around it, in virtual time: revisions, a list at
// one of them, watches that report all changes in order, leases, compaction. Whatever may fail, fails
// at random: an answer is lost, late, or an error although the request was carried out; a watch ends;
// a NIC is cut off, ends or starts again.
type world struct {
	t      *testing.T
	rand   *rand.Rand
	now    vtime.Time
	queue  queue
	faulty bool // requests and watches fail

	revision  int64
	compacted int64
	keys      map[string]Record
	history   []Record // in the order of their revisions
	leases    map[int64]*lease
	lastLease int64
	up        bool // etcd answers anybody

	nics []*nic
}

type lease struct {
	ends vtime.Time
	keys map[string]bool
}

type nic struct {
	w       *world
	name    string
	session *Session
	runs    bool
	cut     bool // from etcd
	life    int  // counts its starts: what is under way for an earlier one is lost
	wake    vtime.Time
	watch   *watch
	record  Host
	lists   int
}

type watch struct {
	ask   Ask
	next  int // of the history
	ended bool
	busy  bool // a report is under way
}

type item struct {
	at  vtime.Time
	seq int
	do  func()
}

type queue struct {
	items []item
	seq   int
}

func (q *queue) Len() int { return len(q.items) }
func (q *queue) Less(i, j int) bool {
	a, b := q.items[i], q.items[j]
	return a.at < b.at || a.at == b.at && a.seq < b.seq
}
func (q *queue) Swap(i, j int) { q.items[i], q.items[j] = q.items[j], q.items[i] }
func (q *queue) Push(x any)    { q.items = append(q.items, x.(item)) }
func (q *queue) Pop() any {
	x := q.items[len(q.items)-1]
	q.items = q.items[:len(q.items)-1]
	return x
}

const testPrefix = "/vnic/test/"

func newWorld(t *testing.T, seed uint64, nics int) *world {
	w := &world{t: t, rand: rand.New(rand.NewPCG(seed, 1)), keys: map[string]Record{}, leases: map[int64]*lease{}, up: true, revision: 1}
	for i := range nics {
		name := fmt.Sprint("h", i+1)
		w.put(GrantKey(testPrefix, name), Encode(Grant{Allow: []Allowed{{Tenant: 1, Addresses: []netip.Addr{addressOf(i)}}}}), 0)
		n := &nic{w: w, name: name}
		w.nics = append(w.nics, n)
		w.after(w.upTo(time.Second), n.start)
	}
	w.after(int64(time.Second), w.expire)
	return w
}

func addressOf(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }

func (w *world) upTo(d time.Duration) vtime.Time { return w.rand.Int64N(int64(d)) }

func (w *world) after(d vtime.Time, f func()) {
	w.queue.seq++
	heap.Push(&w.queue, item{w.now + d, w.queue.seq, f})
}

func (w *world) chance(p float64) bool { return w.rand.Float64() < p }

// run plays until a time from now.
func (w *world) run(d time.Duration) {
	end := w.now + int64(d)
	for w.queue.Len() > 0 && w.queue.items[0].at <= end {
		i := heap.Pop(&w.queue).(item)
		w.now = i.at
		i.do()
	}
	w.now = end
}

// put writes a key as etcd does.
func (w *world) put(key, value string, l int64) int64 {
	w.revision++
	r := Record{key, []byte(value), w.revision, w.revision}
	if old, there := w.keys[key]; there {
		r.Created = old.Created
	}
	w.keys[key] = r
	for _, other := range w.leases {
		delete(other.keys, key)
	}
	if l != 0 {
		w.leases[l].keys[key] = true
	}
	w.history = append(w.history, r)
	w.publish()
	return w.revision
}

func (w *world) del(keys ...string) {
	slices.Sort(keys)
	w.revision++
	for _, key := range keys {
		if _, there := w.keys[key]; there {
			delete(w.keys, key)
			w.history = append(w.history, Record{Key: key, Modified: w.revision})
		}
	}
	w.publish()
}

// publish has watches report what is new, soon.
func (w *world) publish() {
	for _, n := range w.nics {
		if n.watch != nil {
			n.report(n.watch)
		}
	}
}

func (w *world) compact() {
	w.compacted = w.revision
}

func (w *world) expire() {
	for _, id := range slices.Sorted(maps.Keys(w.leases)) {
		if l := w.leases[id]; w.up && w.now >= l.ends {
			delete(w.leases, id)
			w.del(slices.Collect(maps.Keys(l.keys))...)
		}
	}
	w.after(int64(500*time.Millisecond), w.expire)
}

// answering reports whether etcd answers a NIC.
func (n *nic) answered() bool { return n.w.up && !n.cut }

func (n *nic) start() {
	w := n.w
	n.runs, n.watch, n.wake = true, nil, vtime.LongAgo
	n.life++
	n.session = NewSession(testPrefix, n.name, w.rand.Float64)
	i := slices.Index(w.nics, n)
	n.record = Host{Instance: fmt.Sprint(n.name, "/", n.life), Underlay: fmt.Sprintf("10.9.%d.%d:1000", i>>8, i&255), CM: "10.9.0.1:7471", Functions: []Function{{Name: "pf0.vf1", Tenant: 1, Addresses: []netip.Addr{addressOf(i)}}}}
	n.session.Record(n.record)
	n.step()
}

func (n *nic) stop() { n.runs, n.watch = false, nil; n.life++ }

// later calls f with the NIC as it is now, if it still runs then, and steps it.
func (n *nic) later(d vtime.Time, f func()) {
	life := n.life
	n.w.after(d, func() {
		if n.life == life {
			f()
			n.step()
		}
	})
}

func (n *nic) step() {
	w := n.w
	n.do(n.session.Step(w.now))
	if d := n.session.Deadline(w.now); d != vtime.Never && d != n.wake {
		n.wake = d
		life := n.life
		w.after(max(d-w.now, 1), func() {
			if n.life == life && n.wake == d {
				n.step()
			}
		})
	}
}

var errLost = errors.New("the connection is lost")

func (n *nic) do(asks []Ask) {
	for _, a := range asks {
		n.later(n.w.upTo(2*time.Millisecond), func() { n.carryOut(a) })
	}
}

// carryOut is etcd's side of a request.
func (n *nic) carryOut(a Ask) {
	w := n.w
	fails := w.faulty && w.chance(0.1)
	before := fails && w.chance(0.5)
	answer := func(f func()) {
		switch {
		case w.faulty && w.chance(0.02): // lost: there is no answer at all
		case fails:
			f = func() { n.session.Failed(w.now, a, errLost) }
			fallthrough
		default:
			n.later(w.upTo(5*time.Millisecond), f)
		}
	}
	if !n.answered() || before {
		if a.Kind == AskWatch || w.chance(0.5) {
			answer(func() { n.session.Failed(w.now, a, errLost) })
		}
		return
	}
	switch a.Kind {
	case AskList:
		n.lists++
		revision := w.revision
		list := slices.Collect(maps.Values(w.keys))
		answer(func() { n.do(n.session.Listed(w.now, a, revision, list)) })
	case AskWatch:
		if a.From <= w.compacted {
			answer(func() { n.session.Failed(w.now, a, ErrCompacted) })
			return
		}
		next, _ := slices.BinarySearchFunc(w.history, a.From, func(r Record, from int64) int { return int(r.Modified - from) })
		n.watch = &watch{ask: a, next: next}
		n.report(n.watch)
	case AskUnwatch:
		n.watch = nil
	case AskProgress:
		if n.watch != nil {
			ask := n.watch.ask
			answer(func() { n.session.Alive(w.now, ask) })
		}
	case AskLease:
		w.lastLease++
		id := w.lastLease
		w.leases[id] = &lease{w.now + int64(LeaseTTL), map[string]bool{}}
		answer(func() { n.do(n.session.Leased(w.now, a, id)) })
	case AskPut, AskKeepAlive:
		l := w.leases[a.Lease]
		if l == nil {
			answer(func() { n.session.Failed(w.now, a, ErrNoLease) })
			return
		}
		revision := int64(0)
		if a.Kind == AskKeepAlive {
			l.ends = w.now + int64(LeaseTTL)
		} else {
			revision = w.put(HostKey(testPrefix, n.name), a.Value, a.Lease)
		}
		answer(func() { n.session.Kept(w.now, a, revision) })
	case AskCancel:
		if l := w.leases[a.Lease]; l != nil {
			l.ends = w.now
		}
	}
}

// report sends the next changes of a watch.
func (n *nic) report(x *watch) {
	w := n.w
	if x.busy || x.next == len(w.history) {
		return
	}
	x.busy = true
	n.later(w.upTo(5*time.Millisecond), func() {
		x.busy = false
		switch {
		case n.watch != x || x.ended || !n.answered():
			return
		case w.faulty && w.chance(0.02):
			x.ended = true
			n.session.Failed(w.now, x.ask, errLost)
			return
		case x.next == len(w.history):
			return
		}
		end := x.next + 1
		for end < len(w.history) && (w.history[end].Modified == w.history[end-1].Modified || w.chance(0.7)) {
			end++
		}
		list := w.history[x.next:end]
		x.next = end
		n.session.Watched(w.now, x.ask, list)
		n.check()
		n.report(x)
	})
}

// check fails the test unless the NIC's view is what etcd had at the revision that it has seen.
func (n *nic) check() {
	w := n.w
	if !w.chance(0.3 / float64(len(w.nics))) {
		return
	}
	was := map[string]Record{}
	for _, r := range w.history {
		if r.Modified > n.session.reading.seen {
			break
		}
		if was[r.Key] = r; r.Value == nil {
			delete(was, r.Key)
		}
	}
	for key, r := range was {
		name := key[len(testPrefix+hostsPart):]
		if key != HostKey(testPrefix, name) {
			continue
		}
		if h := n.session.View.hosts[name]; h == nil || h.gone != vtime.Never || h.modified != r.Modified {
			w.t.Fatalf("at %v %s has seen revision %d and knows %+v of %s, not its record of revision %d", time.Duration(w.now), n.name, n.session.reading.seen, h, name, r.Modified)
		}
	}
	for name, h := range n.session.View.hosts {
		if _, there := was[HostKey(testPrefix, name)]; !there && h.gone == vtime.Never {
			w.t.Fatalf("at %v %s has seen revision %d and still has %s, whose record is gone", time.Duration(w.now), n.name, n.session.reading.seen, name)
		}
	}
	for name := range n.session.View.grants {
		if _, there := was[GrantKey(testPrefix, name)]; !there {
			w.t.Fatalf("%s has a grant of %s that is gone", n.name, name)
		}
	}
}

// settled fails the test unless all NICs that run see the same fleet, each other, and nobody else.
func (w *world) settled() {
	w.t.Helper()
	var want []Peer
	for _, n := range w.nics {
		if !n.runs {
			continue
		}
		st := n.session.State()
		if !st.Watching || st.Keeping != "" {
			w.t.Fatalf("at %v %s: %+v, %+v", time.Duration(w.now), n.name, st, n.session.Stats())
		}
		if r, there := w.keys[HostKey(testPrefix, n.name)]; !there || string(r.Value) != Encode(n.record) {
			w.t.Fatalf("the record of %s is %q", n.name, r.Value)
		}
		if len(w.nics) > 100 && want != nil && !w.chance(0.02) {
			continue
		}
		peers, _ := n.session.View.Decide()
		peers = slices.DeleteFunc(peers, func(p Peer) bool { return p.Gone })
		if want == nil {
			want = peers
			runs := 0
			for _, o := range w.nics {
				if g := w.keys[GrantKey(testPrefix, o.name)]; o.runs && g.Value != nil {
					runs++
				}
			}
			if len(peers) != runs {
				w.t.Fatalf("%s has %d hosts of %d", n.name, len(peers), runs)
			}
		}
		if !reflect.DeepEqual(peers, want) {
			w.t.Fatalf("%s sees\n%v\nothers see\n%v", n.name, peers, want)
		}
	}
}

// trouble is what happens to the fleet at random.
func (w *world) trouble() {
	n := w.nics[w.rand.IntN(len(w.nics))]
	switch w.rand.IntN(9) {
	case 0:
		if n.runs {
			n.stop()
		} else {
			n.start()
		}
	case 1:
		n.cut = !n.cut
	case 2:
		w.compact()
	case 3:
		w.up = !w.up
	case 4: // etcd was restored without its leases
		for _, id := range slices.Sorted(maps.Keys(w.leases)) {
			if w.chance(0.3) {
				w.leases[id].ends = w.now
			}
		}
	case 5: // an operator deletes a record
		w.del(HostKey(testPrefix, n.name))
	case 6: // grants change
		if _, there := w.keys[GrantKey(testPrefix, n.name)]; there {
			w.del(GrantKey(testPrefix, n.name))
		} else {
			w.put(GrantKey(testPrefix, n.name), Encode(Grant{Allow: []Allowed{{Tenant: 1, Addresses: []netip.Addr{addressOf(slices.Index(w.nics, n))}}}}), 0)
		}
	case 7: // a function comes or goes
		if n.runs {
			n.record.Functions = append(slices.Clone(n.record.Functions), Function{Name: fmt.Sprint("pf0.vf", len(n.record.Functions)+1), Tenant: 2, Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.1")}})
			n.session.Record(n.record)
			n.step()
		}
	case 8: // watches end
		if n.watch != nil && n.answered() {
			ask := n.watch.ask
			n.watch.ended = true
			n.later(1, func() { n.session.Failed(w.now, ask, errLost) })
		}
	}
}

// mend ends all trouble. A new leader of etcd gives leases their whole time again.
func (w *world) mend() {
	w.faulty, w.up = false, true
	for _, l := range w.leases {
		l.ends = w.now + int64(LeaseTTL)
	}
	for _, n := range w.nics {
		if n.cut = false; !n.runs {
			n.start()
		}
	}
}

func seeds(n uint64) []uint64 {
	if *seed != 0 {
		return []uint64{*seed}
	}
	var list []uint64
	for i := range n {
		list = append(list, i+1)
	}
	return list
}

// TestTheFleetAgreesWhateverFails: each NIC's view is at all times what etcd had at one revision, and
// after the trouble all see the same fleet, with the record of each host.
func TestTheFleetAgreesWhateverFails(t *testing.T) {
	for _, s := range seeds(60) {
		t.Run(fmt.Sprint("seed ", s), func(t *testing.T) {
			w := newWorld(t, s, 12)
			w.run(5 * time.Second)
			w.settled()
			w.faulty = true
			for range 200 {
				w.trouble()
				w.run(time.Duration(w.upTo(2 * time.Second)))
			}
			w.mend()
			w.run(2*silentTime + 3*LeaseTTL)
			w.settled()
		})
	}
}

// TestManyNICsFindEachOtherAgain: NICs find each other, and again after etcd was away for longer than
// their leases last.
func TestManyNICsFindEachOtherAgain(t *testing.T) { findAgain(t, 100) }

func TestLongAThousandNICsFindEachOtherAgain(t *testing.T) { findAgain(t, 1000) }

func findAgain(t *testing.T, nics int) {
	w := newWorld(t, 1, nics)
	w.run(10 * time.Second)
	w.settled()
	for _, n := range w.nics {
		if n.lists != 1 {
			t.Fatalf("%s listed %d times", n.name, n.lists)
		}
	}
	w.faulty = true
	w.up = false
	w.run(time.Minute)
	w.mend()
	w.run(2*silentTime + 3*LeaseTTL)
	w.settled()
}

// TestAnIdleFleetAsksForLittle: when nothing changes, a NIC keeps its lease and asks for a sign of
// life, and nothing else.
func TestAnIdleFleetAsksForLittle(t *testing.T) {
	w := newWorld(t, 1, 3)
	w.run(10 * time.Second)
	revision, lists := w.revision, w.nics[0].lists
	steps := w.queue.seq
	w.run(10 * time.Minute)
	if w.revision != revision || w.nics[0].lists != lists {
		t.Errorf("%d changes, %d lists", w.revision-revision, w.nics[0].lists-lists)
	}
	if n := (w.queue.seq - steps - 1200) / 3 / 10; n > 100 { // expire is called twice a second
		t.Errorf("%d events a NIC and minute", n)
	}
}

// TestAHostCountsForAWhileAfterItsRecord: a host whose lease is lost is a peer until it has been gone for
// long, and its addresses go to whoever else may have them.
func TestAHostCountsForAWhileAfterItsRecord(t *testing.T) {
	w := newWorld(t, 1, 2)
	w.run(5 * time.Second)
	w.nics[1].cut = true
	w.run(2 * LeaseTTL)
	peers, _ := w.nics[0].session.View.Decide()
	if len(peers) != 2 || !peers[1].Gone {
		t.Fatalf("%+v", peers)
	}
	w.run(KeepGone)
	if peers, _ = w.nics[0].session.View.Decide(); len(peers) != 1 {
		t.Fatalf("%+v", peers)
	}
	w.nics[1].cut = false
	w.run(silentTime + LeaseTTL)
	w.settled()
}

// TestTwoNICsOfOneNameDoNotTakeTurns: the one that started last has the record; the other says so, and has
// it again when that one has ended.
func TestTwoNICsOfOneNameDoNotTakeTurns(t *testing.T) {
	w := newWorld(t, 1, 1)
	w.run(5 * time.Second)
	first := w.nics[0]
	second := &nic{w: w, name: first.name, life: 100}
	w.nics = append(w.nics, second)
	second.start()
	w.run(time.Minute)
	if st := first.session.State(); first.session.Stats().Yields != 1 || st.Keeping == "" {
		t.Errorf("%+v, %+v", st, first.session.Stats())
	}
	if st := second.session.State(); st.Keeping != "" {
		t.Errorf("%+v", st)
	}
	revision := w.revision
	w.run(time.Minute)
	if w.revision != revision {
		t.Errorf("%d changes", w.revision-revision)
	}
	second.stop()
	w.nics = w.nics[:1]
	w.run(3 * LeaseTTL)
	w.settled()
}

// TestClocksDoNotMatter: no time of one machine is compared with that of another.
func TestClocksDoNotMatter(t *testing.T) {
	for _, offset := range []vtime.Time{-int64(1000 * time.Hour), int64(1000 * time.Hour)} {
		w := newWorld(t, 1, 3)
		w.run(5 * time.Second)
		n := w.nics[0]
		n.stop()
		s := NewSession(testPrefix, n.name, w.rand.Float64) // its clock is off; it lists as others do
		s.Record(n.record)
		asks := s.Step(offset)
		var list []Record
		for _, r := range w.keys {
			list = append(list, r)
		}
		s.Listed(offset+1, asks[0], w.revision, list)
		mine, _ := s.View.Decide()
		others, _ := w.nics[1].session.View.Decide()
		if !reflect.DeepEqual(mine, others) {
			t.Errorf("%+v, others see %+v", mine, others)
		}
	}
}

// TestWhatFailsIsSeenAndMends: each thing that can happen between a NIC and etcd shows in its state while
// it lasts and in its counters, and when it is over all is as before.
func TestWhatFailsIsSeenAndMends(t *testing.T) {
	for name, tc := range map[string]struct {
		begin, end func(w *world, n *nic)
		away       bool // the NIC does not watch meanwhile
		counts     func(was, is Stats) bool
	}{
		"etcd forgets what a NIC missed": {
			func(_ *world, n *nic) { n.cut = true },
			func(w *world, n *nic) {
				w.put(GrantKey(testPrefix, "other"), Encode(Grant{Allow: []Allowed{}}), 0)
				w.del(GrantKey(testPrefix, "other"))
				w.compact()
				n.cut = false
			},
			true, func(was, is Stats) bool { return is.Compactions == was.Compactions+1 && is.Lists == was.Lists+1 },
		},
		"a lease is lost": {
			func(w *world, _ *nic) {
				for _, l := range w.leases {
					l.ends = w.now
				}
			}, nil,
			false, func(was, is Stats) bool { return is.LeasesLost == was.LeasesLost+1 && is.Failures == was.Failures },
		},
		"a record is deleted": {
			func(w *world, n *nic) { w.del(HostKey(testPrefix, n.name)) }, nil,
			false, func(was, is Stats) bool { return is.Changes > was.Changes && is.Failures == was.Failures },
		},
		"all members start again": {
			func(w *world, _ *nic) { w.up = false },
			func(w *world, _ *nic) { w.mend() },
			true, func(was, is Stats) bool { return is.Failures > was.Failures && is.Lists == was.Lists },
		},
		"a NIC is cut off": {
			func(_ *world, n *nic) { n.cut = true },
			func(_ *world, n *nic) { n.cut = false },
			true, func(was, is Stats) bool { return is.Failures > was.Failures && is.Lists == was.Lists },
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1, 3)
			w.run(5 * time.Second)
			w.settled()
			n := w.nics[0]
			was := n.session.Stats()
			tc.begin(w, n)
			w.run(2 * silentTime)
			if st := n.session.State(); st.Watching == tc.away || tc.away && st.Reading == "" {
				t.Errorf("meanwhile: %+v", st)
			}
			if peers, _ := n.session.View.Decide(); len(peers) != 3 {
				t.Errorf("meanwhile it knows %+v", peers)
			}
			if tc.end != nil {
				tc.end(w, n)
			}
			w.run(2*silentTime + 3*LeaseTTL)
			w.settled()
			if is := n.session.Stats(); !tc.counts(was, is) {
				t.Errorf("%+v, before %+v", is, was)
			}
		})
	}
}

// TestAWatchIsMadeAnewWhenEtcdIsSpokenToInAnotherWay: at once, from where the session is, and as no failure;
// what the earlier watch still says is ignored.
func TestAWatchIsMadeAnewWhenEtcdIsSpokenToInAnotherWay(t *testing.T) {
	s := NewSession(testPrefix, "h1", func() float64 { return 0 })
	list := s.Step(1)
	watch := s.Listed(1, list[0], 7, nil)
	s.Again(2)
	s.Failed(2, watch[0], errors.New("it has ended"))
	asks := s.Step(2)
	if len(asks) != 1 || asks[0].Kind != AskWatch || asks[0].From != 8 || s.Stats().Failures != 0 || !s.State().Watching {
		t.Errorf("%+v, %+v, %+v", asks, s.Stats(), s.State())
	}
}

// TestWhatHappensToARecordBeforeItsWritingIsAnsweredCounts: the watch may be faster than the answer to the
// request. A record that was deleted since is written again, and one that another NIC wrote since is left
// to that one.
func TestWhatHappensToARecordBeforeItsWritingIsAnsweredCounts(t *testing.T) {
	key := HostKey(testPrefix, "h1")
	mine, others := Host{Instance: "mine"}, Host{Instance: "another's"}
	for name, c := range map[string]struct {
		since   []Record
		again   bool
		keeping string
	}{
		"nothing":                    {nil, false, ""},
		"deleted":                    {[]Record{{Key: key, Modified: 9}}, true, ""},
		"another NIC's":              {[]Record{{Key: key, Value: []byte(Encode(others)), Created: 8, Modified: 9}}, false, "another NIC has the name h1"},
		"deleted, and another NIC's": {[]Record{{Key: key, Modified: 9}, {Key: key, Value: []byte(Encode(others)), Created: 10, Modified: 10}}, false, "another NIC has the name h1"},
	} {
		t.Run(name, func(t *testing.T) {
			s := NewSession(testPrefix, "h1", func() float64 { return 0 })
			s.Record(mine)
			asks := s.Step(1)
			watch := s.Listed(1, asks[0], 7, nil)
			s.Leased(1, asks[1], 1)
			put := s.Step(1)
			if len(put) != 1 || put[0].Kind != AskPut {
				t.Fatalf("%+v", put)
			}
			s.Watched(2, watch[0], append([]Record{{Key: key, Value: []byte(put[0].Value), Created: 8, Modified: 8}}, c.since...))
			s.Kept(2, put[0], 8)
			again := slices.ContainsFunc(s.Step(2), func(a Ask) bool { return a.Kind == AskPut })
			if st := s.State(); again != c.again || !strings.Contains(st.Keeping, c.keeping) || c.keeping == "" && st.Keeping != "" {
				t.Errorf("written again: %v; %+v", again, st)
			}
		})
	}
}
