package shard

import (
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// roceTraceCases are requests and the steps of either side over RoCEv2: between two NICs, with 50
// µs of wire each way, and inside one, where nothing is sealed.
var roceTraceCases = []struct {
	name           string
	post           func(x *traced, a, b *driver)
	asker, carrier []string
	inside, server []string
}{
	{
		name: "WRITE", post: func(_ *traced, a, b *driver) { a.send(abi.OpWrite, 0, 1000, b, 0) },
		asker:   []string{"roce WRITE 1000 bytes, 1 packets, success: doorbell 0 wqe_read 1 issued 2 scheduled 3 sealed 4 acked 100001 cqe_written 100002"},
		carrier: []string{"roce RC WRITE Only 1000 bytes, 1 packets, no completion: received 50001 opened 50002 delivered 50003 acked 50004"},
		inside:  []string{"roce WRITE 1000 bytes, 1 packets, success: doorbell 0 wqe_read 1 issued 2 scheduled 3 acked 7 cqe_written 8"},
		server:  []string{"roce RC WRITE Only 1000 bytes, 1 packets, no completion: received 4 opened 5 delivered 6 acked 9"},
	},
	{
		name: "long WRITE", post: func(_ *traced, a, b *driver) { a.send(abi.OpWrite, 0, 2500, b, 0) },
		asker: []string{"roce WRITE 2500 bytes, 3 packets, success: doorbell 0 wqe_read 1 issued 2 scheduled 3 sealed 4 last_sealed 8 acked 100003 cqe_written 100004"},
		carrier: []string{
			"roce RC WRITE First 1024 bytes, 1 packets, no completion: received 50001 opened 50002 delivered 50003 acked 50012",
			"roce RC WRITE Middle 1024 bytes, 1 packets, no completion: received 50005 opened 50006 delivered 50007 acked 50012",
			"roce RC WRITE Last 452 bytes, 1 packets, no completion: received 50009 opened 50010 delivered 50011 acked 50012",
		},
		inside: []string{"roce WRITE 2500 bytes, 3 packets, success: doorbell 0 wqe_read 1 issued 2 scheduled 3 acked 17 cqe_written 18"},
		server: []string{
			"roce RC WRITE First 1024 bytes, 1 packets, no completion: received 4 opened 5 delivered 6 acked 19",
			"roce RC WRITE Middle 1024 bytes, 1 packets, no completion: received 8 opened 9 delivered 10 acked 19",
			"roce RC WRITE Last 452 bytes, 1 packets, no completion: received 12 opened 13 delivered 14 acked 19",
		},
	},
	{
		name: "READ", post: func(_ *traced, a, b *driver) { a.send(abi.OpRead, 0, 2500, b, 0) },
		asker:   []string{"roce READ 2500 bytes, 1 packets, success: doorbell 0 wqe_read 1 issued 2 scheduled 3 sealed 4 acked 100003 cqe_written 100004"},
		carrier: []string{"roce RC READ Request 2500 bytes, 1 packets, no completion: received 50001 opened 50002 delivered 50003 scheduled 50004 sealed 50005"},
		inside:  []string{"roce READ 2500 bytes, 1 packets, success: doorbell 0 wqe_read 1 issued 2 scheduled 3 acked 10 cqe_written 11"},
		server:  []string{"roce RC READ Request 2500 bytes, 1 packets, no completion: received 4 opened 5 delivered 6 scheduled 7"},
	},
	{
		name: "SEND with events", post: func(x *traced, a, b *driver) {
			b.receive(0, 4096)
			x.arm(a, b)
			a.send(abi.OpSend, 0, 100, b, 0)
		},
		asker:   []string{"roce SEND 100 bytes, 1 packets, success: doorbell 0 wqe_read 1 issued 2 scheduled 3 sealed 4 acked 100001 cqe_written 100002 event 100003"},
		carrier: []string{"roce RC SEND Only 100 bytes, 1 packets, success: received 50001 opened 50002 delivered 50003 cqe_written 50004 event 50005 acked 50006"},
		inside:  []string{"roce SEND 100 bytes, 1 packets, success: doorbell 0 wqe_read 1 issued 2 scheduled 3 acked 9 cqe_written 10 event 11"},
		server:  []string{"roce RC SEND Only 100 bytes, 1 packets, success: received 4 opened 5 delivered 6 cqe_written 7 event 8 acked 12"},
	},
	{
		name: "refused", post: func(_ *traced, a, b *driver) {
			b.rkey ^= 1
			a.send(abi.OpWrite, 0, 200, b, 0)
		},
		asker:  []string{"roce WRITE 200 bytes, 1 packets, remote access error: doorbell 0 wqe_read 1 issued 2 scheduled 3 sealed 4 acked 100001 cqe_written 100002"},
		inside: []string{"roce WRITE 200 bytes, 1 packets, remote access error: doorbell 0 wqe_read 1 issued 2 scheduled 3 acked 6 cqe_written 7"},
	},
}

// TestTraceRoCE is TestTrace over RoCEv2.
func TestTraceRoCE(t *testing.T) {
	for _, c := range roceTraceCases {
		for _, inside := range []bool{false, true} {
			name, asker, server := c.name, c.asker, c.carrier
			if inside {
				name, asker, server = c.name+" inside", c.inside, c.server
			}
			t.Run(name, func(t *testing.T) {
				if inside && perNIC > 1 {
					t.Skip("the times are of two functions of one shard")
				}
				oneNIC = inside
				defer func() { oneNIC = false }()
				x := tracedRoCE(t)
				start := x.run(func() { c.post(x, x.ends[0], x.ends[1]) })
				x.want(0, start, asker...)
				x.want(1, start, server...)
			})
		}
	}
}

func tracedRoCE(t *testing.T) *traced {
	t.Helper()
	v := newRoCEWorld(t, config.TransportRoCE, wire100us)
	return newTracedIn(t, v, func() (a, b *driver) {
		a, b = drivers(v)
		wiredPair(v, a, b, true)
		return a, b
	})
}

// TestTraceRoCEDatagrams checks the trace of a datagram over RoCEv2, which is not acknowledged.
func TestTraceRoCEDatagrams(t *testing.T) {
	x := tracedRoCE(t)
	a, b := x.ends[0], x.ends[1]
	for _, d := range x.ends {
		d.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: d.qpn})
		d.qpn = 0
	}
	to := a.createUD(b.fn.GID(), 0, 7)
	b.createUD(a.fn.GID(), 0, 7)
	b.receive(8192, 4096)
	start := x.run(func() { a.datagram(to, b.qpn, 100) })
	x.want(0, start, "roce SEND 100 bytes, 1 packets, success: doorbell 0 wqe_read 1 issued 2 cqe_written 3 scheduled 4 sealed 5")
	x.want(1, start, "roce UD SEND Only 100 bytes, 1 packets, success: received 50001 opened 50002 delivered 50003 cqe_written 50005")
}

// TestTraceRoCEUnreliable checks that a request over an unreliable connection is done when its last
// packet was sent, without an acknowledgement.
func TestTraceRoCEUnreliable(t *testing.T) {
	x := tracedRoCE(t)
	a, b := x.ends[0], x.ends[1]
	for _, d := range x.ends {
		d.createUC()
	}
	a.connectUC(b)
	b.connectUC(a)
	start := x.run(func() { a.send(abi.OpWrite, 0, 2500, b, 0) })
	x.want(0, start, "roce WRITE 2500 bytes, 3 packets, success: doorbell 0 wqe_read 1 issued 2 scheduled 3 sealed 4 last_sealed 8 cqe_written 9")
	x.want(1, start,
		"roce UC WRITE First 1024 bytes, 1 packets, no completion: received 50001 opened 50002 delivered 50003",
		"roce UC WRITE Middle 1024 bytes, 1 packets, no completion: received 50006 opened 50007 delivered 50008",
		"roce UC WRITE Last 452 bytes, 1 packets, no completion: received 50011 opened 50012 delivered 50013")
	b.receive(8192, 4096)
	start = x.run(func() { a.send(abi.OpSend, 0, 100, b, 0) })
	x.want(0, start, "roce SEND 100 bytes, 1 packets, success: doorbell 0 wqe_read 1 issued 2 scheduled 3 sealed 4 cqe_written 5")
	x.want(1, start, "roce UC SEND Only 100 bytes, 1 packets, success: received 50001 opened 50002 delivered 50003 cqe_written 50005")
}

// createUC turns the driver's queue pair into an unreliable connection, in INIT.
func (d *driver) createUC() {
	d.v.t.Helper()
	d.b.Features |= abi.FeatureExtendedVerbs
	d.fn.Verbs().UseFeatures(d.b.Features)
	d.must(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: d.qpn})
	d.newQP(abi.QPTypeUC)
}

// connectUC takes it to RTS, with a peer.
func (d *driver) connectUC(peer *driver) {
	d.v.t.Helper()
	for _, m := range []abi.ModifyQP{
		{Mask: abi.QPAttrState | abi.QPAttrAccess, State: abi.QPStateInit, Access: abi.AccessRemoteWrite},
		{
			Mask:  abi.QPAttrState | abi.QPAttrAV | abi.QPAttrPathMTU | abi.QPAttrDestQPN | abi.QPAttrRQPSN,
			State: abi.QPStateRTR, PathMTU: abi.MTU1024, DestQPN: peer.qpn, RQPSN: 1, DGID: peer.fn.GID(),
		},
		{Mask: abi.QPAttrState | abi.QPAttrSQPSN, State: abi.QPStateRTS, SQPSN: 1},
	} {
		m.QPN = d.qpn
		d.must(abi.AdminOpModifyQP, &m)
	}
}
