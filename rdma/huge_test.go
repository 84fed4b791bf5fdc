//go:build !race

package rdma

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// alias registers a region of n bytes that maps a few pages of memory again and again, as a driver
// may. So the test of long messages does not need memory of their length. It returns the region's
// key and the pages.
func (h *host) alias(pdn uint32, n, pages int) (key uint32, mem []byte) {
	h.w.t.Helper()
	at := h.alloc(pages * abi.PageSize)
	entries := make([]uint64, n/abi.PageSize)
	for i := range entries {
		entries[i] = at + uint64(i%pages)*abi.PageSize
	}
	levels := uint8(0)
	for ; len(entries) > 1; levels++ {
		list := h.alloc(8 * len(entries))
		for i, e := range entries {
			binary.LittleEndian.PutUint64(h.bytes(list+8*uint64(i), 8), e)
		}
		entries = entries[:(8*len(entries)+abi.PageSize-1)/abi.PageSize]
		for i := range entries {
			entries[i] = list + uint64(i)*abi.PageSize
		}
	}
	key, _, st := h.fn.RegMR(&abi.RegMR{PDN: pdn, Access: allAccess, Length: uint64(n), Pages: entries[0], Levels: levels})
	ok(h.w.t, st)
	return key, h.bytes(at, pages*abi.PageSize)
}

// TestAMessageOf2GiBArrives moves 2^31 bytes by one work request, to a peer and inside the NIC, by
// WRITE and by READ. Source and sink repeat pages with different periods, so that what a page of
// the sink holds in the end says which of the source came last.
func TestAMessageOf2GiBArrives(t *testing.T) {
	const (
		n           = 1 << 31
		from, to    = 251, 257 // pages, repeated
		onePastLast = n / abi.PageSize
	)
	if testing.Short() {
		t.Skip("2 GiB take too long")
	}
	overEach(t, func(t *testing.T) {
		for _, op := range []abi.Opcode{abi.OpWrite, abi.OpRead} {
			t.Run(op.String(), func(t *testing.T) {
				p := newPair(t, true, 4096, worldConfig{arena: 24 << 20, mtu: 4096}, qpConfig{})
				near, far := from, to
				if op == abi.OpRead {
					near, far = far, near
				}
				lkey, mine := p.hosts[0].alias(p.pd[0], n, near)
				rkey, theirs := p.hosts[1].alias(p.pd[1], n, far)
				source, sink := mine, theirs
				if op == abi.OpRead {
					source, sink = sink, source
				}
				fill(source, 31)
				p.a.post(abi.SendWQE{Opcode: op, Flags: abi.SendSignaled, RKey: rkey}, abi.SGE{Length: n, LKey: lkey})
				got := p.a.send.wait(1)
				success(t, got)
				if op == abi.OpRead && got[0].ByteLen != n {
					t.Errorf("%d bytes reported", got[0].ByteLen)
				}
				for last := onePastLast - to; last < onePastLast; last++ {
					if !bytes.Equal(sink[last%to*abi.PageSize:][:abi.PageSize], source[last%from*abi.PageSize:][:abi.PageSize]) {
						t.Fatalf("page %d of %d is wrong", last, onePastLast)
					}
				}
				p.a.post(abi.SendWQE{Opcode: op, RKey: rkey}, abi.SGE{Length: n, LKey: lkey}, p.ma.sge(0, 1))
				if st := p.a.send.wait(1)[0].Status; st != abi.WCLocLenErr {
					t.Errorf("a byte more than the longest message: %v", st)
				}
			})
		}
	}, byFalcon, insideNIC)
}
