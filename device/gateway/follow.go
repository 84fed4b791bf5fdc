package gateway

import (
	"sync"

	"github.com/falcon-vnic/vnic/falcon/cm"
)

// RouteChange is one change of Routes. One field is set.
type RouteChange struct {
	Tenant *TenantConfig // SetTenant
	Forget *uint32       // ForgetTenant
	Port   *PlacedPort   // SetPort
	Unplug *uint32       // RemovePort
	Learn  *Learned      // Learn
}

// PlacedPort is a function's port and where it is.
type PlacedPort struct {
	Function uint32
	Place    Place
}

// Learned is what a peer announced.
type Learned struct {
	Peer      cm.PeerID
	Addresses []Address
}

// Apply makes a change.
func (r *Routes) Apply(c *RouteChange) {
	switch {
	case c.Tenant != nil:
		r.SetTenant(*c.Tenant)
	case c.Forget != nil:
		r.ForgetTenant(*c.Forget)
	case c.Port != nil:
		r.SetPort(c.Port.Function, c.Port.Place)
	case c.Unplug != nil:
		r.RemovePort(*c.Unplug)
	case c.Learn != nil:
		r.Learn(c.Learn.Peer, c.Learn.Addresses)
	}
}

// Follower holds changes of Routes for a copy of them. The Routes that a shard reads can change at
// any moment; a recorded shard reads a copy, which changes when the shard applies what waits here.
type Follower struct {
	mu      sync.Mutex
	waiting []RouteChange
}

// Follow returns an empty copy of the routes, which are empty too, and the changes to apply to it from
// now on. The owner of the routes calls it.
func (r *Routes) Follow() (*Routes, *Follower) {
	f := &Follower{}
	r.followers = append(r.followers, f)
	return NewRoutes(r.mtu), f
}

// Take returns the changes since the last call.
func (f *Follower) Take() []RouteChange {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.waiting
	f.waiting = nil
	return list
}

// tell passes a change to those who follow.
func (r *Routes) tell(c RouteChange) {
	for _, f := range r.followers {
		f.mu.Lock()
		f.waiting = append(f.waiting, c)
		f.mu.Unlock()
	}
}
