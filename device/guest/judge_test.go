package guest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// verdicts records the rules that a driver broke, as "clause where queue index bytes".
type verdicts []string

func (v *verdicts) Broke(clause abi.Clause, where abi.Ring, queue, index uint32, b []byte) {
	*v = append(*v, fmt.Sprintf("%d %v %d %d %x", clause, where, queue, index, b))
}

// TestWhatRegistersBreak checks which clause each wrong register access breaks, and that a correct
// one breaks none.
func TestWhatRegistersBreak(t *testing.T) {
	read := func(offset, width uint32) Request { return Request{Kind: RegRead, Offset: offset, Width: width} }
	write := func(offset, width uint32, v uint64) Request {
		return Request{Kind: RegWrite, Offset: offset, Width: width, Value: v}
	}
	for _, c := range []struct {
		what   string
		it     Request
		st     abi.Status
		before abi.State
		want   abi.Clause
	}{
		{"a read", read(abi.RegMagic, 4), abi.StatusOK, abi.StateReset, 0},
		{"a read of what can be written, too", read(abi.RegAdminSQ, 8), abi.StatusOK, abi.StateReset, 0},
		{"a read of no register", read(0x9000, 4), abi.StatusNotFound, abi.StateReset, abi.DRV306},
		{"a read in another width", read(abi.RegMagic, 8), abi.StatusInvalidArgument, abi.StateReset, abi.DRV306},
		{"a read of what can only be written", read(abi.RegControl, 4), abi.StatusDenied, abi.StateReset, abi.DRV306},
		{"a read in a bad state", read(abi.RegAdminSQ, 8), abi.StatusBadState, abi.StateReset, 0},
		{"a write", write(abi.RegAdminSQ, 8, 1<<40), abi.StatusOK, abi.StateReset, 0},
		{"a write to no register", write(0x9000, 4, 0), abi.StatusNotFound, abi.StateReset, abi.DRV306},
		{"a write in another width", write(abi.RegAdminSQ, 4, 0), abi.StatusInvalidArgument, abi.StateReset, abi.DRV306},
		{"a write of what can only be read", write(abi.RegMagic, 4, 0), abi.StatusDenied, abi.StateReset, abi.DRV306},
		{"the most of four bytes", write(abi.RegAdminEntries, 4, 1<<32-1), abi.StatusInvalidArgument, abi.StateReset, 0},
		{"more than four bytes", write(abi.RegAdminEntries, 4, 1<<32), abi.StatusInvalidArgument, abi.StateReset, abi.DRV102},
		{"a write after a fault", write(abi.RegControl, 4, 1), abi.StatusBadState, abi.StateError, abi.DRV304},
		{"a control in another state", write(abi.RegControl, 4, 1), abi.StatusBadState, abi.StateReady, 0},
		{"a control that is done after a fault", write(abi.RegControl, 4, 2), abi.StatusOK, abi.StateError, 0},
		{"a write in a bad state", write(abi.RegAdminEntries, 4, 2), abi.StatusBadState, abi.StateReady, abi.DRV301},
		{"a write in a bad state after a fault", write(abi.RegAdminEntries, 4, 2), abi.StatusBadState, abi.StateError, abi.DRV301},
		{"queues where no memory is", write(abi.RegControl, 4, 1), abi.StatusMemoryFault, abi.StateReset, abi.DRV401},
	} {
		var v verdicts
		judgeRegister(&v, &c.it, c.st, c.before)
		var want []string
		if c.want != 0 {
			written := ""
			if c.it.Kind == RegWrite {
				for i := range 8 {
					written += fmt.Sprintf("%02x", byte(c.it.Value>>(8*i)))
				}
			}
			want = []string{fmt.Sprintf("%d %v 0 %d %s", c.want, abi.RingRegister, c.it.Offset, written)}
		}
		if !slices.Equal(v, want) {
			t.Errorf("%s: %q, want %q", c.what, v, want)
		}
	}
}

// TestAreasAreZero checks that strict mode finds the first byte of an admin queue's area that is
// not zero, and shows the eight aligned bytes around it.
func TestAreasAreZero(t *testing.T) {
	const length = 2 * abi.PageSize
	for _, at := range []int{-1, 0, 5, 8, length - 1} {
		mem := make([]byte, 4*abi.PageSize)
		for i := range 2 {
			mem[3*abi.PageSize+8*i+1] = byte(i * abi.PageSize >> 8)
		}
		var want []string
		if at >= 0 {
			mem[at] = 7
			b := make([]byte, 8)
			b[at%8] = 7
			want = []string{fmt.Sprintf("%d %v 0 %d %x", abi.DRV301, abi.RingAdmin, at, b)}
		}
		area, err := queues.ReadArea(queues.NewMemory([]queues.Region{{Mem: mem}}), 3*abi.PageSize, 1, queues.Span{Length: length})
		if err != nil {
			t.Fatal(err)
		}
		for _, strict := range []bool{true, false} {
			var v verdicts
			if err := judgeArea(&v, area, strict); err != nil {
				t.Error(err)
			}
			for i := range v { // as much as a violation shows
				if n := strings.LastIndexByte(v[i], ' ') + 1 + 2*8; n < len(v[i]) {
					v[i] = v[i][:n]
				}
			}
			if !strict && v != nil || strict && !slices.Equal(v, want) {
				t.Errorf("byte %d, strict %v: %q, want %q", at, strict, v, want)
			}
		}
	}
}

// TestWhatDoorbellsBreak checks that a doorbell message beside a ring in use is one violation, and
// reserved bytes another.
func TestWhatDoorbellsBreak(t *testing.T) {
	d := abi.Doorbell{Kind: abi.DoorbellSQ, Queue: 3, Index: 9}
	var is [abi.DoorbellSize]byte
	d.Marshal(is[:])
	raw := is
	raw[abi.DoorbellSize-1] = 1
	beside := fmt.Sprintf("%d %v 3 9 %x", abi.DRV1004, abi.RingStream, is)
	reserved := fmt.Sprintf("%d %v 3 9 %x", abi.DRV102, abi.RingStream, raw)
	for _, c := range []struct {
		rang bool
		raw  *[abi.DoorbellSize]byte
		want []string
	}{{false, nil, nil}, {true, nil, []string{beside}}, {false, &raw, []string{reserved}}, {true, &raw, []string{beside, reserved}}} {
		var v verdicts
		if judgeDoorbell(&v, c.rang, &d, c.raw); !slices.Equal(v, c.want) {
			t.Errorf("%q, want %q", v, c.want)
		}
	}
}

// asker records the requests in messages, up to a limit.
type asker struct {
	asked []string
	most  int // 0: no end
}

func (a *asker) note(format string, args ...any) bool {
	a.asked = append(a.asked, fmt.Sprintf(format, args...))
	return len(a.asked) != a.most
}

func (a *asker) Put(r Request) bool {
	switch r.Kind {
	case Ring:
		return a.note("ring %d %v", r.Doorbell.Index, r.Dirty != nil)
	case RegRead:
		return a.note("read %#x %d tag %d", r.Offset, r.Width, r.Tag)
	case RegWrite:
		return a.note("write %#x %d %d tag %d", r.Offset, r.Width, r.Value, r.Tag)
	}
	return a.note("reserved %x", r.Dirty[:])
}

func (a *asker) Heartbeat(tag uint64, _ *abi.Heartbeat) bool { return a.note("heartbeat %d", tag) }

// records returns doorbell records with these indices; those above 99 have reserved bytes that are
// not zero.
func records(indices ...uint32) (b []byte) {
	for _, n := range indices {
		var r [abi.DoorbellSize]byte
		(&abi.Doorbell{Kind: abi.DoorbellSQ, Index: n}).Marshal(r[:])
		if n > 99 {
			r[abi.DoorbellSize-1] = 1
		}
		b = append(b, r[:]...)
	}
	return b
}

// TestMessagesAsk checks the request that each message makes, and that a message that no driver may
// send ends the session with the clause that it breaks.
func TestMessagesAsk(t *testing.T) {
	message := func(typ abi.MsgType, body []byte) []byte { return abi.AppendMessage(nil, typ, 5, body) }
	flagged := abi.AppendStruct(nil, 5, &abi.RegRead{Offset: 0x18, Width: 4})
	(&abi.MsgHeader{Length: uint32(len(flagged)), Type: abi.MsgRegRead, Flags: 2, Tag: 5}).Marshal(flagged)
	oddLength := func(length uint32) []byte {
		b := make([]byte, abi.MsgHeaderSize)
		(&abi.MsgHeader{Length: length, Type: abi.MsgHeartbeat}).Marshal(b)
		return b
	}
	for _, c := range []struct {
		what   string
		in     []byte
		strict bool
		asked  string
		broke  abi.Clause
	}{
		{"nothing", nil, false, "", 0},
		{"half a message", message(abi.MsgHeartbeat, nil)[:10], false, "", 0},
		{"a read", abi.AppendStruct(nil, 5, &abi.RegRead{Offset: 0x18, Width: 4}), false, "read 0x18 4 tag 5", 0},
		{"a write", abi.AppendStruct(nil, 6, &abi.RegWrite{Offset: 0x38, Width: 4, Value: 9}), false, "write 0x38 4 9 tag 6", 0},
		{"a heartbeat", abi.AppendStruct(nil, 7, &abi.Heartbeat{}), false, "heartbeat 7", 0},
		{"a doorbell", message(abi.MsgDoorbell, records(1)), false, "ring 1 false", 0},
		{"doorbells", message(abi.MsgDoorbell, records(1, 100, 3)), false, "ring 1 false, ring 100 false, ring 3 false", 0},
		{"doorbells, strictly", message(abi.MsgDoorbell, records(1, 100, 3)), true, "ring 1 false, ring 100 true, ring 3 false", 0},
		{"no doorbell", message(abi.MsgDoorbell, nil), false, "", abi.DRV206},
		{"a doorbell and a byte", message(abi.MsgDoorbell, append(records(1), 0)), false, "", abi.DRV206},
		{"flags", flagged, false, "read 0x18 4 tag 5", 0},
		{"flags, strictly", flagged, true, fmt.Sprintf("reserved %x, read 0x18 4 tag 5", flagged[:abi.DoorbellSize]), 0},
		{"what follows a goodbye", append(message(abi.MsgGoodbye, nil), message(abi.MsgDoorbell, records(1))...), false, "", 0},
		{"a short read", message(abi.MsgRegRead, []byte{1}), false, "", abi.DRV201},
		{"a short write", message(abi.MsgRegWrite, []byte{1}), false, "", abi.DRV201},
		{"a short heartbeat", message(abi.MsgHeartbeat, []byte{1}), false, "", abi.DRV201},
		{"a hello", message(abi.MsgHello, nil), false, "", abi.DRV202},
		{"an answer", message(abi.MsgRegReply, nil), false, "", abi.DRV206},
		{"a message that is too long", oddLength(abi.MaxMessage + 1), false, "", abi.DRV201},
		{"a message that is too short", oddLength(abi.MsgHeaderSize - 1), false, "", abi.DRV201},
	} {
		var a asker
		err := Parse(bytes.NewReader(c.in), &a, c.strict)
		broke := abi.Clause(0)
		if b, ok := err.(*Breach); ok {
			broke = b.Clause
		} else if err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
		if asked := strings.Join(a.asked, ", "); asked != c.asked || broke != c.broke {
			t.Errorf("%s: asked %q, broke %d; want %q, %d", c.what, asked, broke, c.asked, c.broke)
		}
	}
	// Nothing is passed on after the session is over.
	all := slices.Concat(flagged, message(abi.MsgDoorbell, records(1, 2)), abi.AppendStruct(nil, 7, &abi.Heartbeat{}), flagged)
	for most := 1; most <= 7; most++ {
		a := asker{most: most}
		if err := Parse(bytes.NewReader(all), &a, true); err != nil || len(a.asked) != most {
			t.Errorf("%v after %q, want %d", err, a.asked, most)
		}
	}
}
