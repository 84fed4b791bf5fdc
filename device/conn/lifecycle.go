package conn

import (
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/rdma"
)

// Add adds a function, which is not in service yet.
func (s *Functions) Add(o Owner, d Driver) *Function {
	f := &Function{Owner: o, set: s, driver: d}
	s.byID[f.number()] = f
	return f
}

// Remove removes a function, which must be out of service.
func (s *Functions) Remove(f *Function) {
	f.tell(Request{Kind: Quota})
	delete(s.byID, f.number())
}

// Start puts the function in service: its driver has enabled it.
func (f *Function) Start(verbs *rdma.Function, mem Memory) {
	f.verbs, f.mem = verbs, mem
	f.conns, f.ofQP, f.asking = map[uint32]*connection{}, map[uint32][]uint32{}, map[uint32]*attempt{}
	f.wirings, f.held = map[uint32]*wiring{}, map[wireKey]held{}
	f.set.epoch++
	f.epoch = f.set.epoch
	f.tell(Request{Kind: Begin, Epoch: f.epoch})
}

// Stop takes the function out of service, when its driver releases it. Later Orders and Answers for
// this epoch are ignored. The owner closes the function's objects; then Close and Forget must
// follow.
func (f *Function) Stop() {
	if f.epoch != 0 {
		f.tell(Request{Kind: Gone})
	}
	f.epoch = 0
	f.verbs, f.mem = nil, nil
}

// Close closes the open connections, after Stop. They have ended when the owner has handled the
// transport's events.
func (f *Function) Close(now falcon.Time) {
	for _, id := range f.IDs() {
		f.set.cfg.Table.Close(now, id, cm.ReasonFunctionGone)
	}
}

// Forget clears the remaining state after Close.
func (f *Function) Forget() {
	clear(f.conns)
	clear(f.ofQP)
	clear(f.asking)
	clear(f.held)
	for qpn := range f.wirings {
		f.unwire(qpn)
	}
}

// EndQP disconnects a queue pair that its driver has reset, destroyed or moved to the error state.
func (f *Function) EndQP(now falcon.Time, qpn uint32) {
	f.unwire(qpn)
	if a := f.asking[qpn]; a != nil {
		a.over = true
		delete(f.asking, qpn)
	}
	for _, id := range f.ofQP[qpn] {
		f.end(now, id)
	}
}

// end closes a connection at once and then tells the connection manager. It may have ended by
// itself.
func (f *Function) end(now falcon.Time, id uint32) {
	f.set.cfg.Table.Close(now, id, cm.ReasonLocal)
	f.tell(Request{Kind: Disconnect, ID: id})
}

// EndLoopbacks disconnects the function from others of this NIC. It is for links on which packets
// can be lost: inside the NIC no packet ever is.
func (f *Function) EndLoopbacks(now falcon.Time) {
	for _, id := range f.IDs() {
		if s := f.set.cfg.Table.ByID(id); s != nil && s.Keys == nil {
			f.end(now, id)
		}
	}
}
