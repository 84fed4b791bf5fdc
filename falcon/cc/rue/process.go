package rue

import "github.com/falcon-vnic/vnic/falcon/cc"

// NACK codes that the RUE distinguishes. Code 5 is reserved in 0.9; peers of older drafts send it
// for a drop beyond the window.
const (
	nackResource = 1
	nackWindow   = 5
)

// RUE computes results. It has no state except scratch memory; make one for each engine.
type RUE struct {
	alg cc.Algorithm
	ev  cc.Event // passed through an interface: on the stack it would be allocated for every event
}

// New returns a RUE with the given algorithm.
func New(alg cc.Algorithm) RUE { return RUE{alg: alg} }

// Process answers one event at time now, in Falcon units.
func (u *RUE) Process(e *Event, now uint32, r *Result) {
	r.Conn, r.Metadata, r.Opaque, r.State = e.Conn, e.Metadata, e.Opaque, e.State
	out := u.Update(e, &r.State, now)
	r.IPG, r.Repath = out.IPG, out.Repath
}

// Update answers an event whose state is in s instead of in the event, and changes s. It is for a
// RUE that answers at once.
func (u *RUE) Update(e *Event, s *cc.State, now uint32) cc.Result {
	u.ev = cc.Event{
		Hops: e.Hops, RxOccupancy: e.RxLevel, RetransmitCount: e.RetransmitCount, Acked: e.Acked, ECN: e.ECN,
		EackDrop: e.EackDrop, EackOwn: e.EackOwn, T1: e.T1, T2: e.T2, T3: e.T3, T4: e.T4, Now: now & cc.TimeMask,
	}
	switch e.Type {
	case TypeNack:
		u.ev.Kind = cc.Nack
		if e.NackCode == nackResource {
			u.ev.Kind = cc.NackResource
		}
		u.ev.EackDrop = e.NackCode == nackWindow
	case TypeRetransmit:
		u.ev.Kind = cc.Retransmit
	}
	return u.alg.Update(s, &u.ev)
}
