package security

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/psp"
)

const testTenant = 7

// shardedNIC holds a NIC's issued keys, the transmit keys of each of its shards, and its connection
// manager.
type shardedNIC struct {
	host    cm.HostID
	m       *cm.Manager
	keys    *Keys
	openers []*Opener
	tx      []*TxSAs
	lost    int // messages to lose
}

func (n *shardedNIC) AllocCID(uint32) (uint32, error)    { return 0, errors.New("no connections here") }
func (n *shardedNIC) FreeCID(uint32)                     {}
func (n *shardedNIC) RxSA(u cm.Use) (cm.SA, error)       { return n.keys.Issue(u) }
func (n *shardedNIC) RequestRekey(u Use, s uint32) error { return n.m.RequestRekey(u, s) }
func (n *shardedNIC) ForgetSAs(peer cm.PeerID) {
	n.keys.ForgetPeer(peer)
	for _, t := range n.tx {
		t.ForgetPeer(peer)
	}
}

func newShardedNIC(t *rapid.T, host cm.HostID, shards int, seed uint64) *shardedNIC {
	n := &shardedNIC{host: host}
	source := rand.NewChaCha8([32]byte{host, byte(seed), byte(seed >> 8)})
	var err error
	n.m, err = cm.New(cm.Config{Host: host}, n, source)
	if err == nil {
		err = n.m.AddPeer(cm.Peer{ID: cm.PeerID(3 - host), Host: 3 - host, Tenants: []uint32{testTenant}})
	}
	if err != nil {
		t.Fatal(err)
	}
	n.keys, err = NewKeys(Config{
		Shards: shards, ReplayMargin: time.Second, Rand: source,
		Needed: func(Use) bool { return true }, Log: func(int64, slog.Level, string, ...any) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	n.keys.Connect(n.m)
	for i := range shards {
		n.openers = append(n.openers, n.keys.Opener(i))
		n.tx = append(n.tx, NewTxSAs(Tunnel{}, n))
	}
	return n
}

// run handles the outputs of the connection manager, and delivers messages to the peer.
func (n *shardedNIC) run(t *rapid.T, now int64, to *shardedNIC) (busy bool) {
	n.keys.Advance(now)
	n.m.Advance(now)
	var o cm.Output
	for ; n.m.Next(&o); busy = true {
		switch o.Kind {
		case cm.OutSend:
			if n.lost > 0 {
				n.lost--
			} else if err := to.m.Receive(now, cm.PeerID(n.host), o.Msg); err != nil {
				t.Fatal(err)
			}
		case cm.OutRekey:
			if _, err := n.tx[o.Use.Shard].Give(o.Use, o.SA); err != nil {
				t.Fatal(err)
			}
		case cm.OutRekeyed:
			n.keys.Confirmed(now, o.Use, o.SA.SPI, o.Time)
		case cm.OutRekeyWanted:
			n.keys.Asked(now, o.Use, o.SA.SPI)
		}
	}
	return busy
}

// TestShardsSealApart: two shards of a NIC seal for one tenant of a peer with one to four shards,
// while the peer rotates its keys, keys are used up, and messages about them are late. No nonce is
// used twice with a key, and no packet is lost: each is opened in the right shard and accepted.
func TestShardsSealApart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from := newShardedNIC(t, 1, 2, rapid.Uint64().Draw(t, "seed"))
		to := newShardedNIC(t, 2, rapid.IntRange(1, 4).Draw(t, "shards of the receiver"), 1)
		now := int64(1e9)
		settle := func() {
			for from.run(t, now, to) || to.run(t, now, from) {
			}
		}
		from.m.PeerUp(now, 2)
		to.m.PeerUp(now, 1)
		settle()
		var uses []Use // as the receiver sees them
		sessions := map[Use]*Session{}
		for shard := range uint8(2) {
			from.tx[shard].PacketLimit = 64
			for _, class := range []cm.Class{cm.ClassFalcon, cm.ClassGateway} {
				if err := from.m.RequestRekey(Use{Peer: 2, Shard: shard, Tenant: testTenant, Class: class}, 0); err != nil {
					t.Fatal(err)
				}
				uses = append(uses, Use{Peer: 1, Shard: shard, Tenant: testTenant, Class: class})
			}
		}
		settle()
		for _, u := range uses {
			r, ok := to.keys.Receive(u, uint64(now)*1000)
			if !ok {
				t.Fatalf("no key for %v", u)
			}
			sessions[u] = NewSession(r, &TxSA{owner: from.tx[u.Shard]}, false) // it only receives
		}
		nonces := map[[12]byte]bool{}
		seal := func(u Use) []byte { // nil: the key is used up, and there is no other yet
			tx := from.tx[u.Shard].current[Use{Peer: 2, Shard: u.Shard, Tenant: u.Tenant, Class: u.Class}]
			b := make([]byte, MaxHeadroom+100+Trailer)
			start, n, err := MaxHeadroom, 0, error(nil)
			if u.Class == cm.ClassGateway {
				n, err = tx.SealPlain(now, b[start:], append([]byte{0x45}, make([]byte, 60)...))
			} else {
				putFalcon(b, MaxHeadroom, 60)
				start, n, err = (Tunnel{}).seal(now, tx, b, MaxHeadroom, 60, false)
				tx.refresh()
			}
			if errors.Is(err, psp.ErrRekey) {
				return nil
			} else if err != nil {
				t.Fatal(err)
			}
			b = b[start : start+n]
			nonce := [12]byte(b[4:16]) // SPI, IV
			if nonces[nonce] {
				t.Fatalf("%v: SPI %#x seals twice with IV %#x", u, binary.BigEndian.Uint32(b[4:]), b[8:16])
			}
			nonces[nonce] = true
			return b
		}
		open := func(u Use, b []byte) {
			window, gateway := to.openers[0].ShardOf(b)
			if gateway != (u.Class == cm.ClassGateway) || gateway && window != int(u.Shard)%len(to.openers) {
				t.Fatalf("%v: window %d, %v", u, window, gateway)
			}
			if n := len(to.openers); gateway && n > 1 {
				if _, why := to.openers[(window+1)%n].Open(append([]byte(nil), b...)); why != UnknownSPI {
					t.Fatalf("%v: a shard without its window says %d", u, why)
				}
			}
			o, why := to.openers[window].Open(b)
			if why != None {
				t.Fatalf("%v: refusal %d", u, why)
			}
			if o.Use != u || !o.OwnCookie() {
				t.Fatalf("%v: opened as of %v", u, o.Use)
			}
			if _, why := sessions[u].Check(o); !gateway && why != None {
				t.Fatalf("%v: the connection refuses it: %d", u, why)
			}
		}
		type flying struct {
			u Use
			b []byte
		}
		var fly []flying
		land := func() {
			for _, f := range fly {
				open(f.u, f.b)
			}
			fly = nil
		}
		t.Repeat(map[string]func(*rapid.T){
			"send": func(t *rapid.T) {
				u := rapid.SampledFrom(uses).Draw(t, "use")
				for range rapid.IntRange(1, 20).Draw(t, "packets") {
					if b := seal(u); b != nil {
						fly = append(fly, flying{u, b})
					}
				}
			},
			"arrive": func(*rapid.T) { land() },
			"rotate": func(t *rapid.T) {
				if err := to.keys.Rotate(now); err != nil && !errors.Is(err, ErrRotating) {
					t.Fatal(err)
				}
			},
			"talk": func(*rapid.T) { settle() },
			"lose": func(t *rapid.T) { to.lost = rapid.IntRange(0, 4).Draw(t, "messages") },
			"wait": func(t *rapid.T) {
				settle() // packets are under way for less time than an old key lingers
				land()
				now += int64(rapid.IntRange(1, 1500).Draw(t, "ms")) * 1e6
				settle()
			},
		})
		settle()
		land()
		from.m.PeerDown(now, 2)
		to.m.ForgetPeer(now, 1)
		if to.keys.Stats().SPIs != 0 {
			t.Errorf("revoked, and %d SPIs are accepted", to.keys.Stats().SPIs)
		}
		if b := seal(uses[0]); b == nil {
			return
		} else if _, why := to.openers[0].Open(b); why != UnknownSPI {
			t.Errorf("a packet of a revoked peer: %d", why)
		}
	})
}

// TestKeysAreShared: a peer that requests keys for all its shards and tenants leaves room for
// others.
func TestKeysAreShared(t *testing.T) {
	k, _ := newKeys(t, 0, nil)
	k.shares.Size = 64
	n := 0
	for ; ; n++ {
		if _, err := k.Issue(Use{Peer: 2, Shard: uint8(n % cm.MaxShards), Tenant: uint32(n)}); errors.Is(err, psp.ErrFull) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if n != 48 {
		t.Errorf("one peer has %d of 64", n)
	}
	issue(t, k, Use{Peer: 3})
	k.ForgetPeer(2)
	if k.shares.Held(2) != 0 {
		t.Errorf("%d are left", k.shares.Held(2))
	}
}
