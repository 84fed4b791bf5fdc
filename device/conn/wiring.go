package conn

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/rof"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// Services from firstReserved on are reserved for NICs: no driver can listen on them or connect to
// them.
const (
	firstReserved = uint64(abi.FirstReservedService)
	serviceWire   = firstReserved
	serviceUD     = firstReserved + 1
)

const (
	driverListeners   = 256 // per function
	reservedListeners = 2   // in addition
)

// rejectWrong is the reason of a rejection: the requested queue pair has another peer, or does not
// exist.
const rejectWrong = 1

// rejectReserved rejects a request that another NIC made for itself.
func (f *Connections) rejectReserved(id uint32) {
	f.tell(Request{Kind: Reject, ID: id, N: rejectWrong})
	f.forget(id)
}

// A driver may move a queue pair to RTR itself, with the peer's queue pair number and GID exchanged
// by other means. This file connects such queue pairs. Of the two ends, the one with the lower
// (GID, number) sends the request and the other answers, so that the order in which they reach RTR
// does not matter. A function may have several GIDs: an end's GID is the one that its driver named
// (SGIDIndex), and its peer must name the same one:
//
//	lower end: RTR ── REQ{serviceWire, both numbers} ──▶ higher end in RTR: accept
//	                                                     not yet there: hold
//	                                                     cannot be meant: reject, the lower end asks again
//
// The drivers get no events of this. A queue pair that names itself as its peer gets a loopback
// connection with itself.

const (
	wireRetry = 500e6 // ns between two attempts

	// MaxHeld bounds the held requests for a function's queue pairs that are not in RTR yet. A
	// requesting function can take at most half of the free places.
	MaxHeld = 128
)

// ConnectByNumber starts to connect a queue pair that was moved to RTR.
func (f *Connections) ConnectByNumber(now falcon.Time, qpn uint32) {
	q := f.verbs.QP(qpn)
	if q == nil {
		return
	}
	peer, gid, ok := q.Wired()
	if !ok || q.Connected() {
		return
	}
	w := &wiring{f: f, wireKey: wireKey{qpn: qpn, peer: peer, own: f.sgid(q), gid: gid}}
	switch order := bytes.Compare(w.own[:], gid[:]); {
	case order == 0 && qpn == peer:
		f.wireSelf(q)
		return
	case w.elsewhere(now, q):
		return
	case order > 0 || order == 0 && qpn > peer:
		if r, ok := f.held[w.wireKey]; ok {
			delete(f.held, w.wireKey)
			f.acceptWire(r.id, qpn)
		}
		return
	}
	f.wirings[qpn] = w
	w.ask(now)
}

// ask sends a request. If it is refused, it is sent again later.
func (w *wiring) ask(now falcon.Time) {
	f := w.f
	q := f.verbs.QP(w.qpn)
	if w.elsewhere(now, q) {
		return
	}
	a := f.begin(w.qpn)
	var priv [4]byte
	binary.BigEndian.PutUint32(priv[:], w.peer)
	f.ask(Request{Kind: Connect, Connect: &cm.ConnectRequest{
		Function: f.number(), Tenant: f.Tenant, QPN: w.qpn, Service: serviceWire, SGID: w.own, DGID: w.gid,
		MTU: f.connector.segmentOf(q) + headers, Ordered: q.Ordered(), IRD: q.IRD(), Private: priv[:],
		CompleteInError: q.CompletesInError(),
	}}, func(now falcon.Time, is *Answer) {
		a.begun(is, &connection{wired: true})
		switch {
		case a.over:
		case is.Err != nil:
			w.later(now)
		default:
			w.id = is.ID
		}
	})
}

// elsewhere connects the queue pair over a transport other than Falcon, if its peer is reached that
// way. It returns false for Falcon.
func (w *wiring) elsewhere(now falcon.Time, q *verbs.QP) bool {
	f := w.f
	if f.connector.cfg.Elsewhere == nil {
		return false
	}
	switch f.connector.cfg.Elsewhere(now, f, f.verbs, q) {
	case Connected:
		f.unwire(w.qpn)
	case Later:
		f.wirings[w.qpn] = w
		w.later(now)
	default:
		return false
	}
	return true
}

// later schedules another attempt. The queue is in order of time, since every wait is equally long.
func (w *wiring) later(now falcon.Time) {
	w.id, w.at = 0, now+wireRetry
	w.f.connector.rewire = append(w.f.connector.rewire, w)
}

// Advance makes the attempts that are due.
func (s *Connector) Advance(now falcon.Time) {
	n := 0
	for ; n < len(s.rewire) && s.rewire[n].at <= now; n++ {
		if w := s.rewire[n]; !w.gone {
			w.ask(now)
		}
	}
	s.rewire = slices.Delete(s.rewire, 0, n)
}

// wireRequest handles the request of a peer's queue pair.
func (f *Connections) wireRequest(o *cm.Output) {
	if len(o.Private) == 4 {
		qpn := binary.BigEndian.Uint32(o.Private)
		k := wireKey{qpn: qpn, peer: o.PeerQPN, own: o.LocalGID, gid: o.PeerGID}
		switch q := f.verbs.QP(qpn); {
		case q == nil:
		case q.State() == abi.QPStateReset || q.State() == abi.QPStateInit:
			if _, again := f.held[k]; !again && heldFor(f.held, o.Source()) < MaxHeld-len(f.held) {
				f.held[k] = held{o.ID, o.Source()}
				return
			}
		default:
			peer, gid, wired := q.Wired()
			if wired && !q.Connected() && k == (wireKey{qpn: qpn, peer: peer, own: f.sgid(q), gid: gid}) && !f.pending(qpn) {
				f.acceptWire(o.ID, qpn)
				return
			}
		}
	}
	f.rejectReserved(o.ID)
}

// heldFor returns the number of held requests of a requesting function.
func heldFor(all map[wireKey]held, source uint32) (n int) {
	for _, r := range all {
		if r.from == source {
			n++
		}
	}
	return n
}

// acceptWire accepts a request for one of our queue pairs in RTR.
func (f *Connections) acceptWire(id, qpn uint32) {
	f.bind(id, qpn)
	f.ask(Request{Kind: Accept, ID: id, N: qpn, IRD: f.verbs.QP(qpn).IRD()}, func(_ falcon.Time, a *Answer) {
		if a.Err != nil && f.conns[id] != nil {
			f.rejectReserved(id)
		}
	})
}

// wireEnded handles the end of an attempt, or of the connection that it made.
func (f *Connections) wireEnded(now falcon.Time, o *cm.Output, c *connection) {
	f.forget(o.ID)
	for k, r := range f.held {
		if r.id == o.ID {
			delete(f.held, k)
		}
	}
	if q := f.verbs.QP(c.qpn); q != nil && o.Kind == cm.OutDisconnected && forGood(o.Reason) {
		q.PeerGone(now)
	}
	w := f.wirings[c.qpn]
	if w == nil || w.id != o.ID {
		return
	}
	if o.Kind == cm.OutDisconnected {
		f.unwire(c.qpn)
		return
	}
	w.later(now)
}

// forGood reports whether the whole function at the other end has gone, or went to another NIC. It is false
// if only the queue pair ended: the verbs program at this end learns of that from its own peer.
func forGood(r cm.Reason) bool {
	switch r {
	case cm.ReasonFunctionGone, cm.ReasonPeerRemoved, cm.ReasonGID, cm.ReasonTenant:
		return true
	}
	return false
}

// wireSelf connects a queue pair with itself. No peer has to agree.
func (f *Connections) wireSelf(q *verbs.QP) {
	a := f.begin(q.Number())
	f.ask(Request{Kind: TakeCID}, func(now falcon.Time, is *Answer) {
		wanted := a.answered()
		if is.Err != nil {
			return // its work requests fail for lack of a peer
		}
		if !wanted || !f.openSelf(now, q, is.ID) {
			f.tell(Request{Kind: GiveCID, N: is.ID})
		}
	})
}

func (f *Connections) openSelf(now falcon.Time, q *verbs.QP, cid uint32) bool {
	own := f.sgid(q)
	addr := netip.AddrFrom16(own).Unmap()
	return nil == f.connector.cfg.Table.Open(now, &Opening{
		Params: &cm.Params{
			Function: f.number(), PeerFunction: f.number(), LocalCID: cid, RemoteCID: cid, PeerQPN: q.Number(), PeerGID: own,
			MTU: f.connector.segmentOf(q) + headers, Ordered: q.Ordered(), CompleteInError: q.CompletesInError(),
		},
		Owner: &f.Owner, User: &qpUser{qp: q, rdma: f.connector.cfg.RDMA}, Inner: underlay.Inner{Src: addr, Dst: addr},
	})
}

// Datagrams between two functions share connections, called links (rof.Link). The sender's NIC
// makes them, one ordered and one not, each by a request to serviceUD. Its private data are the
// header fields that the datagrams are sent with:
//
//	traffic class 8 | hop limit 8
const linkPrivate = 2

// gsiNumber is the queue pair number in requests for links, which have no queue pair.
const gsiNumber = 1

// ConnectLinks requests the connections that links need.
func (s *Connector) ConnectLinks() {
	for l := s.cfg.RDMA.NextLink(); l != nil; l = s.cfg.RDMA.NextLink() {
		if f := s.byID[l.Function()]; f != nil {
			f.connectLink(l)
		}
	}
}

func (f *Connections) connectLink(l *rof.Link) {
	k := l.Key()
	f.ask(Request{Kind: Connect, Connect: &cm.ConnectRequest{
		Function: f.number(), Tenant: f.Tenant, QPN: gsiNumber, Service: serviceUD, SGID: k.SGID, DGID: k.GID,
		MTU: f.connector.cfg.MTU + headers, Ordered: k.Ordered, Private: []byte{k.TrafficClass, k.HopLimit},
	}}, func(now falcon.Time, a *Answer) {
		if a.Err != nil {
			l.Refused(now)
			return
		}
		f.conns[a.ID] = &connection{wired: true, link: l}
	})
}

// linkRequest handles a request for a link.
func (f *Connections) linkRequest(o *cm.Output) {
	if len(o.Private) == linkPrivate {
		k := rof.LinkKey{GID: o.PeerGID, SGID: o.LocalGID, TrafficClass: o.Private[0], HopLimit: o.Private[1], Ordered: o.Ordered}
		l := f.verbs.Links.Accept(k, o.Source())
		if l != nil {
			f.conns[o.ID].link = l
			f.ask(Request{Kind: Accept, ID: o.ID, N: gsiNumber}, func(now falcon.Time, a *Answer) {
				if a.Err != nil && f.conns[o.ID] != nil {
					f.connector.cfg.Log(now, slog.LevelWarn, "link not accepted", "function", f.Describe(), "err", a.Err)
					l.Refused(now)
					f.rejectReserved(o.ID)
				}
			})
			return
		}
	}
	f.rejectReserved(o.ID)
}

// linkEnded handles the end of an attempt, or of the connection that it made.
func (f *Connections) linkEnded(now falcon.Time, o *cm.Output, c *connection) {
	f.forget(o.ID)
	if o.Kind != cm.OutDisconnected {
		c.link.Refused(now)
	}
}
