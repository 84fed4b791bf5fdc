package conn

import (
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/rdma"
)

// Add makes a function known, which is not in service yet.
func (s *Functions) Add(o Owner, d Driver) *Function {
	f := &Function{Owner: o, set: s, driver: d}
	s.byID[f.number()] = f
	return f
}

// Remove forgets a function, which is not in service any more.
func (s *Functions) Remove(f *Function) {
	s.cfg.CIDs.SetQuota(f.number(), 0)
	delete(s.byID, f.number())
}

// Start puts the function in service: its driver has enabled it.
func (f *Function) Start(verbs *rdma.Function, mem Memory) {
	f.verbs, f.mem = verbs, mem
	f.conns, f.ofQP = map[uint32]*connection{}, map[uint32][]uint32{}
	f.wirings, f.held = map[uint32]*wiring{}, map[wireKey]uint32{}
	f.listenReserved()
}

// Stop ends all connections of the function, which its driver gives up. What they lead to is over
// when the owner has run the connection manager and taken the transport's events; then follows
// Forget.
func (f *Function) Stop(now falcon.Time) {
	f.set.cfg.Manager.FunctionGone(now, f.number())
	f.verbs, f.mem = nil, nil
}

// Forget drops what is left after Stop.
func (f *Function) Forget() {
	clear(f.conns)
	clear(f.ofQP)
	clear(f.held)
	for qpn := range f.wirings {
		f.unwire(qpn)
	}
}

// EndQP disconnects what a queue pair had that is now reset, destroyed or in error by its driver's
// wish.
func (f *Function) EndQP(now falcon.Time, qpn uint32) {
	f.unwire(qpn)
	for _, id := range f.ofQP[qpn] {
		_ = f.set.cfg.Manager.Disconnect(now, f.number(), id) // it may have ended by itself already
	}
}

// EndLoopbacks disconnects the function from others of this NIC: on its link packets can be lost, in
// here nothing ever is.
func (f *Function) EndLoopbacks(now falcon.Time) {
	for _, id := range f.IDs() {
		if s := f.set.cfg.Table.ByID(id); s != nil && s.Keys == nil {
			_ = f.set.cfg.Manager.Disconnect(now, f.number(), id)
		}
	}
	f.set.cfg.Manager.Run(now)
}
