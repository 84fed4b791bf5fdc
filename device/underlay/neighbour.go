package underlay

import (
	"math"
	"net/netip"
)

// Times of the neighbour table, nanoseconds.
const (
	retryEvery   = 1_000_000_000  // between requests for one neighbour
	maxRequests  = 3              // unanswered requests before giving up
	refreshAfter = 30_000_000_000 // a used entry older than this is requested again, by unicast
	expireAfter  = 60_000_000_000 // an unused entry older than this is forgotten
	provedFor    = 15_000_000_000 // after an authentic packet from a host, other claims are ignored for this long
	rivalEvery   = 200_000_000    // two hosts that claim one address are tried alternately, each for this long
	maxTries     = 10             // after this many tries both are forgotten, and the address is requested again from all
)

// never is the deadline when no timer runs.
const never = math.MaxInt64

// A peer's packets are authenticated; ARP and neighbour discovery are not. So the first answer for
// an address is accepted, since nothing better is known. But a host from which authentic packets
// came is not replaced because of another host's claim (Authenticated). While no packet has been
// authenticated, a second host that claims an address is a rival: both are tried in turn until
// authentic packets come from one. If none come, the address is requested again from all. A
// router's packets need not come from the address with which it answers; it stays as long as it
// answers unicast requests. To avoid all this, the configuration can name the host's MAC address
// (Config.Neighbours).

// state of a neighbour:
//
//	(none) ─Output─▶ incomplete ─reply─▶ reachable ─used, 30 s old─▶ probing ─reply─▶ reachable
//	                     │ 3 requests         │ unused 60 s             │ 3 requests
//	                     ▼                    ▼                         ▼
//	                  forgotten, parked frames dropped
type state uint8

const (
	incomplete state = iota
	reachable
	probing
)

type neighbour struct {
	ip        netip.Addr
	index     int // index in Stack.table
	state     state
	mac       MAC
	requests  uint8 // unanswered
	static    bool  // from the configuration: never requested or changed
	confirmed int64 // last time its address was confirmed
	used      int64 // last time a frame went to it
	proved    int64 // last time an authentic packet came from mac; 0: never
	rival     MAC   // another host that claims the address; zero: none
	due       int64 // next timer
	waiting   [parkedPerPeer][]byte
	nwaiting  int
}

// Deadline implements Layer.
func (s *Stack) Deadline() int64 { return s.deadline }

// Advance implements Layer: it runs the timers of the neighbour table.
func (s *Stack) Advance(now int64) {
	if now < s.deadline {
		return
	}
	s.deadline = never
	for i := len(s.table) - 1; i >= 0; i-- { // backwards: expire may move the last entry to i
		if nb := s.table[i]; now >= nb.due {
			s.expire(now, nb)
		}
	}
	for _, nb := range s.table {
		s.deadline = min(s.deadline, nb.due)
	}
}

// expire handles a neighbour whose timer is due.
func (s *Stack) expire(now int64, nb *neighbour) {
	switch {
	case nb.rival != MAC{} && nb.requests < maxTries:
		nb.mac, nb.rival = nb.rival, nb.mac
		nb.requests++
		nb.due = now + rivalEvery
	case nb.rival == MAC{} && nb.state == reachable && nb.used+expireAfter > now:
		nb.due = nb.used + expireAfter // it is refreshed by use, so confirmed is recent too
	case nb.rival == MAC{} && nb.state != reachable && nb.requests < maxRequests:
		s.request(now, nb)
	default:
		for i := range nb.nwaiting {
			s.stats[DropUnresolved]++
			s.recycle(nb.waiting[i])
		}
		s.remove(nb)
	}
}

// addStatic adds the entry of a configured neighbour.
func (s *Stack) addStatic(n Neighbour) {
	nb := s.add(0, n.Addr)
	nb.static, nb.state, nb.mac, nb.due = true, reachable, n.MAC, never
}

// add adds the entry of an address that has none.
func (s *Stack) add(now int64, ip netip.Addr) *neighbour {
	nb := &neighbour{ip: ip, index: len(s.table), used: now}
	s.neighbours[ip] = nb
	s.table = append(s.table, nb)
	return nb
}

func (s *Stack) remove(nb *neighbour) {
	last := s.table[len(s.table)-1]
	s.table[nb.index], last.index = last, nb.index
	s.table[len(s.table)-1] = nil
	s.table = s.table[:len(s.table)-1]
	delete(s.neighbours, nb.ip)
	s.recent, s.authentic = way{}, way{}
}

// Resolve implements Layer: it requests the MAC of the next hop in advance. It does nothing for an
// address without a route, while a request is under way, or when the table is full.
func (s *Stack) Resolve(now int64, to netip.AddrPort) {
	hop, ok := s.nextHop(to.Addr())
	if !ok {
		return
	}
	switch nb := s.neighbours[hop]; {
	case nb == nil && len(s.neighbours) < maxNeighbours:
		s.request(now, s.add(now, hop))
	case nb != nil:
		s.touch(now, nb)
	}
}

// touch records that a neighbour is used, and starts to re-confirm it if its address is old.
func (s *Stack) touch(now int64, nb *neighbour) {
	nb.used = now
	if !nb.static && now >= nb.confirmed+refreshAfter && nb.state == reachable {
		s.probe(now, nb)
	}
}

// park keeps a copy of a frame until its neighbour answers.
func (s *Stack) park(now int64, ip netip.Addr, nb *neighbour, frame []byte) Verdict {
	if nb == nil {
		if len(s.neighbours) >= maxNeighbours {
			return DropNeighbours
		}
		nb = s.add(now, ip)
		s.request(now, nb)
	}
	if nb.nwaiting == parkedPerPeer || s.parked+s.ready.Len() >= maxParked {
		return DropParkFull
	}
	var buf []byte
	if n := len(s.free); n > 0 {
		buf, s.free = s.free[n-1], s.free[:n-1]
	} else {
		buf = make([]byte, 0, s.mtu+ethLen)
	}
	nb.waiting[nb.nwaiting] = append(buf[:0], frame...)
	nb.nwaiting++
	s.parked++
	return Parked
}

func (s *Stack) recycle(f []byte) {
	s.parked--
	s.free = append(s.free, f)
}

// probe starts to re-confirm a neighbour while frames keep going to it.
func (s *Stack) probe(now int64, nb *neighbour) {
	nb.state, nb.requests = probing, 0
	s.request(now, nb)
}

// request queues an ARP request or a neighbour solicitation: by broadcast or multicast for an
// unknown neighbour, by unicast to re-confirm a known one (RFC 1122 §2.3.2.1, RFC 4861 §7.3.3).
func (s *Stack) request(now int64, nb *neighbour) {
	nb.requests++
	nb.due = now + retryEvery
	s.deadline = min(s.deadline, nb.due)
	if nb.ip.Is6() {
		ask := nd{kind: ndSolicit, target: nb.ip.As16(), mac: s.mac}
		if nb.state == probing {
			s.sendND(nb.mac, ask.target, ask)
		} else {
			group := solicitedNode(ask.target)
			s.sendND(multicastMAC(group), group, ask)
		}
		return
	}
	to := broadcast
	if nb.state == probing {
		to = nb.mac
	}
	s.sendARP(to, arp{op: arpRequest, senderMAC: s.mac, senderIP: s.addr.As4(), targetIP: nb.ip.As4()})
}

// learn updates the entry of a host from its own message. A new entry is made only for a host
// of our subnet that asks for our address, since it is about to talk to us, and only while there is
// ample room, so that strangers cannot fill the table. It returns v, or Claim if the host is not
// the one in the entry.
func (s *Stack) learn(now int64, ip netip.Addr, mac MAC, forUs bool, v Verdict) Verdict {
	nb := s.neighbours[ip]
	switch {
	case nb != nil && nb.state != incomplete && nb.mac != mac:
		s.claim(now, nb, mac)
		return Claim
	case nb != nil && nb.static:
		return v
	case nb != nil:
	case !forUs || !s.onSubnet(ip) || len(s.neighbours) >= maxNeighbours-solicitedSpared:
		return v
	default:
		nb = s.add(now, ip)
	}
	s.believe(now, nb, mac)
	return v
}

// claim handles a host's claim that it has the address of another one.
func (s *Stack) claim(now int64, nb *neighbour, mac MAC) {
	switch {
	case nb.static, nb.proved != 0 && now < nb.proved+provedFor:
	case nb.ip == s.gateway:
		if nb.state == reachable {
			s.probe(now, nb)
		}
	case nb.rival == MAC{}:
		nb.rival, nb.requests, nb.due = mac, 0, now+rivalEvery
		s.deadline = min(s.deadline, nb.due)
	default:
		nb.rival = mac
	}
}

// Authenticated implements Layer: the host that delivered the datagram is the one through which its
// sender is reached.
func (s *Stack) Authenticated(now int64, src netip.Addr, from MAC) {
	if nb := s.authentic.nb; nb != nil && s.authentic.dst == src && nb.mac == from && nb.rival == (MAC{}) && nb.state == reachable {
		nb.proved, nb.confirmed = now, now
		return
	}
	hop, ok := s.nextHop(src)
	nb := s.neighbours[hop]
	if !ok || nb == nil {
		return
	}
	if nb.state != incomplete && nb.mac != from && hop != src {
		return // another MAC of a router
	}
	if nb.static {
		s.authentic = way{src, nb}
		return
	}
	nb.rival, nb.proved = MAC{}, now
	s.believe(now, nb, from)
	s.authentic = way{src, nb}
}

// believe sets a neighbour's MAC, and releases the frames that wait for it.
func (s *Stack) believe(now int64, nb *neighbour, mac MAC) {
	nb.state, nb.mac, nb.confirmed = reachable, mac, now
	if nb.rival == (MAC{}) {
		nb.requests, nb.due = 0, max(now, nb.used)+expireAfter
	}
	s.deadline = min(s.deadline, nb.due)
	for i := range nb.nwaiting {
		f := nb.waiting[i]
		nb.waiting[i] = nil
		copy(f, mac[:])
		s.parked--
		*s.ready.Push() = f
	}
	nb.nwaiting = 0
}

// Bounds of frames and entries in a stack.
const (
	maxQueued       = 64 // ARP and neighbour discovery packets to send
	maxParked       = 64 // frames waiting, at all neighbours and in the ready ring together
	parkedPerPeer   = 4  // frames waiting at one neighbour
	maxNeighbours   = 4096
	solicitedSpared = 64 // entries reserved for peers that we ask for; others cannot fill them
)

// queued is a complete ARP or neighbour discovery frame.
type queued struct {
	frame [ndFrameLen]byte // size of the longer kind
	n     int
}

// slot queues a frame of n bytes and returns its memory, or nil when the queue is full.
func (s *Stack) slot(n int) []byte {
	if s.queue.Len() == maxQueued {
		return nil
	}
	f := s.queue.Push()
	f.n = n
	return f.frame[:n]
}
