package rdma

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

var sizes = []int{0, 1, 3, 4, 7, 64, 191, 1023, 1024, 1025, 2048, 5000, 65536, 1 << 20, 1<<20 + 3}

// split cuts n bytes of r from off into k elements of odd sizes.
func split(r *region, off, n, k int) []abi.SGE {
	var s []abi.SGE
	for ; k > 1 && n > 1; k-- {
		cut := n/2 + n%2
		s = append(s, r.sge(off, cut))
		off, n = off+cut, n-cut
	}
	return append(s, r.sge(off, n))
}

func orders(t *testing.T, f func(t *testing.T, ordered bool)) {
	t.Run("ordered", func(t *testing.T) { f(t, true) })
	t.Run("unordered", func(t *testing.T) { f(t, false) })
}

func TestSendsOfAllSizes(t *testing.T) {
	orders(t, func(t *testing.T, ordered bool) {
		p := newPair(t, ordered, 4<<20, worldConfig{arena: 32 << 20}, qpConfig{})
		for i, n := range sizes {
			for _, op := range []abi.Opcode{abi.OpSend, abi.OpSendImm} {
				name := fmt.Sprintf("%v of %d bytes", op, n)
				clear(p.mb.bytes())
				fill(p.ma.bytes()[:n+8], uint64(i))
				p.b.receive(uint64(i), split(p.mb, 100, n+5, 3)...)
				p.a.post(abi.SendWQE{WRID: uint64(1000 + i), Opcode: op, Flags: abi.SendSignaled, Imm: uint32(i)}, split(p.ma, 1, n, 4)...)
				s, r := p.a.send.wait(1)[0], p.b.recv.wait(1)[0]
				success(t, []abi.CQE{s, r})
				if s.WRID != uint64(1000+i) || s.Opcode != abi.WCOpSend || s.QPN != p.a.number {
					t.Fatalf("%s: send completion %+v", name, s)
				}
				wantFlags, wantImm := uint8(0), uint32(0)
				if op == abi.OpSendImm {
					wantFlags, wantImm = abi.WCFlagImm, uint32(i)
				}
				if r.WRID != uint64(i) || r.ByteLen != uint32(n) || r.Opcode != abi.WCOpRecv || r.Flags != wantFlags || r.Imm != wantImm || r.SrcQP != p.a.number {
					t.Fatalf("%s: receive completion %+v", name, r)
				}
				want := make([]byte, n+105+5)
				copy(want[100:], p.ma.bytes()[1:1+n])
				if !bytes.Equal(p.mb.bytes()[:len(want)], want) {
					t.Fatalf("%s: wrong bytes received", name)
				}
			}
		}
	})
}

func TestWritesOfAllSizes(t *testing.T) {
	orders(t, func(t *testing.T, ordered bool) {
		p := newPair(t, ordered, 4<<20, worldConfig{arena: 32 << 20}, qpConfig{})
		for i, n := range sizes {
			for _, op := range []abi.Opcode{abi.OpWrite, abi.OpWriteImm} {
				clear(p.mb.bytes())
				fill(p.ma.bytes()[:n+8], uint64(i))
				x := p.remote(op, 4093)
				x.WRID, x.Imm = uint64(i), 0xabcd0000+uint32(i)
				if op == abi.OpWriteImm {
					p.b.receive(uint64(500 + i))
				}
				p.a.post(x, split(p.ma, 3, n, 4)...)
				s := p.a.send.wait(1)
				success(t, s)
				if s[0].Opcode != abi.WCOpWrite || s[0].WRID != uint64(i) {
					t.Fatalf("completion %+v", s[0])
				}
				if op == abi.OpWriteImm {
					r := p.b.recv.wait(1)
					success(t, r)
					if r[0].Opcode != abi.WCOpRecvWriteImm || r[0].Imm != x.Imm || r[0].ByteLen != uint32(n) || r[0].WRID != uint64(500+i) {
						t.Fatalf("receive completion %+v", r[0])
					}
				}
				want := make([]byte, 4093+n+4)
				copy(want[4093:], p.ma.bytes()[3:3+n])
				if !bytes.Equal(p.mb.bytes()[:len(want)], want) {
					t.Fatalf("%v of %d bytes: wrong bytes written", op, n)
				}
			}
		}
	})
}

func TestReadsOfAllSizes(t *testing.T) {
	orders(t, func(t *testing.T, ordered bool) {
		p := newPair(t, ordered, 4<<20, worldConfig{arena: 32 << 20}, qpConfig{})
		for i, n := range sizes {
			clear(p.ma.bytes())
			fill(p.mb.bytes()[:n+8], uint64(i))
			x := p.remote(abi.OpRead, 5)
			x.WRID = uint64(i)
			p.a.post(x, split(p.ma, 100, n, 4)...)
			s := p.a.send.wait(1)
			success(t, s)
			if s[0].Opcode != abi.WCOpRead || s[0].ByteLen != uint32(n) {
				t.Fatalf("completion %+v", s[0])
			}
			want := make([]byte, 100+n+4)
			copy(want[100:], p.mb.bytes()[5:5+n])
			if !bytes.Equal(p.ma.bytes()[:len(want)], want) {
				t.Fatalf("READ of %d bytes: wrong bytes read", n)
			}
		}
	})
}

func TestAtomicsReturnThePreviousValue(t *testing.T) {
	orders(t, func(t *testing.T, ordered bool) {
		p := newPair(t, ordered, 4096, worldConfig{}, qpConfig{})
		cell := p.mb.bytes()[16:24]
		result := p.ma.bytes()[8:16]
		value := uint64(0x1122334455667788)
		binary.LittleEndian.PutUint64(cell, value)
		do := func(x abi.SendWQE, want uint64) {
			t.Helper()
			clear(result)
			p.a.post(x, p.ma.sge(8, 8))
			s := p.a.send.wait(1)
			success(t, s)
			if s[0].ByteLen != 8 || s[0].Opcode != verbs.WCOpcode(x.Opcode) {
				t.Fatalf("completion %+v", s[0])
			}
			if got := binary.LittleEndian.Uint64(result); got != value {
				t.Fatalf("%v returned %#x, want the old value %#x", x.Opcode, got, value)
			}
			if got := binary.LittleEndian.Uint64(cell); got != want {
				t.Fatalf("%v left %#x, want %#x", x.Opcode, got, want)
			}
			value = want
		}
		x := p.remote(abi.OpFetchAdd, 16)
		x.CompareAdd = 5
		do(x, value+5)
		x.CompareAdd = -value // to the wrap
		do(x, 0)
		x = p.remote(abi.OpCmpSwap, 16)
		x.CompareAdd, x.Swap = 1, 77
		do(x, 0) // no match
		x.CompareAdd, x.Swap = 0, 77
		do(x, 77)
	})
}

// TestInlineDataOutlivesItsEntry sends data that lies in the request. The driver owns the slot
// again once it was read, and the data must survive in the copy for retransmissions.
func TestInlineDataOutlivesItsEntry(t *testing.T) {
	p := newPair(t, true, 4096, worldConfig{}, qpConfig{})
	data := make([]byte, 192)
	fill(data, 3)
	p.b.receive(1, p.mb.sge(0, 4096))
	p.cut(0, true)
	p.a.postInline(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, data)
	p.step() // read and sent once, lost
	if p.sim.Links[0].Stats().Lost == 0 {
		t.Fatal("nothing was sent")
	}
	clear(p.a.sqMem[128:])
	p.cut(0, false)
	success(t, p.a.send.wait(1))
	r := p.b.recv.wait(1)
	success(t, r)
	if r[0].ByteLen != 192 || !bytes.Equal(p.mb.bytes()[:192], data) {
		t.Fatalf("received %d bytes, wrong data", r[0].ByteLen)
	}
	x := p.remote(abi.OpWrite, 1000)
	p.a.postInline(x, data[:101])
	success(t, p.a.send.wait(1))
	if !bytes.Equal(p.mb.bytes()[1000:1101], data[:101]) || p.mb.bytes()[1101] != 0 {
		t.Fatal("inline WRITE: wrong data")
	}
}

// TestOnlySignaledRequestsComplete holds the device to DEV-609.
func TestOnlySignaledRequestsComplete(t *testing.T) {
	p := newPair(t, true, 4096, worldConfig{}, qpConfig{})
	for i := range 10 {
		x := p.remote(abi.OpWrite, 0)
		x.WRID, x.Flags = uint64(i), 0
		if i == 9 {
			x.Flags = abi.SendSignaled
		}
		p.a.post(x, p.ma.sge(0, 100))
	}
	s := p.a.send.wait(1)
	success(t, s)
	if s[0].WRID != 9 {
		t.Fatalf("completion of %d, want only 9", s[0].WRID)
	}

	all := newPair(t, true, 4096, worldConfig{}, qpConfig{sigAll: true})
	for i := range 5 {
		x := all.remote(abi.OpWrite, 0)
		x.WRID, x.Flags = uint64(i), 0
		all.a.post(x, all.ma.sge(0, 100))
	}
	for i, c := range all.a.send.wait(5) {
		if c.WRID != uint64(i) || c.Status != abi.WCSuccess {
			t.Fatalf("completion %d: %+v", i, c)
		}
	}
}

// fields adds in fields bit by bit (RFC 7306 §5.1.1, the pseudocode).
func fields(a, b, mask uint64) (sum uint64) {
	var carry uint64
	for bit := range 64 {
		n := a>>bit&1 + b>>bit&1 + carry
		sum |= n & 1 << bit
		carry = n >> 1
		if mask>>bit&1 != 0 {
			carry = 0
		}
	}
	return sum
}

// masked returns the result of a masked atomic on old.
func masked(x *abi.SendWQE, m *abi.AtomicMasks, old uint64) uint64 {
	if x.Opcode == abi.OpMaskedFetchAdd {
		return fields(old, x.CompareAdd, m.SwapAdd)
	}
	for bit := range 64 {
		if m.Compare>>bit&1 != 0 && (old^x.CompareAdd)>>bit&1 != 0 {
			return old
		}
	}
	return old&^m.SwapAdd | x.Swap&m.SwapAdd
}

// postMasked posts a masked atomic whose old value goes to sge.
func (p *qp) postMasked(x abi.SendWQE, m abi.AtomicMasks, sge abi.SGE) {
	data := make([]byte, abi.AtomicMasksSize+abi.SGESize)
	m.Marshal(data)
	sge.Marshal(data[abi.AtomicMasksSize:])
	x.NumSGE = 1
	p.postRaw(x, data)
	p.ring()
}

// TestMaskedAtomicsChangeTheirFieldsOnly holds the device to DEV-611.
func TestMaskedAtomicsChangeTheirFieldsOnly(t *testing.T) {
	orders(t, func(t *testing.T, ordered bool) {
		r := rand.New(rand.NewPCG(1, 1))
		p := newPair(t, ordered, 4096, worldConfig{}, qpConfig{})
		cell, result := p.mb.bytes()[16:24], p.ma.bytes()[8:16]
		value := uint64(0x00ff_00ff_ffff_ffff)
		binary.LittleEndian.PutUint64(cell, value)
		for i := range 200 {
			x := p.remote(abi.OpMaskedFetchAdd, 16)
			m := abi.AtomicMasks{SwapAdd: r.Uint64() & r.Uint64(), Compare: r.Uint64() & r.Uint64()}
			x.CompareAdd, x.Swap = r.Uint64(), r.Uint64()
			switch i {
			case 0: // carries out of the bits 7, 23 and 63 are lost
				x.CompareAdd, m.SwapAdd = 0x0001_0001_0000_0001, 0x0080_0080_0000_0000|1<<31
			case 1:
				m.SwapAdd = 0
			}
			if i%2 == 1 && i > 1 {
				x.Opcode = abi.OpMaskedCmpSwap
				if i%4 == 1 {
					x.CompareAdd = value ^ x.CompareAdd&^m.Compare // agrees where it is compared
				}
			}
			p.a.postMasked(x, m, p.ma.sge(8, 8))
			c := p.a.send.wait(1)
			success(t, c)
			if c[0].ByteLen != 8 || c[0].Opcode != verbs.WCOpcode(x.Opcode) {
				t.Fatalf("completion %+v", c[0])
			}
			want := masked(&x, &m, value)
			if old, got := binary.LittleEndian.Uint64(result), binary.LittleEndian.Uint64(cell); old != value || got != want {
				t.Fatalf("%v %+v of %#x returned %#x and left %#x, want %#x", x.Opcode, m, value, old, got, want)
			}
			value = want
		}
	})
}

// TestAtomicsAreAtomicToTheGuest lets the guest's processor use the same word while peers do: no
// addition is lost.
func TestAtomicsAreAtomicToTheGuest(t *testing.T) {
	p := newPair(t, true, 4096, worldConfig{}, qpConfig{})
	mr := p.hosts[1].fn.Remote(p.hosts[1].fn.PD(p.pd[1]), nil, p.mb.key, p.mb.addr, 8, abi.AccessRemoteAtomic)
	const n = 2000
	var wg sync.WaitGroup
	wg.Go(func() { // its own fields of the same word, through its own mapping
		for range n {
			if _, err := mr.Atomic(p.mb.addr, &verbs.Atomic{Op: abi.OpFetchAdd, SwapAdd: 1 << 32}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for i := range n {
		x := p.remote(abi.OpMaskedFetchAdd, 0)
		x.CompareAdd = 1
		if i%2 == 0 {
			x.Opcode = abi.OpFetchAdd
			p.a.post(x, p.ma.sge(8, 8))
		} else {
			p.a.postMasked(x, abi.AtomicMasks{SwapAdd: 1 << 31}, p.ma.sge(8, 8))
		}
		success(t, p.a.send.wait(1))
	}
	wg.Wait()
	if got := binary.LittleEndian.Uint64(p.mb.bytes()); got != n<<32|n {
		t.Fatalf("the word is %#x, want %#x: additions were lost", got, uint64(n<<32|n))
	}
}

// TestAtomicWritesStoreOneWord writes single words, in the order of the queue, without room for
// inline data. Invalid requests are refused. (DEV-614)
func TestAtomicWritesStoreOneWord(t *testing.T) {
	p := newPair(t, true, 4096, worldConfig{}, qpConfig{})
	write := func(off int, word uint64) abi.SendWQE {
		x := p.remote(abi.OpAtomicWrite, off)
		x.Swap = word
		return x
	}
	fill(p.mb.bytes(), 1)
	fill(p.ma.bytes(), 2)
	want := bytes.Clone(p.mb.bytes())
	p.a.post(p.remote(abi.OpWrite, 0), p.ma.sge(0, 2048))
	p.a.post(write(1024, 0x0123_4567_89ab_cdef))
	copy(want, p.ma.bytes()[:2048])
	binary.LittleEndian.PutUint64(want[1024:], 0x0123_4567_89ab_cdef)
	c := p.a.send.wait(2)
	success(t, c)
	if c[1].Opcode != abi.WCOpAtomicWrite {
		t.Errorf("completion %+v", c[1])
	}
	if !bytes.Equal(p.mb.bytes(), want) {
		t.Error("something else was written")
	}
	inline, long := write(0, 0), write(0, 0)
	inline.Flags |= abi.SendInline
	long.NumSGE = 1
	for name, x := range map[string]abi.SendWQE{"address": write(4, 0), "inline data": inline, "SGE": long} {
		p := newPair(t, true, 4096, worldConfig{}, qpConfig{})
		p.a.postRaw(x, make([]byte, abi.SGESize))
		p.a.ring()
		if st := p.a.send.wait(1)[0].Status; st != abi.WCLocQPOpErr {
			t.Errorf("%s: %v", name, st)
		}
	}
	if over == byIWARP {
		return // it has no unreliable connections
	}
	q := newPair(t, true, 4096, worldConfig{}, uc)
	q.a.post(q.remote(abi.OpAtomicWrite, 0))
	if st := q.a.send.wait(1)[0].Status; st != abi.WCLocQPOpErr {
		t.Errorf("UC: %v", st)
	}
}
