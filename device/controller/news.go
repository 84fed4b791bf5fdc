package controller

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"

	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/inbox"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// peerMailSize is the most messages of one peer that may wait for the core. Beyond it the link's
// reader waits, and so TCP makes the peer wait.
const peerMailSize = 64

// PeerMail passes the events of the link to one peer to the core, in order. It implements the part
// of cmlink.Handler for that peer.
type PeerMail struct{ in *inbox.Mailbox[peerNews] }

type peerNews struct {
	kind uint8 // newsUp, newsDown, newsRevoked, newsMessage
	msg  []byte
}

const (
	newsUp uint8 = iota
	newsDown
	newsRevoked
	newsMessage
)

// String returns the kind of the news, and of a message its type and length.
func (n *peerNews) String() string {
	if n.kind != newsMessage {
		return [...]string{newsUp: "link up", newsDown: "link down", newsRevoked: "revoked"}[n.kind]
	}
	t, _ := cm.PeekType(n.msg)
	return fmt.Sprintf("%s of %d bytes", t, len(n.msg))
}

// newMail returns a mailbox for a peer.
func (k *Core) newMail(peer cm.PeerID) *PeerMail {
	return &PeerMail{inbox.NewMailbox(&k.box, peerMailSize, func(now vtime.Time, n *peerNews) { k.peerNews(now, peer, n) })}
}

// Up reports that the link to the peer is up.
func (m *PeerMail) Up() { m.in.Put(peerNews{kind: newsUp}) }

// Down reports that the link to the peer is down.
func (m *PeerMail) Down() { m.in.Put(peerNews{kind: newsDown}) }

// Revoked reports that the peer's right to be a peer was revoked.
func (m *PeerMail) Revoked() { m.in.Put(peerNews{kind: newsRevoked}) }

// Message passes a message of the peer's connection manager to the core. The mailbox owns msg from
// then on.
func (m *PeerMail) Message(msg []byte) { m.in.Put(peerNews{kind: newsMessage, msg: msg}) }

// Close drops all news that come later.
func (m *PeerMail) Close() { m.in.Close() }

// take passes news of a peer to the connection manager.
func (k *Core) take(now vtime.Time, peer cm.PeerID, n *peerNews) {
	switch n.kind {
	case newsUp:
		k.Manager.CM.PeerUp(now, peer)
	case newsDown:
		k.Manager.CM.PeerDown(now, peer)
	case newsRevoked:
		k.Manager.CM.ForgetPeer(now, peer)
	case newsMessage:
		if err := k.Manager.CM.Receive(now, peer, n.msg); err != nil {
			k.refused++
			k.cfg.Log(now, slog.LevelWarn, "connection management message refused", "peer", k.Manager.Name(peer), "err", err)
		}
		switch t, _ := cm.PeekType(n.msg); t {
		case cm.TypeHello:
		case cm.TypeBYE:
			k.cfg.Log(now, slog.LevelInfo, "a peer no longer has this NIC as its peer", "peer", k.Manager.Name(peer))
		default:
			return
		}
	}
	k.pathChanged(peer)
}

// errFault is the reason why a link ends when handling what a peer sent panicked.
var errFault = errors.New("a message on it triggered a bug in this program: see the log")

// peerNews handles news of a peer.
func (k *Core) peerNews(now vtime.Time, peer cm.PeerID, n *peerNews) {
	k.guard(now, n, func() (cm.PeerID, bool) { return peer, true }, func() {
		k.take(now, peer, n)
		k.Manager.Run(now)
	})
}

// request passes a shard's request to the connection manager.
func (k *Core) request(now vtime.Time, r *conn.Request) {
	if r.Kind == conn.PeerFault {
		k.faults++
		k.endPeer(now, cm.PeerID(r.N))
		return
	}
	blame := func() (cm.PeerID, bool) { return k.Manager.Blame(r) }
	if !k.guard(now, "a request about its connection", blame, func() { k.Manager.Take(now, r) }) && r.Question != (conn.Question{}) {
		shardsOf{k}.Answer(k.cfg.ShardOf(r.Function), conn.Answer{Question: r.Question, Err: errFault})
	}
}

// advance runs the connection manager's timers, and distributes what was decided.
func (k *Core) advance(now vtime.Time) {
	k.guard(now, "a timer of its connection", func() (cm.PeerID, bool) { return k.Manager.Blame(nil) }, func() {
		if now >= k.Manager.CM.Deadline() {
			k.Manager.CM.Advance(now)
		}
		k.Manager.Run(now)
	})
}

// guard calls do and reports whether it returned. No peer can end the NIC by what it sends: if do
// panics because of one, its link, keys and connections end, because a handler that stopped halfway
// may have left them in any state. Both NICs then start over. blame says which peer it was, if any.
func (k *Core) guard(now vtime.Time, what any, blame func() (cm.PeerID, bool), do func()) (ok bool) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		peer, has := blame()
		if !has {
			panic(v)
		}
		k.fault(now, peer, what, v)
		k.endPeer(now, peer)
	}()
	do()
	return true
}

// endPeer ends the link to a peer, its keys and its connections.
func (k *Core) endPeer(now vtime.Time, peer cm.PeerID) {
	k.survives(now, peer, func() { k.Manager.CM.ForgetPeer(now, peer) })
	for !k.survives(now, peer, func() { k.Manager.Run(now) }) { // each time takes at least one output
	}
	k.ends = append(k.ends, peer)
}

// survives calls do, a part of endPeer, and reports whether it returned.
func (k *Core) survives(now vtime.Time, peer cm.PeerID, do func()) (ok bool) {
	defer func() {
		if v := recover(); v != nil {
			k.fault(now, peer, "the end of its link", v)
		}
	}()
	do()
	return true
}

// fault counts and logs a panic. It does not log the message, which may contain keys.
func (k *Core) fault(now vtime.Time, peer cm.PeerID, what, v any) {
	k.faults++
	k.cfg.Log(now, slog.LevelError, "fault in the program: the link to a peer and its connections end; please report this line",
		"peer", k.Manager.Name(peer), "handling", fmt.Sprint(what), "panic", v, "stack", string(debug.Stack()))
}
