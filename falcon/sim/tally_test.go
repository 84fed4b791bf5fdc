package sim

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon/wire"
)

// TestEachPacketIsCountedInItsWindow: every packet with a PSN is counted in its window, as new or as sent again; a Resync
// belongs to the window of the packet that it replaces, and an acknowledgement to none.
func TestEachPacketIsCountedInItsWindow(t *testing.T) {
	n := network(t, func(*NetworkConfig) {})
	e := &add(t, n, FlowConfig{From: 0, To: 1, Sizes: []int{8}, Start: 1e9}).from.history
	e.highest, e.tally = [2]uint32{100, 200}, tally{}
	header := func(typ wire.PacketType, psn uint32) wire.Header {
		return wire.Header{CID: 1, Protocol: wire.ProtocolRDMA, Type: typ, PSN: psn}
	}
	resync := func(of wire.PacketType, psn uint32) []byte {
		r := wire.Resync{Header: header(wire.TypeResync, psn), Code: wire.ResyncRetransmit, Original: of}
		return r.Append(nil)
	}
	plain := func(typ wire.PacketType, psn uint32) []byte {
		h := header(typ, psn)
		return append(h.Append(nil), make([]byte, 8)...)
	}
	a := wire.Ack{CID: 1}
	for i, tc := range []struct {
		packet []byte
		window int8
		want   tally
	}{
		{plain(wire.TypePullRequest, 100), requestWindow, tally{first: 1}},
		{plain(wire.TypePullRequest, 101), requestWindow, tally{first: 2}},
		{plain(wire.TypePullRequest, 101), requestWindow, tally{first: 2, again: 1}},
		{plain(wire.TypePushData, 200), dataWindow, tally{first: 3, again: 1}},
		{plain(wire.TypePullData, 201), dataWindow, tally{first: 4, again: 1}},
		{resync(wire.TypePullRequest, 100), requestWindow, tally{first: 4, again: 2}},
		{resync(wire.TypePushData, 202), dataWindow, tally{first: 5, again: 2}},
		{resync(wire.TypePullData, 202), dataWindow, tally{first: 5, again: 3}},
		{a.Append(nil), noWindow, tally{first: 5, again: 3}},
	} {
		p := n.packets.get()
		p.n = copy(p.buf, tc.packet)
		if e.sent(p); p.window != tc.window || e.tally != tc.want {
			t.Errorf("packet %d: window %d, %+v; want %d, %+v", i, p.window, e.tally, tc.window, tc.want)
		}
	}
	got := tally{first: 11, again: 7, spurious: 5, lost: 3}.since(tally{first: 1, again: 2, spurious: 3, lost: 1})
	if want := (tally{first: 10, again: 5, spurious: 2, lost: 2}); got != want {
		t.Errorf("since: %+v, want %+v", got, want)
	}
	got.add(tally{first: 1, again: 2, spurious: 3, lost: 4})
	if want := (tally{first: 11, again: 7, spurious: 5, lost: 6}); got != want {
		t.Errorf("sum: %+v, want %+v", got, want)
	}
}
