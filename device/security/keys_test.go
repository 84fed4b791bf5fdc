package security

import (
	"errors"
	"log/slog"
	"testing"
	"time"

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

// TestThereIsRoomToRotateAllKeys: there is always room to rotate all keys.
func TestThereIsRoomToRotateAllKeys(t *testing.T) {
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
	putFalcon(b, MaxHeadroom, 100)
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
