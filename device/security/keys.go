package security

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/psp"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// maxRxSAs bounds the SPIs we have open: peers × their shards × tenants × classes, twice for
// rekeying.
const maxRxSAs = 1 << 17

// Config is what Keys need to know.
type Config struct {
	Version      uint8 // of PSP, in keys we issue
	Shards       int   // of ours, at least 1
	Transport    bool  // Falcon travels in transport mode
	ReplayMargin time.Duration
	RotateEvery  time.Duration // 0: only when asked
	Rand         io.Reader     // of master keys

	// Needed tells whether somebody still seals with the key of a use, or will: its peer can be
	// reached, or a tunnel is there. Connections need not be looked for.
	Needed func(Use) bool
	// Log takes lines that peers can cause.
	Log func(now int64, level slog.Level, msg string, args ...any)
}

// Exchange brings keys to peers. The connection manager does, and repeats it until they have them.
type Exchange interface {
	Rekey(u Use, sa cm.SA) error
	SPIRefused(now int64, u Use, sa cm.SA, packets uint64) error
}

// Keys are what a NIC issues for its peers to seal with: one SA for each use. They are remembered
// until the peer has restarted: then its clock, which its nonces are made of, may have started
// over, and the key must not be used again.
type Keys struct {
	cfg      Config
	db       *psp.RxSADB
	exchange Exchange
	log      *KeyLog
	current  map[Use]*rxSA
	shares   cm.Shares[cm.HostID] // of current
	rotation rotation
}

// NewKeys makes the master keys. Exchange comes with Connect, before any key is issued.
func NewKeys(cfg Config) (*Keys, error) {
	var master psp.Master
	for i := range master.Keys {
		if _, err := io.ReadFull(cfg.Rand, master.Keys[i][:]); err != nil {
			return nil, fmt.Errorf("psp master keys: %w", err)
		}
	}
	return &Keys{
		cfg: cfg, db: psp.NewRxSADB(master, maxRxSAs, cfg.Shards), current: map[Use]*rxSA{},
		shares:   cm.Shares[cm.HostID]{Size: maxRxSAs / 2, Multiple: 3}, // a rotation issues another for each
		rotation: newRotation(cfg.RotateEvery),
	}, nil
}

// Connect names who brings keys to peers.
func (k *Keys) Connect(x Exchange) { k.exchange = x }

// LogTo writes the keys to come to a log.
func (k *Keys) LogTo(l *KeyLog) { k.log = l }

// Opener returns a shard's, of what is sealed with our keys.
func (k *Keys) Opener(shard int) *Opener { return &Opener{psp: k.db.Opener(shard)} }

// Issue returns the SA that a peer is to seal with: always the same until it is replaced.
func (k *Keys) Issue(u Use) (cm.SA, error) {
	if sa := k.current[u]; sa != nil {
		return sa.sa, nil
	}
	if !k.shares.Room(u.Peer) {
		return cm.SA{}, fmt.Errorf("%w: %d keys, %d of them for host %d", psp.ErrFull, len(k.current), k.shares.Held(u.Peer), u.Peer)
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

// Issued tells whether a use has a key: not before Issue, nor after ForgetPeer.
func (k *Keys) Issued(u Use) bool { return k.current[u] != nil }

// renew puts a new key of the current generation into sa.
func (k *Keys) renew(sa *rxSA) error {
	u := sa.use
	spi, key, err := k.db.IssueTo(k.cfg.Version, psp.Class(u.Class), owner(u), k.window(u))
	if err != nil {
		return err
	}
	sa.sa = cm.SA{Version: k.cfg.Version, SPI: spi, Key: key}
	sa.generation = k.db.Generation().Current
	k.log.sa("rx", u, &sa.sa)
	return nil
}

// window is which of our shards has the replay window of a use of the gateway class, and its SPIs
// say (Opener.Window): NICs with as many shards as we have spread theirs over all of ours.
func (k *Keys) window(u Use) int { return int(u.Shard) % k.cfg.Shards }

// Receive returns what a new connection accepts; false: the use has no key any more. The peer's
// clock was remoteTime picoseconds a moment ago.
func (k *Keys) Receive(u Use, remoteTime uint64) (r Receive, ok bool) {
	rx := k.current[u]
	if rx == nil {
		return Receive{}, false
	}
	rx.sessions.Add(1)
	return Receive{rx: rx, guard: rx.accepted.Guard(remoteTime)}, true
}

// ForgetPeer ends all keys of a peer.
func (k *Keys) ForgetPeer(peer cm.HostID) {
	for u, sa := range k.current {
		if u.Peer == peer {
			k.forget(sa)
		}
	}
	k.rotation.next = 0 // it may have waited for this peer only
}

func (k *Keys) forget(sa *rxSA) {
	k.db.Forget(sa.sa.SPI)
	k.endPrevious(sa)
	delete(k.current, sa.use)
	k.shares.Give(sa.use.Peer)
}

// replace gives the peer a new key for one use (Falcon §9.2.2.3 steps 2 and 3). What it sealed with
// the old one goes on being accepted.
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

// endPrevious ends the SPI before the current one (Falcon §9.2.2.3 step 4).
func (k *Keys) endPrevious(sa *rxSA) {
	if sa.previous == 0 {
		return
	}
	k.db.Forget(sa.previous)
	sa.previous, sa.dropAt = 0, vtime.Never
	sa.accepted.DropPrevious()
	k.rotation.unsettled--
}

// Confirmed takes a peer's word that it seals with the key of this SPI, and what its clock was, in
// picoseconds (Falcon §9.2.2.2).
func (k *Keys) Confirmed(now int64, u Use, spi uint32, remoteTime uint64) {
	sa := k.current[u]
	if sa == nil || sa.sa.SPI != spi || sa.previous == 0 {
		return
	}
	k.rotation.linger(now, sa)
	sa.accepted.AdvanceRemoteTime(remoteTime)
}

// Asked answers a peer that has used up the key of this SPI, or has none (0).
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
		return nil // has been replaced, or was just now; a peer that still wants one asks again
	}
	return k.replace(sa)
}

func (k *Keys) failed(now int64, u Use, err error) {
	k.cfg.Log(now, slog.LevelError, "key not replaced", "peer", u.Peer, "tenant", u.Tenant, "err", err)
}

// SPIRefused tells a peer once more which key to seal with: so many packets of it came with another
// one's (Falcon §9.2.2.3). A peer that is gone needs no key.
func (k *Keys) SPIRefused(now int64, u Use, packets uint64) {
	if sa := k.current[u]; sa != nil {
		_ = k.exchange.SPIRefused(now, u, sa.sa, packets)
	}
}

// Info describes what we issued for one use.
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

// uses returns the uses in an order that a replay repeats.
func (k *Keys) uses() []Use { return slices.SortedFunc(maps.Keys(k.current), Use.Compare) }

// Stats counts keys.
type Stats struct {
	SPIs       int    // that are accepted
	Uses       int    // that have a key
	Unsettled  int    // of those, with a previous key that is still accepted
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
