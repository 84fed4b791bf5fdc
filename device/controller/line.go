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

// Side is a shard as the core sees it. Its methods run on the shard's thread.
type Side interface {
	Answer(now vtime.Time, a *conn.Answer)
	Decide(now vtime.Time, d *conn.Decision)
	// TakeKey stores the key that a peer wants packets to it sealed with.
	TakeKey(now vtime.Time, u security.Use, sa cm.SA)
	// ForgetKeys drops the keys of a peer that lost them with its memory.
	ForgetKeys(host cm.HostID)
	// PeerPorts reports that the routes to a peer's ports have changed.
	PeerPorts(now vtime.Time, host cm.HostID)
	// Resolve asks for the link address of an underlay address that packets will probably go to
	// soon.
	Resolve(now vtime.Time, addr netip.Addr)
	FunctionSide
}

// FunctionSide is the part of Side about functions. The functions in Set, VF and Reset belong to
// the shard.
type FunctionSide interface {
	// Set applies settings to a function: all of them or, with an error, none.
	Set(now vtime.Time, id pfvf.ID, is *config.Function) error
	// VF returns a handler with which a PF reads or changes a VF.
	VF(now vtime.Time, id pfvf.ID) abi.VFHandler
	// Reset resets a function, and with a PF its VFs, for the operator. It returns false if the
	// function is disabled.
	Reset(now vtime.Time, id pfvf.ID) bool
	// ResetVFs resets the VFs of a PF that was reset.
	ResetVFs(now vtime.Time, pf pfvf.ID)
	// VFsEnabled reports how many VFs of a PF are enabled, over all shards.
	VFsEnabled(pf pfvf.ID, n int)
	// PFLink reports the link setting of a PF.
	PFLink(now vtime.Time, pf pfvf.ID, is pfvf.Link)
}

// Order is one call that the core makes to a shard.
type Order func(to Side, now vtime.Time)

// Deliver passes orders to a shard, in order. The caller may reuse the list after it returns.
type Deliver func(list []Order)

// Line connects a shard with the core. Neither side waits for the other: what is sent in a Step
// crosses at the end of that Step, in order. One end belongs to the shard's thread, the other to
// the core's goroutine.
type Line struct {
	core  *Core
	shard int

	// The shard's end:
	wishes  []wish
	refused map[cm.HostID]*refusals
	up      *inbox.Mailbox[wish]

	// The core's end:
	orders []Order
	down   Deliver
}

// wish is one request of a shard to the core.
type wish func(k *Core, now vtime.Time)

var (
	_ conn.Requests      = (*Line)(nil)
	_ security.Requester = (*Line)(nil)
)

func newLine(k *Core, shard int) *Line {
	return &Line{core: k, shard: shard, refused: map[cm.HostID]*refusals{}, up: inbox.NewMailbox(&k.box, 0, func(now vtime.Time, w *wish) { (*w)(k, now) })}
}

// Serve sets the function that delivers orders to the shard.
func (l *Line) Serve(down Deliver) { l.down = down }

// Opener returns an opener for packets sealed with our keys.
func (l *Line) Opener() *security.Opener { return l.core.Keys.Opener(l.shard) }

// Ask implements conn.Requests.
func (l *Line) Ask(r conn.Request) {
	l.wish(func(k *Core, now vtime.Time) {
		if r.Kind == conn.Connect {
			k.announce(now) // its function may just have been enabled
		}
		k.request(now, &r)
	})
}

// RequestRekey implements security.Requester. A refusal by the manager is ignored: no key comes
// then.
func (l *Line) RequestRekey(u security.Use, spi uint32) error {
	l.wish(func(k *Core, _ vtime.Time) { _ = k.Manager.RequestRekey(u, spi) })
	return nil
}

// refusals counts packets of a peer that came with another key than the one issued, until the core
// reads the count. At most one wish is under way at a time, however many packets the peer sends.
type refusals struct {
	count atomic.Uint64
	asked atomic.Bool
}

// SPIRefused reports a packet of a connection that came with another key than the one we issued for
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
		r.asked.Store(false) // before the count is read: later packets must send a new wish
		k.Keys.SPIRefused(now, u, r.count.Swap(0))
	})
}

// Knows reports whether a GID in a tenant belongs to a function, here or at a peer, as of the
// core's last Step.
func (l *Line) Knows(tenant uint32, gid [16]byte) bool { return l.core.known.Load().Has(tenant, gid) }

func (l *Line) wish(w wish) { l.wishes = append(l.wishes, w) }

// Flush sends the wishes made since the last call. It reports whether there were any: the core's
// goroutine is awake then.
func (l *Line) Flush() bool {
	if len(l.wishes) == 0 {
		return false
	}
	l.up.Send(l.wishes)
	clear(l.wishes)
	l.wishes = l.wishes[:0]
	return true
}

// tell queues an order for the shard.
func (l *Line) tell(o Order) { l.orders = append(l.orders, o) }

// deliver sends the queued orders.
func (l *Line) deliver() {
	if len(l.orders) == 0 {
		return
	}
	l.down(l.orders)
	clear(l.orders)
	l.orders = l.orders[:0]
}
