package credit

// What waits for a peer whose receiver is not ready holds nothing that others need, and may wait for
// as long as the peer likes. So it gives its credits back while it waits, and takes them again when
// it goes out again:
//
//	Take ─▶ under way ─▶ Return
//	          │    ▲
//	     Park ▼    │ Unpark
//	         waits for the peer ─▶ Forget
//
// Then it does not wait for credits, whether or not there is room: the peer has kept a place for it,
// for which what has the credits now may be waiting (Falcon §8.2.1). Others wait the longer.
//
// It takes memory of its initiator all the while, so that is bounded too, at each level.

// parkTimes is how many times as many packets may be parked as may be under way.
const parkTimes = 4

// Park gives back c, which the node holds, while what it was taken for waits for the peer. It
// reports false, and changes nothing, where too much waits so already.
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

// Unpark takes what was parked again.
func (n *Node) Unpark(c *Cost) {
	for i, v := range c[:] {
		if v == 0 {
			continue
		}
		rise := v
		for m := n; m != nil; m = m.parent {
			a := &m.of[i]
			if !a.fits(rise) {
				m.borrow(i, rise) // if there is some
			}
			rise = a.charge(v, rise)
		}
	}
	n.Forget(c)
}

// Forget says that what was parked has ended.
func (n *Node) Forget(c *Cost) { n.forget(uint64(c[ReqPktTx])) }

func (n *Node) forget(v uint64) {
	v = min(v, n.parked) // less than v if the node was dropped before
	for m := n; m != nil; m = m.parent {
		m.parked -= v
	}
}

// Parked is how many packets of the node and everything below it wait for peers that are not ready.
func (n *Node) Parked() uint64 { return n.parked }
