package directory

import (
	"errors"
	"fmt"
	"time"

	"github.com/falcon-vnic/vnic/internal/vtime"
)

// Times of a session.
const (
	LeaseTTL   = 15 * time.Second // how long a host's record outlives the host
	KeepGone   = 5 * time.Minute  // how long a host counts whose record is gone
	quietTime  = 10 * time.Second // after this silence etcd is asked for a sign of life
	silentTime = 20 * time.Second // after this the watch is broken
	retryMin   = 100 * time.Millisecond
	retryMax   = 5 * time.Second
	answerTime = 10 * time.Second // bound on an answer
)

// ErrCompacted means that etcd does not have the changes any more that a watch should begin with.
var ErrCompacted = errors.New("etcd has forgotten the changes since then")

// ErrDenied means that etcd does not let this NIC do what it asks for: it is another fleet's, or the NIC is
// not in the fleet, or one of the two does not trust the other's certificate.
var ErrDenied = errors.New("etcd does not let this NIC do that")

// ErrNoLease means that etcd knows no such lease: it has run out.
var ErrNoLease = errors.New("the lease has run out")

// Ask is something that a Session wants of etcd. Its answer is passed to one of the session's methods,
// with the same Ask.
type Ask struct {
	Kind  AskKind
	Turn  uint64 // of the reading or the keeping; answers of earlier turns are ignored
	From  int64  // Watch: the first revision
	Lease int64  // Put, KeepAlive
	Value string // Put
}

// AskKind says what is asked for.
type AskKind uint8

// What a session asks for.
const (
	AskList      AskKind = iota // all keys of the fleet, at one revision: Listed or Failed
	AskWatch                    // changes from a revision on: Changed, again and again, until Failed
	AskUnwatch                  // the end of the watch: no answer
	AskProgress                 // a sign of life on the watch: Alive, or Failed
	AskLease                    // a lease of LeaseTTL: Leased or Failed
	AskPut                      // the host's record under a lease: Kept or Failed
	AskKeepAlive                // the lease for another LeaseTTL: Kept or Failed
	AskCancel                   // the end of the lease: no answer
)

func (k AskKind) String() string {
	return [...]string{"list", "watch", "end of the watch", "sign of life", "lease", "record", "keep-alive", "end of the lease"}[k]
}

// Session decides what a NIC says to etcd, and speaks to nobody itself: events go in, asks come
// out.
//
//	reading   away ─▶ listing ─▶ watching ─▶ away …     from the next revision, or with a new list if
//	                                                    etcd has forgotten it
//	keeping   none ─▶ leasing ─▶ putting ─▶ kept ─▶ …   none again when the lease is lost; yielded while
//	                                                    another NIC of this name has the record
type Session struct {
	View *View
	name string
	key  string // of the host's record
	rand func() float64

	reading struct {
		state   readState
		turn    uint64
		synced  bool  // the view is that of a revision
		seen    int64 // that revision
		heard   vtime.Time
		asked   vtime.Time // when listing began
		signed  vtime.Time // when a sign of life was asked for
		retry   vtime.Time
		backoff time.Duration
	}
	keeping struct {
		state    keepState
		turn     uint64
		lease    int64
		ends     vtime.Time // the lease, if it is not kept
		renew    vtime.Time
		asked    vtime.Time
		waiting  bool // an answer is awaited
		put      int64
		retry    vtime.Time
		backoff  time.Duration
		record   Host // what is to be there
		value    string
		there    string // what was put
		instance string
	}
	changed bool
	stats   Stats
	err     string // of the last failure of reading; "": none since
	keepErr string
	since   vtime.Time // when the present state of reading began
}

type readState uint8

const (
	away readState = iota
	listing
	watching
)

type keepState uint8

const (
	none keepState = iota
	leasing
	putting
	kept
	yielded
)

// Stats counts since the session began.
type Stats struct {
	Lists       uint64
	Changes     uint64
	Failures    uint64 // of reading: the watch ended, or nothing was reached
	Denied      uint64 // asks that etcd does not let this NIC make
	Compactions uint64 // changes that were missed, so that all was listed again
	LeasesLost  uint64
	Yields      uint64 // another NIC had this one's name
	Old         uint64 // changes that were known
}

// NewSession returns a session of a host. random gives numbers from 0 up to 1.
func NewSession(prefix, name string, random func() float64) *Session {
	s := &Session{View: NewView(prefix), name: name, key: HostKey(prefix, name), rand: random}
	s.reading.retry, s.keeping.retry = vtime.LongAgo, vtime.LongAgo
	return s
}

// Record sets what the host says of itself.
func (s *Session) Record(h Host) {
	s.keeping.record, s.keeping.value, s.keeping.instance = h, Encode(h), h.Instance
}

// Changed reports whether the view has changed since it was asked before.
func (s *Session) Changed() bool {
	was := s.changed
	s.changed = false
	return was
}

// Stats returns the counters.
func (s *Session) Stats() Stats { return s.stats }

// NotRead is State.Reading before etcd was asked for the first time.
const NotRead = "not read yet"

// State describes the session for people.
type State struct {
	Watching bool
	Revision int64
	Since    vtime.Time // it watches, or does not
	Reading  string     // why it does not watch; "": it does
	Keeping  string     // why the host's record is not kept; "": it is
}

// State describes the session.
func (s *Session) State() State {
	st := State{Watching: s.reading.state == watching && s.err == "", Revision: s.reading.seen, Since: s.since}
	switch {
	case st.Watching:
	case s.err != "":
		st.Reading = s.err
	default:
		st.Reading = NotRead
	}
	switch {
	case s.keeping.state == yielded:
		st.Keeping = fmt.Sprintf("another NIC has the name %s and keeps the record; end one of the two", s.name)
	case s.keepErr != "":
		st.Keeping = s.keepErr
	case s.keeping.state != kept && s.keeping.state != putting:
		st.Keeping = "not written yet"
	}
	return st
}

// Step returns what is to be asked now.
func (s *Session) Step(now vtime.Time) (asks []Ask) {
	if gone := s.View.firstGone(); gone <= now-int64(KeepGone) && s.reading.state == watching {
		s.changed = s.View.Forget(now-int64(KeepGone)+1) || s.changed
	}
	asks = s.read(now, asks)
	return s.keep(now, asks)
}

// Deadline returns the latest time of the next Step.
func (s *Session) Deadline(now vtime.Time) vtime.Time {
	r, k := &s.reading, &s.keeping
	d := vtime.Never
	switch r.state {
	case away:
		d = r.retry
	case listing:
		d = r.asked + int64(answerTime)
	case watching:
		if d = r.heard + int64(quietTime); r.signed > r.heard {
			d = r.heard + int64(silentTime)
		}
		if gone := s.View.firstGone(); gone != vtime.Never {
			d = min(d, gone+int64(KeepGone))
		}
	}
	switch {
	case k.value == "":
	case k.waiting:
		d = min(d, k.asked+int64(answerTime))
	case k.state == kept && k.value == k.there:
		d = min(d, max(k.renew, k.retry))
	case k.state != yielded:
		d = min(d, k.retry)
	}
	return max(d, now)
}

func (s *Session) read(now vtime.Time, asks []Ask) []Ask {
	r := &s.reading
	switch r.state {
	case away:
		if now < r.retry {
			return asks
		}
		r.turn++
		if r.synced {
			r.state, r.heard = watching, now
			return append(asks, Ask{Kind: AskWatch, Turn: r.turn, From: r.seen + 1})
		}
		r.state, r.asked = listing, now
		return append(asks, Ask{Kind: AskList, Turn: r.turn})
	case listing:
		if now >= r.asked+int64(answerTime) {
			s.readFailed(now, errNoAnswer)
		}
	case watching:
		switch {
		case now >= r.heard+int64(silentTime):
			asks = append(asks, Ask{Kind: AskUnwatch, Turn: r.turn})
			s.readFailed(now, errNoAnswer)
		case now >= r.heard+int64(quietTime) && r.signed <= r.heard:
			r.signed = now
			return append(asks, Ask{Kind: AskProgress, Turn: r.turn})
		}
	}
	return asks
}

var errNoAnswer = errors.New("no answer")

// Listed takes the answer to AskList: all keys as of a revision.
func (s *Session) Listed(now vtime.Time, a Ask, revision int64, list []Record) []Ask {
	r := &s.reading
	if r.state != listing || a.Turn != r.turn {
		return nil
	}
	s.stats.Lists++
	s.View.Replace(now, list)
	r.synced, r.seen = true, revision
	s.changed = true
	r.turn++
	r.state, s.since = watching, now
	s.heard(now)
	s.own(now, revision)
	return []Ask{{Kind: AskWatch, Turn: r.turn, From: revision + 1}}
}

// Watched takes changes that a watch reports; those of one revision always come together. The revision
// in the header of the response does not count, since it is etcd's newest one even when etcd has more
// changes to send. A response without changes says only that etcd lives, since etcd before 3.4.25 may
// send one before changes of earlier revisions.
func (s *Session) Watched(now vtime.Time, a Ask, list []Record) {
	r := &s.reading
	if r.state != watching || a.Turn != r.turn {
		return
	}
	s.heard(now)
	seen := r.seen
	for _, c := range list {
		if c.Modified <= seen {
			s.stats.Old++
			continue
		}
		s.stats.Changes++
		s.View.Apply(now, c)
		s.changed = true
		r.seen = max(r.seen, c.Modified)
		if c.Key == s.key {
			s.ownChanged(now, &c)
		}
	}
}

// Again has the session watch anew at once, from where it is: etcd is spoken to in another way.
func (s *Session) Again(now vtime.Time) {
	r := &s.reading
	r.state, r.retry = away, now
	r.turn++
}

// Alive takes a sign of life of the watch.
func (s *Session) Alive(now vtime.Time, a Ask) {
	if s.reading.state == watching && a.Turn == s.reading.turn {
		s.heard(now)
	}
}

func (s *Session) heard(now vtime.Time) {
	if s.err != "" {
		s.since = now
	}
	s.reading.heard, s.reading.backoff, s.err = now, 0, ""
}

func (s *Session) readFailed(now vtime.Time, err error) {
	r := &s.reading
	s.stats.Failures++
	if s.err == "" {
		s.since = now
	}
	s.err = err.Error()
	if errors.Is(err, ErrCompacted) {
		s.stats.Compactions++
		r.synced = false
		r.backoff, r.retry = 0, now
	} else {
		r.retry = now + int64(s.pause(&r.backoff))
	}
	r.state = away
	r.turn++
}

// pause returns how long to wait before the next attempt: twice as long each time, and a random part
// less, so that not all hosts come at once.
func (s *Session) pause(last *time.Duration) time.Duration {
	*last = min(max(2**last, retryMin), retryMax)
	return *last - time.Duration(s.rand()*float64(*last)/2)
}

// Failed takes the failure of an ask.
func (s *Session) Failed(now vtime.Time, a Ask, err error) {
	if errors.Is(err, ErrDenied) {
		s.stats.Denied++
	}
	switch a.Kind {
	case AskList, AskWatch, AskProgress:
		if s.reading.state != away && a.Turn == s.reading.turn {
			s.readFailed(now, err)
		}
	case AskLease, AskPut, AskKeepAlive:
		s.keepFailed(now, a, err)
	}
}

// keep does what is due for the host's record.
func (s *Session) keep(now vtime.Time, asks []Ask) []Ask {
	k := &s.keeping
	if k.value == "" || k.state == yielded {
		return asks
	}
	if k.waiting && now >= k.asked+int64(answerTime) {
		s.keepFailed(now, Ask{Turn: k.turn}, errNoAnswer)
	}
	if k.waiting || now < k.retry {
		return asks
	}
	if k.state != none && now >= k.ends {
		s.leaseLost(now)
	}
	var a Ask
	switch {
	case k.state == none:
		k.state, a = leasing, Ask{Kind: AskLease}
	case k.state == putting || k.value != k.there:
		k.state, a = putting, Ask{Kind: AskPut, Lease: k.lease, Value: k.value}
	case now >= k.renew:
		a = Ask{Kind: AskKeepAlive, Lease: k.lease}
	default:
		return asks
	}
	k.turn++
	a.Turn = k.turn
	k.waiting, k.asked = true, now
	return append(asks, a)
}

// Leased takes a lease.
func (s *Session) Leased(now vtime.Time, a Ask, lease int64) []Ask {
	k := &s.keeping
	if !k.waiting || a.Turn != k.turn {
		return []Ask{{Kind: AskCancel, Lease: lease}} // it is too late for this one
	}
	k.lease, k.state = lease, putting
	s.extended(now)
	return nil
}

// Kept takes the answer to AskPut, with its revision, or to AskKeepAlive.
func (s *Session) Kept(now vtime.Time, a Ask, revision int64) {
	k := &s.keeping
	if !k.waiting || a.Turn != k.turn {
		return
	}
	k.state = kept
	if a.Kind == AskPut {
		k.waiting = false
		k.there, k.put = a.Value, revision
		k.backoff, k.retry, s.keepErr = 0, now, ""
		s.own(now, s.reading.seen) // the watch may have told of what happened to it since
		return
	}
	s.extended(now)
}

// extended counts the lease's time anew: from when it was asked for, which is the earliest that
// etcd can have given it or kept it alive.
func (s *Session) extended(now vtime.Time) {
	k := &s.keeping
	k.ends, k.renew = k.asked+int64(LeaseTTL), k.asked+int64(LeaseTTL)/3
	k.waiting, k.backoff, k.retry, s.keepErr = false, 0, now, ""
}

func (s *Session) keepFailed(now vtime.Time, a Ask, err error) {
	k := &s.keeping
	if !k.waiting || a.Turn != k.turn {
		return
	}
	k.waiting = false
	k.turn++
	s.keepErr = err.Error()
	k.retry = now + int64(s.pause(&k.backoff))
	switch {
	case errors.Is(err, ErrNoLease):
		s.leaseLost(now)
		k.retry = now
	case k.state == leasing:
		k.state = none
	}
}

func (s *Session) leaseLost(now vtime.Time) {
	k := &s.keeping
	s.stats.LeasesLost++
	k.state, k.there, k.lease = none, "", 0
	k.retry = max(k.retry, now)
}

// own looks at the host's own record in a list.
func (s *Session) own(now vtime.Time, revision int64) {
	k := &s.keeping
	h := s.View.hosts[s.name]
	switch {
	case k.state != kept && k.state != yielded || revision < k.put:
	case h == nil || h.gone != vtime.Never:
		s.ownChanged(now, &Record{Key: s.key, Modified: revision})
	case h.Instance != k.instance:
		s.ownChanged(now, &Record{Key: s.key, Value: []byte(Encode(h.Host)), Modified: h.modified})
	}
}

// ownChanged reacts to a change of the host's own record that is not its own.
func (s *Session) ownChanged(now vtime.Time, r *Record) {
	k := &s.keeping
	if r.Modified <= k.put || k.state != kept && k.state != yielded {
		return
	}
	if r.Value == nil { // its lease ran out, or somebody deleted it
		k.state, k.there, k.waiting, k.retry = putting, "", false, now
		k.turn++
		if now >= k.ends || k.lease == 0 {
			s.leaseLost(now)
		}
		return
	}
	if h := s.View.Host(s.name); h == nil || h.Instance == k.instance {
		return
	}
	if k.state != yielded {
		s.stats.Yields++
	}
	k.state, k.waiting = yielded, false
	k.turn++
}

// End returns what is to be asked when the host leaves.
func (s *Session) End() []Ask {
	if s.keeping.lease == 0 || s.keeping.state == yielded {
		return nil
	}
	return []Ask{{Kind: AskCancel, Lease: s.keeping.lease}}
}
