package rdma

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

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

// TestMaskedAtomics holds the device to DEV-611.
func TestMaskedAtomics(t *testing.T) {
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

// TestAtomicsMeetTheGuest lets the guest's processor use the same word while peers do: no addition
// is lost.
func TestAtomicsMeetTheGuest(t *testing.T) {
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

// TestAtomicWrite writes single words, in the order of the queue, without room for inline data.
// Invalid requests are refused. (DEV-614)
func TestAtomicWrite(t *testing.T) {
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
	q := newPair(t, true, 4096, worldConfig{}, uc)
	q.a.post(q.remote(abi.OpAtomicWrite, 0))
	if st := q.a.send.wait(1)[0].Status; st != abi.WCLocQPOpErr {
		t.Errorf("UC: %v", st)
	}
}
