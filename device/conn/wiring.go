package conn

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma"
)

// A queue pair that its driver takes to RTR itself, with the peer's number and
// GID exchanged elsewhere, gets its connection from here. Of the two ends the
// one with the lower (GID, number) asks, the other answers, so that it does not
// matter who is first:
//
//	lower end: RTR ── REQ{serviceWire, both numbers} ──▶ higher end in RTR: accept
//	                                                     not yet there: hold
//	                                                     cannot be meant: reject, the lower end asks again
//
// The drivers hear nothing of it. A queue pair named as its own peer gets a
// loopback connection with itself.

// Services from firstReserved on belong to the NICs; no driver can listen on
// them or connect to them.
const (
	firstReserved = uint64(abi.FirstReservedService)
	serviceWire   = firstReserved
	serviceUD     = firstReserved + 1
)

const (
	driverListeners   = 256 // per function
	reservedListeners = 2   // in addition
)

// listenReserved makes the function known to other NICs for their own requests.
func (f *Function) listenReserved() {
	for _, service := range []uint64{serviceWire, serviceUD} {
		_ = f.set.cfg.Manager.Listen(f.number(), service) // there is always room
	}
}

// reservedRequest takes a request that a NIC makes for itself.
func (f *Function) reservedRequest(now falcon.Time, o *cm.Output) {
	f.conns[o.ID] = &connection{wired: true, peerQPN: o.PeerQPN}
	switch o.Service {
	case serviceWire:
		f.wireRequest(now, o)
	case serviceUD:
		f.linkRequest(now, o)
	default:
		f.rejectReserved(now, o.ID)
	}
}

// reservedOutput takes what becomes of a connection that a NIC asked for.
func (f *Function) reservedOutput(now falcon.Time, o *cm.Output, c *connection) {
	switch {
	case c.link != nil && o.Kind != cm.OutEstablished:
		f.linkEnded(now, o, c)
	case c.link != nil:
	case o.Kind == cm.OutEstablished:
		f.unwire(c.qpn)
	default:
		f.wireEnded(now, o, c)
	}
}

const (
	wireRetry   = 500e6 // ns between two attempts
	MaxHeld     = 128   // requests for queue pairs that are not in RTR yet, per function; one source has half
	rejectWrong = 1     // reason of a rejection: the queue pair named has another peer, or is gone
)

// wiring is a queue pair in RTR or later whose connection is not there yet.
type wiring struct {
	f    *Function
	qpn  uint32
	peer uint32
	gid  [16]byte
	id   uint32      // of the attempt under way; 0: none
	at   falcon.Time // of the next attempt
	gone bool        // wired, or the queue pair ended
}

// wireKey names both ends as a request does: ours first.
type wireKey struct {
	qpn, peer uint32
	gid       [16]byte
}

// Wire begins to connect a queue pair that was moved to RTR.
func (f *Function) Wire(now falcon.Time, qpn uint32) {
	q := f.verbs.QP(qpn)
	if q == nil {
		return
	}
	peer, gid, ok := q.Wired()
	if !ok || q.Connected() {
		return
	}
	own := f.GID()
	switch order := bytes.Compare(own[:], gid[:]); {
	case order == 0 && qpn == peer:
		f.wireSelf(now, q)
		return
	case order > 0 || order == 0 && qpn > peer:
		k := wireKey{qpn, peer, gid}
		if id, held := f.held[k]; held {
			delete(f.held, k)
			f.acceptWire(now, id, qpn)
		}
		return
	}
	w := &wiring{f: f, qpn: qpn, peer: peer, gid: gid}
	f.wirings[qpn] = w
	w.ask(now)
}

// ask sends a request, or sees to it that it is tried again.
func (w *wiring) ask(now falcon.Time) {
	f := w.f
	q := f.verbs.QP(w.qpn)
	var priv [4]byte
	binary.BigEndian.PutUint32(priv[:], w.peer)
	id, err := f.set.cfg.Manager.Connect(now, cm.ConnectRequest{
		Function: f.number(), Tenant: f.Tenant, QPN: w.qpn, Service: serviceWire, SGID: f.GID(), DGID: w.gid,
		MTU: f.mtuOf(q) + headers, Ordered: q.Ordered(), IRD: q.IRD(), Private: priv[:],
		CompleteInError: q.CompletesInError(),
	})
	if err != nil {
		w.later(now)
		return
	}
	w.id = id
	f.conns[id] = &connection{wired: true}
	f.bind(id, w.qpn)
}

// mtuOf is the path MTU that a queue pair's connection begins with.
func (f *Function) mtuOf(q *rdma.QP) int {
	if n := q.PathMTU(); n != 0 {
		return min(n, f.set.cfg.MTU)
	}
	return f.set.cfg.MTU
}

// later tries again in a while. The queue is in the order of time, since all
// wait for as long.
func (w *wiring) later(now falcon.Time) {
	w.id, w.at = 0, now+wireRetry
	w.f.set.rewire = append(w.f.set.rewire, w)
}

// Advance makes the attempts that are due.
func (s *Functions) Advance(now falcon.Time) {
	n := 0
	for ; n < len(s.rewire) && s.rewire[n].at <= now; n++ {
		if w := s.rewire[n]; !w.gone {
			w.ask(now)
		}
	}
	if n > 0 {
		s.rewire = slices.Delete(s.rewire, 0, n)
		s.cfg.Manager.Run(now)
	}
}

// wireRequest takes the request of a peer's queue pair.
func (f *Function) wireRequest(now falcon.Time, o *cm.Output) {
	if len(o.Private) == 4 {
		qpn := binary.BigEndian.Uint32(o.Private)
		k := wireKey{qpn, o.PeerQPN, o.PeerGID}
		switch q := f.verbs.QP(qpn); {
		case q == nil:
		case q.State() == abi.QPStateReset || q.State() == abi.QPStateInit:
			if _, held := f.held[k]; !held && f.heldFor(o.PeerGID) < MaxHeld-len(f.held) {
				f.held[k] = o.ID
				return
			}
		default:
			if peer, gid, wired := q.Wired(); wired && !q.Connected() && peer == o.PeerQPN && gid == o.PeerGID && !f.pending(qpn) {
				f.acceptWire(now, o.ID, qpn)
				return
			}
		}
	}
	f.rejectReserved(now, o.ID)
}

// heldFor counts the requests of a source that are held.
func (f *Function) heldFor(gid [16]byte) (n int) {
	for k := range f.held {
		if k.gid == gid {
			n++
		}
	}
	return n
}

// acceptWire answers a request for one of our queue pairs in RTR.
func (f *Function) acceptWire(now falcon.Time, id, qpn uint32) {
	if err := f.set.cfg.Manager.Accept(now, f.number(), id, qpn, f.verbs.QP(qpn).IRD(), nil); err != nil {
		f.rejectReserved(now, id)
		return
	}
	f.bind(id, qpn)
}

// rejectReserved rejects a request of another NIC itself.
func (f *Function) rejectReserved(now falcon.Time, id uint32) {
	_ = f.set.cfg.Manager.Reject(now, f.number(), id, rejectWrong, nil) // it may have ended by itself
	f.forget(id)
}

// wireEnded is told how an attempt, or the connection it led to, ended.
func (f *Function) wireEnded(now falcon.Time, o *cm.Output, c *connection) {
	f.forget(o.ID)
	for k, id := range f.held {
		if id == o.ID {
			delete(f.held, k)
		}
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

// unwire gives up on a queue pair that has its connection, or has ended.
func (f *Function) unwire(qpn uint32) {
	if w := f.wirings[qpn]; w != nil {
		w.gone = true
		delete(f.wirings, qpn)
	}
}

// wireSelf connects a queue pair with itself. There is nobody to agree with, so
// the connection manager does not know of it.
func (f *Function) wireSelf(now falcon.Time, q *rdma.QP) {
	cid, err := f.set.cfg.CIDs.Alloc(f.number())
	if err != nil {
		return // its work fails for want of a peer
	}
	err = f.set.cfg.Table.Open(now, &Opening{
		Params: &cm.Params{
			Function: f.number(), PeerFunction: f.number(), LocalCID: cid, RemoteCID: cid, PeerQPN: q.Number(), PeerGID: f.GID(),
			MTU: f.mtuOf(q) + headers, Ordered: q.Ordered(), CompleteInError: q.CompletesInError(),
		},
		Owner: &f.Owner, User: User{QP: q}, Inner: underlay.Inner{Src: f.Addr, Dst: f.Addr},
	})
	if err != nil {
		f.set.cfg.CIDs.Free(cid)
	}
}
