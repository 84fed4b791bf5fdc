package controller

import (
	"errors"
	"log/slog"
	"runtime/debug"

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

// String returns the kind of the news, and of a message its type.
func (n *peerNews) String() string {
	if n.kind != newsMessage {
		return [...]string{newsUp: "link up", newsDown: "link down", newsRevoked: "revoked"}[n.kind]
	}
	t, _ := cm.PeekType(n.msg)
	return t.String()
}

// PeerMail returns a new mailbox for a peer.
func (k *Core) PeerMail(host cm.HostID) *PeerMail {
	return &PeerMail{inbox.NewMailbox(&k.box, peerMailSize, func(now vtime.Time, n *peerNews) { k.peerNews(now, host, n) })}
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
func (k *Core) take(now vtime.Time, host cm.HostID, n *peerNews) {
	switch n.kind {
	case newsUp:
		k.Manager.PeerUp(now, host)
	case newsDown:
		k.Manager.PeerDown(now, host)
	case newsRevoked:
		k.Manager.ForgetPeer(now, host)
	case newsMessage:
		if err := k.Manager.Receive(now, host, n.msg); err != nil {
			k.refused++
			k.cfg.Log(now, slog.LevelWarn, "connection management message refused", "peer", host, "err", err)
		}
	}
}

// errFault is the reason why a link ends when handling a message panicked.
var errFault = errors.New("a message on it triggered a bug in this program: see the log")

// peerNews handles news of a peer. No peer can end the NIC by what it sends: if the handling panics,
// the link to this peer, its keys and its connections end, because a handler that stopped halfway
// may have left them in any state. Both NICs then start over.
func (k *Core) peerNews(now vtime.Time, host cm.HostID, n *peerNews) {
	run := func() { k.Manager.Run(now) }
	if k.survives(now, host, n, func() { k.take(now, host, n) }) && k.survives(now, host, n, run) {
		return
	}
	k.survives(now, host, n, func() { k.Manager.ForgetPeer(now, host) })
	for !k.survives(now, host, n, run) { // each time takes at least one output
	}
	k.ends = append(k.ends, host)
}

// survives calls do. If do panics, survives counts and logs that, and reports false. It does not log
// the message, which may contain keys.
func (k *Core) survives(now vtime.Time, host cm.HostID, n *peerNews, do func()) (ok bool) {
	defer func() {
		if v := recover(); v != nil {
			k.faults++
			k.cfg.Log(now, slog.LevelError, "fault in the program: the link to a peer and its connections end; please report this line",
				"peer", host, "message", n.String(), "bytes", len(n.msg), "panic", v, "stack", string(debug.Stack()))
		}
	}()
	do()
	return true
}
