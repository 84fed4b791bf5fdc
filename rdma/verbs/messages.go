package verbs

// maxMessages limits the messages of the peer that hold a receive of a QP.
const maxMessages = 128

// messages tracks the messages of the peer that take a receive of a QP. They are numbered from 1 on
// each connection; receives is a ring indexed by that number.
//
//	message   oldest unfinished       newest that has a receive
//	──────────┬───────────────────────┬──────────────────────
//	   done   │ receives taken for it │ receives in the queue
type messages struct {
	message  uint32 // number of the oldest unfinished message
	fetched  uint32 // of the message the next receive in the RQ will serve
	receives []Receive
	maxSGE   int
	srq      *SRQ // SRQ that the current packet names (XRC)
}

// connect prepares for a new connection. receives is the depth of the queue that receives come
// from.
func (r *messages) connect(ordered bool, receives uint32) {
	r.drop()
	r.message, r.fetched = 1, 1
	n := uint32(1) // an ordered connection has one message in progress
	if !ordered {
		n = min(receives, maxMessages)
	}
	if uint32(len(r.receives)) != n {
		r.receives = make([]Receive, n)
		sges := make(SGL, int(n)*r.maxSGE)
		for i := range r.receives {
			r.receives[i].SGEs, sges = sges[:0:r.maxSGE], sges[r.maxSGE:]
		}
	}
}

// drop discards the messages in progress.
func (r *messages) drop() {
	r.fetched = r.message
	for i := range r.receives {
		r.receives[i].Release()
	}
}

// oldest returns the oldest receive that an unfinished message has taken.
func (r *messages) oldest() (*Receive, bool) {
	for i := range uint32(len(r.receives)) {
		if v := r.receive(r.message + i); v.Taken {
			return v, true
		}
	}
	return nil, false
}

func (r *messages) receive(number uint32) *Receive {
	return &r.receives[number&uint32(len(r.receives)-1)]
}
