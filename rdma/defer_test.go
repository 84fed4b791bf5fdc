package rdma

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	falconwire "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// TestRateIsNotTheReceivers: READs that wait for the target function's rate, or for a slot, do not
// make the pushes behind them receiver-not-ready. A queue pair without RNR retries survives, and no
// RNR timer is waited for.
func TestRateIsNotTheReceivers(t *testing.T) {
	for _, rate := range []uint64{0, 50e6} {
		orders(t, func(t *testing.T, ordered bool) {
			p := newPair(t, ordered, 1<<16, worldConfig{}, qpConfig{log2: 9})
			p.a.modify(abi.ModifyQP{Mask: abi.QPAttrRNRRetry, RNRRetry: 0})
			p.hosts[1].fn.sched.rate.SetRate(p.now, rate)
			const n = 150
			for i := range n {
				p.a.post(p.remote(abi.OpRead, i%8), p.ma.sge(0, 2000))
				p.a.post(p.remote(abi.OpWrite, 8192), p.ma.sge(8192, 2000))
			}
			success(t, p.a.send.wait(2*n))
			if s := p.hosts[0].fn.Stats(); s.RNRRx != 0 {
				t.Errorf("rate %d: %d receiver-not-ready answers", rate, s.RNRRx)
			}
			if s := p.hosts[1].fn.Stats(); rate > 0 && s.PullsDeferred == 0 {
				t.Error("no READ had to wait for the rate")
			}
		})
	}
}

// TestRNRRetriesOfOneMessage: requests that wait behind a message that the receiver is not ready
// for do not use up their own retries.
func TestRNRRetriesOfOneMessage(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
	p.a.modify(abi.ModifyQP{Mask: abi.QPAttrRNRRetry, RNRRetry: 2})
	p.b.modify(abi.ModifyQP{Mask: abi.QPAttrMinRNRTimer, MinRNRTimer: 24}) // 41 ms
	const n = 6
	for i := range n {
		p.a.post(abi.SendWQE{WRID: uint64(i), Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, 100))
	}
	for i := range 2 * n { // while others follow, too
		before := p.hosts[0].fn.Stats().RNRRx
		p.settle(60e6) // two answers for the oldest
		if p.hosts[0].fn.Stats().RNRRx == before {
			t.Fatalf("message %d: nobody was not ready", i)
		}
		p.b.receive(uint64(i), p.mb.sge(0, 4096))
		success(t, p.a.send.wait(1))
		if i < n {
			p.a.post(abi.SendWQE{WRID: uint64(n + i), Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, 100))
		}
	}
}

// TestReadWithoutPad: a peer that does not count the pad of the response in Request Length (24 + N)
// gets exactly what it asked for. Any other length is refused.
func TestReadWithoutPad(t *testing.T) {
	for _, c := range []struct {
		n, asked, want int
	}{{5, 24 + 8, 24 + 8}, {5, 24 + 5, 24 + 5}, {8, 24 + 8, 24 + 8}, {5, 24 + 6, 24}, {5, 24 + 4, 24}} {
		raw := &lengthULP{n: uint32(c.n)}
		w := newWorld(t, worldConfig{peer: raw})
		h := w.hosts[1]
		pd, _ := h.fn.AllocPD()
		m := h.register(pd, 4096, allAccess)
		fill(m.bytes(), 3)
		b := h.createQP(pd, qpConfig{cie: true})
		raw.qpn, raw.va, raw.key = b.number, m.addr, m.key
		open := func(fe *falcon.Engine, local, remote falcon.CID) *falcon.Conn {
			conn, err := fe.Open(w.now, falcon.ConnConfig{
				LocalCID: local, RemoteCID: remote, LocalFunction: local, RemoteFunction: remote,
				Protocol: falconwire.ProtocolRDMA, MTU: 2048, Ordered: true,
			})
			if err != nil {
				t.Fatal(err)
			}
			return conn
		}
		peer := open(w.hosts[0].fe, 1, 2)
		ok(t, b.q.Connect(w.now, h.rof().Over(open(h.fe, 2, 1)), 9, pathMTU, [16]byte{}))
		if err := peer.Pull(w.now, 0, wire.ReadRequest.HeaderLen(), c.asked); err != nil {
			t.Fatal(err)
		}
		w.settle(1e6)
		if len(raw.got) != c.want || c.want > 24 && string(raw.got[24:24+c.n]) != string(m.bytes()[:c.n]) {
			t.Errorf("%d bytes, Request Length %d: a response of %d bytes, want %d", c.n, c.asked, len(raw.got), c.want)
		}
	}
}

// lengthULP asks for n bytes and keeps the response.
type lengthULP struct {
	qpn, key, n uint32
	va          uint64
	got         []byte
}

func (u *lengthULP) Fill(_ *falcon.Conn, _ falcon.TxnKind, _ uint64, dst []byte) (int, error) {
	h := wire.Headers{
		RBTH: wire.RBTH{Opcode: wire.ReadRequest, DestQP: u.qpn, SN: 1},
		RETH: wire.RETH{VA: u.va, RKey: u.key, Length: u.n}, SETH: wire.SETH{RMSN: 1},
	}
	return len(h.Append(dst[:0])), nil
}

func (u *lengthULP) HandleEvent(_ falcon.Time, ev *falcon.Event) {
	if ev.Kind == falcon.EvPullDone {
		u.got = append([]byte(nil), ev.Data...)
	}
}

// TestHopelessWork: work that costs more than a credit limit allows fails instead of waiting for
// ever, over Falcon and inside the NIC.
func TestHopelessWork(t *testing.T) {
	limit := credit.NoLimit()
	limit[credit.ReqBufTx] = 1
	p := newPair(t, true, 8192, worldConfig{credit: limit}, qpConfig{})
	p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 3000))
	if got := p.a.send.wait(1)[0]; got.Status != abi.WCGeneralErr || got.VendorErr>>8 != uint32(falcon.CmplUlpCdtErr) {
		t.Errorf("over Falcon: %+v", got)
	}
	h := p.hosts[0]
	a, b := h.createQP(p.pd[0], qpConfig{}), h.createQP(p.pd[0], qpConfig{})
	for i, q := range []*qp{a, b} {
		l, err := h.local().Open(falcon.ConnConfig{
			LocalCID: falcon.CID(8 + i), RemoteCID: falcon.CID(9 - i), MTU: pathMTU + 56, Ordered: true, Credits: h.credits,
		})
		if err != nil {
			t.Fatal(err)
		}
		ok(t, q.q.Connect(p.now, h.rof().Over(l), []uint32{b.number, a.number}[i], pathMTU, [16]byte{}))
	}
	a.post(abi.SendWQE{Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: p.ma.addr, RKey: p.ma.key}, p.ma.sge(4096, 3000))
	if got := a.send.wait(1)[0]; got.Status != abi.WCGeneralErr || got.VendorErr>>8 != uint32(falcon.CmplUlpCdtErr) {
		t.Errorf("inside the NIC: %+v", got)
	}
}

// TestRNRWaits: a request to a peer that is not ready is sent again after the time that the peer
// names, over each wire. (IBA §9.7.5.2.8)
func TestRNRWaits(t *testing.T) {
	eachWire(t, func(t *testing.T) {
		p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
		p.b.modify(abi.ModifyQP{Mask: abi.QPAttrMinRNRTimer, MinRNRTimer: 24}) // 41 ms
		p.a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, 100))
		for i := range uint64(3) {
			p.settle(40e6)
			if n := p.hosts[0].fn.Stats().RNRRx; n < i || n > i+1 {
				t.Fatalf("%d times not ready after %d times 40 ms", n, i+1)
			}
		}
		p.b.receive(1, p.mb.sge(0, 4096))
		success(t, p.a.send.wait(1))
	})
}
