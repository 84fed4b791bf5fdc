package controller

import (
	"net/netip"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/inbox"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/internal/vtime"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Side is what the core has to tell a shard, on the shard's thread.
type Side interface {
	Answer(now vtime.Time, a *conn.Answer)
	Order(now vtime.Time, o *conn.Order)
	// TakeKey says what a peer wants to be sealed for it with.
	TakeKey(now vtime.Time, u security.Use, sa cm.SA)
	// ForgetKeys drops what a peer gave us that has lost it with its memory.
	ForgetKeys(host cm.HostID)
	// PeerPorts says that the routes have other addresses of a peer's ports than before.
	PeerPorts(now vtime.Time, host cm.HostID)
	// Resolve says that packets to an underlay address are likely to follow.
	Resolve(now vtime.Time, addr netip.Addr)
	FunctionSide
}

// FunctionSide is what the core has to tell a shard of functions. Those that are set, looked at or
// reset are the shard's own.
type FunctionSide interface {
	// Set makes a function what it is set to: all of it or, with an error, nothing.
	Set(now vtime.Time, id pfvf.ID, is *config.Function) error
	// VF looks at a VF for its PF.
	VF(now vtime.Time, id pfvf.ID) abi.VFHandler
	// Reset resets a function, and with a PF its VFs, for the operator. It reports false for one
	// that is disabled.
	Reset(now vtime.Time, id pfvf.ID) bool
	// ResetVFs resets the VFs of a PF, which was reset.
	ResetVFs(now vtime.Time, pf pfvf.ID)
	// VFsEnabled says how many VFs of a PF are enabled, of all shards.
	VFsEnabled(pf pfvf.ID, n int)
	// PFLink says what the link of a PF is set to.
	PFLink(now vtime.Time, pf pfvf.ID, is pfvf.Link)
}

// Order is one thing that the core tells a shard.
type Order func(to Side, now vtime.Time)

// Deliver takes orders for a shard, in order. The list is the caller's again when it returns.
type Deliver func(list []Order)

// Line joins a shard and the core. Neither waits for the other: what is said in a Step goes over at
// its end, in order. The shard's thread has one end, the core's goroutine the other.
type Line struct {
	core  *Core
	shard int

	// The shard's end:
	wishes  []wish
	refused map[cm.HostID]*refusals
	up      *inbox.Mail[*Core, wish]

	// The core's:
	orders []Order
	down   Deliver
}

// wish is one thing that a shard asks of the core.
type wish func(k *Core, now vtime.Time)

var (
	_ conn.Requests      = (*Line)(nil)
	_ security.Requester = (*Line)(nil)
)

func newLine(k *Core, shard int) *Line {
	return &Line{core: k, shard: shard, refused: map[cm.HostID]*refusals{}, up: inbox.NewMail(&k.box, func(k *Core, now vtime.Time, w wish) { w(k, now) })}
}

// Serve names what takes orders for the shard.
func (l *Line) Serve(down Deliver) { l.down = down }

// Opener is one of what is sealed with our keys.
func (l *Line) Opener() *security.Opener { return l.core.Keys.Opener(l.shard) }

// Ask implements conn.Requests.
func (l *Line) Ask(r conn.Request) {
	l.wish(func(k *Core, now vtime.Time) {
		if r.Kind == conn.Connect {
			k.announce(now) // its function may just have been enabled
		}
		k.Manager.Take(now, &r)
	})
}

// RequestRekey implements security.Requester. A peer that is not to be asked gives no key.
func (l *Line) RequestRekey(u security.Use, spi uint32) error {
	l.wish(func(k *Core, _ vtime.Time) { _ = k.Manager.RequestRekey(u, spi) })
	return nil
}

// refusals are packets of a peer that came with another key than the one issued, until the core has
// heard of them: one wish at a time, however many the peer sends.
type refusals struct {
	count atomic.Uint64
	asked atomic.Bool
}

// SPIRefused says that a packet of a connection came with another key than the one we issued for
// it.
func (l *Line) SPIRefused(u security.Use) {
	r := l.refused[u.Peer]
	if r == nil {
		r = new(refusals)
		l.refused[u.Peer] = r
	}
	r.count.Add(1)
	if r.asked.Swap(true) {
		return
	}
	l.wish(func(k *Core, now vtime.Time) {
		r.asked.Store(false) // first: what is counted from now on asks again
		k.Keys.SPIRefused(now, u, r.count.Swap(0))
	})
}

// Knows reports whether a GID in a tenant is a function's, here or at a peer, as of the core's last
// Step.
func (l *Line) Knows(tenant uint32, gid [16]byte) bool { return l.core.known.Load().Has(tenant, gid) }

func (l *Line) wish(w wish) { l.wishes = append(l.wishes, w) }

// Flush sends what the shard has asked for since the last call. It reports whether there was
// something: the core's goroutine is awake then.
func (l *Line) Flush() bool {
	if len(l.wishes) == 0 {
		return false
	}
	l.up.Send(l.wishes)
	clear(l.wishes)
	l.wishes = l.wishes[:0]
	return true
}

// tell has an order for the shard.
func (l *Line) tell(o Order) { l.orders = append(l.orders, o) }

// deliver sends the orders.
func (l *Line) deliver() {
	if len(l.orders) == 0 {
		return
	}
	l.down(l.orders)
	clear(l.orders)
	l.orders = l.orders[:0]
}
