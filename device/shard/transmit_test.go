package shard

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/psp"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// headersSeen holds the header fields that a sealed frame shows on the wire.
type headersSeen struct {
	class, innerClass, innerHops uint8
	innerFlow                    uint32
	port                         uint16
}

// seen reads a frame over IPv4; the inner header is authenticated, not encrypted.
func seen(frame []byte) (h headersSeen) {
	h.class, h.port = frame[15], binary.BigEndian.Uint16(frame[34:])
	switch in := frame[underlay.Headroom+psp.BaseLen+psp.VCLen:]; in[0] >> 4 {
	case 4:
		h.innerClass, h.innerHops = in[1], in[8]
	case 6:
		word := binary.BigEndian.Uint32(in)
		h.innerClass, h.innerFlow, h.innerHops = uint8(word>>20), word&(1<<20-1), in[7]
	}
	return h
}

// TestClassOverRoCE checks that the traffic class that a driver names is in both headers, outer and
// inner (DEV-946, Annex A17.9.2): DSCP and, for connections, ECT(0); datagrams have no ECN.
func TestClassOverRoCE(t *testing.T) {
	for _, datagrams := range []bool{false, true} {
		v := newRoCEWorld(t, config.TransportRoCE, sim.Impairment{Delay: 50_000})
		a, b := drivers(v)
		var classes []byte
		v.tap = func(from int, frame []byte) []byte {
			if from == 0 && len(frame) > 1000 {
				classes = append(classes, frame[15])
			}
			return frame
		}
		const class = 0xbb
		want := byte(class&^3 | underlay.ECT0)
		if datagrams {
			want = class &^ 3
			ahn := binary.LittleEndian.Uint32(a.must(abi.AdminOpCreateAH, &abi.CreateAH{PDN: a.pdn, DGID: b.fn.GID(), TrafficClass: class, VLAN: abi.NoVLAN}))
			a.createUD(b.fn.GID(), 0, 0)
			b.createUD(a.fn.GID(), 0, 0)
			b.receive(0, 4096)
			a.datagram(ahn, b.qpn, 1000)
			b.done()
			if tos := b.data()[21]; tos != want {
				t.Errorf("the header before the datagram has class %#x, want %#x", tos, want)
			}
		} else {
			a.setPath(abi.ModifyQP{TrafficClass: class, VLAN: abi.NoVLAN})
			wiredPair(v, a, b, true)
			a.send(abi.OpWrite, 0, 3000, b, 0)
		}
		if cqe := a.done(); cqe.Status != abi.WCSuccess {
			t.Fatal(cqe.Status)
		}
		if len(classes) == 0 || bytes.Count(classes, []byte{want}) != len(classes) {
			t.Errorf("datagrams %t: outer classes %#x, want %#x", datagrams, classes, want)
		}
	}
}

// setPath sets the path of the driver's queue pair, in INIT and when it is wired.
func (d *driver) setPath(p abi.ModifyQP) {
	d.v.t.Helper()
	d.path = p
	p.QPN, p.Mask = d.qpn, abi.QPAttrAV
	d.must(abi.AdminOpModifyQP, &p)
}

// TestPacketsHaveTheHeadersOfTheirPath sends by queue pairs with a path, connected by number and by service, and by
// address handles: DSCP is in both headers, ECN belongs to the network, hop limit and flow label
// are in the inner header, and the flow label selects the source port. (DEV-946, DEV-947)
func TestPacketsHaveTheHeadersOfTheirPath(t *testing.T) {
	for _, inner := range []int{4, 6} {
		for _, how := range []string{"wired", "connected", "datagrams"} {
			t.Run(fmt.Sprintf("%s, IPv%d", how, inner), func(t *testing.T) {
				v := newVirtualWith(t, 3, wire100us, devicetest.IPVersions(4, inner))
				a, b := drivers(v)
				var frames [2][]headersSeen
				v.tap = func(from int, frame []byte) []byte {
					if len(frame) > 100 {
						frames[from] = append(frames[from], seen(frame))
					}
					return frame
				}
				const class, hops, flow = 0xbb, 33, 0x12345
				path := abi.ModifyQP{TrafficClass: class, HopLimit: hops, FlowLabel: flow, SL: 3, VLAN: abi.NoVLAN}
				switch how {
				case "datagrams":
					ahn := binary.LittleEndian.Uint32(a.must(abi.AdminOpCreateAH, &abi.CreateAH{
						PDN: a.pdn, DGID: b.fn.GID(), TrafficClass: class, HopLimit: hops, FlowLabel: flow, VLAN: abi.NoVLAN,
					}))
					a.createUD(b.fn.GID(), 0, 0)
					b.createUD(a.fn.GID(), 0, 0)
					b.receive(0, 4096)
					a.datagram(ahn, b.qpn, 1000)
				case "wired":
					a.setPath(path)
					wiredPair(v, a, b, false)
					a.send(abi.OpWrite, 0, 3000, b, 0)
				case "connected":
					a.setPath(path)
					a.connectTo(b, 9)
					a.send(abi.OpWrite, 0, 3000, b, 0)
				}
				if cqe := a.done(); cqe.Status != abi.WCSuccess {
					t.Fatal(cqe.Status)
				}
				v.idle(100e6)
				want := headersSeen{class: class&^3 | underlay.ECT0, innerClass: class &^ 3, innerHops: hops, port: firstPort + uint16(v.shardOf(b.fn).index*paths) + uint16(conn.FirstPath(flow, 0)%paths)}
				if inner == 6 {
					want.innerFlow = flow
				}
				found := false
				for _, h := range frames[0] {
					found = found || h == want
					if h != want && how != "datagrams" {
						t.Errorf("sent under %+v, want %+v", h, want)
					}
				}
				if !found {
					t.Errorf("sent under %+v, want %+v", frames[0], want)
				}
				for _, h := range frames[1] { // the side that asked for nothing
					if how != "datagrams" && (h.class != underlay.ECT0 || h.innerClass != 0 || h.innerHops != 64 || h.innerFlow != 0) {
						t.Errorf("answered under %+v", h)
					}
				}
				if how == "datagrams" {
					return
				}
				var q abi.QueryQPResult
				q.Unmarshal(a.must(abi.AdminOpQueryQP, &abi.QueryQP{QPN: a.qpn}))
				if q.TrafficClass != class&^3 || q.HopLimit != hops || q.FlowLabel != flow || q.SL != 3 || q.VLAN != abi.NoVLAN {
					t.Errorf("query %+v", q)
				}
			})
		}
	}
}

// TestTheOuterClassHasTheInnerDSCP checks that the outer class has the DSCP of the inner one, and ECT(0).
func TestTheOuterClassHasTheInnerDSCP(t *testing.T) {
	for class, want := range map[uint8]uint8{0: 2, 0xff: 0xfe, 0xb9: 0xba, 0x03: 2, 0x40: 0x42} {
		if got := outerClass(&conn.Slot{Inner: underlay.Inner{Class: class}}); got != want {
			t.Errorf("%#x: %#x, want %#x", class, got, want)
		}
	}
}

// TestFrameHasRoomForAnyPacket checks that a frame has room for what the uplink carries, and for a
// packet that the transport fills in before its connection is known.
func TestFrameHasRoomForAnyPacket(t *testing.T) {
	for _, tc := range []struct{ uplink, rdma int }{{1500, 1024}, {9000, 4096}, {4500, 4096}, {1280, 4096}} {
		var cfg config.Config
		cfg.Uplink.MTU, cfg.RDMA.MTU = tc.uplink, tc.rdma
		n := txBufferSize(&cfg)
		least := falconAt + max(tc.uplink+tap.FrameOverhead, tc.rdma+security.Trailer+40)
		if n < least || n > least+260 {
			t.Errorf("%+v: %d bytes", tc, n)
		}
	}
}

// TestAStepSendsAtMostTwoSuperframes checks that a Step sends two superframes of large packets if so many
// wait, and not more.
func TestAStepSendsAtMostTwoSuperframes(t *testing.T) {
	f := newBusyFlood(t, 1, func(c *config.Config) { together(0, c) })
	var most int // bytes
	f.work = func(nic int, s *Shard) falcon.Time {
		n := 0
		for _, frame := range s.uplink.tx.Pending() {
			n += len(frame)
		}
		most = max(most, n)
		return 0
	}
	from, to := f.flood[0][0], f.flood[0][1]
	const requests, large = 8, 4096 + 512 // a packet with its headers
	for range requests {
		from.send(abi.OpWrite, 0, 64<<10, to, 0)
	}
	f.run(f.now+20e6, func(int, falcon.Time) {})
	for range requests {
		if cqe := from.done(); cqe.Status != abi.WCSuccess {
			t.Fatal(cqe.Status)
		}
	}
	if most <= 2*(txBurst-large) || most > 2*txBurst {
		t.Errorf("%d bytes in a Step, want two superframes of up to %d", most, txBurst)
	}
}

// TestBusyVFsShareByWeight checks that of two VFs that keep the NIC busy each gets its share by weight, from the
// start and after changes by the operator. When credits of the NIC are short the shares are less
// exact, but none is left without.
func TestBusyVFsShareByWeight(t *testing.T) {
	t.Run("unlimited", func(t *testing.T) { testWeights(t, 65536, 0.15) })
	t.Run("limited", func(t *testing.T) { testWeights(t, 64, 0.3) })
}

func testWeights(t *testing.T, limit uint32, tolerance float64) {
	f := newBusyFlood(t, 2, func(c *config.Config) {
		together(0, c) // weights apply among the functions of a shard
		vfs := c.Functions[0].VFs
		vfs[len(vfs)-1].Weight = 3
		c.Credits.NIC.RequestPacketTx, c.Credits.Host.RequestPacketTx = limit, limit
	})
	const size, window = 64 << 10, 8
	var done [2]int
	post := func(i int) { f.flood[i][0].send(abi.OpWrite, 0, size, f.flood[i][1], 0) }
	step := func(nic int, _ falcon.Time) {
		for i := range done {
			for nic == 0 {
				if _, ok := f.flood[i][0].completion(); !ok {
					break
				}
				done[i]++
				post(i)
			}
		}
	}
	for i := range done {
		for range window {
			post(i)
		}
	}
	share := func(want float64) {
		t.Helper()
		f.run(f.now+10e6, step) // earlier requests are done
		done = [2]int{}
		f.run(f.now+60e6, step)
		if got := float64(done[1]) / float64(done[0]); got < (1-tolerance)*want || got > (1+tolerance)*want {
			t.Errorf("%v requests done: %.2f times, want %v", done, got, want)
		}
	}
	share(3)
	f.mustOperate(0, "pf0.vf10", "", "weight", "6")
	share(0.5)
	if err := f.operate(0, "pf0.vf10", "", "weight", "0"); err == nil {
		t.Error("a weight of 0 was taken")
	}
}
