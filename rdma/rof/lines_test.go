package rof

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// lines are the links of a function, whose pipes are the test's.
type lines struct {
	*Links
	t       testing.TB
	objects *verbs.Objects
	shared  verbs.Shared
	now     vtime.Time
}

// testLimit is how many links others may open to the function.
const testLimit = 10

func newLines(t testing.TB) *lines {
	l := &lines{t: t, objects: new(verbs.Objects), now: testNow}
	l.Links = New().NewLinks(3, l.objects, &l.shared.Timers)
	l.objects.Init(&l.shared, queues.NewMemory(nil), verbs.Limits{Links: testLimit}, nil, nil, l.Links)
	return l
}

// address is one of many places that datagrams go to.
func address(n int) *verbs.Address {
	return &verbs.Address{GID: [16]byte{0: 0xfd, 14: byte(n >> 8), 15: byte(n)}}
}

func keyOf(a *verbs.Address) LinkKey { return LinkKey{GID: a.GID, Ordered: true} }

// handle names the link to an address, as a handle does.
func (l *lines) handle(n int) *Link { return l.To(address(n), true).(*Link) }

// open is a link that has a connection.
func (l *lines) open(n int) (*Link, *pipe) {
	k, c := l.handle(n), newPipe(1000)
	k.Want(l.now)
	l.connect(k, c)
	return k, c
}

// connect does what a device does for a link that wants a connection. Others that do go on waiting.
func (l *lines) connect(k *Link, c *pipe) {
	l.t.Helper()
	for got := l.e.NextLink(); got != k; got = l.e.NextLink() {
		if got == nil {
			l.t.Fatal("the link wants no connection")
		}
	}
	k.Open(l.now, c, [16]byte{})
}

// event gives a link an event of its pipe.
func (l *lines) event(k *Link, ev falcon.Event) { k.conn.Handle(l.now, &ev) }

// until lets time pass.
func (l *lines) until(at vtime.Time) {
	l.now = at
	l.shared.Timers.Run(at)
}

// idle reports whether the link is ready to want a connection, which it does then.
func (l *lines) idle(k *Link) bool {
	k.Want(l.now)
	return l.e.NextLink() == k
}

func (l *lines) lost() uint64 { return l.objects.Account.DatagramsLost }

// sender waits for a place, and notes how often it was told to go on.
type sender struct {
	waits   verbs.Destination
	resumed int
}

func (s *sender) Wait(c verbs.Destination) (news bool) {
	news = s.waits != c
	s.waits = c
	return news
}

func (s *sender) Resume(verbs.Destination) {
	s.waits = nil
	s.resumed++
}

// write is a datagram of n bytes.
func write(from verbs.Waiter, n int) *verbs.Datagram {
	d := &verbs.Datagram{From: from, Inline: make([]byte, n)}
	d.Length = n
	return d
}

// post sends datagrams of one byte, all of which are to have the same fate.
func (l *lines) post(k *Link, n int, want verbs.Sent) *sender {
	l.t.Helper()
	from := new(sender)
	for i := range n {
		if got := k.Send(l.now, write(from, 1)); got != want {
			l.t.Fatalf("datagram %d: %d, want %d", i, got, want)
		}
	}
	return from
}
