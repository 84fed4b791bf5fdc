package security

import (
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/psp"
)

// manager is a connection manager whose messages reach all peers at once.
type manager struct {
	rekeys, asked, refused []Use
}

func (m *manager) Rekey(u Use, _ cm.SA) error {
	m.rekeys = append(m.rekeys, u)
	return nil
}

func (m *manager) RequestRekey(u Use, _ uint32) error {
	m.asked = append(m.asked, u)
	return nil
}

func (m *manager) SPIRefused(_ int64, u Use, _ cm.SA, _ uint64) error {
	m.refused = append(m.refused, u)
	return nil
}

// zeroes is a bad source of master keys.
type zeroes struct{}

func (zeroes) Read(b []byte) (int, error) { return len(b), nil }

// newKeys returns keys of a NIC whose peers cannot be reached, except for the uses in needed.
func newKeys(t *testing.T, every time.Duration, needed map[Use]bool) (*Keys, *manager) {
	t.Helper()
	k, err := NewKeys(Config{
		Shards: 1, ReplayMargin: time.Second, RotateEvery: every, Rand: zeroes{},
		Needed: func(u Use) bool { return needed[u] }, Log: func(int64, slog.Level, string, ...any) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	m := &manager{}
	k.Connect(m)
	return k, m
}

func issue(t *testing.T, k *Keys, u Use) cm.SA {
	t.Helper()
	sa, err := k.Issue(u)
	if err != nil {
		t.Fatal(err)
	}
	return sa
}

// TestIVOverConnections: the transmit SA outlives connections, so its IVs keep rising even if the
// clock has gone back when the next connection opens.
func TestIVOverConnections(t *testing.T) {
	sas := NewTxSAs(Tunnel{}, &manager{})
	sa := cm.SA{SPI: 1, Key: make([]byte, 16)}
	b := make([]byte, 200)
	var last uint64
	for i, now := range []int64{5000, 10, 20, 5000, 0} {
		if i == 3 {
			sa.SPI = 2 // another key
		}
		tx, err := sas.Give(Use{Peer: 2, Tenant: 7}, sa)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := (Tunnel{}).seal(now, tx, b, MaxHeadroom, 60, false); err != nil || tx.sa.LastIV() <= last {
			t.Fatalf("connection %d at %d ns: IV %d after %d (%v)", i, now, tx.sa.LastIV(), last, err)
		}
		last = tx.sa.LastIV()
	}
}

// TestKeyLogFails: the first write error ends the log, and is reported.
func TestKeyLogFails(t *testing.T) {
	f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	failed := make(chan error, 2)
	l := NewKeyLog(f, func(err error) { failed <- err })
	for range 3 {
		l.sa("rx", Use{}, &cm.SA{})
	}
	if err := <-failed; !errors.Is(err, syscall.ENOSPC) {
		t.Error(err)
	}
	if err := l.Close(); err != nil || len(failed) != 0 {
		t.Error(err, len(failed))
	}
}

// TestRotateMost: there is always room to rotate all keys.
func TestRotateMost(t *testing.T) {
	k, _ := newKeys(t, 0, nil)
	n := 0
	for ; n < maxRxSAs; n++ {
		if _, err := k.Issue(Use{Peer: 2, Tenant: uint32(n + 1)}); err != nil {
			if !errors.Is(err, psp.ErrFull) {
				t.Fatal(err)
			}
			break
		}
	}
	k.db.Rotate(&[32]byte{})
	for _, u := range k.uses() {
		if err := k.renew(k.current[u]); err != nil {
			t.Fatalf("after %d of %d: %v", k.db.Len()-n, n, err)
		}
	}
}

// TestRotateInSteps: a rotation replaces many keys a few at a time, accepts both generations
// meanwhile, and drops keys that nobody needs. Another rotation can start when all peers have
// confirmed.
func TestRotateInSteps(t *testing.T) {
	const n = 10 * perStep
	needed := map[Use]bool{}
	k, m := newKeys(t, 0, needed)
	opener := k.Opener(0)
	sealed := map[Use][]byte{}
	for i := range n {
		u := Use{Peer: 2, Tenant: uint32(i + 1)}
		sealed[u] = sealOne(t, u, issue(t, k, u))
		needed[u] = i%10 != 0
	}
	now := int64(1e9)
	if err := k.Rotate(now); err != nil {
		t.Fatal(err)
	}
	for step := 1; step <= 10; step++ {
		if done := len(m.rekeys); done > step*perStep || done < (step*perStep)*8/10 {
			t.Fatalf("step %d: %d keys were replaced", step, done)
		}
		if err := k.Rotate(now); !errors.Is(err, ErrRotating) {
			t.Fatal(err)
		}
		if step < 10 && k.Deadline() > now {
			t.Fatal("nothing more is due")
		}
		k.Advance(now)
	}
	if len(m.rekeys) != n*9/10 || k.Stats().Uses != n*9/10 || k.Stats().Unsettled != n*9/10 {
		t.Fatalf("%d keys were replaced, %+v", len(m.rekeys), k.Stats())
	}
	for u, b := range sealed {
		if _, why := opener.Open(append([]byte(nil), b...)); (why == None) != needed[u] {
			t.Fatalf("%+v: %d", u, why)
		}
	}
	for _, info := range k.List() {
		k.Confirmed(now, info.Use, info.SPI, 1)
	}
	k.Advance(now + lingerMost - 1)
	if st := k.Stats(); st.Unsettled != n*9/10 || k.Deadline() != now+lingerMost {
		t.Fatalf("%+v, next at %d", st, k.Deadline()-now)
	}
	k.Advance(now + lingerMost)
	if st := k.Stats(); st.Unsettled != 0 || st.SPIs != n*9/10 {
		t.Fatalf("%+v", st)
	}
	if err := k.Rotate(now + lingerMost); err != nil {
		t.Error(err)
	}
}

// sealOne seals a Falcon packet as the peer would.
func sealOne(t *testing.T, u Use, sa cm.SA) []byte {
	t.Helper()
	tx, err := NewTxSAs(Tunnel{}, &manager{}).Give(u, sa)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, MaxHeadroom+100+Trailer)
	start, sealed, err := (Tunnel{}).seal(1e9, tx, b, MaxHeadroom, 100, false)
	if err != nil {
		t.Fatal(err)
	}
	return b[start : start+sealed]
}

// TestConnectionsOfOneKey: an operation on a key affects all its connections. They keep it alive in
// a rotation, even if its peer is away, and it is dropped after the last connection has closed.
func TestConnectionsOfOneKey(t *testing.T) {
	k, m := newKeys(t, 0, nil)
	u := Use{Peer: 2, Tenant: 7}
	first := issue(t, k, u)
	tx, err := NewTxSAs(Tunnel{}, m).Give(u, first)
	if err != nil {
		t.Fatal(err)
	}
	sessions := make([]*Session, 3)
	for i := range sessions {
		r, _ := k.Receive(u, 1)
		sessions[i] = NewSession(r, tx, false)
	}
	check := func(what string, sa cm.SA, want Refusal) {
		t.Helper()
		for i := range sessions {
			o := Opened{hdr: psp.Header{SPI: sa.SPI, IV: 1e15, HasVC: true, VC: Cookie(7)}, by: k.db}
			if _, why := sessions[i].Check(&o); why != want {
				t.Errorf("%s: connection %d: %d, want %d", what, i, why, want)
			}
		}
	}
	check("first", first, None)
	if err := k.Rotate(0); err != nil {
		t.Fatal(err)
	}
	second := issue(t, k, u)
	check("previous", first, None)
	check("current", second, None)
	if len(m.rekeys) != 1 {
		t.Errorf("the peer was told %d times", len(m.rekeys))
	}
	k.SPIRefused(0, u, 1)
	if len(m.refused) != 1 {
		t.Error("the peer was not told what to seal with")
	}
	k.Confirmed(0, u, second.SPI, 1e15+5e12)
	check("longer ago than the margin, says the peer", second, Replayed)
	k.Advance(lingerMost)
	check("previous has ended", first, WrongSPI)
	for i := range sessions {
		sessions[i].Release()
		sessions[i].Release()
	}
	if err := k.Rotate(lingerMost); err != nil {
		t.Fatal(err)
	}
	if k.Issued(u) {
		t.Error("the key of nobody is kept")
	}
}

// TestLayout: checks where Falcon packets are in either mode, and that they are opened unchanged.
func TestLayout(t *testing.T) {
	const n = 100
	for _, tc := range []struct {
		encap    Encap
		v6       bool
		overhead int
	}{{Tunnel{}, false, 24 + 20 + 16}, {Tunnel{}, true, 24 + 40 + 16}, {Transport{}, false, 16 + 16}, {Transport{}, true, 16 + 16}} {
		k, m := newKeys(t, 0, nil)
		k.cfg.Transport = tc.encap == Transport{}
		u := Use{Peer: 2, Tenant: 7}
		tx, err := NewTxSAs(tc.encap, m).Give(u, issue(t, k, u))
		if err != nil {
			t.Fatal(err)
		}
		r, _ := k.Receive(u, 1)
		x := NewSession(r, tx, tc.v6)
		inner := underlay.Inner{Src: addr(1, tc.v6), Dst: addr(2, tc.v6)}
		b := make([]byte, MaxHeadroom+n+Trailer)
		b[MaxHeadroom], b[MaxHeadroom+3] = 1<<4, 0x42 // Falcon's version; connection 0x42
		whole := x.Wrap(&inner, b, MaxHeadroom, n)
		if len(whole) != inner.Len()+n {
			t.Errorf("%d bytes are wrapped", len(whole))
		}
		start, sealed, err := x.Seal(1e9, b, MaxHeadroom, n)
		if err != nil || sealed != n+tc.overhead || tc.encap.Overhead(tc.v6) != tc.overhead {
			t.Errorf("%T, IPv6 %v: %d bytes around it, says %d, want %d: %v", tc.encap, tc.v6, sealed-n, tc.encap.Overhead(tc.v6), tc.overhead, err)
		}
		b = b[start : start+sealed]
		if cid, ok := tc.encap.PeekCID(b); !ok || cid != 0x42 {
			t.Errorf("%T, IPv6 %v: CID %#x", tc.encap, tc.v6, cid)
		}
		o, why := k.Opener(0).Open(b)
		if why != None {
			t.Fatal(why)
		}
		p, why := tc.encap.Open(o)
		if why != None || len(p.Falcon) != n || p.CID != 0x42 || (p.Whole == nil) != (tc.encap == Transport{}) || p.Whole != nil && p.Inner.Dst != inner.Dst {
			t.Errorf("%T, IPv6 %v: refusal %d, %+v", tc.encap, tc.v6, why, p)
		}
		other := Encap(Tunnel{})
		if tc.encap == other {
			other = Transport{}
		}
		if _, why := other.Open(o); why != OtherMode {
			t.Errorf("%T takes what %T sealed: %d", other, tc.encap, why)
		}
		if newest, why := x.Check(o); why != None || !newest {
			t.Errorf("refusal %d, newest %v", why, newest)
		}
		if newest, why := x.Check(o); why != None || newest {
			t.Errorf("again: refusal %d, newest %v", why, newest)
		}
	}
}

func addr(last byte, v6 bool) netip.Addr {
	if v6 {
		return netip.AddrFrom16([16]byte{0xfd, 15: last})
	}
	return netip.AddrFrom4([4]byte{10, 0, 0, last})
}
