package shard

import (
	"bytes"
	"encoding/binary"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/qemu/fdpass"
	"github.com/falcon-vnic/vnic/qemu/ivshmem"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// hostileWorld is a NIC with a hostile guest on one function and a bystander on another, of the
// same tenant. The bystander has a connection to the other NIC; the hostile guest may get one to an
// accomplice there that accepts everything.
//
//	             shard 0                        shard 1
//	hostile ──── vf1 ─────────────────────────── vf1 ──── accomplice
//	bystander ── vf2 ─────────────────────────── vf2 ──── witness
type hostileWorld struct {
	v          *virtual
	h          *hostile
	target     bystander
	witness    bystander
	accomplice *driver
	busy       bool // the accomplice has a connection or waits for one
	slots      [2]int
	rounds     int
}

const accompliceService = 77

func newHostileWorld(t testing.TB, seed uint64) *hostileWorld {
	t.Helper()
	w := &hostileWorld{v: newVirtualWith(t, seed, wire100us, func(_ int, c *config.Config) {
		c.NIC.Strict = true
		for i := range c.Functions[0].VFs { // low limits, so that they are reached
			c.Functions[0].VFs[i].Limits.QP, c.Functions[0].VFs[i].Limits.MR = 8, 16
		}
	})}
	w.v.tell = false
	w.target.driver, w.witness.driver, w.accomplice = newDriver(w.v, 0, 2), newDriver(w.v, 1, 2), newDriver(w.v, 1, 1)
	for _, d := range []*driver{w.target.driver, w.witness.driver, w.accomplice} {
		d.setUp()
	}
	w.target.connectTo(w.witness.driver, 99)
	w.witness.must(abi.AdminOpCMUnlisten, &abi.CMUnlisten{Service: 99})
	w.accomplice.must(abi.AdminOpCMListen, &abi.CMListen{Service: accompliceService})
	w.v.idle(2e9)
	for i := range w.slots {
		w.slots[i] = w.v.cores[i].Manager.CIDsInUse()
	}
	w.h = newHostile(t, w)
	w.target.collect()
	w.witness.collect()
	w.target.remember()
	w.witness.remember()
	w.work()
	return w
}

// tend lets the accomplice answer.
func (w *hostileWorld) tend() {
	a := w.accomplice
	a.collect()
	for len(a.async) > 0 {
		e := a.async[0]
		a.async = a.async[1:]
		switch e.Type {
		case abi.EventConnectRequest:
			if w.busy {
				a.command(abi.AdminOpCMReject, &abi.CMReject{CMID: e.Number})
				continue
			}
			st, _ := a.command(abi.AdminOpCMAccept, &abi.CMAccept{CMID: e.Number, QPN: a.qpn})
			w.busy = st == abi.StatusOK
		case abi.EventDisconnected, abi.EventUnreachable, abi.EventRejected:
			a.must(abi.AdminOpModifyQP, &abi.ModifyQP{QPN: a.qpn, Mask: abi.QPAttrState, State: abi.QPStateReset})
			clear(a.page(pageSQ)[:abi.QueueHeaderSize])
			clear(a.page(pageRQ)[:abi.QueueHeaderSize])
			a.must(abi.AdminOpModifyQP, &abi.ModifyQP{QPN: a.qpn, Mask: abi.QPAttrState | abi.QPAttrAccess, State: abi.QPStateInit, Access: abi.AccessRemoteWrite | abi.AccessRemoteRead | abi.AccessRemoteAtomic})
			w.busy = false
		}
	}
}

// round runs the hostile guest on an input and then checks the others.
func (w *hostileWorld) round(input []byte) {
	w.v.t.Helper()
	w.h.attack(input)
	w.v.idle(300_000)
	w.tend()
	w.h.leave()
	w.v.idle(300_000)
	w.tend()
	w.untouched()
	w.work()
	if w.rounds++; w.rounds%128 == 0 {
		w.cleanUp()
	}
}

// untouched fails if the state of the bystanders has changed.
func (w *hostileWorld) untouched() {
	w.v.t.Helper()
	w.target.untouched("bystander", w.rounds%64 == 0)
	w.witness.untouched("witness", w.rounds%64 == 0)
	if st := w.accomplice.fn.Lifecycle.State(); st != abi.StateReady {
		w.v.t.Fatalf("the accomplice is in %s", st)
	}
}

// work runs an operation of the bystander, which must succeed as always.
func (w *hostileWorld) work() {
	t, a, b := w.v.t, &w.target, &w.witness
	t.Helper()
	n, off := 1+(w.rounds*37)%9000, (w.rounds*4099)%(40<<10)
	for i := range n {
		a.data()[off+i] = byte(w.rounds + i)
	}
	a.send(abi.OpWrite, off, n, b.driver, off)
	if cqe := a.done(); cqe.Status != abi.WCSuccess || cqe.WRID != uint64(n) || cqe.QPN != a.qpn {
		t.Fatalf("round %d: the bystander's WRITE: %+v", w.rounds, cqe)
	}
	if !bytes.Equal(a.data()[off:off+n], b.data()[off:off+n]) {
		t.Fatalf("round %d: the witness got other data", w.rounds)
	}
	copy(b.memory[pageData*pageSize+off:], a.data()[off:off+n]) // nothing else of its data may change
	w.v.idle(300_000)
	if !bytes.Equal(b.memory[pageData*pageSize:][:bystanderData], b.data()[:bystanderData]) {
		t.Fatalf("round %d: the witness' data changed where nobody wrote", w.rounds)
	}
	before := a.stats
	a.remember()
	b.remember()
	if a.stats.Posted != before.Posted+1 || a.stats.Completed != before.Completed+1 || a.stats.BytesTx != before.BytesTx+uint64(n) {
		t.Fatalf("round %d: counters of one WRITE of %d bytes: %+v, before %+v", w.rounds, n, a.stats, before)
	}
}

// cleanUp lets connections end and checks that nothing is left of them.
func (w *hostileWorld) cleanUp() {
	w.v.t.Helper()
	w.v.idle(40e9) // also the time for requests without an answer
	w.tend()
	w.v.idle(5e9)
	for i := range w.v.nics {
		if n := w.v.cores[i].Manager.CIDsInUse(); n != w.slots[i] {
			w.v.t.Fatalf("round %d: NIC %d holds %d connections, %d at the start", w.rounds, i, n, w.slots[i])
		}
	}
	w.untouched()
}

// bystander is a driver that the hostile guest must not affect.
type bystander struct {
	*driver
	memory  []byte // expected content
	stats   rdma.Stats
	counts  verbs.Counts
	credits credit.Cost
	qp      abi.QueryQPResult
}

// Pages of a driver that are in use: control pages, and the data pages that work writes.
const (
	bystanderControl = 64 * pageSize
	bystanderData    = 16 * pageSize
)

// remember stores the current state as the expected one.
func (b *bystander) remember() {
	if b.memory == nil {
		b.memory = bytes.Clone(b.mem)
	}
	copy(b.memory[:bystanderControl], b.mem)
	copy(b.memory[pageData*pageSize:][:bystanderData], b.data())
	b.stats, b.counts, b.credits = b.fn.Verbs().Stats(), b.fn.Verbs().Counts(), b.fn.Credits.InUse()
	b.qp, _ = b.fn.Verbs().QueryQP(b.qpn)
}

func (b *bystander) untouched(name string, whole bool) {
	t := b.v.t
	t.Helper()
	if st := b.fn.Lifecycle.State(); st != abi.StateReady || b.fn.Driver() != b.b {
		t.Fatalf("%s: state %s", name, st)
	}
	cqs, _ := b.ch.Waiting()
	if n := len(cqs); n > 0 {
		t.Fatalf("%s: %d CQ events that it did not ask for", name, n)
	}
	if b.collect(); len(b.async) > 0 {
		t.Fatalf("%s: event %+v", name, b.async[0])
	}
	if s := b.fn.Verbs().Stats(); s != b.stats {
		t.Fatalf("%s: counters %+v, were %+v", name, s, b.stats)
	}
	if c := b.fn.Verbs().Counts(); c != b.counts {
		t.Fatalf("%s: objects %+v, were %+v", name, c, b.counts)
	}
	if c := b.fn.Credits.InUse(); c != b.credits {
		t.Fatalf("%s: credits in use %v, were %v", name, c, b.credits)
	}
	if q, st := b.fn.Verbs().QueryQP(b.qpn); st != abi.StatusOK || q != b.qp {
		t.Fatalf("%s: QP %+v (%s), was %+v", name, q, st, b.qp)
	}
	same := bytes.Equal(b.mem[:bystanderControl], b.memory[:bystanderControl]) && bytes.Equal(b.data()[:bystanderData], b.memory[pageData*pageSize:][:bystanderData])
	if !same || whole && !bytes.Equal(b.mem, b.memory) {
		for i := range b.mem {
			if b.mem[i] != b.memory[i] {
				t.Fatalf("%s: byte %d of page %d changed", name, i%pageSize, i/pageSize)
			}
		}
	}
}

// windowMemory maps a window as QEMU does.
func windowMemory(t testing.TB, win *ivshmem.Window) []byte {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		conns[i] = c.(*net.UnixConn)
	}
	sent := make(chan error, 1)
	go func() {
		sent <- win.Introduce(conns[0])
		conns[0].Close()
	}()
	defer conns[1].Close()
	var mem []byte
	for {
		var m fdpass.FDs
		var b [8]byte
		if err := m.ReadFull(conns[1], b[:], 4); err != nil {
			break
		}
		if int64(binary.LittleEndian.Uint64(b[:])) == -1 && mem == nil {
			fd := m.Take()
			mem, err = unix.Mmap(fd, 0, abi.WindowSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			unix.Close(fd)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Munmap(mem) })
		}
		m.Close()
	}
	if err := <-sent; err != nil || mem == nil {
		t.Fatalf("window: %v", err)
	}
	return mem
}

// windowBells finds the bell ring in a window.
func windowBells(t testing.TB, mem []byte) []byte {
	t.Helper()
	var h abi.WindowHeader
	h.Unmarshal(mem)
	for at := h.FirstCap; at != 0; {
		var c abi.Capability
		c.Unmarshal(mem[at:])
		if c.Type == abi.CapBells {
			return mem[c.Offset:][:c.Length]
		}
		at = c.Next
	}
	t.Fatalf("no bell ring in the window of function %#x", h.Function)
	return nil
}
