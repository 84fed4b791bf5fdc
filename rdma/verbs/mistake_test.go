package verbs

import (
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestMistakesAreNamed: the reason for an element that names no memory says which element and why;
// that for an operation says its number.
func TestMistakesAreNamed(t *testing.T) {
	g := newGuest(t, Limits{})
	m := g.region(g.pdn, 64, allRights)
	other := g.region(g.newPD(), 64, allRights)
	readOnly := g.region(g.pdn, 64, 0)
	s := g.newRC(nil)
	for _, c := range []struct {
		x    abi.SendWQE
		sges []abi.SGE
		want string
	}{
		{abi.SendWQE{Opcode: 99}, nil, "opcode 99 is unknown"},
		{abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendInline, InlineLen: 4000}, nil, "it has 4000 bytes inline, and the QP was created for"},
		{abi.SendWQE{Opcode: abi.OpSend}, []abi.SGE{m.sge(0, 8), {Addr: m.iova, LKey: m.key ^ 0x100, Length: 8}}, "SGE 1: lkey"},
		{abi.SendWQE{Opcode: abi.OpSend}, []abi.SGE{{Addr: m.iova, LKey: 0x77777700, Length: 8}}, "SGE 0: lkey 0x77777700 names no memory region"},
		{abi.SendWQE{Opcode: abi.OpSend}, []abi.SGE{{Addr: m.iova + 60, LKey: m.key, Length: 8}}, "SGE 0: 8 bytes at "},
		{abi.SendWQE{Opcode: abi.OpSend}, []abi.SGE{other.sge(0, 8)}, "is of another protection domain"},
		{abi.SendWQE{Opcode: abi.OpRead}, []abi.SGE{readOnly.sge(0, 8)}, "has no local write access"},
		{abi.SendWQE{Opcode: abi.OpSend}, []abi.SGE{{LKey: abi.ReservedLKey, Length: 8}}, "is for privileged queues"},
	} {
		w := s.send.works.add()
		w.WQE = c.x
		w.WQE.NumSGE = uint8(len(c.sges))
		rest := make([]byte, 192)
		for i := range c.sges {
			c.sges[i].Marshal(rest[i*abi.SGESize:])
		}
		if st, why := s.send.check(w, rest); st == abi.WCSuccess || !strings.Contains(why.String(), c.want) {
			t.Errorf("%+v: %v, because %q; want %q", c.x, st, why, c.want)
		}
	}
}
