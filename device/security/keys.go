package security

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/psp"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// Use is what a security association is for.
type Use = cm.Use

// owner packs the peer, its shard and the tenant into one number; useOf unpacks it.
func owner(u Use) uint64 { return uint64(u.Peer)<<40 | uint64(u.Shard)<<32 | uint64(u.Tenant) }

func useOf(owner uint64, class cm.Class) Use {
	return Use{Peer: cm.PeerID(owner >> 40), Shard: uint8(owner >> 32), Tenant: uint32(owner), Class: class}
}

// Cookie returns the virtualization cookie of a tenant: its number in the upper half, tunnel 0 in
// the lower half (docs/wire.md). It is also Falcon's PCID.
func Cookie(tenant uint32) uint64 { return uint64(tenant) << 32 }

// nextHeader returns PSP's next header value for an IP packet.
func nextHeader(v6 bool) uint8 {
	if v6 {
		return psp.NextHeaderIPv6
	}
	return psp.NextHeaderIPv4
}

// maxRxSAs bounds the number of accepted SPIs: peers × their shards × tenants × classes, twice
// because of rekeying.
const maxRxSAs = 1 << 17

// Config is the configuration of Keys.
type Config struct {
	Version      uint8 // of PSP, in keys we issue
	Shards       int   // shards of this NIC, at least 1
	Transport    bool  // Falcon is in PSP's transport mode
	ReplayMargin time.Duration
	RotateEvery  time.Duration // 0: only when asked
	Rand         io.Reader     // of master keys

	Name func(peer cm.PeerID) string // of a peer, for people
	// Needed reports whether a peer seals with the key of a use, or will: the peer can be reached,
	// or a tunnel exists. It need not consider connections.
	Needed func(Use) bool
	// Log writes log lines that peers can cause.
	Log func(now int64, level slog.Level, msg string, args ...any)
}

// Exchange sends keys to peers. The connection manager implements it, and repeats a key until the
// peer has it.
type Exchange interface {
	Rekey(u Use, sa cm.SA) error
	SPIRefused(now int64, u Use, sa cm.SA, packets uint64) error
}

// Keys holds the keys that this NIC issues for its peers to seal with: one SA for each use. A key
// is kept until its peer has restarted. After a restart the peer's clock, from which it makes
// nonces, may have started over, so the key must not be used again.
type Keys struct {
	cfg      Config
	db       *psp.RxSADB
	exchange Exchange
	log      *KeyLog
	current  map[Use]*rxSA
	shares   cm.Shares[cm.PeerID] // of current
	rotation rotation
}

// NewKeys creates the master keys. Connect must set the Exchange before any key is issued.
func NewKeys(cfg Config) (*Keys, error) {
	var master psp.Master
	for i := range master.Keys {
		if _, err := io.ReadFull(cfg.Rand, master.Keys[i][:]); err != nil {
			return nil, fmt.Errorf("psp master keys: %w", err)
		}
	}
	if cfg.Name == nil {
		cfg.Name = nameless
	}
	return &Keys{
		cfg: cfg, db: psp.NewRxSADB(master, maxRxSAs, cfg.Shards), current: map[Use]*rxSA{},
		shares:   cm.Shares[cm.PeerID]{Size: maxRxSAs / 2, Multiple: 3}, // a rotation issues a second one for each
		rotation: newRotation(cfg.RotateEvery),
	}, nil
}

// Connect sets the Exchange.
func (k *Keys) Connect(x Exchange) { k.exchange = x }

// LogTo makes k write the keys that it issues from now on to l.
func (k *Keys) LogTo(l *KeyLog) { k.log = l }

// Opener returns a shard's Opener for packets that are sealed with our keys.
func (k *Keys) Opener(shard int) *Opener {
	return &Opener{psp: k.db.Opener(shard), encap: EncapOf(k.cfg.Transport)}
}

// Issue returns the SA that a peer shall seal with: the same one until it is replaced.
func (k *Keys) Issue(u Use) (cm.SA, error) {
	if sa := k.current[u]; sa != nil {
		return sa.sa, nil
	}
	if !k.shares.Room(u.Peer) {
		return cm.SA{}, fmt.Errorf("%w: %d keys, %d of them for NIC %s", psp.ErrFull, len(k.current), k.shares.Held(u.Peer), k.cfg.Name(u.Peer))
	}
	sa := &rxSA{use: u, dropAt: vtime.Never}
	if err := k.renew(sa); err != nil {
		return cm.SA{}, err
	}
	sa.accepted = psp.NewAssociation(psp.AssociationConfig{
		SPI: sa.sa.SPI, Generation: sa.generation, PCID: Cookie(u.Tenant), AnyPCID: k.cfg.Transport, Margin: int64(k.cfg.ReplayMargin),
	})
	k.current[u] = sa
	k.shares.Take(u.Peer)
	return sa.sa, nil
}

// Issued reports whether a use has a key: from Issue until ForgetPeer, or until a rotation drops a
// key that nobody needs.
func (k *Keys) Issued(u Use) bool { return k.current[u] != nil }

// renew issues a new key of the current generation for sa.
func (k *Keys) renew(sa *rxSA) error {
	u := sa.use
	spi, key, err := k.db.IssueTo(k.cfg.Version, psp.Class(u.Class), owner(u), k.window(u))
	if err != nil {
		return err
	}
	sa.sa = cm.SA{Version: k.cfg.Version, SPI: spi, Key: key}
	sa.generation = k.db.Generation().Current
	k.log.sa("rx", k.cfg.Name(u.Peer), u, &sa.sa)
	return nil
}

// window returns the shard of this NIC that has the replay window of a use of the gateway class.
// The SPIs of the use carry the number (Opener.ShardOf). Peers with as many shards as this NIC
// spread their uses over all of its shards.
func (k *Keys) window(u Use) int { return int(u.Shard) % k.cfg.Shards }

// Receive returns the receive side of a new connection; false: the use has no key any more.
// remoteTime is the peer's recent clock value in picoseconds.
func (k *Keys) Receive(u Use, remoteTime uint64) (r Receive, ok bool) {
	rx := k.current[u]
	if rx == nil {
		return Receive{}, false
	}
	rx.sessions.Add(1)
	return Receive{rx: rx, guard: rx.accepted.Guard(remoteTime)}, true
}

// ForgetPeer drops all keys of a peer.
func (k *Keys) ForgetPeer(peer cm.PeerID) {
	for u, sa := range k.current {
		if u.Peer == peer {
			k.forget(sa)
		}
	}
	k.rotation.next = 0 // the rotation may have waited only for this peer
}

func (k *Keys) forget(sa *rxSA) {
	k.db.Forget(sa.sa.SPI)
	k.endPrevious(sa)
	delete(k.current, sa.use)
	k.shares.Give(sa.use.Peer)
}

// replace gives the peer a new key for one use (Falcon §9.2.2.3 steps 2 and 3). Packets sealed with
// the old key are still accepted.
func (k *Keys) replace(sa *rxSA) error {
	older, previous := sa.previous, sa.sa.SPI
	if err := k.renew(sa); err != nil {
		return err
	}
	k.db.Forget(older)
	if older == 0 {
		k.rotation.unsettled++
	}
	sa.previous, sa.dropAt = previous, vtime.Never
	sa.accepted.Rekey(sa.sa.SPI, sa.generation)
	return k.tell(sa)
}

func (k *Keys) tell(sa *rxSA) error {
	return k.exchange.Rekey(sa.use, sa.sa)
}

// endPrevious stops accepting the previous SPI (Falcon §9.2.2.3 step 4).
func (k *Keys) endPrevious(sa *rxSA) {
	if sa.previous == 0 {
		return
	}
	k.db.Forget(sa.previous)
	sa.previous, sa.dropAt = 0, vtime.Never
	sa.accepted.DropPrevious()
	k.rotation.unsettled--
}

// Confirmed records that a peer seals with the key of this SPI, and its clock in picoseconds
// (Falcon §9.2.2.2).
func (k *Keys) Confirmed(now int64, u Use, spi uint32, remoteTime uint64) {
	sa := k.current[u]
	if sa == nil || sa.sa.SPI != spi || sa.previous == 0 {
		return
	}
	k.rotation.linger(now, sa)
	sa.accepted.AdvanceRemoteTime(remoteTime)
}

// Asked answers a peer that has used up the key of this SPI, or has no key (0).
func (k *Keys) Asked(now int64, u Use, used uint32) {
	if err := k.give(u, used); err != nil {
		k.failed(now, u, err)
	}
}

func (k *Keys) give(u Use, used uint32) error {
	sa := k.current[u]
	if sa == nil || used == 0 {
		if _, err := k.Issue(u); err != nil {
			return err
		}
		return k.tell(k.current[u])
	}
	if sa.sa.SPI != used || sa.previous != 0 {
		return nil // the key was replaced earlier or just now; a peer that still wants one asks again
	}
	return k.replace(sa)
}

func (k *Keys) failed(now int64, u Use, err error) {
	k.cfg.Log(now, slog.LevelError, "key not replaced", "peer", k.cfg.Name(u.Peer), "tenant", u.Tenant, "err", err)
}

// SPIRefused tells a peer again which key to seal with, after so many of its packets came with
// another SPI (Falcon §9.2.2.3). A use without a key is ignored: the peer is gone.
func (k *Keys) SPIRefused(now int64, u Use, packets uint64) {
	if sa := k.current[u]; sa != nil {
		_ = k.exchange.SPIRefused(now, u, sa.sa, packets)
	}
}

// Info describes the key that was issued for one use.
type Info struct {
	Use           Use
	SPI, Previous uint32 // Previous is 0 if there is none
	Generation    uint32
}

// List describes all keys in a fixed order.
func (k *Keys) List() (list []Info) {
	for _, u := range k.uses() {
		sa := k.current[u]
		list = append(list, Info{Use: u, SPI: sa.sa.SPI, Previous: sa.previous, Generation: sa.generation})
	}
	return list
}

// uses returns the uses in an order that is the same in a replay.
func (k *Keys) uses() []Use { return slices.SortedFunc(maps.Keys(k.current), Use.Compare) }

// Stats counts keys.
type Stats struct {
	SPIs       int    // accepted SPIs
	Uses       int    // uses that have a key
	Unsettled  int    // uses whose previous key is still accepted
	Rotations  uint64 // of the master key
	Generation uint32
}

// Stats counts keys.
func (k *Keys) Stats() Stats {
	return Stats{
		SPIs: k.db.Len(), Uses: len(k.current), Unsettled: k.rotation.unsettled,
		Rotations: k.rotation.count, Generation: k.db.Generation().Current,
	}
}

// rxSA is a key that was issued for a peer to seal with.
type rxSA struct {
	use        Use
	sa         cm.SA
	generation uint32
	previous   uint32 // SPI that sa replaced, still accepted; 0: none
	dropAt     int64  // when previous ends; never until the peer has confirmed sa

	accepted *psp.Association // what the connections with this key accept
	sessions atomic.Int32     // number of connections
}

// Receive is the part of a connection's security that belongs to the owner of the Keys: which
// packets are accepted. Its holder must release it.
type Receive struct {
	rx    *rxSA
	guard psp.Guard
}

// Use returns the use of its key.
func (r *Receive) Use() Use { return r.rx.use }

// Release ends it. It may be called again.
func (r *Receive) Release() {
	if r.rx != nil {
		r.rx.sessions.Add(-1)
	}
	*r = Receive{}
}
