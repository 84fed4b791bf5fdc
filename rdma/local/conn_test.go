package local

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
)

// nic is an engine, with the number of CreditsChanged calls.
type nic struct {
	*Engine
	freed int
}

func newNIC() *nic {
	n := &nic{}
	n.Engine = New(n)
	return n
}

func (n *nic) CreditsChanged() { n.freed++ }

// user is the user of an end. It fills packets with its tag, answers as the test sets, and records
// events.
type user struct {
	*Conn
	t       testing.TB
	unready error // to fill packets
	answers func(ev *falcon.Event)
	got     []falcon.Event
	ended   []uint32 // concluded
}

// mtu is two cells of buffer credit.
const mtu = 2 * credit.DefaultCell

func (n *nic) open(t testing.TB, own, other falcon.CID, credits *credit.Node) *user {
	t.Helper()
	c, err := n.Open(falcon.ConnConfig{LocalCID: own, RemoteCID: other, MTU: mtu, Credits: credits})
	if err != nil {
		t.Fatal(err)
	}
	u := &user{Conn: c, t: t}
	u.answers = func(ev *falcon.Event) { u.AckPush(0, ev.RSN) }
	c.SetUser(u)
	return u
}

// pair is two ends of a connection; the first takes credits of a node, if there is one.
func (n *nic) pair(t testing.TB, credits *credit.Node) (a, b *user) {
	t.Helper()
	return n.open(t, 1, 2, credits), n.open(t, 2, 1, nil)
}

func (u *user) Fill(_ falcon.TxnKind, tag uint64, dst []byte) (int, error) {
	for i := range dst {
		dst[i] = byte(tag)
	}
	return len(dst), u.unready
}
func (u *user) Explain([]byte, bool) string { return "" }
func (u *user) NoteConcluded(rsn uint32)    { u.ended = append(u.ended, rsn) }
func (u *user) Handle(_ falcon.Time, ev *falcon.Event) {
	x := *ev
	x.Data = bytes.Clone(ev.Data)
	u.got = append(u.got, x)
	if ev.Kind == falcon.EvPush || ev.Kind == falcon.EvPull {
		u.answers(ev)
	}
}

// push issues a push of 3 bytes.
func (u *user) push(tag uint64, want error) {
	u.t.Helper()
	if err := u.Push(0, tag, 3); !errors.Is(err, want) {
		u.t.Fatalf("push %d: %v, want %v", tag, err, want)
	}
}

// tags removes and returns the tags of the events of a kind.
func (u *user) tags(kind falcon.EventKind) (tags []uint64) {
	for _, ev := range u.got {
		if ev.Kind == kind {
			tags = append(tags, ev.Tag)
		}
	}
	u.got = slices.DeleteFunc(u.got, func(ev falcon.Event) bool { return ev.Kind == kind })
	return tags
}

// TestARequestCompletesOnceAsItWasAnswered: a push and a pull complete once, according to the target's answer, and the target
// gets the result of its response.
func TestARequestCompletesOnceAsItWasAnswered(t *testing.T) {
	for name, c := range map[string]struct {
		answer  func(b *user, ev *falcon.Event)
		code    falcon.Completion
		ulp     uint8
		data    int // bytes of the response
		hears   bool
		noPulls bool
	}{
		"taken":              {func(b *user, ev *falcon.Event) { b.AckPush(0, ev.RSN) }, falcon.CmplAck, 0, 0, false, true},
		"in error":           {func(b *user, ev *falcon.Event) { b.NackPush(0, ev.RSN, falconwire.NackCIE, 0, 9) }, falcon.CmplTargetNackCIE, 9, 0, false, false},
		"for good":           {func(b *user, ev *falcon.Event) { b.NackPush(0, ev.RSN, falconwire.NackNRE, 0, 8) }, falcon.CmplTargetNackNRE, 8, 0, false, false},
		"other queue pair":   {func(b *user, ev *falcon.Event) { b.NackPush(0, ev.RSN, falconwire.NackCID, 0, 7) }, falcon.CmplTargetNackCID, 7, 0, false, false},
		"nothing":            {func(*user, *falcon.Event) {}, falcon.CmplRemoteErr, 0, 0, false, false},
		"to another request": {func(b *user, ev *falcon.Event) { b.AckPush(0, ev.RSN+1) }, falcon.CmplRemoteErr, 0, 0, false, false},
		"a response":         {func(b *user, ev *falcon.Event) { _ = b.RespondPull(0, ev.RSN, 5, 7) }, falcon.CmplAck, 0, 7, true, false},
		"an empty response":  {func(b *user, ev *falcon.Event) { _ = b.RespondPull(0, ev.RSN, 5, 0) }, falcon.CmplAck, 0, 0, true, false},
		"a response that is not to be had": {func(b *user, ev *falcon.Event) {
			b.unready = errors.New("gone")
			_ = b.RespondPull(0, ev.RSN, 5, 7)
		}, falcon.CmplRemoteErr, 0, 0, true, false},
		"its end": {func(b *user, _ *falcon.Event) { b.Close(0) }, falcon.CmplDeadConn, 0, 0, false, false},
	} {
		for _, pull := range []bool{false, true} {
			if pull && c.noPulls || !pull && c.hears {
				continue
			}
			n := newNIC()
			a, b := n.pair(t, nil)
			b.answers = func(ev *falcon.Event) { c.answer(b, ev) }
			n.Run(0)
			a.txns.head, a.txns.tail = 40, 40 // of some requests before
			want := falcon.Event{Kind: falcon.EvPushDone, RSN: 40, Tag: 6, Code: c.code, ULPCode: c.ulp, Data: bytes.Repeat([]byte{5}, c.data)}
			asked := falcon.Event{Kind: falcon.EvPush, RSN: 40, Data: []byte{6, 6, 6}}
			err := error(nil)
			if pull {
				err = a.Pull(0, 6, 3, 10)
				want.Kind = falcon.EvPullDone
				asked.Kind, asked.Length = falcon.EvPull, 10
			} else {
				err = a.Push(0, 6, 3)
			}
			if err != nil {
				t.Fatal(err)
			}
			for n.Run(0) {
			}
			same := func(x, y falcon.Event) bool {
				return x.Kind == y.Kind && x.RSN == y.RSN && x.Tag == y.Tag && x.Length == y.Length && x.Code == y.Code && x.ULPCode == y.ULPCode && bytes.Equal(x.Data, y.Data)
			}
			if len(a.got) != 1 || !same(a.got[0], want) {
				t.Errorf("%s, pull %t: initiator hears %+v, want %+v", name, pull, a.got, want)
			}
			if len(b.got) == 0 || !same(b.got[0], asked) {
				t.Fatalf("%s, pull %t: target hears %+v", name, pull, b.got)
			}
			done := falcon.Event{Kind: falcon.EvResponseDone, Tag: 5, Code: c.code}
			if rest := b.got[1:]; (len(rest) == 1) != c.hears || c.hears && !same(rest[0], done) {
				t.Errorf("%s, pull %t: then the target hears %+v", name, pull, rest)
			}
			if concluded := slices.Equal(b.ended, []uint32{40}); concluded != (name == "taken") {
				t.Errorf("%s, pull %t: concluded %v", name, pull, b.ended)
			}
		}
	}
}

// TestAnUnreadyTransactionIsDeliveredAgainOnTime: a transaction that was not ready or deferred is delivered again at the requested
// time and not before. Those behind it wait too; other connections do not.
func TestAnUnreadyTransactionIsDeliveredAgainOnTime(t *testing.T) {
	const begin = 1e9
	for name, c := range map[string]struct {
		answer func(b *user, ev *falcon.Event)
		at     falcon.Time
		told   int // times that the initiator hears of it
	}{
		"not ready": {func(b *user, ev *falcon.Event) { b.NackPush(0, ev.RSN, falconwire.NackRNR, 9, 0) }, begin + falconwire.RNRTimeout(9), 1},
		"deferred":  {func(b *user, ev *falcon.Event) { b.DeferPull(0, ev.RSN, begin+5e6) }, begin + 5e6, 0},
	} {
		n := newNIC()
		a, b := n.pair(t, nil)
		other, another := n.open(t, 3, 4, nil), n.open(t, 4, 3, nil)
		b.answers = func(ev *falcon.Event) { c.answer(b, ev) }
		a.push(1, nil)
		a.push(2, nil)
		other.push(3, nil)
		for n.Run(begin) {
		}
		asked := func(want int) {
			t.Helper()
			if got := len(b.tags(falcon.EvPush)); got != want || n.Ready() {
				t.Errorf("%s: asked %d times, want %d", name, got, want)
			}
		}
		asked(1)
		if len(another.got) != 1 || len(a.tags(falcon.EvRNR)) != c.told || n.Deadline() != c.at {
			t.Errorf("%s: another hears %+v, next at %d, want %d", name, another.got, n.Deadline(), c.at)
		}
		a.push(4, nil)
		n.Run(c.at - 1)
		asked(0)
		n.Run(c.at)
		asked(1)
		b.answers = func(ev *falcon.Event) { b.AckPush(0, ev.RSN) }
		n.Run(c.at + 100e6)
		asked(3)
		if got := a.tags(falcon.EvPushDone); !slices.Equal(got, []uint64{1, 2, 4}) {
			t.Errorf("%s: %v are done", name, got)
		}
	}
	n := newNIC()
	a, b := n.pair(t, nil)
	b.answers = func(ev *falcon.Event) { b.DeferPull(0, ev.RSN+1, begin) }
	if a.push(1, nil); n.Run(0) || len(a.tags(falcon.EvPushDone)) != 1 {
		t.Error("what is said of another request defers this one")
	}
}

// TestAFullQueueTellsWhenItHasRoom: an end accepts as many transactions as there is room for, and gets EvCredit when
// there is room again.
func TestAFullQueueTellsWhenItHasRoom(t *testing.T) {
	n := newNIC()
	a := n.open(t, 1, 2, nil)
	for i := range uint64(maxTxns) {
		a.push(i, nil)
	}
	a.push(maxTxns, falcon.ErrXoff)
	a.push(maxTxns, falcon.ErrXoff)
	if n.Ready() || n.Run(0) || len(a.got) != 0 {
		t.Errorf("it goes on without another end: %+v", a.got)
	}
	b := n.open(t, 2, 1, nil)
	if !n.Ready() {
		t.Error("nothing to do, with another end")
	}
	for n.Run(0) {
	}
	if got := a.tags(falcon.EvCredit); len(got) != 1 {
		t.Errorf("told of room %d times", len(got))
	}
	done, seen := a.tags(falcon.EvPushDone), b.tags(falcon.EvPush)
	if len(done) != maxTxns || len(seen) != maxTxns || !slices.IsSorted(done) {
		t.Errorf("%d done, %d seen", len(done), len(seen))
	}
	if a.push(maxTxns, nil); !n.Ready() {
		t.Error("nothing to do for one more")
	}
}

// TestTurnsOfConnections: connections take turns, a transaction each, and one Run carries a bounded
// number.
func TestTurnsOfConnections(t *testing.T) {
	n := newNIC()
	a, b := n.pair(t, nil)
	c, d := n.open(t, 3, 4, nil), n.open(t, 4, 3, nil)
	for i := range uint64(quantum) {
		a.push(i, nil)
	}
	c.push(100, nil)
	if !n.Run(0) {
		t.Error("all is carried at once")
	}
	if x, y := len(b.tags(falcon.EvPush)), len(d.tags(falcon.EvPush)); x != quantum-1 || y != 1 {
		t.Errorf("%d and %d are carried", x, y)
	}
	if n.Run(0) || len(b.tags(falcon.EvPush)) != 1 || n.Ready() {
		t.Error("the last is not carried, or more is to do")
	}
}

// TestATransactionHoldsCreditUntilItIsDone: a transaction takes its credit when it is issued, and returns it when it is done.
// Refused ends get EvCredit when credit is available, in the order of refusals, and the host is
// told of returned credit. A transaction that costs more than any limit allows fails when its turn
// comes.
func TestATransactionHoldsCreditUntilItIsDone(t *testing.T) {
	limit := credit.NoLimit()
	limit[credit.ReqPktTx], limit[credit.ReqBufRx] = 2, 1
	node := credit.New(nil, limit)
	n := newNIC()
	a, _ := n.pair(t, node)
	c := n.open(t, 3, 4, node)
	n.open(t, 4, 3, nil)
	in := func(want uint32) {
		t.Helper()
		if got := node.InUse()[credit.ReqPktTx]; got != want {
			t.Errorf("credit for %d packets is in use, want %d", got, want)
		}
	}
	a.push(1, nil)
	a.push(2, nil)
	in(2)
	c.push(3, falcon.ErrXoff)
	a.push(3, falcon.ErrXoff)
	c.push(3, falcon.ErrXoff) // it waits already
	if len(n.creditless) != 2 || n.freed != 0 {
		t.Errorf("%d wait, told %d times", len(n.creditless), n.freed)
	}
	n.Run(0)
	in(0)
	if n.freed != 1 {
		t.Errorf("the host was told %d times", n.freed)
	}
	if !n.Ready() || len(c.got) != 0 {
		t.Errorf("those who wait: ready %t, %+v", n.Ready(), c.got)
	}
	n.Run(0)
	in(0)
	if len(c.tags(falcon.EvCredit)) != 1 || len(a.tags(falcon.EvCredit)) != 1 || len(n.creditless) != 0 || n.Ready() {
		t.Errorf("%d wait still", len(n.creditless))
	}
	c.push(3, nil)
	if err := a.Pull(0, 4, 0, mtu); err != nil { // more than one buffer: it cannot be had at all
		t.Errorf("pull: %v", err)
	}
	in(1)
	n.Run(0)
	in(0)
	if got := a.got[len(a.got)-1]; got.Kind != falcon.EvPullDone || got.Code != falcon.CmplUlpCdtErr || got.Tag != 4 {
		t.Errorf("what cannot be had: %+v", got)
	}
}

// TestClosedEndReturnsItsCreditOnce: an end that closes returns the credit of what it issued, once,
// and gets no EvCredit any more.
func TestClosedEndReturnsItsCreditOnce(t *testing.T) {
	limit := credit.NoLimit()
	limit[credit.ReqPktTx] = 2
	node := credit.New(nil, limit)
	n := newNIC()
	a, b := n.pair(t, node)
	a.push(1, nil)
	a.push(2, nil)
	a.push(3, falcon.ErrXoff)
	for range 2 {
		a.Close(0)
	}
	if node.InUse() != (credit.Cost{}) || node.Underflows() != 0 || n.freed != 1 || !a.Closed() {
		t.Errorf("in use %v, %d underflows, told %d times", node.InUse(), node.Underflows(), n.freed)
	}
	for n.Run(0) {
	}
	var codes []falcon.Completion
	for _, ev := range a.got {
		codes = append(codes, ev.Code)
	}
	if !slices.Equal(codes, []falcon.Completion{falcon.CmplDeadConn, falcon.CmplDeadConn}) || len(b.got) != 0 || node.Underflows() != 0 {
		t.Errorf("it hears %+v, the other end %+v, %d underflows", a.got, b.got, node.Underflows())
	}
	a.push(4, falcon.ErrClosed)
	b.push(5, nil)
	n.Run(0)
	if len(b.got) != 1 || b.got[0].Code != falcon.CmplDeadConn {
		t.Errorf("the other end hears %+v", b.got)
	}
	if cid, ok := n.NextClosed(); cid != 1 || !ok {
		t.Errorf("closed %d, %t", cid, ok)
	}
	b.Close(0)
	if cid, ok := n.NextClosed(); cid != 2 || !ok {
		t.Errorf("closed %d, %t", cid, ok)
	}
	if _, ok := n.NextClosed(); ok {
		t.Error("a third was closed")
	}
}

// TestEndWaitsUntilItsCostIsFree: an end that could not take its refused cost continues to wait,
// even if others get EvCredit.
func TestEndWaitsUntilItsCostIsFree(t *testing.T) {
	limit := credit.NoLimit()
	limit[credit.ReqPktTx], limit[credit.ReqBufRx] = 10, 3
	node := credit.New(nil, limit)
	n := newNIC()
	a, _ := n.pair(t, node)
	c := n.open(t, 3, 4, node)
	for i := range uint64(3) {
		if err := a.Pull(0, i, 0, 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Pull(0, 7, 0, mtu); !errors.Is(err, falcon.ErrXoff) { // wants 2 buffers
		t.Fatal(err)
	}
	if err := a.Pull(0, 8, 0, 1); !errors.Is(err, falcon.ErrXoff) {
		t.Fatal(err)
	}
	one := credit.Cost{credit.ReqBufRx: 1}
	for i, want := range [][2]int{{0, 1}, {1, 0}} { // one buffer is free, then two
		if err := node.Return(&one); err != nil {
			t.Fatal(err)
		}
		if !n.Ready() {
			t.Errorf("with %d free: nobody could have it", i+1)
		}
		n.grantCredits(0)
		if got := [2]int{len(c.tags(falcon.EvCredit)), len(a.tags(falcon.EvCredit))}; got != want {
			t.Errorf("with %d free: told %v, want %v", i+1, got, want)
		}
	}
	if len(n.creditless) != 0 {
		t.Errorf("%d wait", len(n.creditless))
	}
}

// TestEndsThatNameEachOtherAreJoined: an end is joined with the one that names it, in whichever
// order they are opened. An end that is joined already is not joined again.
func TestEndsThatNameEachOtherAreJoined(t *testing.T) {
	n := newNIC()
	a := n.open(t, 1, 2, nil)
	stranger := n.open(t, 3, 1, nil)
	wrong := n.open(t, 2, 9, nil)
	if a.peer != nil || stranger.peer != nil || wrong.peer != nil {
		t.Error("ends that do not name each other are joined")
	}
	if _, err := n.Open(falcon.ConnConfig{LocalCID: 1, RemoteCID: 2}); err == nil {
		t.Error("an identifier is given twice")
	}
	wrong.Close(0)
	b := n.open(t, 2, 1, nil)
	if a.peer != b.Conn || b.peer != a.Conn {
		t.Error("ends that name each other are not joined")
	}
	b.Close(0)
	if again := n.open(t, 2, 1, nil); again.peer != nil || a.peer != nil {
		t.Error("an end whose other end has gone gets another")
	}
	self := n.open(t, 7, 7, nil)
	if self.peer != self.Conn {
		t.Error("an end that names itself is not its own other end")
	}
	self.push(1, nil)
	n.Run(0)
	if len(self.tags(falcon.EvPush)) != 1 || len(self.tags(falcon.EvPushDone)) != 1 {
		t.Errorf("it hears %+v of itself", self.got)
	}
}

// TestATransactionWithoutDataOrPeerFails: a transaction that an end cannot fill, or that has no peer, fails locally.
func TestATransactionWithoutDataOrPeerFails(t *testing.T) {
	n := newNIC()
	a, b := n.pair(t, nil)
	a.unready = errors.New("gone")
	a.push(1, nil)
	n.Run(0)
	if len(a.got) != 1 || a.got[0].Code != falcon.CmplLocalXlr || len(b.got) != 0 {
		t.Errorf("initiator hears %+v, target %+v", a.got, b.got)
	}
	a.unready, a.got = nil, nil
	b.SetUser(nil)
	a.push(2, nil)
	n.Run(0)
	if len(a.got) != 1 || a.got[0].Code != falcon.CmplDeadConn || b.User() != nil {
		t.Errorf("without a user: %+v", a.got)
	}
	if err := a.RespondPull(0, 0, 0, -1); err == nil {
		t.Error("a response of less than nothing")
	}
	a.Close(0)
	a.answer = answer{rsn: 3, most: 10}
	if err := a.RespondPull(0, 3, 0, 1); !errors.Is(err, falcon.ErrClosed) {
		t.Errorf("a response of an end that is closed: %v", err)
	}
}

// TestWaitingEndsGetCreditInTurn: of several ends that wait for the same credit each gets it in
// turn, and then waits behind the others.
func TestWaitingEndsGetCreditInTurn(t *testing.T) {
	limit := credit.NoLimit()
	limit[credit.ReqPktTx] = 1
	node := credit.New(nil, limit)
	n := newNIC()
	const count, each = 4, 3
	var order []falcon.CID
	for i := range falcon.CID(count) {
		u := n.open(t, 10+i, 20+i, node)
		n.open(t, 20+i, 10+i, nil).answers = func(ev *falcon.Event) {
			order = append(order, i)
			n.ends[20+i].AckPush(0, ev.RSN)
		}
		eager := &eager{u, each}
		u.SetUser(eager)
		eager.issueAll()
	}
	for n.Run(0) {
	}
	want := []falcon.CID{0, 0, 1, 2, 3, 0, 1, 2, 3, 1, 2, 3} // the first had one before the others came
	if !slices.Equal(order, want) || len(n.creditless) != 0 || node.InUse() != (credit.Cost{}) {
		t.Errorf("in turn %v, want %v; %d wait", order, want, len(n.creditless))
	}
}

// eager issues as many pushes as it can, until it has issued all that it is to.
type eager struct {
	*user
	left int
}

func (e *eager) issueAll() {
	for e.left > 0 && e.Push(0, 0, 3) == nil {
		e.left--
	}
}

func (e *eager) Handle(now falcon.Time, ev *falcon.Event) {
	e.user.Handle(now, ev)
	if ev.Kind == falcon.EvCredit {
		e.issueAll()
	}
}

// TestRequestsLongerThanTheMTUAreRefused: requests and responses of exactly the MTU are issued.
func TestRequestsLongerThanTheMTUAreRefused(t *testing.T) {
	const mtu = 1080
	e := New(nil)
	l, err := e.Open(falcon.ConnConfig{LocalCID: 1, RemoteCID: 1, MTU: mtu})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		issue func() error
		want  error
	}{
		"push":              {func() error { return l.Push(0, 0, mtu) }, nil},
		"long push":         {func() error { return l.Push(0, 0, mtu+1) }, falcon.ErrTooLong},
		"negative push":     {func() error { return l.Push(0, 0, -1) }, falcon.ErrTooLong},
		"empty push":        {func() error { return l.Push(0, 0, 0) }, nil},
		"pull":              {func() error { return l.Pull(0, 0, mtu, mtu) }, nil},
		"long request":      {func() error { return l.Pull(0, 0, mtu+1, mtu) }, falcon.ErrTooLong},
		"negative request":  {func() error { return l.Pull(0, 0, -1, mtu) }, falcon.ErrTooLong},
		"long response":     {func() error { return l.Pull(0, 0, mtu, mtu+1) }, falcon.ErrTooLong},
		"negative response": {func() error { return l.Pull(0, 0, mtu, -1) }, falcon.ErrTooLong},
		"empty pull":        {func() error { return l.Pull(0, 0, 0, 0) }, nil},
	} {
		if err := c.issue(); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	l.answer = answer{rsn: 7, most: 100}
	if err := l.RespondPull(0, 7, 0, 101); !errors.Is(err, falcon.ErrTooLong) {
		t.Errorf("response longer than asked for: %v", err)
	}
	if err := l.RespondPull(0, 7, 0, 100); err != nil || l.answer.kind != answerResponse {
		t.Errorf("response as long as asked for: %v", err)
	}
	l.answer = answer{rsn: 7}
	l.NackPush(0, 8, falconwire.NackNRE, 0, 0)
	l.AckPush(0, 8)
	if l.answer.kind != unanswered {
		t.Error("an answer to another request is taken")
	}
}
