package control

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// TestWhole: what Write takes for a message: as long as it says, and no longer than a slot unless it
// is a list.
func TestWhole(t *testing.T) {
	list := func(n int) []byte {
		return abi.AppendMessage(nil, abi.MsgDoorbell, 0, make([]byte, n-abi.MsgHeaderSize))
	}
	says := func(n uint32, b []byte) []byte {
		h := abi.MsgHeader{Length: n, Type: abi.MsgHeartbeat}
		h.Marshal(b)
		return b
	}
	for name, c := range map[string]struct {
		b    []byte
		want int // 0: none
	}{
		"a header":          {text(16, 0), 16},
		"a byte less":       {text(16, 0)[:15], 0},
		"says less":         {says(15, make([]byte, 16)), 0},
		"says more":         {says(17, make([]byte, 16)), 0},
		"two":               {append(text(20, 1), text(16, 1)...), 20},
		"as long as a slot": {text(256, 1), 256},
		"longer":            {text(257, 1), 0},
		"a longer list":     {list(16 + 16*100), 16 + 16*100},
	} {
		m, err := whole(c.b)
		if len(m) != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("%s: %d bytes, %v", name, len(m), err)
		}
	}
}

// TestCut: a list is cut into messages that a slot holds, each of whole elements, and nothing of it
// is lost.
func TestCut(t *testing.T) {
	for typ, size := range map[abi.MsgType]int{abi.MsgCQEvent: 4, abi.MsgDoorbell: abi.DoorbellSize} {
		for _, elements := range []int{0, 1, 15, 16, 59, 60, 61, 120, 121, 500} {
			body := make([]byte, elements*size)
			for i := range body {
				body[i] = byte(i + i/256)
			}
			var got []byte
			messages := 0
			for part := abi.AppendMessage(nil, typ, 0, body); len(part) > 0; messages++ {
				var slot []byte
				slot, part = cut(nil, part)
				var h abi.MsgHeader
				h.Unmarshal(slot)
				if len(slot) > abi.WindowMessageSize || int(h.Length) != len(slot) || h.Type != typ || (len(slot)-abi.MsgHeaderSize)%size != 0 {
					t.Fatalf("%v, %d elements: a message of %d bytes: %+v", typ, elements, len(slot), h)
				}
				got = append(got, slot[abi.MsgHeaderSize:]...)
			}
			if want := max(1, (len(body)+239)/240); !bytes.Equal(got, body) || messages != want {
				t.Errorf("%v, %d elements: %d messages, want %d, or other elements", typ, elements, messages, want)
			}
		}
	}
}

// TestSlotMessage: a slot is read as the message it holds; where that cannot be, as a header that
// says so.
func TestSlotMessage(t *testing.T) {
	for length, want := range map[uint32]int{0: 16, 15: 16, 16: 16, 17: 17, 255: 255, 256: 256, 257: 16, 1 << 31: 16} {
		slot := make([]byte, abi.WindowMessageSize)
		h := abi.MsgHeader{Length: length, Type: abi.MsgHeartbeat}
		h.Marshal(slot)
		m := message(slot)
		h.Unmarshal(m)
		if len(m) != want || length > 256 && h.Length != ^uint32(0) || length <= 256 && h.Length != length {
			t.Errorf("length %d: %d bytes that say %d", length, len(m), h.Length)
		}
	}
}

// TestReadInParts: a message may be read in parts, as from a stream.
func TestReadInParts(t *testing.T) {
	b := newBench(t)
	driver, device := b.meet(t, b.irq)
	sent := append(text(100, 1), text(40, 2)...)
	if _, err := driver.Write(sent); err != nil {
		t.Fatal(err)
	}
	var got []byte
	for len(got) < len(sent) {
		part := make([]byte, 7)
		n, err := device.Read(part)
		if err != nil || n == 0 {
			t.Fatal(n, err)
		}
		got = append(got, part[:n]...)
	}
	if !bytes.Equal(got, sent) {
		t.Errorf("%x, want %x", got, sent)
	}
}

// TestSessionNumbers: a driver asks for a session by a number that is neither 0, which is none, nor
// that of the one that is open.
func TestSessionNumbers(t *testing.T) {
	for _, c := range []struct{ number, opened, want uint32 }{{7, 0, 7}, {7, 6, 7}, {7, 7, 8}, {0, 0, 1}, {0, 1, 2}, {1<<32 - 1, 1<<32 - 1, 1}} {
		mem := ring.Mem(make([]byte, Size))
		_ = mem.Store32(abi.ControlHeaderOpened, c.opened)
		asked := uint32(0)
		d := Driver{Block: mem, Number: c.number, Call: func() {
			if v, _ := mem.Load32(abi.ControlHeaderOpen); v != 0 {
				asked = v
			}
		}, After: func(time.Duration) <-chan time.Time {
			ch := make(chan time.Time, 1)
			ch <- time.Time{}
			return ch
		}}
		if _, err := d.Dial(t.Context()); !errors.Is(err, context.DeadlineExceeded) || asked != c.want {
			t.Errorf("%d of %d: asks for %d, want %d; %v", c.number, c.opened, asked, c.want, err)
		}
	}
}

// TestDialLooks: a driver that waits for its session looks often at first, and seldom later.
func TestDialLooks(t *testing.T) {
	var waits []time.Duration
	d := Driver{Block: make([]byte, Size), Number: 5, Call: func() {}}
	late := make(chan time.Time, 1)
	d.After = func(wait time.Duration) <-chan time.Time {
		if wait == OpenTimeout {
			return late
		}
		if waits = append(waits, wait); len(waits) == 10 {
			late <- time.Time{}
			return nil
		}
		now := make(chan time.Time, 1)
		now <- time.Time{}
		return now
	}
	if _, err := d.Dial(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	const µs = time.Microsecond
	if want := []time.Duration{50 * µs, 100 * µs, 200 * µs, 400 * µs, 800 * µs, 1600 * µs, 3200 * µs, 5000 * µs, 5000 * µs, 5000 * µs}; !slices.Equal(waits, want) {
		t.Errorf("waits %v, want %v", waits, want)
	}
}

// TestInterruptsGone: a driver whose interrupts are gone before its session is open gives up.
func TestInterruptsGone(t *testing.T) {
	irq := make(chan struct{})
	close(irq)
	d := Driver{Block: make([]byte, Size), Number: 5, Call: func() {}, Interrupts: irq, After: func(time.Duration) <-chan time.Time { return nil }}
	if _, err := d.Dial(t.Context()); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// TestPace: without interrupts a driver looks often while messages come, and ever more seldom when
// none do.
func TestPace(t *testing.T) {
	mem := make([]byte, Size)
	b, err := newBlock(mem)
	if err != nil {
		t.Fatal(err)
	}
	s := &driverSide{block: b}
	for wait, want := range map[time.Duration]time.Duration{pollLeast: 2 * pollLeast, pollMost / 2: pollMost, pollMost/2 + 1: pollMost, pollMost: pollMost} {
		if got := s.pace(wait); got != want {
			t.Errorf("%v behind %v, want %v", got, wait, want)
		}
	}
	_ = b.messages().Store32(abi.QueueHeaderProducer, 3)
	_ = b.messages().Store32(abi.QueueHeaderConsumer, 2)
	if got := s.pace(pollMost); got != pollLeast {
		t.Errorf("%v with a message there", got)
	}
	_ = b.messages().Store32(abi.QueueHeaderConsumer, 3)
	if got := s.pace(pollLeast); got != 2*pollLeast {
		t.Errorf("%v with all messages read", got)
	}
}

// TestDeadlineMoved: a deadline that has passed wakes those that wait for it; moved, it is as if it
// had not.
func TestDeadlineMoved(t *testing.T) {
	d := newDeadline()
	if d.passed() {
		t.Error("a new one has passed")
	}
	d.set(time.Unix(1, 0))
	first := d.over
	if !d.passed() {
		t.Error("a time long ago has not passed")
	}
	d.set(time.Now().Add(time.Hour))
	if d.passed() {
		t.Error("moved into the future, it has passed")
	}
	<-first
	second := d.over
	d.pass(first) // of what it was
	if d.passed() {
		t.Error("the end of what it was is its own")
	}
	d.set(time.Now().Add(2 * time.Hour)) // who waits waits on
	if d.done() != second {
		t.Error("those that wait do not hear of it")
	}
	d.pass(second)
	d.pass(second)
	if !d.passed() {
		t.Error("it has not passed")
	}
	d.set(time.Time{})
	if d.passed() {
		t.Error("never has passed")
	}
}

// TestDeadlineRace: a time that came while the deadline was moved counts for what it was: who waited
// for that is woken, and the new deadline does not pass by it.
func TestDeadlineRace(t *testing.T) {
	d := newDeadline()
	over, came := d.over, make(chan struct{})
	d.timer = time.AfterFunc(0, func() { close(came) }) // as if what it is to do waited for the lock
	<-came
	d.set(time.Time{})
	d.pass(over)
	if d.passed() {
		t.Error("the new deadline has passed")
	}
	<-over
}

// TestWaitersLookAgain: who waits is woken by a look, the end of the session and the deadline, the
// last two also when they came before.
func TestWaitersLookAgain(t *testing.T) {
	b := newBench(t)
	_, device := b.meet(t, b.irq)
	again, d := make(chan struct{}, 1), newDeadline()
	again <- struct{}{}
	if err := device.wait(again, d); err != nil {
		t.Error(err)
	}
	d.set(time.Unix(1, 0))
	again <- struct{}{}
	if err := device.wait(again, d); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	_ = device.Close()
	_ = device.Close() // which is one end
	if _, err := device.Write(text(16, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Error(err)
	}
	if a := device.LocalAddr(); a.Network() != "window" || a.String() != "test" || a != device.RemoteAddr() {
		t.Errorf("%v", a)
	}
}

// TestFullIsSaid: a device that waits for room says so, and no more when it has some.
func TestFullIsSaid(t *testing.T) {
	b := newBench(t)
	driver, device := b.meet(t, b.irq)
	const slots = 1 << abi.WindowControlLog2
	for n := range slots {
		if _, err := device.Write(text(256, byte(n))); err != nil {
			t.Fatal(err)
		}
	}
	if b.word(abi.ControlHeaderFull) != 0 {
		t.Error("it waits while there is room")
	}
	done := make(chan error)
	go func() {
		_, err := device.Write(text(256, slots))
		done <- err
	}()
	for b.word(abi.ControlHeaderFull) == 0 {
		runtime.Gosched()
	}
	for n := range slots + 1 {
		m := make([]byte, 256)
		if _, err := io.ReadFull(driver, m); err != nil || m[255] != byte(n) {
			t.Fatalf("message %d: %d, %v", n, m[255], err)
		}
	}
	if err := <-done; err != nil || b.word(abi.ControlHeaderFull) != 0 {
		t.Errorf("full is %d, %v", b.word(abi.ControlHeaderFull), err)
	}
}

// TestClosedListener: one that is closed accepts nobody, and ends the session that waited to be.
func TestClosedListener(t *testing.T) {
	b := newBench(t)
	b.set(abi.ControlHeaderOpen, 5)
	b.l.Look()
	if b.word(abi.ControlHeaderOpened) != 5 {
		t.Fatal("no session is open")
	}
	b.l.Close()
	if _, err := b.l.Accept(); !errors.Is(err, net.ErrClosed) || b.word(abi.ControlHeaderOpened) != 0 {
		t.Errorf("session %d, %v", b.word(abi.ControlHeaderOpened), err)
	}
	b.set(abi.ControlHeaderOpen, 6)
	b.l.Look()
	if b.word(abi.ControlHeaderOpened) != 0 {
		t.Error("it opens another")
	}
	if _, err := (Driver{Block: make([]byte, Size-1)}).Dial(t.Context()); err == nil {
		t.Error("a block that is too small is taken")
	}
}
