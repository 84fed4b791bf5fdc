package shard

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/gopacket/gopacket/pcapgo"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestConnectionsInsideOneNIC runs the tests of connections again between two functions of one NIC:
// their drivers see no difference.
func TestConnectionsInsideOneNIC(t *testing.T) {
	insideOneNIC(t)
	for _, c := range []struct {
		name string
		test func(*testing.T)
	}{
		{"ConnectRejected", TestARejectionTellsItsReasonAndFreesTheQP},
		{"ConnectionEnds", TestAnEndedConnectionLeavesNothing},
		{"EndWhileConnecting", TestEndWhileConnecting},
	} {
		t.Run(c.name, c.test)
	}
	t.Run("nothing leaves", func(t *testing.T) {
		v := newVirtual(t, 1, wire100us)
		v.tap = func(_ int, frame []byte) []byte {
			t.Errorf("a frame of %d bytes left the NIC", len(frame))
			return nil
		}
		a, b := pair(v)
		exchange(t, a, b, 100_000)
		if v.cores[0].Keys.Stats().SPIs != 0 {
			t.Error("a key was made")
		}
	})
}

// TestTenantsOfOneNICCannotReachEachOther checks that functions of one NIC in different tenants cannot reach each
// other, with any addresses.
func TestTenantsOfOneNICCannotReachEachOther(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	a, b := newDriver(v, 0, 1), newDriver(v, 0, 4) // the same address in tenants 7 and 8
	a.setUp()
	b.setUp()
	b.must(abi.AdminOpCMListen, &abi.CMListen{Service: 5})
	a.must(abi.AdminOpCMConnect, &abi.CMConnect{QPN: a.qpn, Service: 5, DGID: b.fn.GID()})
	if e := a.event(abi.EventRejected); e.Status != uint32(abi.StatusRefused) { // it reached itself
		t.Errorf("%s", abi.Status(e.Status))
	}
	if st, _ := b.command(abi.AdminOpCMConnect, &abi.CMConnect{QPN: b.qpn, Service: 5, DGID: v.function(0, 2).GID()}); st != abi.StatusUnreachable {
		t.Errorf("connect from tenant 8 to an address of tenant 7: %s", st)
	}
}

// TestTrafficInsideANICIsCapturedClear reads the capture of a WRITE inside the NIC: clear inner packets that parse
// as Falcon, both ways, none sealed.
func TestTrafficInsideANICIsCapturedClear(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.pcapng")
	to, err := capture.Create(path, config.CaptureBoth)
	if err != nil {
		t.Fatal(err)
	}
	v := newVirtual(t, 1, wire100us)
	v.captureTo(0, to, config.CaptureBoth)
	insideOneNIC(t)
	a, b := pair(v)
	a.send(abi.OpWrite, 0, 3000, b, 0)
	a.done()
	a.send(abi.OpRead, 0, 100, b, 0)
	a.done()
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewNgReader(f, pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if err != nil {
		t.Fatal(err)
	}
	got := map[wire.PacketType]int{}
	for {
		data, ci, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || ci.InterfaceIndex != capture.Clear {
			t.Fatalf("interface %d, %v", ci.InterfaceIndex, err)
		}
		inner, packet, err := underlay.ParseInner(data)
		if err != nil || inner.Src != a.fn.Addr && inner.Src != b.fn.Addr {
			t.Fatalf("%+v, %v", inner, err)
		}
		if kind, _ := wire.Peek(packet); !kind.HasBase() {
			continue // an acknowledgement, between two shards
		}
		h, drop := wire.ParseHeader(packet)
		if drop != wire.DropNone || v.nics[0][conn.ShardOf(h.CID)].falcon.table.Find(h.CID) == nil {
			t.Fatalf("%+v: %v", h, drop)
		}
		if h.Type == wire.TypePushData {
			if _, data, drop := wire.ParsePushData(packet); drop != wire.DropNone || len(data) < 3000 {
				t.Errorf("Push Data of %d bytes: %v", len(data), drop)
			}
		}
		got[h.Type]++
	}
	if got[wire.TypePushData] != 1 || got[wire.TypePullRequest] != 1 || got[wire.TypePullData] != 1 {
		t.Errorf("captured %v", got)
	}
}
