package cm

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand"
	"slices"
)

const ms = Time(1_000_000)

// world is a set of NICs on a full mesh of links. A link is ordered, delays
// messages until the receiver handles them, loses nothing while it is up, and
// loses what the receiver has not handled when it breaks (or part of it).
type world struct {
	now   Time
	nodes map[PeerID]*node
	up    map[[2]PeerID]bool
	fatal func(format string, args ...any)
	seed  int64
}

type inKind uint8

const (
	inMessage inKind = iota
	inUp
	inDown
)

type input struct {
	kind inKind
	from PeerID
	msg  []byte
}

// node is one NIC: a Manager, the state that a device would keep beside it, and a record of the
// outputs for its functions.
type node struct {
	w     *world
	host  PeerID // also the ID that its peers have for it
	peers []PeerID
	m     *Manager
	cfg   Config
	local []Endpoint
	inbox []input
	conns map[uint32]*record
	order []uint32 // IDs in order of appearance
	errs  []error  // of Receive

	cids    map[uint32]bool
	nextCID uint32
	maxCIDs int
	saGen   map[Use]uint32
	prevSPI map[Use]uint32 // SA before the last rekey, until the peer confirmed that
}

type record struct {
	id, fn   uint32
	params   *Params
	requests int
	opened   bool
	closed   bool
	estab    bool
	end      OutputKind
	reason   Reason
	consumer uint32
	private  []byte // with OutRequest, OutEstablished or the end
	silent   bool   // no end is expected: function gone, or rejected by it
}

// live reports whether the function may still use the connection.
func (r *record) live() bool { return r.end == 0 && !r.silent }

func (n *node) AllocCID(fn uint32) (uint32, error) {
	if len(n.cids) >= n.maxCIDs {
		return 0, errors.New("no CID left")
	}
	n.nextCID++
	n.cids[n.nextCID] = true
	return n.nextCID, nil
}

func (n *node) FreeCID(cid uint32) {
	if !n.cids[cid] {
		n.w.fatal("host %d: CID %d freed but not allocated", n.host, cid)
	}
	delete(n.cids, cid)
}

func (n *node) RxSA(u Use) (SA, error) {
	n.saGen[u] += 0 // it is known from now on
	spi := uint32(n.host)<<28 | n.saGen[u]<<12 | uint32(u.Shard)<<8 | uint32(u.Peer)<<4 | u.Tenant&0xf
	return SA{Version: 0, SPI: spi, Key: bytes.Repeat([]byte{byte(spi), byte(spi >> 8), byte(spi >> 16), byte(spi >> 24)}, 4)}, nil
}

func (n *node) ForgetSAs(peer PeerID) {
	for u := range n.saGen {
		if u.Peer == peer {
			n.saGen[u]++
			delete(n.prevSPI, u)
		}
	}
}

// sealedBy returns the use of packets that a shard of a host seals for us, in the tenant of all
// tests.
func sealedBy(host PeerID, shard uint8) Use { return Use{Peer: host, Shard: shard, Tenant: 7} }

// shardOf returns the shard of a function: even and odd functions are on different shards.
func shardOf(fn uint32) uint8 { return uint8(fn & 1) }

// rekey gives a shard of a peer a new SA, unless it has not confirmed the last.
func (n *node) rekey(u Use) bool {
	if n.prevSPI[u] != 0 {
		return false
	}
	old, _ := n.RxSA(u)
	n.prevSPI[u] = old.SPI
	n.saGen[u]++
	sa, _ := n.RxSA(u)
	if err := n.m.Rekey(u, sa); err != nil {
		n.w.fatal("host %d: Rekey: %v", n.host, err)
	}
	for _, r := range n.openTo(u.Peer) {
		if r.params.PeerShard == u.Shard {
			r.params.RxSPI = sa.SPI
		}
	}
	return true
}

// openTo returns the open connections to a peer.
func (n *node) openTo(peer PeerID) (list []*record) {
	for _, r := range n.conns {
		if r.opened && !r.closed && r.params.Peer == peer {
			list = append(list, r)
		}
	}
	return list
}

// rekeyed handles the outputs about SAs as a device does.
func (n *node) rekeyed(o *Output) {
	switch o.Kind {
	case OutRekey:
		for _, r := range n.openTo(o.Use.Peer) {
			if r.params.Shard == o.Use.Shard {
				r.params.TxSPI, r.params.TxKey = o.SA.SPI, o.SA.Key
			}
		}
	case OutRekeyed:
		if sa, _ := n.RxSA(o.Use); sa.SPI != o.SA.SPI || n.prevSPI[o.Use] == 0 {
			n.w.fatal("host %d: SPI %#x confirmed, current is %#x", n.host, o.SA.SPI, sa.SPI)
		}
		delete(n.prevSPI, o.Use)
		n.w.checkKeys()
	case OutRekeyWanted:
		if sa, _ := n.RxSA(o.Use); sa.SPI == o.SA.SPI {
			n.rekey(o.Use)
		}
	}
}

// checkKeys checks an invariant: a sender on a connection that is open at both ends seals with an
// SA that the receiver accepts.
func (w *world) checkKeys() {
	for _, n := range w.nodes {
		for _, r := range n.conns {
			if !r.opened || r.closed {
				continue
			}
			o, me := n.is(r.params.Peer)
			for _, q := range o.openTo(me) {
				if q.params.LocalCID != r.params.RemoteCID || q.params.RemoteCID != r.params.LocalCID {
					continue
				}
				if o == n {
					continue
				}
				u := sealedBy(n.host, shardOf(r.fn)) // no other shard of it may use the key
				if sa, _ := o.RxSA(u); r.params.TxSPI != sa.SPI && r.params.TxSPI != o.prevSPI[u] {
					w.fatal("host %d seals with SPI %#x, host %d accepts %#x and %#x", n.host, r.params.TxSPI, o.host, sa.SPI, o.prevSPI[u])
				}
			}
		}
	}
}

func newWorld(fatal func(string, ...any)) *world {
	return &world{nodes: map[PeerID]*node{}, up: map[[2]PeerID]bool{}, fatal: fatal, seed: 1}
}

func pair(a, b PeerID) [2]PeerID { return [2]PeerID{min(a, b), max(a, b)} }

// add makes a NIC with functions 0 to 3, all in tenant 7; the GID of function f
// of host h is 10.0.h.f.
func (w *world) add(host PeerID, peers ...PeerID) *node {
	n := &node{w: w, host: host, peers: peers, maxCIDs: 1 << 20, saGen: map[Use]uint32{}}
	n.cfg = Config{Host: HostID(host)}
	for f := range uint32(4) {
		n.local = append(n.local, Endpoint{7, gidOf(host, f), fnOf(host, f), shardOf(f)})
	}
	w.nodes[host] = n
	n.start()
	return n
}

// peerOf describes a host to its peers.
func peerOf(host PeerID) Peer {
	return Peer{ID: host, Name: fmt.Sprint(host), Host: HostID(host), Tenants: []uint32{7}}
}

// is returns the node that an ID means at n, and the ID that n has there.
func (n *node) is(id PeerID) (*node, PeerID) {
	if id == Self {
		return n, Self
	}
	return n.w.nodes[id], n.host
}

func fnOf(host PeerID, f uint32) uint32    { return uint32(host)<<16 | f }
func gidOf(host PeerID, f uint32) [16]byte { return gid4(10, 0, byte(host), byte(f)) }

// start begins a new process: nothing of the previous one remains.
func (n *node) start() {
	n.w.seed++
	n.cids, n.conns, n.order, n.inbox, n.errs = map[uint32]bool{}, map[uint32]*record{}, nil, nil, nil
	for u := range n.saGen {
		n.saGen[u] += 16 // keys are random per start
	}
	m, err := New(n.cfg, n, rand.New(rand.NewSource(n.w.seed)))
	if err != nil {
		n.w.fatal("New: %v", err)
	}
	for _, p := range n.peers {
		if err := m.AddPeer(peerOf(p)); err != nil {
			n.w.fatal("AddPeer: %v", err)
		}
	}
	if err := m.SetEndpoints(n.local); err != nil {
		n.w.fatal("SetEndpoints: %v", err)
	}
	n.m = m
	n.prevSPI = map[Use]uint32{}
}

// setLink brings a link up or breaks it. Of n messages in flight when it breaks, each side still
// gets keep(n).
func (w *world) setLink(a, b PeerID, up bool, keep func(int) int) {
	if w.up[pair(a, b)] == up {
		return
	}
	w.up[pair(a, b)] = up
	for _, side := range [][2]PeerID{{a, b}, {b, a}} {
		n, from := w.nodes[side[0]], side[1]
		if up {
			n.inbox = append(n.inbox, input{kind: inUp, from: from})
			continue
		}
		first := len(n.inbox) // messages of this link since it came up
		for first > 0 && (n.inbox[first-1].from != from || n.inbox[first-1].kind == inMessage) {
			first--
		}
		inFlight := 0
		for _, in := range n.inbox[first:] {
			if in.from == from {
				inFlight++
			}
		}
		left := inFlight
		if keep != nil {
			left = keep(inFlight)
		}
		rest := n.inbox[:first:first]
		for _, in := range n.inbox[first:] {
			if in.from == from {
				if left == 0 {
					continue
				}
				left--
			}
			rest = append(rest, in)
		}
		n.inbox = append(rest, input{kind: inDown, from: from})
	}
}

// deliver makes a node handle the first entry of its inbox.
func (n *node) deliver() bool {
	if len(n.inbox) == 0 {
		return false
	}
	in := n.inbox[0]
	n.inbox = n.inbox[1:]
	switch in.kind {
	case inUp:
		n.m.PeerUp(n.w.now, in.from)
	case inDown:
		n.m.PeerDown(n.w.now, in.from)
	default:
		if err := n.m.Receive(n.w.now, in.from, in.msg); err != nil {
			n.errs = append(n.errs, err)
		}
	}
	n.drain()
	return true
}

// settle delivers until nothing is in flight.
func (w *world) settle() {
	for again := true; again; {
		again = false
		for _, h := range w.hosts() {
			for w.nodes[h].deliver() {
				again = true
			}
		}
	}
}

func (w *world) hosts() []PeerID {
	var hs []PeerID
	for h := range w.nodes {
		hs = append(hs, h)
	}
	slices.Sort(hs)
	return hs
}

// advance moves time in the steps the timers ask for.
func (w *world) advance(d Time) {
	until := w.now + d
	for {
		next := Time(math.MaxInt64)
		for _, n := range w.nodes {
			next = min(next, n.m.Deadline())
		}
		w.now = min(max(next, w.now), until)
		for _, h := range w.hosts() {
			w.nodes[h].m.Advance(w.now)
			w.nodes[h].drain()
		}
		if next >= until {
			return
		}
	}
}

// drain takes the outputs and checks that they make sense.
func (n *node) drain() {
	var o Output
	for n.m.Next(&o) {
		if o.Kind == OutSend {
			if to, from := n.is(o.Peer); to == n || n.w.up[pair(n.host, o.Peer)] {
				to.inbox = append(to.inbox, input{from: from, msg: bytes.Clone(o.Msg)})
			}
			continue
		}
		if o.Kind >= OutRekey {
			n.rekeyed(&o)
			continue
		}
		r := n.conns[o.ID]
		if r == nil {
			r = &record{id: o.ID, fn: o.Function}
			n.conns[o.ID] = r
			n.order = append(n.order, o.ID)
		}
		n.note(r, &o)
	}
}

func (n *node) note(r *record, o *Output) {
	bad := func(why string) {
		n.w.fatal("host %d: %v for connection %d: %s (record %+v)", n.host, o.Kind, o.ID, why, r)
	}
	if o.Function != r.fn {
		bad("of another function")
	}
	if r.end != 0 {
		bad("after its end")
	}
	if len(o.Private) > MaxPrivate {
		bad("too much private data")
	}
	switch o.Kind {
	case OutRequest:
		if r.requests++; r.requests > 1 || r.opened {
			bad("twice")
		}
		r.private = o.Private
	case OutOpen:
		if r.opened {
			bad("twice")
		}
		r.opened, r.params = true, o.Params
		if r.params.Peer == Self && r.params.TxKey != nil {
			bad("a local connection with a key")
		}
		if r.params.Peer != Self {
			sa, _ := n.RxSA(sealedBy(r.params.Peer, r.params.PeerShard)) // a device accepts its current SA, whatever it offered
			r.params.RxSPI = sa.SPI
		}
		if !n.cids[o.Params.LocalCID] {
			bad("its CID is not allocated")
		}
	case OutEstablished:
		if !r.opened || r.closed || r.estab {
			bad("not open, or twice")
		}
		r.estab = true
		r.private = o.Private
	case OutClose:
		if !r.opened || r.closed {
			bad("not open")
		}
		r.closed = true
		if !n.cids[r.params.LocalCID] {
			bad("its CID was freed before")
		}
	case OutRejected, OutDisconnected, OutUnreachable:
		if r.silent {
			bad("no end was expected")
		}
		if r.opened != r.closed {
			bad("ended while open")
		}
		if o.Kind == OutRejected && r.opened {
			bad("rejected while open")
		}
		if o.Reason == ReasonNone {
			bad("without a reason")
		}
		r.end, r.reason, r.consumer, r.private = o.Kind, o.Reason, o.Consumer, o.Private
	default:
		bad("unknown output")
	}
}

// connect requests a connection from function f to function g of another host.
func (n *node) connect(f uint32, to PeerID, g uint32, service uint64) (uint32, error) {
	id, err := n.m.Connect(n.w.now, ConnectRequest{
		Function: fnOf(n.host, f), Tenant: 7, QPN: 16 + f, Service: service,
		SGID: gidOf(n.host, f), DGID: gidOf(to, g), MTU: 1024, Ordered: true, Private: []byte("req"), CompleteInError: g&1 != 0,
	})
	if err == nil {
		n.conns[id] = &record{id: id, fn: fnOf(n.host, f)}
		n.order = append(n.order, id)
	}
	n.drain()
	return id, err
}

func (n *node) accept(id uint32) error {
	err := n.m.Accept(n.w.now, n.conns[id].fn, id, 99, 0, []byte("rep"))
	n.drain()
	return err
}

func (n *node) reject(id, reason uint32) error {
	r := n.conns[id]
	err := n.m.Reject(n.w.now, r.fn, id, reason, []byte("no"))
	r.silent = r.silent || err == nil
	n.drain()
	return err
}

func (n *node) disconnect(id uint32) error {
	err := n.m.Disconnect(n.w.now, n.conns[id].fn, id)
	n.drain()
	return err
}

func (n *node) functionGone(fn uint32) {
	for _, r := range n.conns {
		if r.fn == fn && r.end == 0 {
			r.silent = true
		}
	}
	n.m.FunctionGone(n.w.now, fn)
	n.drain()
}

// waiting returns the requests that the function has not answered.
func (n *node) waiting() (ids []uint32) {
	for _, id := range n.order {
		if r := n.conns[id]; r.requests > 0 && !r.opened && r.live() {
			ids = append(ids, id)
		}
	}
	return ids
}

// checkRest checks the state when nothing is in flight and no timer runs: every connection is
// established at both ends with matching parameters, and nothing else is left.
func (w *world) checkRest() {
	type end struct {
		n *node
		p *Params
	}
	byCID := map[string]end{}
	for _, h := range w.hosts() {
		n := w.nodes[h]
		all := n.m.Connections()
		for _, c := range all {
			r := n.conns[c.ID]
			if c.State != StateEstablished {
				w.fatal("host %d: connection %d rests in %v", h, c.ID, c.State)
			} else if !r.live() || !r.estab || r.closed {
				w.fatal("host %d: connection %d is established but its record is %+v", h, c.ID, r)
			}
			byCID[fmt.Sprint(h, r.params.LocalCID)] = end{n, r.params}
		}
		if len(all) != len(n.cids) {
			w.fatal("host %d: %d connections hold %d CIDs", h, len(all), len(n.cids))
		}
		for id, r := range n.conns {
			if r.opened && !r.closed && n.m.conns.byID[id] == nil {
				w.fatal("host %d: connection %d was never closed", h, id)
			}
			if r.live() && n.m.conns.byID[id] == nil {
				w.fatal("host %d: connection %d vanished without an end: %+v", h, id, r)
			}
		}
		for fn, u := range n.m.conns.functions {
			conns := 0
			for _, c := range all {
				if c.Function == fn {
					conns++
				}
			}
			if len(u.conns) != conns || u.backlog.used != 0 || !u.waiting.Empty() {
				w.fatal("host %d: function %#x is counted as %+v, has %d connections", h, fn, *u, conns)
			}
		}
		if len(n.m.conns.passive) > len(all) || n.m.conns.timers.Deadline() != math.MaxInt64 {
			w.fatal("host %d: %d passive names, next timer %d", h, len(n.m.conns.passive), n.m.conns.timers.Deadline())
		}
		if s := n.m.Stats(); s.IllegalEvents != 0 {
			w.fatal("host %d: illegal events: %+v", h, s)
		}
	}
	for _, e := range byCID {
		p := e.p
		to, from := e.n.is(p.Peer)
		o, ok := byCID[fmt.Sprint(to.host, p.RemoteCID)]
		if !ok {
			w.fatal("host %d: the other end of %+v is gone", e.n.host, p)
			continue
		}
		q := o.p
		sa, _ := o.n.RxSA(sealedBy(from, p.Shard))
		if o.n == e.n {
			sa = SA{}
		}
		want := Params{
			ID: p.ID, Function: q.PeerFunction, Tenant: q.Tenant, QPN: q.PeerQPN, PeerQPN: q.QPN, Peer: p.Peer, PeerName: p.PeerName,
			PeerFunction: q.Function, Shard: q.PeerShard, PeerShard: shardOf(q.Function), LocalGID: q.PeerGID, PeerGID: q.LocalGID, LocalCID: q.RemoteCID, RemoteCID: q.LocalCID,
			TxVersion: sa.Version, TxSPI: sa.SPI, TxKey: sa.Key, RxSPI: q.TxSPI,
			TxDataPSN: q.RxDataPSN, TxReqPSN: q.RxReqPSN, TxRSN: q.RxRSN,
			RxDataPSN: q.TxDataPSN, RxReqPSN: q.TxReqPSN, RxRSN: q.TxRSN,
			MTU: q.MTU, Ordered: q.Ordered, RemoteTime: p.RemoteTime, Active: !q.Active, CompleteInError: q.CompleteInError,
		}
		if fmt.Sprintf("%+v", *p) != fmt.Sprintf("%+v", want) {
			w.fatal("ends differ:\n%+v\n%+v", *p, want)
		}
	}
}
