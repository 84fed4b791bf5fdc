package rue

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/cc"
)

// bitsAt reads a field of a format the slow way: bit n of an entry is bit n%8 of byte n/8.
func bitsAt(b []byte, at, width int) (v uint32) {
	for i := range width {
		v |= uint32(b[(at+i)/8]>>((at+i)%8)&1) << i
	}
	return v
}

func fullEvent() Event {
	return Event{
		Conn: 0xabcdef, Type: TypeRetransmit, T1: 0x111111, T2: 0x222222, T3: 0x333333, T4: 0x444444,
		RetransmitCount: 6, Early: true, NackCode: 8, Hops: 9, RxLevel: 17, Metadata: 0x15aa55, IPG: 0x5aaa5,
		Acked: 0x2a5, EackDrop: true, Eack: true, EackOwn: true, Queue: 2,
		State: cc.State{
			Fcwnd: 0x15a5a5, Ncwnd: 0x2aa, RTO: 0x654321, RTT: 0x0a0a0a, Delay: 0x0b0b0b, FabricMarker: 0x0c0c0c,
			NICMarker: 0x0d0d0d, Direction: cc.Increase, BaseDelay: 191, Select: cc.DelayReverse,
			PLBAcked: 0x155, PLBCongested: 0x2aa, PLBAttempts: 11,
		},
		Opaque: 1, ECN: 0x3abc, Gen: true,
	}
}

// TestCase93_EventFormat holds every field to its place in the table of Falcon §10.6.2.1.
func TestCase93_EventFormat(t *testing.T) {
	e := fullEvent()
	b := e.Append(nil)
	if len(b) != EntryLen {
		t.Fatalf("%d bytes", len(b))
	}
	at := 0
	for _, f := range []struct {
		name  string
		width int
		want  uint32
	}{
		{"connection_id", 24, 0xabcdef},
		{"event_type", 2, 2},
		{"t1", 24, 0x111111},
		{"t2", 24, 0x222222},
		{"t3", 24, 0x333333},
		{"t4", 24, 0x444444},
		{"retransmit_count", 3, 6},
		{"retransmit_reason", 1, 1},
		{"nack_code", 8, 8},
		{"forward_hops", 4, 9},
		{"rx_buffer_level", 5, 17},
		{"cc_metadata", 24, 0x15aa55},
		{"fcwnd_fraction", 10, 0x15a5a5 & 0x3ff},
		{"fcwnd_integer", 11, 0x15a5a5 >> 10},
		{"inter_packet_gap", 20, 0x5aaa5},
		{"ncwnd", 11, 0x2aa},
		{"retransmit_timeout", 24, 0x654321},
		{"num_packets_acked", 10, 0x2a5},
		{"eack_drop", 1, 1},
		{"eack", 1, 1},
		{"reserved: eack_own", 8, 1},
		{"event_queue_select", 2, 2},
		{"delay_select", 2, 3},
		{"fabric_window_time_marker", 24, 0x0c0c0c},
		{"nic_window_time_marker", 24, 0x0d0d0d},
		{"ncwnd_direction", 1, 1},
		{"base_delay_target", 24, 191},
		{"delay_state", 24, 0x0b0b0b},
		{"rtt_state", 24, 0x0a0a0a},
		{"cc_opaque", 2, 1},
		{"ecn_accumulated", 14, 0x3abc},
		{"reserved: plb", 24, 0x2aa | 0x155<<10 | 11<<20},
		{"reserved", 32, 0},
		{"reserved", 32, 0},
		{"reserved", 19, 0},
		{"gen", 1, 1},
	} {
		if got := bitsAt(b, at, f.width); got != f.want {
			t.Errorf("%s at bit %d: %#x, want %#x", f.name, at, got, f.want)
		}
		at += f.width
	}
	if at != 8*EntryLen {
		t.Errorf("the table has %d bits, want 512", at)
	}
	if got, ok := ParseEvent(b); !ok || got != e {
		t.Errorf("parsed %+v, want %+v", got, e)
	}
}

// TestCase93_ResultFormat is the same for Falcon §10.6.2.2.
func TestCase93_ResultFormat(t *testing.T) {
	r := Result{Conn: 0xabcdef, Repath: true, Metadata: 0x15aa55, IPG: 0x5aaa5, State: fullEvent().State, Opaque: 2}
	r.State.Select = 0
	b := r.Append([]byte{7})
	if len(b) != 1+EntryLen || b[0] != 7 {
		t.Fatalf("%d bytes, first %d", len(b), b[0])
	}
	b = b[1:]
	at := 0
	for _, f := range []struct {
		name  string
		width int
		want  uint32
	}{
		{"connection_id", 24, 0xabcdef},
		{"randomize_path", 1, 1},
		{"cc_metadata", 24, 0x15aa55},
		{"fcwnd_fraction", 10, 0x15a5a5 & 0x3ff},
		{"fcwnd", 11, 0x15a5a5 >> 10},
		{"inter_packet_gap", 20, 0x5aaa5},
		{"ncwnd", 11, 0x2aa},
		{"retransmit_timeout", 24, 0x654321},
		{"fabric_window_time_marker", 24, 0x0c0c0c},
		{"nic_window_time_marker", 24, 0x0d0d0d},
		{"ncwnd_direction", 1, 1},
		{"base_delay_target", 24, 191},
		{"delay_state", 24, 0x0b0b0b},
		{"rtt_state", 24, 0x0a0a0a},
		{"cc_opaque", 2, 2},
		{"padding: plb", 24, 0x2aa | 0x155<<10 | 11<<20},
	} {
		if got := bitsAt(b, at, f.width); got != f.want {
			t.Errorf("%s at bit %d: %#x, want %#x", f.name, at, got, f.want)
		}
		at += f.width
	}
	for ; at < 8*EntryLen; at++ {
		if bitsAt(b, at, 1) != 0 {
			t.Fatalf("padding bit %d is set", at)
		}
	}
	if got, ok := ParseResult(b); !ok || got != r {
		t.Errorf("parsed %+v, want %+v", got, r)
	}
}

func TestOtherLengthsAreRefused(t *testing.T) {
	b := make([]byte, EntryLen+1)
	for n := range b {
		_, event := ParseEvent(b[:n])
		_, result := ParseResult(b[:n])
		if event != (n == EntryLen) || result != (n == EntryLen) {
			t.Errorf("%d bytes: event %v, result %v", n, event, result)
		}
	}
	if _, ok := ParseEvent(b); ok {
		t.Error("trailing byte accepted")
	}
}

func TestAppendCutsToTheField(t *testing.T) {
	e := Event{Conn: 1<<24 | 5, Hops: 0xff, Acked: 0xffff}
	got, _ := ParseEvent(e.Append(nil))
	if got != (Event{Conn: 5, Hops: 15, Acked: 1023}) {
		t.Errorf("%+v", got)
	}
}

// Every entry is parsed; what is not reserved survives parsing and appending.
func FuzzFormats(f *testing.F) {
	e := fullEvent()
	f.Add(e.Append(nil))
	f.Add(bytes.Repeat([]byte{0xff}, EntryLen))
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, ok := ParseEvent(b); ok {
			again, _ := ParseEvent(e.Append(nil))
			if again != e {
				t.Fatalf("event %+v became %+v", e, again)
			}
			n := 256 // the bits before the first reserved one are kept
			if c := e.Append(nil); !bytes.Equal(c[:n/8], b[:n/8]) {
				t.Fatalf("event bytes %x became %x", b, c)
			}
		}
		if r, ok := ParseResult(b); ok {
			again, _ := ParseResult(r.Append(nil))
			if c := r.Append(nil); again != r || !bytes.Equal(c[:34], b[:34]) { // 272 bits with the PLB counters
				t.Fatalf("result %x became %x", b, c)
			}
		}
	})
}

func TestQueueIsABoundedFIFO(t *testing.T) {
	q := NewQueue(5)
	next, taken := uint64(0), uint64(0)
	for round := range 40 {
		for range 1 + round%7 {
			gen, e := q.Gen(), q.Put()
			if (e == nil) != (next-taken == 5) {
				t.Fatalf("entry %d with %d queued: %v", next, next-taken, e != nil)
			}
			if e == nil {
				break
			}
			if gen != (next/5%2 == 0) {
				t.Fatalf("entry %d: generation %v", next, gen)
			}
			binary.LittleEndian.AppendUint64(e, next)
			next++
		}
		for range 1 + round%5 {
			e := q.Take()
			if (e == nil) != (taken == next) {
				t.Fatalf("take %d of %d: %v", taken, next, e != nil)
			}
			if e == nil {
				break
			}
			if got := binary.LittleEndian.Uint64(e); got != taken || len(e) != EntryLen {
				t.Fatalf("took %d of %d bytes, want %d", got, len(e), taken)
			}
			taken++
		}
		if q.Len() != int(next-taken) {
			t.Fatalf("length %d, want %d", q.Len(), next-taken)
		}
	}
}

func TestNoAllocations(t *testing.T) {
	q, u := NewQueue(4), New(cc.NewSwift(cc.HardwareParams()))
	e := fullEvent()
	var r Result
	run := func() {
		e.Append(q.Put())
		got, _ := ParseEvent(q.Take())
		u.Process(&got, 1, &r)
		r.Append(q.Put())
		if _, ok := ParseResult(q.Take()); !ok {
			t.Fatal("not parsed")
		}
	}
	run()
	if n := testing.AllocsPerRun(100, run); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
