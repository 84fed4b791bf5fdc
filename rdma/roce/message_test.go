package roce

import (
	"testing"

	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	falcon "github.com/falcon-vnic/vnic/rdma/wire"
)

// TestMessageParts: which packets make a message, and which do not belong where they come. The path
// MTU is 256.
func TestMessageParts(t *testing.T) {
	type packet struct {
		op    wire.Opcode
		n     int
		whole uint32 // WRITE, first packet: the length of all
	}
	for _, c := range []struct {
		name    string
		packets []packet
		ok      bool // of the last of them; the others belong
	}{
		{"SEND Only, empty", []packet{{wire.SendOnly, 0, 0}}, true},
		{"SEND Only, full", []packet{{wire.SendOnly, 256, 0}}, true},
		{"SEND Only, too long", []packet{{wire.SendOnly, 257, 0}}, false},
		{"SEND Only with immediate", []packet{{wire.SendOnlyImm, 9, 0}}, true},
		{"SEND Only with invalidate", []packet{{wire.SendOnlyInv, 9, 0}}, true},
		{"SEND First, short", []packet{{wire.SendFirst, 255, 0}}, false},
		{"SEND First, long", []packet{{wire.SendFirst, 257, 0}}, false},
		{"SEND of three", []packet{{wire.SendFirst, 256, 0}, {wire.SendMiddle, 256, 0}, {wire.SendLast, 1, 0}}, true},
		{"SEND Middle, short", []packet{{wire.SendFirst, 256, 0}, {wire.SendMiddle, 255, 0}}, false},
		{"SEND Last, full", []packet{{wire.SendFirst, 256, 0}, {wire.SendLast, 256, 0}}, true},
		{"SEND Last, too long", []packet{{wire.SendFirst, 256, 0}, {wire.SendLast, 257, 0}}, false},
		{"SEND Last, empty", []packet{{wire.SendFirst, 256, 0}, {wire.SendLast, 0, 0}}, false},
		{"SEND Last with immediate", []packet{{wire.SendFirst, 256, 0}, {wire.SendLastImm, 1, 0}}, true},
		{"SEND Last with invalidate", []packet{{wire.SendFirst, 256, 0}, {wire.SendLastInv, 1, 0}}, true},
		{"a Middle without a First", []packet{{wire.SendMiddle, 256, 0}}, false},
		{"a Last without a First", []packet{{wire.SendLast, 1, 0}}, false},
		{"a First within", []packet{{wire.SendFirst, 256, 0}, {wire.SendFirst, 256, 0}}, false},
		{"an Only within", []packet{{wire.SendFirst, 256, 0}, {wire.SendOnly, 1, 0}}, false},
		{"a WRITE's within a SEND", []packet{{wire.SendFirst, 256, 0}, {wire.WriteMiddle, 256, 0}}, false},
		{"a SEND's within a WRITE", []packet{{wire.WriteFirst, 256, 300}, {wire.SendLast, 44, 0}}, false},
		{"WRITE Only, empty", []packet{{wire.WriteOnly, 0, 0}}, true},
		{"WRITE Only, full", []packet{{wire.WriteOnly, 256, 256}}, true},
		{"WRITE Only, less than it says", []packet{{wire.WriteOnly, 255, 256}}, false},
		{"WRITE Only, more than it says", []packet{{wire.WriteOnly, 256, 255}}, false},
		{"WRITE Only with immediate", []packet{{wire.WriteOnlyImm, 9, 9}}, true},
		{"WRITE of three", []packet{{wire.WriteFirst, 256, 513}, {wire.WriteMiddle, 256, 0}, {wire.WriteLast, 1, 0}}, true},
		{"WRITE that ends with a full packet", []packet{{wire.WriteFirst, 256, 512}, {wire.WriteLastImm, 256, 0}}, true},
		{"WRITE First that is all", []packet{{wire.WriteFirst, 256, 256}}, false},
		{"WRITE Middle that is all", []packet{{wire.WriteFirst, 256, 512}, {wire.WriteMiddle, 256, 0}}, false},
		{"WRITE Middle that is more", []packet{{wire.WriteFirst, 256, 400}, {wire.WriteMiddle, 256, 0}}, false},
		{"WRITE Last that is not all", []packet{{wire.WriteFirst, 256, 300}, {wire.WriteLast, 43, 0}}, false},
		{"WRITE Last that is more", []packet{{wire.WriteFirst, 256, 300}, {wire.WriteLast, 45, 0}}, false},
		{"the longest WRITE", []packet{{wire.WriteFirst, 256, 1 << 31}}, true},
		{"a longer WRITE", []packet{{wire.WriteFirst, 256, 1<<31 + 1}}, false},
	} {
		var m message
		for i, p := range c.packets {
			h := wire.Headers{RETH: falcon.RETH{VA: 1000, RKey: 7, Length: p.whole}}
			next, ok := m.with(p.op, p.op.Info(), &h, p.n, 256)
			if want := c.ok || i < len(c.packets)-1; ok != want {
				t.Errorf("%s: packet %d belongs: %t", c.name, i, ok)
			}
			m = next
		}
	}
}

// TestLongestSend: a SEND names no length; it is over when it is longer than messages are.
func TestLongestSend(t *testing.T) {
	m := message{kind: sending, bytes: 1<<31 - 256}
	if m, ok := m.with(wire.SendMiddle, wire.SendMiddle.Info(), &wire.Headers{}, 256, 256); !ok || m.bytes != 1<<31 {
		t.Errorf("%d bytes belong: %t", m.bytes, ok)
	}
	m.bytes++
	if _, ok := m.with(wire.SendMiddle, wire.SendMiddle.Info(), &wire.Headers{}, 256, 256); ok {
		t.Errorf("%d bytes belong", m.bytes+256)
	}
}

// TestWriteGoesOn: where each packet of a WRITE goes, and what is to come behind it.
func TestWriteGoesOn(t *testing.T) {
	var m message
	ok := false
	h := wire.Headers{RETH: falcon.RETH{VA: 1000, RKey: 7, Length: 600}}
	for i, n := range []int{256, 256, 88} {
		op := []wire.Opcode{wire.WriteFirst, wire.WriteMiddle, wire.WriteLast}[i]
		if m, ok = m.with(op, op.Info(), &h, n, 256); !ok {
			t.Fatalf("packet %d does not belong", i)
		}
		h.RETH = falcon.RETH{}
		if want := (message{kind: writing, bytes: []uint64{256, 512, 600}[i], left: []uint32{344, 88, 0}[i], addr: 1000 + []uint64{256, 512, 600}[i], rkey: 7}); m != want {
			t.Errorf("packet %d: %+v, want %+v", i, m, want)
		}
	}
}
