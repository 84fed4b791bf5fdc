package controller

import (
	"encoding/binary"
	"io"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/falcon-vnic/vnic/device/pathmtu"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// A peer over UDP may move. But a packet that comes from another address than its peer's, although it
// is authentic, may be a copy that somebody on the way has sent from there, faster than the packet
// itself. So the peer is asked first, as QUIC does (RFC 9000 §8.2, §9.3.3):
//
//	a shard: a packet came from elsewhere ─▶ both places are asked
//	                                          ├ only the new one answers ─▶ the peer is there
//	                                          └ the old one does, or none ─▶ it stays
//
// Until then packets go to the old place. The address that the configuration gives a peer need not
// wait for the silence of another. A question is a probe (package pathmtu) with a number that nobody
// can guess or read. It is hardly longer than the shortest packet of a peer, and at most four are
// sent to a new place in a second.

// Times of questions.
const (
	askEvery  = vtime.Time(250e6)
	asks      = 4
	leastWait = vtime.Time(100e6) // for the old place, after the new one has answered
	pause     = vtime.Time(1e9)   // after a suspected move that was none
)

// move is a peer's move that is not certain yet.
type move struct {
	to       netip.AddrPort // where it may be now; not valid: there is none
	new, old uint32         // numbers of the questions at both places; 0: the old one is not asked
	asked    int
	answered bool       // at the new place
	due      vtime.Time // next question, or decision; without a move: none begins before
}

// moves are those of all peers.
type moves struct{ list []*Peer }

func (m *moves) deadline() vtime.Time {
	due := vtime.Never
	for _, p := range m.list {
		due = min(due, p.move.due)
	}
	return due
}

// PeerMoved reports that a packet of a peer came from somewhere else.
func (c *ShardLink) PeerMoved(peer cm.PeerID, at netip.AddrPort) {
	c.post(func(k *Core, now vtime.Time) { k.peerMoved(now, peer, at) })
}

// peerMoved begins a move, if none is under way or was lately.
func (k *Core) peerMoved(now vtime.Time, id cm.PeerID, at netip.AddrPort) {
	peer := k.Peers.byID[id]
	if peer == nil || peer.At == at || peer.move.to.IsValid() || now < peer.move.due {
		return
	}
	m := move{to: at, new: k.token()}
	if m.new == 0 {
		return
	}
	if home := peer.Is.Underlay; !peer.At.Addr().IsUnspecified() && (home.Anywhere() || home.AddrPort != at) {
		m.old = k.token()
	}
	peer.move = m
	k.moves.list = append(k.moves.list, peer)
}

// token returns a random number; 0: there is none.
func (k *Core) token() uint32 {
	var b [4]byte
	if _, err := io.ReadFull(k.cfg.Rand, b[:]); err != nil {
		return 0
	}
	return binary.BigEndian.Uint32(b[:]) | 1
}

// advanceMoves asks and decides what is due.
func (k *Core) advanceMoves(now vtime.Time) {
	for _, peer := range slices.Clone(k.moves.list) {
		switch m := &peer.move; {
		case now < m.due:
		case m.answered:
			to := m.to
			k.endMove(peer, now)
			k.Peers.move(now, peer, to)
		case m.asked == asks:
			k.endMove(peer, now+pause)
		default:
			k.askMoved(peer)
			m.asked++
			m.due = now + askEvery
		}
	}
}

// askMoved asks a peer at both places.
func (k *Core) askMoved(peer *Peer) {
	tenant, shared := k.Manager.CM.SharedTenant(peer.ID)
	if !shared {
		return // there is no key to seal with
	}
	m := &peer.move
	ask := func(at netip.AddrPort, token uint32) {
		id := peer.ID
		k.shards[0].tell(func(to Orders, now vtime.Time) {
			to.ProbePath(now, id, at, tenant, pathmtu.Probe{Kind: pathmtu.Request, Round: token})
		})
	}
	if m.old != 0 {
		ask(peer.At, m.old)
	}
	if !m.answered {
		ask(m.to, m.new)
	}
}

// moveAnswered takes a peer's answer to a question.
func (k *Core) moveAnswered(now vtime.Time, peer *Peer, token uint32) {
	m := &peer.move
	switch {
	case !m.to.IsValid() || m.asked == 0 || token == 0:
	case token == m.old:
		k.endMove(peer, now+pause)
	case token == m.new && !m.answered:
		m.answered = true
		asked := m.due - askEvery
		if m.due = now; m.old != 0 { // the old place has as long again, and another question
			k.askMoved(peer)
			m.due = now + max(leastWait, now-asked)
		}
	}
}

// endMove forgets a peer's move. Another one may begin then.
func (k *Core) endMove(peer *Peer, then vtime.Time) {
	peer.move = move{due: then}
	k.moves.list = slices.DeleteFunc(k.moves.list, func(p *Peer) bool { return p == peer })
}

// move makes another place that of a peer.
func (p *Peers) move(now vtime.Time, peer *Peer, at netip.AddrPort) {
	p.core.cfg.Log(now, slog.LevelInfo, "a peer has moved", "peer", peer.Name, "from", peer.At, "to", at)
	peer.At = at
	p.core.Manager.CM.MovePeer(peer.ID, at) // not ChangePeer: a hostile peer may move often
	p.place(peer)
	p.core.searchAgain(peer)
}
