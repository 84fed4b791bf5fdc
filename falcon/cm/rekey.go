package cm

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
)

// Rekeying, per Use (Falcon §9.2.2.3 steps 2 to 4):
//
//	receiver                              transmitter
//	                ◀──── REKEYREQ ─────  RequestRekey: half used up
//	OutRekeyWanted
//	Rekey           ───── REKEY ───────▶  OutRekey: seal with it from now on
//	OutRekeyed      ◀──── REKEYACK ─────
//
// Both requests are repeated, when the link comes back and by a timer, until they are answered. A
// message with an SA replaces earlier ones: the link keeps their order, and each message has the
// newest SA when it is first sent.

// rekeying manages the exchange of keys.
type rekeying struct {
	peers   *peers
	out     *outbox
	timeout Time    // time between repetitions of a request
	at      Time    // time of the next askAgain
	again   Time    // when what is not answered is repeated
	soon    []*peer // have something that was not sent yet
}

func newRekeying(c *Config, p *peers, out *outbox) *rekeying {
	return &rekeying{peers: p, out: out, timeout: c.RekeyTimeout, at: math.MaxInt64, again: math.MaxInt64}
}

// give makes a peer seal with sa from now on. It does so also in a tenant that is no longer shared,
// so that a rotation can end: the peer keeps its key for the day when the tenant is shared again.
func (r *rekeying) give(u Use, sa SA) error {
	p := r.peers.byID[u.Peer]
	if p == nil || u.Class >= numClasses || u.Shard >= MaxShards {
		return fmt.Errorf("cm: %v: %w", u, ErrNotFound)
	}
	if err := sa.check(); err != nil {
		return fmt.Errorf("cm: new receive SA for %v: %w", u, err)
	}
	p.rekeys[u] = sa
	r.ask(p)
	return nil
}

// refused tells a peer again what to seal with, but not too often.
func (r *rekeying) refused(now Time, u Use, sa SA, packets uint64) error {
	r.out.stats.SPIRefused += packets
	p, err := r.sharing(u)
	if err != nil || now < p.retold {
		return err
	}
	p.retold = now + r.timeout
	return r.give(u, sa)
}

// request requests another SA from a peer.
func (r *rekeying) request(u Use, spi uint32) error {
	p, err := r.sharing(u)
	if err != nil {
		return err
	}
	p.wants[u] = spi
	r.ask(p)
	return nil
}

func (r *rekeying) sharing(u Use) (*peer, error) {
	if p := r.peers.byID[u.Peer]; p != nil && p.tenants[u.Tenant] && u.Class < numClasses && u.Shard < MaxShards {
		return p, nil
	}
	return nil, fmt.Errorf("cm: %v: %w", u, ErrNotFound)
}

// ask has askAgain send a peer everything that it has not answered.
func (r *rekeying) ask(p *peer) {
	r.at = 0
	if !p.asked {
		p.asked = true
		r.soon = append(r.soon, p)
	}
}

// askAgain sends what is not answered yet: to peers that have not got it, and after a while to all
// that are ready.
func (r *rekeying) askAgain(now Time) {
	list := r.soon
	slices.SortFunc(list, (*peer).compare)
	if r.soon = nil; now >= r.again {
		r.again, list = math.MaxInt64, r.peers.all
	}
	for _, p := range list {
		p.asked = false
		if !p.ready || len(p.rekeys)+len(p.wants) == 0 {
			continue // its Hello asks
		}
		for _, u := range sortedUses(p.rekeys) {
			q := REKEY{u.Tenant, u.Class, u.Shard, p.rekeys[u]}
			r.out.send(p, Encode(&q))
		}
		for _, u := range sortedUses(p.wants) {
			q := REKEYREQ{u.Tenant, u.Class, u.Shard, p.wants[u]}
			r.out.send(p, Encode(&q))
		}
		r.again = min(r.again, now+r.timeout)
	}
	r.at = r.again
}

func sortedUses[V any](s map[Use]V) []Use {
	return slices.SortedFunc(maps.Keys(s), Use.Compare)
}

// taken handles a new SA of a peer.
func (r *rekeying) taken(now Time, p *peer, q *REKEY) {
	u := Use{p.ID, q.Shard, q.Tenant, q.Class}
	if !p.tenants[u.Tenant] {
		r.out.stats.TenantRefused++
		return
	}
	r.learn(p, u, q.SA)
	r.out.emit(Output{Kind: OutRekey, Use: u, SA: q.SA})
	ack := REKEYACK{u.Tenant, u.Class, u.Shard, q.SA.SPI, pspTime(now)}
	r.out.send(p, Encode(&ack))
}

// learn stores the SA with which the peer wants us to seal.
func (r *rekeying) learn(p *peer, u Use, sa SA) {
	if p.keys[u].SPI != sa.SPI {
		r.out.stats.KeysReceived++
	}
	p.keys[u] = sa
	if spi, ok := p.wants[u]; ok && spi != sa.SPI {
		delete(p.wants, u)
	}
}

// acked handles a peer's confirmation that it seals with our SA.
func (r *rekeying) acked(p *peer, a *REKEYACK) {
	u := Use{p.ID, a.Shard, a.Tenant, a.Class}
	if sa, ok := p.rekeys[u]; !ok || sa.SPI != a.SPI {
		return // for an SA that was replaced meanwhile, or a duplicate
	}
	delete(p.rekeys, u)
	r.out.stats.Rekeyed++
	r.out.emit(Output{Kind: OutRekeyed, Use: u, SA: SA{SPI: a.SPI}, Time: a.Time})
}

// requested handles a peer's request for another of our SAs.
func (r *rekeying) requested(p *peer, q *REKEYREQ) {
	u := Use{p.ID, q.Shard, q.Tenant, q.Class}
	if !p.tenants[u.Tenant] {
		r.out.stats.TenantRefused++
		return
	}
	if sa, under := p.rekeys[u]; under && sa.SPI != q.SPI {
		return // a new SA is on its way
	}
	r.out.stats.RekeyRequests++
	r.out.emit(Output{Kind: OutRekeyWanted, Use: u, SA: SA{SPI: q.SPI}})
}

// pspTime returns the PSP clock (ps) at an engine time; it wraps like the IV.
func pspTime(now Time) uint64 { return uint64(now) * 1000 }

// REKEY gives the receiver a new SA to seal with, in place of the one that it has for that shard,
// tenant and class. It is repeated until REKEYACK names its SPI.
//
//	tenant 32 | class 8 | PSP version 8 | shard 8 | reserved 8 | SPI 32 | key 256
type REKEY struct {
	Tenant uint32
	Class  Class
	Shard  uint8 // of the receiver; it shall seal with the SA
	SA     SA
}

func (*REKEY) kind() MessageType { return TypeREKEY }

func (m *REKEY) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, m.Tenant)
	b = append(b, byte(m.Class), m.SA.Version, m.Shard, 0)
	b = binary.BigEndian.AppendUint32(b, m.SA.SPI)
	var key [keyField]byte
	copy(key[:], m.SA.Key)
	return append(b, key[:]...)
}

func (m *REKEY) read(d *decoder) {
	m.Tenant = d.u32()
	m.Class = d.class()
	m.SA.Version = d.u8()
	m.Shard = d.shard(d.u8())
	d.zero(1)
	m.SA.SPI = d.u32()
	d.key(&m.SA)
}

// REKEYACK says that the sender's shard seals with the SA of this SPI from now on.
//
//	tenant 32 | class 8 | shard 8 | reserved 16 | SPI 32 | time 64
type REKEYACK struct {
	Tenant uint32
	Class  Class
	Shard  uint8 // of the sender
	SPI    uint32
	Time   uint64 // PSP clock of the sender, ps
}

func (*REKEYACK) kind() MessageType { return TypeREKEYACK }

func (m *REKEYACK) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, m.Tenant)
	b = append(b, byte(m.Class), m.Shard, 0, 0)
	b = binary.BigEndian.AppendUint32(b, m.SPI)
	return binary.BigEndian.AppendUint64(b, m.Time)
}

func (m *REKEYACK) read(d *decoder) {
	m.Tenant = d.u32()
	m.Class = d.class()
	m.Shard = d.shard(d.u8())
	d.zero(2)
	m.SPI = d.u32()
	m.Time = d.u64()
}

// REKEYREQ requests a new SA: the one that a shard of the sender has is nearly used up, or it has
// none. It is repeated until REKEY brings another.
//
//	tenant 32 | class 8 | shard 8 | reserved 16 | SPI 32 (0: none)
type REKEYREQ struct {
	Tenant uint32
	Class  Class
	Shard  uint8 // of the sender
	SPI    uint32
}

func (*REKEYREQ) kind() MessageType { return TypeREKEYREQ }

func (m *REKEYREQ) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, m.Tenant)
	b = append(b, byte(m.Class), m.Shard, 0, 0)
	return binary.BigEndian.AppendUint32(b, m.SPI)
}

func (m *REKEYREQ) read(d *decoder) {
	m.Tenant = d.u32()
	m.Class = d.class()
	m.Shard = d.shard(d.u8())
	d.zero(2)
	m.SPI = d.u32()
}

func (d *decoder) class() Class {
	c := Class(d.u8())
	if c >= numClasses {
		d.fail("class %d: want 0 or 1", uint8(c))
	}
	return c
}

// key reads the key field of an SA whose version and SPI were read before, and checks all three.
func (d *decoder) key(sa *SA) {
	if sa.Version > 3 {
		d.fail("PSP version %d: want 0 to 3", sa.Version)
	}
	if sa.SPI&^(1<<31) == 0 { // both reserved by PSP
		d.fail("SPI %#x", sa.SPI)
	}
	n := keyLen(sa.Version)
	sa.Key = append([]byte(nil), d.bytes(n)...)
	d.zero(keyField - n)
}
