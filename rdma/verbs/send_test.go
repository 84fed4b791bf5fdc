package verbs

import (
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// TestRequestsAreCheckedAgainstTheirQueue: which send entries are valid and which are not, for each
// operation, at the limits that its queue announced. (DEV-606, DEV-706)
func TestRequestsAreCheckedAgainstTheirQueue(t *testing.T) {
	const (
		good    = abi.WCSuccess
		badOp   = abi.WCLocQPOpErr
		badLen  = abi.WCLocLenErr
		badProt = abi.WCLocProtErr
	)
	type elements []int // their lengths
	for _, c := range []struct {
		name   string
		x      abi.SendWQE
		sges   elements
		change func(s *side)
		want   abi.WCStatus
	}{
		{"nothing", abi.SendWQE{Opcode: abi.OpSend}, nil, nil, good},
		{"all elements", abi.SendWQE{Opcode: abi.OpWrite}, elements{1, 1, 1, 1}, nil, good},
		{"too many", abi.SendWQE{Opcode: abi.OpWrite, NumSGE: sideSGEs + 1}, nil, nil, badOp},
		{"all inline bytes", abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendInline, InlineLen: sideInline}, nil, nil, good},
		{"a byte more", abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendInline, InlineLen: sideInline + 1}, nil, nil, badLen},
		{"inline and elements", abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendInline, InlineLen: 1, NumSGE: 1}, nil, nil, badOp},
		{"inline READ", abi.SendWQE{Opcode: abi.OpRead, Flags: abi.SendInline, InlineLen: 1}, nil, nil, badOp},
		{"READ", abi.SendWQE{Opcode: abi.OpRead}, elements{10, 20}, nil, good},
		{"READ into what may be read alone", abi.SendWQE{Opcode: abi.OpRead}, elements{10}, readable, badProt},
		{"WRITE from there", abi.SendWQE{Opcode: abi.OpWrite}, elements{10}, readable, good},
		{"READ without any", abi.SendWQE{Opcode: abi.OpRead}, elements{10}, noReads, badOp},
		{"atomic", abi.SendWQE{Opcode: abi.OpFetchAdd}, elements{8}, nil, good},
		{"atomic without any", abi.SendWQE{Opcode: abi.OpFetchAdd}, elements{8}, noReads, badOp},
		{"atomic, short result", abi.SendWQE{Opcode: abi.OpCmpSwap}, elements{7}, nil, badLen},
		{"atomic, long result", abi.SendWQE{Opcode: abi.OpCmpSwap}, elements{9}, nil, badLen},
		{"atomic, two results", abi.SendWQE{Opcode: abi.OpCmpSwap}, elements{4, 4}, nil, badLen},
		{"atomic, no result", abi.SendWQE{Opcode: abi.OpCmpSwap}, nil, nil, badLen},
		{"masked atomic, two results", abi.SendWQE{Opcode: abi.OpMaskedFetchAdd}, elements{8, 0}, nil, badLen},
		{"masked atomic, no result", abi.SendWQE{Opcode: abi.OpMaskedCmpSwap}, nil, nil, badLen},
		{"READ and invalidate", abi.SendWQE{Opcode: abi.OpReadInv}, elements{10}, nil, good},
		{"no such key", abi.SendWQE{Opcode: abi.OpReadInv, Imm: 0x123456}, elements{10}, nil, badOp},
		{"READ and invalidate without any", abi.SendWQE{Opcode: abi.OpReadInv}, elements{10}, noReads, badOp},
		{"atomic WRITE", abi.SendWQE{Opcode: abi.OpAtomicWrite, RemoteAddr: 16}, nil, nil, good},
		{"between words", abi.SendWQE{Opcode: abi.OpAtomicWrite, RemoteAddr: 12}, nil, nil, badOp},
		{"atomic WRITE, inline", abi.SendWQE{Opcode: abi.OpAtomicWrite, Flags: abi.SendInline}, nil, nil, badOp},
		{"atomic WRITE, element", abi.SendWQE{Opcode: abi.OpAtomicWrite, NumSGE: 1}, nil, nil, badOp},
		{"LOCAL_INV", abi.SendWQE{Opcode: abi.OpLocalInv}, nil, nil, good},
		{"LOCAL_INV, inline", abi.SendWQE{Opcode: abi.OpLocalInv, Flags: abi.SendInline}, nil, nil, badOp},
		{"LOCAL_INV, element", abi.SendWQE{Opcode: abi.OpLocalInv, NumSGE: 1}, nil, nil, badOp},
		{"bind", abi.SendWQE{Opcode: abi.OpBindMW}, nil, nil, good},
		{"bind, element", abi.SendWQE{Opcode: abi.OpBindMW, NumSGE: 1}, nil, nil, badOp},
		{"register", abi.SendWQE{Opcode: abi.OpRegMR}, nil, nil, badOp},
		{"register, privileged", abi.SendWQE{Opcode: abi.OpRegMR}, nil, func(s *side) { s.send.queue.privileged = true }, good},
		{"no such operation", abi.SendWQE{Opcode: 63}, nil, nil, badOp},
		{"unreliable SEND", abi.SendWQE{Opcode: abi.OpSend}, elements{5}, unreliable, good},
		{"unreliable WRITE", abi.SendWQE{Opcode: abi.OpWriteImm}, elements{5}, unreliable, good},
		{"unreliable READ", abi.SendWQE{Opcode: abi.OpRead}, elements{5}, unreliable, badOp},
	} {
		g := newGuest(t, Limits{})
		m := g.region(g.pdn, 64, allRights)
		s := g.newRC(nil)
		if c.change != nil {
			c.change(s)
		}
		w := s.send.works.add()
		w.WQE = c.x
		if w.WQE.Imm == 0 {
			w.WQE.Imm = m.key
		}
		rest := make([]byte, 192)
		length, at := 0, 0
		if w.WQE.Opcode == abi.OpMaskedCmpSwap || w.WQE.Opcode == abi.OpMaskedFetchAdd {
			at = abi.AtomicMasksSize
		}
		for i, n := range c.sges {
			sge := m.sge(0, n)
			sge.Marshal(rest[at+i*abi.SGESize:])
			w.WQE.NumSGE, length = w.WQE.NumSGE+1, length+n
		}
		if c.x.Flags&abi.SendInline != 0 {
			length = int(c.x.InlineLen)
		}
		if c.x.Opcode == abi.OpAtomicWrite {
			length = 8
		}
		if st, why := s.send.checkWR(w, rest); st != c.want || st == good && int(w.Length) != length {
			t.Errorf("%s: %v, want %v; %d bytes of %d", c.name, st, c.want, w.Length, length)
		} else if (why.String() != "") != (st != good) || strings.Contains(why.String(), "%!") {
			t.Errorf("%s: %v, because %q", c.name, st, why)
		}
	}
}

// Variants of the queue pair of TestRequestsAreCheckedAgainstTheirQueue.
func noReads(s *side)    { s.attr.maxRdAtomic = 0 }
func readable(s *side)   { s.g.Regions.table.Each(func(m *MR) { m.access = 0 }) }
func unreliable(s *side) { s.become(abi.QPTypeUC) }

// TestAMessageHasAtMost2GiB: a message has at most 2^31 bytes, however they are distributed.
func TestAMessageHasAtMost2GiB(t *testing.T) {
	g := newGuest(t, Limits{})
	s := g.newRC(nil)
	s.send.queue.privileged = true // who may name memory that is not there
	for _, c := range []struct {
		lengths [2]uint32
		want    abi.WCStatus
	}{
		{[2]uint32{1 << 31, 0}, abi.WCSuccess},
		{[2]uint32{1<<31 - 1, 1}, abi.WCSuccess},
		{[2]uint32{1 << 31, 1}, abi.WCLocLenErr},
		{[2]uint32{1 << 31, 1 << 31}, abi.WCLocLenErr},
	} {
		w := s.send.works.add()
		w.WQE = abi.SendWQE{Opcode: abi.OpWrite, NumSGE: 2}
		rest := make([]byte, 2*abi.SGESize)
		for i, n := range c.lengths {
			sge := abi.SGE{Length: n, LKey: abi.ReservedLKey}
			sge.Marshal(rest[i*abi.SGESize:])
		}
		if st, _ := s.send.checkWR(w, rest); st != c.want || st == abi.WCSuccess && w.Length != 1<<31 {
			t.Errorf("%v bytes: %v, length %d", c.lengths, st, w.Length)
		}
	}
}

// TestParametersMustFitTheEntry: operations with parameters behind the header fail if the entry has
// no room for them.
func TestParametersMustFitTheEntry(t *testing.T) {
	for op, size := range map[abi.Opcode]int{abi.OpBindMW: abi.BindMWSize, abi.OpRegMR: abi.FastRegSize, abi.OpLocalInv: 0} {
		for short, want := range []abi.WCStatus{abi.WCSuccess, abi.WCLocQPOpErr} {
			if short > size {
				continue
			}
			w := &SendWR{}
			w.WQE.Opcode = op
			if st, _ := w.readParameters(make([]byte, size-short)); st != want {
				t.Errorf("%v, %d bytes short: %v", op, short, st)
			}
		}
	}
}

// TestTheDriverIsToldWhichClauseAnEntryBreaks: the driver is told which rule an entry breaks by its
// form. (DRV-103, DRV-608, DRV-611, DRV-960)
func TestTheDriverIsToldWhichClauseAnEntryBreaks(t *testing.T) {
	for _, c := range []struct {
		name     string
		x        abi.SendWQE
		extended bool
		change   func(s *side)
		want     abi.Clause
	}{
		{"WRITE", abi.SendWQE{Opcode: abi.OpWrite, NumSGE: sideSGEs}, true, nil, 0},
		{"WRITE of an older driver", abi.SendWQE{Opcode: abi.OpWrite}, false, nil, 0},
		{"too many elements", abi.SendWQE{Opcode: abi.OpWrite, NumSGE: sideSGEs + 1}, true, nil, abi.DRV608},
		{"atomic WRITE", abi.SendWQE{Opcode: abi.OpAtomicWrite}, true, nil, 0},
		{"atomic WRITE of an older driver", abi.SendWQE{Opcode: abi.OpAtomicWrite}, false, nil, abi.DRV103},
		{"masked atomic", abi.SendWQE{Opcode: abi.OpMaskedCmpSwap, NumSGE: 1}, true, nil, 0},
		{"masked atomic without an element", abi.SendWQE{Opcode: abi.OpMaskedCmpSwap}, true, nil, abi.DRV611},
		{"the other with two", abi.SendWQE{Opcode: abi.OpMaskedFetchAdd, NumSGE: 2}, true, nil, abi.DRV611},
		{"masked atomic of an older driver", abi.SendWQE{Opcode: abi.OpMaskedFetchAdd, NumSGE: 1}, false, nil, abi.DRV103},
		{"atomic", abi.SendWQE{Opcode: abi.OpFetchAdd, NumSGE: 2}, true, nil, 0},
		{"unreliable READ", abi.SendWQE{Opcode: abi.OpRead}, true, unreliable, abi.DRV960},
		{"unreliable WRITE", abi.SendWQE{Opcode: abi.OpWrite}, true, unreliable, 0},
	} {
		g := newGuest(t, Limits{})
		s := g.newRC(nil)
		if !c.extended {
			g.UseFeatures(0)
		}
		if c.change != nil {
			c.change(s)
		}
		w := s.send.works.add()
		w.WQE = c.x
		if got := s.send.brokenBy(w); got != c.want {
			t.Errorf("%s: breaks %v, want %v", c.name, got, c.want)
		}
	}
}

// TestReservedBitsOfParametersCountOnlyWhereTheyAre: reserved bytes of a request's parameters are
// checked only if they are in the entry and the operation has them.
func TestReservedBitsOfParametersCountOnlyWhereTheyAre(t *testing.T) {
	entry := func(op abi.Opcode, size int, dirty bool) (*SendWR, []byte) {
		b := make([]byte, abi.SendWQEHeader+size)
		w := &SendWR{}
		w.WQE.Opcode = op
		w.WQE.Marshal(b)
		if dirty {
			b[len(b)-1] = 1
		}
		if op == abi.OpRegMR && size >= abi.FastRegSize {
			w.reg.Unmarshal(b[abi.SendWQEHeader:])
		}
		return w, b
	}
	for _, c := range []struct {
		op    abi.Opcode
		size  int
		dirty bool
		want  bool
	}{
		{abi.OpRegMR, abi.FastRegSize, false, false},
		{abi.OpRegMR, abi.FastRegSize, true, true},
		{abi.OpRegMR, abi.FastRegSize - 1, true, false},
		{abi.OpWrite, abi.FastRegSize, true, false},
	} {
		w, b := entry(c.op, c.size, c.dirty)
		if got := w.reserved(b); got != c.want {
			t.Errorf("%v with %d bytes, not zero %t: %t", c.op, c.size, c.dirty, got)
		}
	}
}

// TestInlineDataIsLimitedByLengthOtherDataBySGEs: inline data is bounded by its length, other data
// by its SGEs, and the field of the other kind is not looked at (DRV-608).
func TestInlineDataIsLimitedByLengthOtherDataBySGEs(t *testing.T) {
	s := &sender{half: half{owner: &Owner{}}, works: sendRing{maxSGE: 4, maxInline: 192}}
	for _, tc := range []struct {
		x    abi.SendWQE
		room uint32 // behind the header
		want abi.Clause
	}{
		{abi.SendWQE{NumSGE: 4, InlineLen: 193}, 192, 0},
		{abi.SendWQE{NumSGE: 5}, 192, abi.DRV608},
		{abi.SendWQE{Flags: abi.SendInline, InlineLen: 192, NumSGE: 5}, 192, 0},
		{abi.SendWQE{Flags: abi.SendInline, InlineLen: 193}, 192, abi.DRV608},
		{abi.SendWQE{Opcode: abi.OpBindMW}, 24, 0},
		{abi.SendWQE{Opcode: abi.OpBindMW}, 23, abi.DRV608},
		{abi.SendWQE{Opcode: abi.OpRegMR}, 40, 0},
		{abi.SendWQE{Opcode: abi.OpRegMR}, 39, abi.DRV608},
		{abi.SendWQE{Opcode: abi.OpLocalInv}, 0, 0},
	} {
		s.queue.read = abi.SendWQEHeader + tc.room
		if got := s.brokenBy(&SendWR{Request: transport.Request{WQE: tc.x}}); got != tc.want {
			t.Errorf("%+v breaks %s, want %s", tc.x, got, tc.want)
		}
	}
}

// TestBindMWParametersHaveReservedBits: what follows the header of a BindMW has reserved bits too
// (DRV-102).
func TestBindMWParametersHaveReservedBits(t *testing.T) {
	entry := func(op abi.Opcode, flags uint8, access uint32) (*SendWR, []byte) {
		w := &SendWR{Request: transport.Request{WQE: abi.SendWQE{Opcode: op, Flags: flags}}, bind: abi.BindMW{Access: access}}
		b := make([]byte, 1<<7)
		w.WQE.Marshal(b)
		w.bind.Marshal(b[abi.SendWQEHeader:])
		return w, b
	}
	for _, tc := range []struct {
		op     abi.Opcode
		flags  uint8
		access uint32
		want   bool
	}{
		{abi.OpBindMW, abi.SendSignaled, abi.AccessRemoteRead, false},
		{abi.OpBindMW, 0, 1 << 9, true},
		{abi.OpBindMW, 0x80, 0, true},
		{abi.OpWrite, abi.SendFence, 1 << 9, false}, // an SGE lies there
		{abi.OpWrite, 0x10, 0, true},
	} {
		w, b := entry(tc.op, tc.flags, tc.access)
		if got := w.reserved(b); got != tc.want {
			t.Errorf("%s, flags %#x, access %#x: %t", tc.op, tc.flags, tc.access, got)
		}
	}
	w, b := entry(abi.OpBindMW, 0, 1<<9)
	if w.reserved(b[:abi.SendWQEHeader]) {
		t.Error("looked behind the entry")
	}
}

// TestMistakesSayWhatIsWrong: the reason for an element that names no memory says which element and
// why; that for an operation says its number.
func TestMistakesSayWhatIsWrong(t *testing.T) {
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
		if st, why := s.send.checkWR(w, rest); st == abi.WCSuccess || !strings.Contains(why.String(), c.want) {
			t.Errorf("%+v: %v, because %q; want %q", c.x, st, why, c.want)
		}
	}
}
