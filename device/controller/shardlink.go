package controller

import (
	"net/netip"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/inbox"
	"github.com/falcon-vnic/vnic/device/pathmtu"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/internal/vtime"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Orders is a shard as the core sees it: what the core can make it do (shard.Orders). Its methods
// run on the shard's thread.
type Orders interface {
	Answer(now vtime.Time, a *conn.Answer)
	Decide(now vtime.Time, d *conn.Decision)
	// TakeKey stores the key that a peer wants packets to it sealed with.
	TakeKey(now vtime.Time, u security.Use, sa cm.SA)
	// ForgetKeys drops the keys of a peer that lost them with its memory.
	ForgetKeys(peer cm.PeerID)
	// SetPeer says where a peer is, perhaps a new one; name is for people. anywhere means that the
	// configuration does not say where: the peer is where its packets come from.
	SetPeer(peer cm.PeerID, name string, underlay netip.AddrPort, anywhere bool)
	// RemovePeer drops what is left of a peer that is gone.
	RemovePeer(peer cm.PeerID)
	// LimitPath says how many bytes of RDMA data the network carries in one packet to a peer.
	LimitPath(peer cm.PeerID, data int)
	// PeerPorts reports that the routes to a peer's ports have changed.
	PeerPorts(now vtime.Time, peer cm.PeerID)
	// Resolve asks for the link address of an underlay address that packets will probably go to
	// soon.
	Resolve(now vtime.Time, to netip.AddrPort)
	// ProbePath sends a probe to a peer, sealed with a key of a tenant, to the address at or, if that
	// is not valid, to where the peer is.
	ProbePath(now vtime.Time, peer cm.PeerID, at netip.AddrPort, tenant uint32, p pathmtu.Probe)

	// The functions in Set, VF and Reset belong to the shard.

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
type Order func(to Orders, now vtime.Time)

// Deliver passes orders to a shard, in order. The caller may reuse the list after it returns.
type Deliver func(list []Order)

// ShardLink is a shard's access to the core, and the core's to the shard. Neither waits for the other:
// what is sent in a Step crosses at the end of that Step, in order. One end belongs to the shard's
// thread, the other to the core's goroutine.
type ShardLink struct {
	core  *Core
	shard int

	// The shard's end:
	calls   []call
	refused map[cm.PeerID]*refusals
	up      *inbox.Mailbox[call]

	// The core's end:
	orders []Order
	down   Deliver
}

// call is one call that a shard makes to the core.
type call func(k *Core, now vtime.Time)

var (
	_ conn.Requests      = (*ShardLink)(nil)
	_ security.Requester = (*ShardLink)(nil)
)

func newShardLink(k *Core, shard int) *ShardLink {
	return &ShardLink{core: k, shard: shard, refused: map[cm.PeerID]*refusals{}, up: inbox.NewMailbox(&k.box, 0, func(now vtime.Time, f *call) { (*f)(k, now) })}
}

// Serve sets the function that delivers orders to the shard.
func (l *ShardLink) Serve(down Deliver) { l.down = down }

// Opener returns an opener for packets sealed with our keys.
func (l *ShardLink) Opener() *security.Opener { return l.core.Keys.Opener(l.shard) }

// Ask implements conn.Requests.
func (l *ShardLink) Ask(r conn.Request) {
	l.post(func(k *Core, now vtime.Time) {
		if r.Kind == conn.Connect {
			k.announce(now) // its function may just have been enabled
		}
		k.request(now, &r)
	})
}

// RequestRekey implements security.Requester. A refusal by the manager is ignored: no key comes
// then.
func (l *ShardLink) RequestRekey(u security.Use, spi uint32) error {
	l.post(func(k *Core, _ vtime.Time) { _ = k.Manager.CM.RequestRekey(u, spi) })
	return nil
}

// refusals counts packets of a peer that came with another key than the one issued, until the core
// reads the count. At most one call is under way at a time, however many packets the peer sends.
type refusals struct {
	count atomic.Uint64
	asked atomic.Bool
}

// SPIRefused reports a packet of a connection that came with another key than the one we issued for
// it.
func (l *ShardLink) SPIRefused(u security.Use) {
	r := l.refused[u.Peer]
	if r == nil {
		r = new(refusals)
		l.refused[u.Peer] = r
	}
	r.count.Add(1)
	if r.asked.Swap(true) {
		return
	}
	l.post(func(k *Core, now vtime.Time) {
		r.asked.Store(false) // before the count is read: later packets must make a new call
		k.Keys.SPIRefused(now, u, r.count.Swap(0))
	})
}

// Knows reports whether a GID in a tenant belongs to a function, here or at a peer, as of the
// core's last Step.
func (l *ShardLink) Knows(tenant uint32, gid [16]byte) bool {
	return l.core.Manager.CM.Known().Has(tenant, gid)
}

// post queues a call to the core.
func (l *ShardLink) post(f call) { l.calls = append(l.calls, f) }

// Flush sends the calls queued since the last Flush. It reports whether there were any: the core's
// goroutine is awake then.
func (l *ShardLink) Flush() bool {
	if len(l.calls) == 0 {
		return false
	}
	l.up.Send(l.calls)
	clear(l.calls)
	l.calls = l.calls[:0]
	return true
}

// tell queues an order for the shard.
func (l *ShardLink) tell(o Order) { l.orders = append(l.orders, o) }

// deliver sends the queued orders.
func (l *ShardLink) deliver() {
	if len(l.orders) == 0 {
		return
	}
	l.down(l.orders)
	clear(l.orders)
	l.orders = l.orders[:0]
}
