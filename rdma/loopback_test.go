package rdma

import (
	"encoding/binary"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/local"
	"github.com/falcon-vnic/vnic/rdma/rof/wire"
)

// TestAllHoldsInsideOneNIC runs the verbs tests once more, with both functions on one NIC. The
// results must be the same.
func TestAllHoldsInsideOneNIC(t *testing.T) {
	worldsOver(t, insideNIC)
	for _, c := range []struct {
		name string
		test func(*testing.T)
	}{
		{"Model", TestRandomRequestsMatchTheModel},
		{"Send", TestSendsOfAllSizes},
		{"Write", TestWritesOfAllSizes},
		{"Read", TestReadsOfAllSizes},
		{"Atomics", TestAtomicsReturnThePreviousValue},
		{"Signaling", TestOnlySignaledRequestsComplete},
		{"ErrorStatuses", TestEveryMistakeHasItsStatus},
		{"SendInvalidate", TestASendInvalidatesAKey},
		{"ReceiverNotReady", TestASendWaitsForAReceive},
		{"ReceiverNeverReady", TestRNRRetriesEndInAnError},
		{"WrongQP", TestARequestForAnotherQueuePairIsRefused},
		{"StaleKeys", TestOldKeysNameNoLaterRegion},
		{"RandomRequests", TestRandomRequestsCompleteOrAreFlushed},
		{"ChangingRequests", TestAChangingRequestIsDecidedOnce},
		{"Doorbells", TestNoDoorbellStopsAFunction},
		{"MemoryGone", TestMissingMemoryFailsAQueuePairOrARequest},
		{"CompletionOverflow", TestAnOverflowFailsTheQueuePairsOfItsQueue},
		{"FullQueueIsNotOverflow", TestEverySlotOfACompletionQueueIsUsable},
		{"Arm", TestAnArmedQueueSendsAnEvent},
		{"Credits", TestAllQueuePairsFinishWithLittleCredit},
		{"Reset", TestAResetQueuePairIsUsedAgain},
		{"DestroyInAnyOrder", TestObjectsAreDestroyedInAnyOrderUnderTraffic},
		{"DestroyAllKinds", TestObjectsOfAllKindsAreDestroyedInAnyOrder},
		{"SRQ", TestASharedQueueServesManyQueuePairs},
		{"SRQLimit", TestTheSRQLimitIsReportedOnce},
		{"SRQResize", TestASharedQueueMovesToAnotherArea},
		{"XRC", TestXRCReachesTheSharedQueueItNames},
		{"XRCRefusals", TestWrongXRCRequestsCostTheConnection},
		{"MaskedAtomics", TestMaskedAtomicsChangeTheirFieldsOnly},
		{"AtomicWrite", TestAtomicWritesStoreOneWord},
		{"Window", TestAWindowIsBoundUsedAndInvalidated},
		{"WindowEnds", TestAWindowEndsWithItsQueuePair},
		{"WindowRights", TestAWindowGivesOnlyItsRights},
		{"BindRefusals", TestWhatCannotBeBoundFails},
		{"InvalidateWaits", TestInvalidationWaitsForRequestsBefore},
		{"ReadInvalidate", TestAReadInvalidatesItsSink},
		{"Rereg", TestReregistrationChangesARegionOrNothing},
		{"SizeLimits", TestSizeLimitsOfUnorderedMode},
		{"ScatterGatherAndInline", TestCase97_ScatterGatherAndInline},
		{"ResizeCQ", TestResizeKeepsEveryCompletion},
	} {
		t.Run(c.name, c.test)
	}
}

// loopPair is newPair with both functions on one NIC.
func loopPair(t testing.TB, c worldConfig, qc qpConfig) *pair {
	worldsOver(t, insideNIC)
	return newPair(t, true, 64<<10, c, qc)
}

// TestLoopbackFlushesInOrder fails a QP whose peer is not ready, with more work behind. All is
// flushed in order, and no credit is leaked.
func TestLoopbackFlushesInOrder(t *testing.T) {
	for name, end := range map[string]func(p *pair){
		"modify":       func(p *pair) { p.a.modify(abi.ModifyQP{Mask: abi.QPAttrState, State: abi.QPStateErr}) },
		"disconnected": func(p *pair) { p.a.q.Disconnected(p.now) },
	} {
		t.Run(name, func(t *testing.T) {
			p := loopPair(t, worldConfig{}, qpConfig{log2: 8})
			p.a.post(abi.SendWQE{Opcode: abi.OpSend}, p.ma.sge(0, 2000))
			for i := range 200 {
				x := p.remote(abi.OpWrite, 0)
				x.WRID = uint64(i + 1)
				p.a.post(x, p.ma.sge(0, 2000))
			}
			p.settle(1e6)
			if p.hosts[0].fn.Stats().RNRRx == 0 {
				t.Fatal("the peer was ready: the test tests nothing")
			}
			end(p)
			for i, c := range p.a.send.wait(201) {
				if c.WRID != uint64(i) || c.Status != abi.WCWRFlushErr {
					t.Fatalf("completion %d: %d %v", i, c.WRID, c.Status)
				}
			}
			p.b.receive(1, p.mb.sge(0, 4096))
			p.settle(2e9)
			if p.a.q.Connected() {
				t.Fatal("connection outlived its linger")
			}
			if u := p.hosts[0].credits.InUse(); u != (credit.Cost{}) {
				t.Fatalf("credits in use %v", u)
			}
			if _, got := p.b.recv.poll(); got {
				t.Fatal("a SEND that was flushed arrived")
			}
		})
	}
}

// TestLoopbackDeregistrationStopsWaitingRequests ends a registration while a request that uses it
// waits for a receive.
func TestLoopbackDeregistrationStopsWaitingRequests(t *testing.T) {
	p := loopPair(t, worldConfig{}, qpConfig{})
	p.a.post(abi.SendWQE{Opcode: abi.OpSend}, p.ma.sge(0, 100))
	p.settle(1e6)
	ok(t, p.hosts[0].fn.DeregMR(p.ma.key))
	p.b.receive(1, p.mb.sge(0, 4096))
	if got := p.a.send.wait(1)[0].Status; got != abi.WCLocProtErr {
		t.Fatalf("SEND from a region that is gone: %v", got)
	}
}

// TestLoopbackClosesAreNoticedByTheNextRequest closes one end under the other's traffic: the other
// hears of it with its next request.
func TestLoopbackClosesAreNoticedByTheNextRequest(t *testing.T) {
	p := loopPair(t, worldConfig{}, qpConfig{})
	ok(t, p.hosts[1].fn.DestroyQP(p.now, p.b.number))
	p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 3000))
	p.a.post(p.remote(abi.OpRead, 0), p.ma.sge(0, 3000))
	got := p.a.send.wait(2)
	if got[0].Status != abi.WCRetryExcErr || got[1].Status != abi.WCWRFlushErr {
		t.Fatalf("completions %s", describe(got))
	}
	p.settle(2e9)
	closed := map[falcon.CID]bool{}
	for cid, ok := p.hosts[0].local().NextClosed(); ok; cid, ok = p.hosts[0].local().NextClosed() {
		closed[cid] = true
	}
	if len(closed) != 2 {
		t.Fatalf("closed %v", closed)
	}
}

// TestAQueuePairConnectsToItself connects two QPs of one function, and one QP with itself.
func TestAQueuePairConnectsToItself(t *testing.T) {
	p := loopPair(t, worldConfig{}, qpConfig{})
	h := p.hosts[0]
	a, b := h.createQP(p.pd[0], qpConfig{}), h.createQP(p.pd[0], qpConfig{})
	p.connect(a, b, true)
	fill(p.ma.bytes()[:5000], 3)
	a.post(abi.SendWQE{Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: p.ma.addr + 8192, RKey: p.ma.key}, p.ma.sge(0, 5000))
	success(t, a.send.wait(1))
	if string(p.ma.bytes()[:5000]) != string(p.ma.bytes()[8192:13192]) {
		t.Fatal("WRITE within a function went wrong")
	}
	self := h.createQP(p.pd[0], qpConfig{})
	l, err := h.local().Open(falcon.ConnConfig{LocalCID: 7, RemoteCID: 7, MTU: pathMTU + 56, Ordered: true})
	if err != nil {
		t.Fatal(err)
	}
	ok(t, self.q.Connect(p.now, h.rof().Over(l), self.number, pathMTU, [16]byte{}))
	self.receive(1, p.ma.sge(30000, 5000))
	self.post(abi.SendWQE{Opcode: abi.OpRead, Flags: abi.SendSignaled, RemoteAddr: p.ma.addr, RKey: p.ma.key}, p.ma.sge(20000, 5000))
	self.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(20000, 5000))
	success(t, self.send.wait(2))
	success(t, self.recv.wait(1))
	if string(p.ma.bytes()[:5000]) != string(p.ma.bytes()[30000:35000]) {
		t.Fatal("READ and SEND to oneself went wrong")
	}
	self.q.Disconnected(p.now)
	p.settle(2e9)
}

// TestLoopbackSharesCreditsWithFalcon lets a function's loopback connection and one over Falcon
// starve each other of credit. Each continues when the other has returned it.
func TestLoopbackSharesCreditsWithFalcon(t *testing.T) {
	p := newPair(t, true, 64<<10, worldConfig{credit: credit.Cost{credit.ReqPktTx: 1, credit.ReqBufTx: 40, credit.ReqPktRx: 1, credit.ReqBufRx: 40, credit.DataPktTx: 1, credit.DataBufTx: 20}}, qpConfig{})
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
	for range 10 {
		p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 5000))
		a.post(abi.SendWQE{Opcode: abi.OpRead, Flags: abi.SendSignaled, RemoteAddr: p.ma.addr, RKey: p.ma.key}, p.ma.sge(8192, 5000))
	}
	success(t, p.a.send.wait(10))
	success(t, a.send.wait(10))
	if h.fn.Stats().CreditWaits < 5 {
		t.Error("hardly anybody waited: the test tests nothing")
	}
	p.settle(1e9)
	if u := h.credits.InUse(); u != (credit.Cost{}) {
		t.Errorf("credits in use %v", u)
	}
}

// TestLoopbackPacketsAreCaptured looks at the packets of a READ and a SEND as the capture gets
// them.
func TestLoopbackPacketsAreCaptured(t *testing.T) {
	p := loopPair(t, worldConfig{}, qpConfig{})
	type seen struct {
		from  uint32
		kind  falcon.TxnKind
		op    ib.Opcode
		sn    uint32
		asked int
	}
	var got []seen
	p.hosts[0].local().SetTap(func(_ falcon.Time, from *local.Conn, kind falcon.TxnKind, _ uint32, asked int, packet []byte) {
		var h wire.Headers
		if _, err := h.Parse(packet); err != nil {
			t.Fatal(err)
		}
		got = append(got, seen{from.Config().LocalFunction, kind, h.RBTH.Opcode, h.RBTH.SN, asked})
	})
	p.b.receive(1, p.mb.sge(0, 4096))
	p.a.post(p.remote(abi.OpRead, 0), p.ma.sge(0, 1500))
	p.a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, p.ma.sge(0, 9))
	success(t, p.a.send.wait(2))
	want := []seen{
		{1, falcon.TxnPull, ib.ReadRequest, 1, 1024 + 24},
		{2, falcon.TxnPullData, ib.ReadRespOnly, 1, 0},
		{1, falcon.TxnPull, ib.ReadRequest, 2, 476 + 24},
		{2, falcon.TxnPullData, ib.ReadRespOnly, 2, 0},
		{1, falcon.TxnPush, ib.SendOnly, 3, 0},
	}
	if len(got) != len(want) {
		t.Fatalf("saw %+v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("packet %d: %+v, want %+v", i, got[i], want[i])
		}
	}
}

// TestAtomicsOfAllConnectionsAddUp adds to one counter over a loopback connection within the
// function, over one from another function, and by the guest's own processor at the same time:
// nothing is lost.
func TestAtomicsOfAllConnectionsAddUp(t *testing.T) {
	p := loopPair(t, worldConfig{}, qpConfig{})
	h := p.hosts[1]
	a, b := h.createQP(p.pd[1], qpConfig{}), h.createQP(p.pd[1], qpConfig{})
	p.connect(a, b, true)
	counter := p.mb.bytes()[:8]
	const rounds, batch, own = 40, 25, 200_000
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		word := (*uint64)(unsafe.Pointer(&counter[0]))
		for range own {
			atomic.AddUint64(word, 1)
		}
	}()
	for range rounds {
		for range batch {
			x := p.remote(abi.OpFetchAdd, 0)
			x.CompareAdd = 1
			p.a.post(x, p.ma.sge(0, 8))
			a.post(x, p.mb.sge(4096, 8))
		}
		success(t, p.a.send.wait(batch))
		success(t, a.send.wait(batch))
	}
	<-ended
	if got := binary.LittleEndian.Uint64(counter); got != 2*rounds*batch+own {
		t.Fatalf("counter is %d, want %d", got, 2*rounds*batch+own)
	}
}
