package guestlib

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

func TestAnOpenDeviceTellsWhatItIs(t *testing.T) {
	_, url := startNIC(t, nil)
	d := openDevice(t, url+"?function=pf0.vf1")
	want := Info{Function: 1<<16 | 1, Type: abi.FunctionVF, MAC: []byte{2, 0, 0, 0, 0, 1}, Tenant: 7, MTU: 4096, Speed: 10_000, Features: abi.FeatureExtendedVerbs}
	want.GID, _ = ParseGID("10.0.0.1")
	if diff := cmp.Diff(want, d.Info()); diff != "" {
		t.Error(diff)
	}
	l, err := d.Query(testContext(t))
	if err != nil || l != d.Limits() || l.MaxSGE != 16 {
		t.Errorf("limits %+v, %v", l, err)
	}
	first, err := d.Clock(testContext(t))
	second, err2 := d.Clock(testContext(t))
	if err != nil || err2 != nil || first <= 0 || second < first {
		t.Errorf("the clock went from %s to %s: %v, %v", first, second, err, err2)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if err := d.Close(); err != nil {
		t.Error("second Close:", err)
	}
	if !errors.Is(d.Err(), ErrClosed) {
		t.Error(d.Err())
	}
	if _, err := Open(testContext(t), url+"?function=pf3.vf1", Options{}); !errors.Is(err, ErrDenied) {
		t.Errorf("another's function: %v", err)
	}
}

func TestConnectPrivateData(t *testing.T) {
	_, url := startNIC(t, nil)
	a := newEndpoint(t, openDevice(t, url), QPConfig{})
	b := newEndpoint(t, openDevice(t, url), QPConfig{})
	heard, r := connectPair(t, a, b, 42, "from a", "from b")
	if heard != "from b" || string(r.Private) != "from a" || r.GID != a.dev.GID() || r.QPN != a.qp.Num() || r.Service != 42 {
		t.Errorf("a heard %q, b got %+v", heard, r)
	}
	for _, e := range []*endpoint{a, b} {
		q, err := e.qp.Query(testContext(t))
		if err != nil || q.State != abi.QPStateRTS || e.qp.State() != abi.QPStateRTS {
			t.Errorf("state %v and %v, %v", q.State, e.qp.State(), err)
		}
	}
}

func TestEachOperationMovesTheRightBytes(t *testing.T) {
	a, b := newPair(t, QPConfig{MaxSendSGE: 16, MaxRecvSGE: 16, MaxInline: 224})
	src, dst := a.mr.Bytes(), b.mr.Bytes()
	for i := range src[:1<<19] {
		src[i] = byte(i * 7)
	}
	post := func(wr SendWR) WC {
		t.Helper()
		wr.Flags |= Signaled
		if err := a.qp.PostSend(&wr); err != nil {
			t.Fatal(err)
		}
		wc := next(t, a.cq)
		if err := wc.Err(); err != nil || wc.ID != wr.ID || wc.QPN != a.qp.Num() {
			t.Fatalf("%+v: %+v", wr, wc)
		}
		return wc
	}
	recv := func(id uint64, sgl ...SGE) {
		t.Helper()
		if err := b.qp.PostRecv(&RecvWR{ID: id, SGL: sgl}); err != nil {
			t.Fatal(err)
		}
	}
	ignore := cmpopts.IgnoreFields(WC{}, "Timestamp")

	recv(100, b.mr.SGE(1, 10), b.mr.SGE(4095, 9000))
	post(SendWR{ID: 1, Opcode: SendImm, SGL: []SGE{a.mr.SGE(3, 5000), a.mr.SGE(9000, 4)}, Imm: 0xdeadbeef})
	want := WC{ID: 100, QPN: b.qp.Num(), SrcQP: a.qp.Num(), ByteLen: 5004, Imm: 0xdeadbeef, Flags: WCWithImm, Opcode: abi.WCOpRecv}
	if diff := cmp.Diff(want, next(t, b.cq), ignore); diff != "" {
		t.Error(diff)
	}
	sent := append(append([]byte(nil), src[3:5003]...), src[9000:9004]...)
	if !bytes.Equal(dst[1:11], sent[:10]) || !bytes.Equal(dst[4095:4095+4994], sent[10:]) {
		t.Error("SEND: wrong bytes")
	}

	recv(101, b.mr.SGE(20000, 224))
	inline := bytes.Repeat([]byte{0x5a}, 224)
	post(SendWR{ID: 2, Opcode: Send, Inline: inline})
	if wc := next(t, b.cq); wc.ByteLen != 224 || !bytes.Equal(dst[20000:20224], inline) {
		t.Errorf("inline SEND: %+v", wc)
	}

	post(SendWR{ID: 3, Opcode: Write, SGL: []SGE{a.mr.SGE(1, 400001)}, RemoteAddr: b.mr.Addr() + 30001, RKey: b.mr.RKey()})
	if !bytes.Equal(dst[30001:430002], src[1:400002]) {
		t.Error("WRITE: wrong bytes")
	}

	recv(102)
	post(SendWR{ID: 4, Opcode: WriteImm, SGL: []SGE{a.mr.SGE(0, 64)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(), Imm: 5})
	if wc := next(t, b.cq); wc.ID != 102 || wc.Imm != 5 || wc.ByteLen != 64 || wc.Opcode != abi.WCOpRecvWriteImm {
		t.Errorf("WRITE with immediate: %+v", wc)
	}

	if wc := post(SendWR{ID: 5, Opcode: Read, SGL: []SGE{a.mr.SGE(600001, 1000)}, RemoteAddr: b.mr.Addr() + 30001, RKey: b.mr.RKey()}); wc.ByteLen != 1000 {
		t.Errorf("READ: %+v", wc)
	}
	if !bytes.Equal(src[600001:601001], dst[30001:31001]) {
		t.Error("READ: wrong bytes")
	}

	binary.LittleEndian.PutUint64(dst[8:], 40)
	post(SendWR{ID: 6, Opcode: FetchAdd, SGL: []SGE{a.mr.SGE(700000, 8)}, RemoteAddr: b.mr.Addr() + 8, RKey: b.mr.RKey(), CompareAdd: 2})
	post(SendWR{ID: 7, Opcode: CmpSwap, SGL: []SGE{a.mr.SGE(700008, 8)}, RemoteAddr: b.mr.Addr() + 8, RKey: b.mr.RKey(), CompareAdd: 42, Swap: 77})
	if old, old2, v := binary.LittleEndian.Uint64(src[700000:]), binary.LittleEndian.Uint64(src[700008:]), binary.LittleEndian.Uint64(dst[8:]); old != 40 || old2 != 42 || v != 77 {
		t.Errorf("atomics: %d %d %d", old, old2, v)
	}
}

// Work that fails says why, the QP goes to ERR, the rest is flushed in order.
func TestFailedWorkFlushesTheRestInOrder(t *testing.T) {
	a, b := newPair(t, QPConfig{})
	for i := range 3 {
		if err := a.qp.PostRecv(&RecvWR{ID: 200 + uint64(i)}); err != nil {
			t.Fatal(err)
		}
	}
	bad := SendWR{ID: 1, Opcode: Write, SGL: []SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr() + 1<<20 - 7, RKey: b.mr.RKey()}
	if err := a.qp.PostSend(&bad); err != nil { // not signaled: fails with a WC all the same
		t.Fatal(err)
	}
	if wc := next(t, a.cq); wc.ID != 1 || wc.Status != abi.WCRemAccessErr || a.qp.State() != abi.QPStateErr {
		t.Errorf("%+v, QP in %v", wc, a.qp.State())
	}
	for i := range 3 {
		if wc := next(t, a.cq); wc.ID != 200+uint64(i) || wc.Status != abi.WCWRFlushErr {
			t.Errorf("%+v", wc)
		}
	}
	bad.ID = 2
	if err := a.qp.PostSend(&bad); err != nil {
		t.Fatal(err)
	}
	wc := next(t, a.cq)
	var we *WCError
	if !errors.As(wc.Err(), &we) || we.ID != 2 || we.Status != abi.WCWRFlushErr {
		t.Error(wc.Err())
	}
}

func TestAFullQueueTakesNoMoreWork(t *testing.T) {
	a, b := newPair(t, QPConfig{SendEntries: 4, RecvEntries: 4})
	for i := range 4 {
		if err := a.qp.PostSend(&SendWR{ID: uint64(i), Opcode: Send, SGL: []SGE{a.mr.SGE(i, 1)}}); err != nil {
			t.Fatal(err)
		}
	}
	one := &SendWR{ID: 9, Opcode: Send, Flags: Signaled}
	if err := a.qp.PostSend(one); !errors.Is(err, ErrQueueFull) {
		t.Fatal(err)
	}
	for i := range 4 {
		if err := b.qp.PostRecv(&RecvWR{ID: uint64(i), SGL: []SGE{b.mr.SGE(i, 1)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.qp.PostRecv(&RecvWR{}); !errors.Is(err, ErrQueueFull) {
		t.Fatal(err)
	}
	for i := range 4 {
		if wc := next(t, b.cq); wc.ID != uint64(i) {
			t.Fatalf("%+v", wc)
		}
	}
	// The unsignaled work is done, but only a later signaled request could report that, and there
	// is no room for one. Verbs work this way.
	if err := a.qp.PostSend(one); !errors.Is(err, ErrQueueFull) {
		t.Fatal(err)
	}

	a, b = newPair(t, QPConfig{SendEntries: 4, RecvEntries: 4})
	for i := range 40 { // one signaled in four gives all four back
		wr := SendWR{ID: uint64(i), Opcode: Write, SGL: []SGE{a.mr.SGE(i, 1)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
		if i%4 == 3 {
			wr.Flags = Signaled
		}
		if err := a.qp.PostSend(&wr); err != nil {
			t.Fatal(err)
		}
		if i%4 == 3 {
			if wc := next(t, a.cq); wc.ID != uint64(i) {
				t.Fatalf("%+v", wc)
			}
		}
	}
}

func TestInvalidWorkAndQueuesAreRefused(t *testing.T) {
	_, url := startNIC(t, nil)
	a := newEndpoint(t, openDevice(t, url), QPConfig{MaxInline: 32})
	wr := &SendWR{Opcode: Send}
	if err := a.qp.PostSend(wr); !errors.Is(err, ErrState) {
		t.Errorf("not connected: %v", err)
	}
	b := newEndpoint(t, openDevice(t, url), QPConfig{})
	connectPair(t, a, b, 1, "", "")
	for name, wr := range map[string]*SendWR{
		"too many SGEs":  {Opcode: Send, SGL: make([]SGE, 2)},
		"long inline":    {Opcode: Send, Inline: make([]byte, 33)},
		"inline and SGL": {Opcode: Send, Inline: make([]byte, 3), SGL: make([]SGE, 1)},
	} {
		if err := a.qp.PostSend(wr); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := a.qp.PostRecv(&RecvWR{SGL: make([]SGE, 2)}); !errors.Is(err, ErrInvalid) {
		t.Errorf("receive with too many SGEs: %v", err)
	}
	ctx := testContext(t)
	for name, cfg := range map[string]QPConfig{
		"no CQ":     {},
		"other CQ":  {SendCQ: b.cq},
		"SGEs":      {SendCQ: a.cq, MaxSendSGE: 17},
		"inline":    {SendCQ: a.cq, MaxInline: 225},
		"entries":   {SendCQ: a.cq, SendEntries: 1 << 20},
		"path MTU":  {SendCQ: a.cq, PathMTU: 1500},
		"small MTU": {SendCQ: a.cq, PathMTU: 128},
	} {
		if _, err := a.pd.CreateQP(ctx, cfg); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, n := range []int{0, -1, 1<<18 + 1} {
		if _, err := a.dev.CreateCQ(ctx, n); !errors.Is(err, ErrInvalid) {
			t.Errorf("CQ of %d: %v", n, err)
		}
	}
}

// Both sides only ever wait: every lost wake-up hangs.
func TestWaitPingPong(t *testing.T) {
	a, b := newPair(t, QPConfig{})
	const rounds = 2000
	play := func(e *endpoint, first bool) error {
		ctx := testContext(t)
		var wc [4]WC
		recv := RecvWR{SGL: []SGE{e.mr.SGE(0, 8)}}
		send := SendWR{Opcode: Send, SGL: []SGE{e.mr.SGE(64, 8)}, Flags: Signaled}
		if first {
			if err := e.qp.PostSend(&send); err != nil {
				return err
			}
		}
		for got := 0; got < rounds; {
			n, err := e.cq.Poll(wc[:])
			if err != nil {
				return err
			}
			if n == 0 {
				if err := e.cq.Wait(ctx); err != nil {
					return err
				}
			}
			for _, w := range wc[:n] {
				if err := w.Err(); err != nil {
					return err
				}
				if w.Opcode != abi.WCOpRecv {
					continue
				}
				got++
				if err := e.qp.PostRecv(&recv); err != nil {
					return err
				}
				if got < rounds || !first {
					if err := e.qp.PostSend(&send); err != nil {
						return err
					}
				}
			}
		}
		return nil
	}
	for _, e := range []*endpoint{a, b} {
		if err := e.qp.PostRecv(&RecvWR{SGL: []SGE{e.mr.SGE(0, 8)}}); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := play(b, false); err != nil {
			t.Error("b:", err)
		}
	})
	if err := play(a, true); err != nil {
		t.Error("a:", err)
	}
	wg.Wait()
}

// Several goroutines post to one QP, poll and wait on one CQ: every completion is seen once.
func TestConcurrentPostPollWait(t *testing.T) {
	a, b := newPair(t, QPConfig{SendEntries: 16})
	const workers, each = 4, 200
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	var mu sync.Mutex
	seen := map[uint64]int{}
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			var wc [3]WC
			for ctx.Err() == nil {
				n, err := a.cq.Poll(wc[:])
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, w := range wc[:n] {
					seen[w.ID]++
				}
				if len(seen) == workers*each {
					cancel()
				}
				mu.Unlock()
				if n == 0 {
					a.cq.Wait(ctx)
				}
			}
		})
	}
	for w := range workers {
		wg.Go(func() {
			wr := SendWR{Opcode: Write, Flags: Signaled, SGL: []SGE{a.mr.SGE(w, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
			for i := range each {
				wr.ID = uint64(w*each + i)
				for {
					err := a.qp.PostSend(&wr)
					if err == nil {
						break
					}
					if !errors.Is(err, ErrQueueFull) || ctx.Err() != nil {
						t.Error(err)
						return
					}
					runtime.Gosched() // let the pollers run
				}
			}
		})
	}
	wg.Wait()
	if len(seen) != workers*each {
		t.Fatalf("%d of %d completions", len(seen), workers*each)
	}
	for id, n := range seen {
		if n != 1 {
			t.Errorf("completion %d seen %d times", id, n)
		}
	}
}

func TestOnlyASolicitedMessageWakesWaitSolicited(t *testing.T) {
	a, b := newPair(t, QPConfig{})
	for i := range 2 {
		if err := b.qp.PostRecv(&RecvWR{ID: uint64(i), SGL: []SGE{b.mr.SGE(0, 8)}}); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 1)
	go func() { done <- b.cq.WaitSolicited(testContext(t)) }()
	wr := SendWR{Opcode: Send, Flags: Signaled, SGL: []SGE{a.mr.SGE(0, 8)}}
	if err := a.qp.PostSend(&wr); err != nil {
		t.Fatal(err)
	}
	next(t, a.cq)
	select {
	case err := <-done:
		t.Fatalf("woken by an unsolicited message: %v", err)
	default:
	}
	wr.Flags |= Solicited
	if err := a.qp.PostSend(&wr); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	var wc [4]WC
	if n, err := b.cq.Poll(wc[:]); n != 2 || err != nil {
		t.Errorf("%d completions, %v", n, err)
	}
}

// TestWaitSolicitedSeesCompletionsFromBeforeAResize: they are in the old area, and arming the new one brings no event.
func TestWaitSolicitedSeesCompletionsFromBeforeAResize(t *testing.T) {
	r := newSilentRig(t)
	if err := r.qp.PostSend(&SendWR{ID: 1, Opcode: Write, Flags: Signaled}); err != nil {
		t.Fatal(err)
	}
	r.done(t, 1)
	layout := ring.CQLayout(r.cq.log2)
	mem, err := newArea(r.qp.dev.pool, layout)
	if err != nil {
		t.Fatal(err)
	}
	r.cq.old = &oldCQ{r.cq.area, r.cq.log2, r.cq.reader}
	r.cq.area, r.cq.reader = mem, ring.NewCQReader(ring.Mem(mem.block.Bytes()), layout)
	if err := r.cq.WaitSolicited(testContext(t)); err != nil {
		t.Error(err)
	}
}

// TestEachBindHasAKeyOfItsOwn: bindings that several goroutines make have different keys.
func TestEachBindHasAKeyOfItsOwn(t *testing.T) {
	var w MW
	var wg sync.WaitGroup
	var keys sync.Map
	for range 4 {
		wg.Go(func() {
			for range 32 {
				key := w.Bind(0, Binding{}).RKey
				if _, twice := keys.LoadOrStore(key, nil); twice {
					t.Errorf("key %d twice", key)
				}
			}
		})
	}
	wg.Wait()
}

// TestAQPInSQDDrainsAndCanGoOn: SQD stops sending, an event reports that the queue is drained, and sending can
// continue.
func TestAQPInSQDDrainsAndCanGoOn(t *testing.T) {
	a, b := newPair(t, QPConfig{})
	ctx := testContext(t)
	if err := a.qp.Modify(ctx, QPAttr{Mask: abi.QPAttrState | abi.QPAttrSQDNotify, State: abi.QPStateSQD, SQDNotify: 1}); err != nil {
		t.Fatal(err)
	}
	if e := <-a.dev.Events(); e.Type != abi.EventSQDrained || e.QP != a.qp {
		t.Fatalf("event %v", e)
	}
	wr := SendWR{ID: 7, Opcode: Write, Flags: Signaled, SGL: []SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
	if err := a.qp.PostSend(&wr); err != nil {
		t.Fatal(err)
	}
	var wc [1]WC
	if n, err := a.cq.Poll(wc[:]); n != 0 || err != nil {
		t.Fatalf("%d completions in SQD, %v", n, err)
	}
	if err := a.qp.Modify(ctx, QPAttr{Mask: abi.QPAttrState, State: abi.QPStateRTS}); err != nil {
		t.Fatal(err)
	}
	if wc := next(t, a.cq); wc.ID != 7 || wc.Err() != nil {
		t.Fatalf("%+v", wc)
	}
}
