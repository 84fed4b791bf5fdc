package controller

import (
	"log/slog"
	"sync"

	"github.com/falcon-vnic/vnic/device/inbox"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// peerMailSize bounds the messages of one peer that wait for the core; the
// link's reader waits beyond it, and TCP makes the peer wait.
const peerMailSize = 64

// PeerMail carries what happens on the link to one peer to the core, in
// order. It implements the part of cmlink.Handler for that peer.
type PeerMail struct {
	inbox *inbox.Box[*Core]
	host  cm.HostID

	mu      sync.Mutex
	space   sync.Cond
	waiting []peerNews
	spare   []peerNews
	posted  bool
	closed  bool
}

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

// PeerMail makes the mailbox of a peer.
func (k *Core) PeerMail(host cm.HostID) *PeerMail {
	m := &PeerMail{inbox: &k.box, host: host}
	m.space.L = &m.mu
	return m
}

// Up says that the link to the peer is there.
func (m *PeerMail) Up() { m.put(peerNews{kind: newsUp}) }

// Down says that the link to the peer went.
func (m *PeerMail) Down() { m.put(peerNews{kind: newsDown}) }

// Revoked says that the peer has no right to be one any more.
func (m *PeerMail) Revoked() { m.put(peerNews{kind: newsRevoked}) }

// Message passes a message of the peer's connection manager on, which is the mailbox's from then
// on.
func (m *PeerMail) Message(msg []byte) { m.put(peerNews{kind: newsMessage, msg: msg}) }

// put appends news, waiting for room.
func (m *PeerMail) put(n peerNews) {
	m.mu.Lock()
	for len(m.waiting) >= peerMailSize && !m.closed {
		m.space.Wait()
	}
	if m.closed {
		m.mu.Unlock()
		return
	}
	m.waiting = append(m.waiting, n)
	post := !m.posted
	m.posted = true
	m.mu.Unlock()
	if post && !m.inbox.Post(m) {
		m.Close()
	}
}

// Drain implements inbox.Source.
func (m *PeerMail) Drain(k *Core, now vtime.Time) {
	m.mu.Lock()
	batch := m.waiting
	m.waiting, m.spare = m.spare[:0], batch
	m.posted = false
	m.mu.Unlock()
	m.space.Broadcast()
	for i := range batch {
		k.peerNews(now, m.host, &batch[i])
		batch[i] = peerNews{}
	}
}

// Close drops what comes from now on.
func (m *PeerMail) Close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.space.Broadcast()
}

func (k *Core) peerNews(now vtime.Time, host cm.HostID, n *peerNews) {
	switch n.kind {
	case newsUp:
		k.Manager.PeerUp(now, host)
	case newsDown:
		k.Manager.PeerDown(now, host)
	case newsRevoked:
		k.Manager.PeerRevoked(now, host)
	case newsMessage:
		if err := k.Manager.Receive(now, host, n.msg); err != nil {
			k.refused++
			k.cfg.Log(now, slog.LevelWarn, "connection management message refused", "peer", host, "err", err)
		}
	}
	k.Manager.Run(now)
}
