package shard

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Where the second NIC is by the configuration, and where its packets may come from.
var (
	home      = netip.MustParseAddrPort("10.99.0.2:1000")
	elsewhere = netip.MustParseAddrPort("10.99.7.7:1000")
)

// roads is a network over UDP in which packets of the second NIC may come from elsewhere, too.
type roads struct {
	*virtual
	a, b   *driver
	from   []netip.AddrPort // each packet of the second NIC comes from these places, in this order
	silent []netip.AddrPort // what is sent there is lost

	asked, longest int // packets to elsewhere, and the bytes of the longest
}

func newRoads(t *testing.T) *roads {
	r := &roads{from: []netip.AddrPort{home}, silent: []netip.AddrPort{elsewhere}}
	r.virtual = newPortWorldWith(t, 5, func(i int, c *config.Config) {
		c.Uplink.Type = config.UplinkUDP
		c.Uplink.Listen = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 99, 0, byte(i + 1)}), 1000)
		c.Peers[0].Underlay.AddrPort = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 99, 0, byte(2 - i)}), 1000)
	})
	r.tap = r.carry
	r.a, r.b = pair(r.virtual)
	exchange(t, r.a, r.b, 5000)
	return r
}

func (r *roads) carry(from int, frame []byte) []byte {
	const src, dst = 26, 30
	if from == 0 {
		to := netip.AddrPortFrom(netip.AddrFrom4([4]byte(frame[dst:])), 1000)
		if to == elsewhere {
			r.asked++
			r.longest = max(r.longest, len(frame))
		}
		for _, s := range r.silent {
			if s == to {
				return nil
			}
		}
		return frame
	}
	for _, at := range r.from {
		f, a := bytes.Clone(frame), at.Addr().As4()
		copy(f[src:], a[:])
		devicetest.FinishHeader(f[14:34])
		r.links[1].Send(r.now, f)
	}
	return nil
}

// at returns where the first NIC takes the second for.
func (r *roads) at() netip.AddrPort { return r.cores[0].Peers.Find(r.names[1]).At }

// talk writes both ways for a while.
func (r *roads) talk(t *testing.T, rounds int) {
	t.Helper()
	for range rounds {
		exchange(t, r.a, r.b, 5000)
		exchange(t, r.b, r.a, 5000)
		r.idle(50e6)
	}
}

// TestAPeerThatAnswersOnlyElsewhereHasMoved: its connections go on within a second, also when it
// comes home.
func TestAPeerThatAnswersOnlyElsewhereHasMoved(t *testing.T) {
	eachShards(t, func(t *testing.T) {
		r := newRoads(t)
		for _, c := range []struct{ to, not netip.AddrPort }{{elsewhere, home}, {home, elsewhere}} {
			r.from, r.silent = []netip.AddrPort{c.to}, []netip.AddrPort{c.not}
			begun := r.now
			r.b.send(abi.OpWrite, 0, 5000, r.a, 0)
			r.until("the peer is followed", func() bool { return r.at() == c.to })
			if took := r.now - begun; took > 1e9 {
				t.Errorf("it took %d ns", took)
			}
			if cqe := r.b.done(); cqe.Status != abi.WCSuccess {
				t.Fatal(cqe.Status)
			}
			r.talk(t, 3)
		}
	})
}

// TestACopySentFromElsewhereMovesNobody: whoever delivers copies of packets from elsewhere, faster than
// the packets themselves, does not get what is for the peer, whether or not they pass questions on.
// What is sent to elsewhere because of that is little.
func TestACopySentFromElsewhereMovesNobody(t *testing.T) {
	for _, silent := range [][]netip.AddrPort{{elsewhere}, nil} {
		r := newRoads(t)
		r.from, r.silent = []netip.AddrPort{elsewhere, home}, silent
		begun := r.now
		for r.now-begun < 4e9 {
			r.talk(t, 1)
			if r.at() != home {
				t.Fatalf("the peer is taken to be at %s", r.at())
			}
		}
		if r.asked == 0 || r.asked > 4*5 || r.longest > 150 {
			t.Errorf("%d packets of up to %d bytes were sent elsewhere in four seconds", r.asked, r.longest)
		}
	}
}

// TestTheConfiguredAddressWins: a peer that answers at the address that is configured is there, even if
// somebody answers elsewhere, too.
func TestTheConfiguredAddressWins(t *testing.T) {
	r := newRoads(t)
	r.from, r.silent = []netip.AddrPort{elsewhere}, []netip.AddrPort{home}
	r.b.send(abi.OpWrite, 0, 5000, r.a, 0)
	r.until("the peer is followed", func() bool { return r.at() == elsewhere })
	r.b.done()
	r.from, r.silent = []netip.AddrPort{elsewhere, home}, nil
	r.talk(t, 1)
	r.from = []netip.AddrPort{home, elsewhere}
	r.b.send(abi.OpWrite, 0, 5000, r.a, 0)
	r.until("the peer is at home again", func() bool { return r.at() == home })
	r.b.done()
	r.talk(t, 3)
}

// TestAMoveOfARemovedPeerIsForgotten: nothing is left of a peer that is removed while it is asked.
func TestAMoveOfARemovedPeerIsForgotten(t *testing.T) {
	r := newRoads(t)
	r.from = []netip.AddrPort{elsewhere, home}
	r.b.send(abi.OpWrite, 0, 5000, r.a, 0)
	r.until("the peer is asked", func() bool { return r.asked > 0 })
	r.setPeers(0)
	r.idle(2e9)
	if n := r.asked; n > 1 {
		t.Errorf("%d questions to a peer that is gone", n)
	}
	if left := r.leftOfPeers(0); len(left) != 0 {
		t.Error(left)
	}
}
