package roce

import (
	"testing"

	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
)

// TestMessageParts: which packets make a message, and which do not belong where they come. The path
// MTU is 256.
func TestMessageParts(t *testing.T) {
	type packet struct {
		op    ib.Opcode
		n     int
		whole uint32 // WRITE, first packet: the length of all
	}
	for _, c := range []struct {
		name    string
		packets []packet
		ok      bool // of the last of them; the others belong
	}{
		{"SEND Only, empty", []packet{{ib.SendOnly, 0, 0}}, true},
		{"SEND Only, full", []packet{{ib.SendOnly, 256, 0}}, true},
		{"SEND Only, too long", []packet{{ib.SendOnly, 257, 0}}, false},
		{"SEND Only with immediate", []packet{{ib.SendOnlyImm, 9, 0}}, true},
		{"SEND Only with invalidate", []packet{{ib.SendOnlyInv, 9, 0}}, true},
		{"SEND First, short", []packet{{ib.SendFirst, 255, 0}}, false},
		{"SEND First, long", []packet{{ib.SendFirst, 257, 0}}, false},
		{"SEND of three", []packet{{ib.SendFirst, 256, 0}, {ib.SendMiddle, 256, 0}, {ib.SendLast, 1, 0}}, true},
		{"SEND Middle, short", []packet{{ib.SendFirst, 256, 0}, {ib.SendMiddle, 255, 0}}, false},
		{"SEND Last, full", []packet{{ib.SendFirst, 256, 0}, {ib.SendLast, 256, 0}}, true},
		{"SEND Last, too long", []packet{{ib.SendFirst, 256, 0}, {ib.SendLast, 257, 0}}, false},
		{"SEND Last, empty", []packet{{ib.SendFirst, 256, 0}, {ib.SendLast, 0, 0}}, false},
		{"SEND Last with immediate", []packet{{ib.SendFirst, 256, 0}, {ib.SendLastImm, 1, 0}}, true},
		{"SEND Last with invalidate", []packet{{ib.SendFirst, 256, 0}, {ib.SendLastInv, 1, 0}}, true},
		{"a Middle without a First", []packet{{ib.SendMiddle, 256, 0}}, false},
		{"a Last without a First", []packet{{ib.SendLast, 1, 0}}, false},
		{"a First within", []packet{{ib.SendFirst, 256, 0}, {ib.SendFirst, 256, 0}}, false},
		{"an Only within", []packet{{ib.SendFirst, 256, 0}, {ib.SendOnly, 1, 0}}, false},
		{"a WRITE's within a SEND", []packet{{ib.SendFirst, 256, 0}, {ib.WriteMiddle, 256, 0}}, false},
		{"a SEND's within a WRITE", []packet{{ib.WriteFirst, 256, 300}, {ib.SendLast, 44, 0}}, false},
		{"WRITE Only, empty", []packet{{ib.WriteOnly, 0, 0}}, true},
		{"WRITE Only, full", []packet{{ib.WriteOnly, 256, 256}}, true},
		{"WRITE Only, less than it says", []packet{{ib.WriteOnly, 255, 256}}, false},
		{"WRITE Only, more than it says", []packet{{ib.WriteOnly, 256, 255}}, false},
		{"WRITE Only with immediate", []packet{{ib.WriteOnlyImm, 9, 9}}, true},
		{"WRITE of three", []packet{{ib.WriteFirst, 256, 513}, {ib.WriteMiddle, 256, 0}, {ib.WriteLast, 1, 0}}, true},
		{"WRITE that ends with a full packet", []packet{{ib.WriteFirst, 256, 512}, {ib.WriteLastImm, 256, 0}}, true},
		{"WRITE First that is all", []packet{{ib.WriteFirst, 256, 256}}, false},
		{"WRITE Middle that is all", []packet{{ib.WriteFirst, 256, 512}, {ib.WriteMiddle, 256, 0}}, false},
		{"WRITE Middle that is more", []packet{{ib.WriteFirst, 256, 400}, {ib.WriteMiddle, 256, 0}}, false},
		{"WRITE Last that is not all", []packet{{ib.WriteFirst, 256, 300}, {ib.WriteLast, 43, 0}}, false},
		{"WRITE Last that is more", []packet{{ib.WriteFirst, 256, 300}, {ib.WriteLast, 45, 0}}, false},
		{"the longest WRITE", []packet{{ib.WriteFirst, 256, 1 << 31}}, true},
		{"a longer WRITE", []packet{{ib.WriteFirst, 256, 1<<31 + 1}}, false},
	} {
		var m message
		for i, p := range c.packets {
			h := wire.Headers{Extended: ib.Extended{RETH: ib.RETH{VA: 1000, RKey: 7, Length: p.whole}}}
			next, ok := m.with(p.op.Info(), &h, p.n, 256)
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
	if m, ok := m.with(ib.SendMiddle.Info(), &wire.Headers{}, 256, 256); !ok || m.bytes != 1<<31 {
		t.Errorf("%d bytes belong: %t", m.bytes, ok)
	}
	m.bytes++
	if _, ok := m.with(ib.SendMiddle.Info(), &wire.Headers{}, 256, 256); ok {
		t.Errorf("%d bytes belong", m.bytes+256)
	}
}

// TestWriteGoesOn: where each packet of a WRITE goes, and what is to come behind it.
func TestWriteGoesOn(t *testing.T) {
	var m message
	ok := false
	h := wire.Headers{Extended: ib.Extended{RETH: ib.RETH{VA: 1000, RKey: 7, Length: 600}}}
	for i, n := range []int{256, 256, 88} {
		op := []ib.Opcode{ib.WriteFirst, ib.WriteMiddle, ib.WriteLast}[i]
		if m, ok = m.with(op.Info(), &h, n, 256); !ok {
			t.Fatalf("packet %d does not belong", i)
		}
		h.RETH = ib.RETH{}
		if want := (message{kind: writing, bytes: []uint64{256, 512, 600}[i], left: []uint32{344, 88, 0}[i], addr: 1000 + []uint64{256, 512, 600}[i], rkey: 7}); m != want {
			t.Errorf("packet %d: %+v, want %+v", i, m, want)
		}
	}
}
