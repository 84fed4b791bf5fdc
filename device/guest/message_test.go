package guest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// faulty is an Asker that panics on one message.
type faulty struct{ asked int }

func (f *faulty) Put(Request) bool {
	f.asked++
	var none []byte
	return none[f.asked] == 0
}

func (f *faulty) Heartbeat(uint64, *abi.Heartbeat) bool { f.asked++; return true }

// TestAMessageThatPanicsEndsItsSession checks that a message that causes a panic ends its session,
// and not the process.
func TestAMessageThatPanicsEndsItsSession(t *testing.T) {
	in := abi.AppendStruct(nil, 1, &abi.Heartbeat{})
	in = abi.AppendStruct(in, 2, &abi.RegRead{Width: 4})
	in = abi.AppendStruct(in, 3, &abi.Heartbeat{})
	var f faulty
	if err := Parse(bytes.NewReader(in), &f, false); err == nil || !strings.Contains(err.Error(), "please report it: runtime error: index out of range") || f.asked != 2 {
		t.Errorf("%v after %d messages", err, f.asked)
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

// TestEachMessageMakesItsRequest checks the request that each message makes, and that a message
// that no driver may send ends the session with the clause that it breaks.
func TestEachMessageMakesItsRequest(t *testing.T) {
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

// ringOf returns a doorbell of a send queue.
func ringOf(queue, index uint32) Request {
	return Request{Kind: Ring, Doorbell: abi.Doorbell{Kind: abi.DoorbellSQ, Queue: queue, Index: index}}
}

// TestADoorbellReplacesAWaitingOneOfItsQueue checks that a doorbell that waits is replaced by a
// newer one of the same kind and queue that is not too far behind it, and by no other. The order
// against everything else is kept. (DEV-802)
func TestADoorbellReplacesAWaitingOneOfItsQueue(t *testing.T) {
	with := func(change func(d *abi.Doorbell)) Request {
		r := ringOf(1, 9)
		change(&r.Doorbell)
		return r
	}
	dirty := ringOf(1, 9)
	dirty.Dirty = &[abi.DoorbellSize]byte{1}
	others := func(n int) (list []Request) {
		for i := range n {
			list = append(list, ringOf(uint32(100+i), 1))
		}
		return list
	}
	for _, c := range []struct {
		what    string
		between []Request
		next    Request
		merges  bool
	}{
		{"the same", nil, ringOf(1, 9), true},
		{"behind as many others as are looked at", others(mergeWindow - 1), ringOf(1, 9), true},
		{"behind one more", others(mergeWindow), ringOf(1, 9), false},
		{"behind a register write", []Request{{Kind: RegWrite}}, ringOf(1, 9), false},
		{"another queue", nil, ringOf(2, 9), false},
		{"another kind", nil, with(func(d *abi.Doorbell) { d.Kind = abi.DoorbellAdmin }), false},
		{"other flags", nil, with(func(d *abi.Doorbell) { d.Flags = 1 }), false},
		{"one with reserved bytes that are not zero", nil, dirty, false},
		{"no doorbell", nil, Request{Kind: RegRead}, false},
	} {
		waiting := slices.Concat([]Request{ringOf(1, 1)}, c.between, []Request{c.next})
		if merged := mergeDoorbell(waiting); merged != c.merges || (waiting[0].Doorbell.Index == 9) != c.merges {
			t.Errorf("%s: merged %v, the first says %d", c.what, merged, waiting[0].Doorbell.Index)
		}
	}
}
