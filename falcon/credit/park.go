package credit

// A packet that waits for a peer whose receiver is not ready may wait for as long as the peer
// likes, so it must not hold what others need. It returns its credits while it waits, and takes
// them again when it is sent again:
//
//	Take ─▶ under way ─▶ Return
//	          │    ▲
//	     Park ▼    │ Unpark
//	         waits for the peer ─▶ Forget
//
// Then it takes its credits whether or not there is room, and does not wait for them: the peer has
// reserved a place for it, and the transactions that hold the credits now may be waiting for this
// packet (Falcon §8.2.1). Others wait longer for that.
//
// Parked packets still use memory of their initiator, so their number is limited at each level.

// parkTimes is the limit of parked packets, as a multiple of the limit of packets in flight.
const parkTimes = 4

// Park returns c, which the node holds, while its packet waits for the peer. If too much is parked
// already, it changes nothing and returns false.
func (n *Node) Park(c *Cost) bool {
	v := uint64(c[ReqPktTx])
	for m := n; m != nil; m = m.parent {
		if m.parked+v > parkTimes*uint64(m.most(int(ReqPktTx))) {
			return false
		}
	}
	if n.Return(c) != nil {
		return false
	}
	for m := n; m != nil; m = m.parent {
		m.parked += v
	}
	return true
}

// Unpark takes again what was parked.
func (n *Node) Unpark(c *Cost) {
	for i, v := range c[:] {
		if v == 0 {
			continue
		}
		rise := v
		for m := n; m != nil; m = m.parent {
			a := &m.of[i]
			if !a.fits(rise) {
				m.borrow(i, rise) // if the pool has some
			}
			rise = a.charge(v, rise)
		}
	}
	n.Forget(c)
}

// Forget removes what was parked and has ended.
func (n *Node) Forget(c *Cost) { n.forget(uint64(c[ReqPktTx])) }

func (n *Node) forget(v uint64) {
	v = min(v, n.parked) // less than v if the node was dropped before
	for m := n; m != nil; m = m.parent {
		m.parked -= v
	}
}

// Parked returns how many packets of the node and everything below it wait for peers that are not
// ready.
func (n *Node) Parked() uint64 { return n.parked }
