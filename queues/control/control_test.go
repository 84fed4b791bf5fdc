package control

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// bench is a block with a device that serves it, and a driver's bell and interrupt.
type bench struct {
	mem     []byte
	l       *Listener
	irq     chan struct{}
	cleared int
	rings   sync.WaitGroup
	bell    chan struct{}
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{mem: make([]byte, Size), irq: make(chan struct{}, 1), bell: make(chan struct{}, 1)}
	b.listen(t)
	stop := make(chan struct{})
	b.rings.Go(func() {
		for {
			select {
			case <-b.bell:
				b.l.Look()
			case <-stop:
				return
			}
		}
	})
	t.Cleanup(func() {
		close(stop)
		b.rings.Wait()
		b.l.Close()
	})
	return b
}

func (b *bench) listen(t *testing.T) {
	t.Helper()
	var err error
	b.l, err = Listen(Config{Block: b.mem, Name: "test", Interrupt: func() { signal(b.irq) }, Clear: func() { b.cleared++ }})
	if err != nil {
		t.Fatal(err)
	}
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

func (b *bench) word(off int) uint32 {
	v, _ := ring.Mem(b.mem).Load32(uint64(off))
	return v
}

func (b *bench) set(off int, v uint32) { _ = ring.Mem(b.mem).Store32(uint64(off), v) }

// meet opens a session and returns both ends.
func (b *bench) meet(t *testing.T, irq <-chan struct{}) (driver, device *Conn) {
	t.Helper()
	driver, err := Driver{Block: b.mem, Number: rand.Uint32(), Call: func() { signal(b.bell) }, Interrupts: irq, After: time.After}.Dial(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if device, err = b.l.Accept(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*Conn{driver, device} {
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		t.Cleanup(func() { c.Close() })
	}
	return driver, device
}

// text returns a message of n bytes.
func text(n int, fill byte) []byte {
	m := abi.AppendMessage(nil, abi.MsgHeartbeat, 7, bytes.Repeat([]byte{fill}, n-abi.MsgHeaderSize))
	return m
}

// TestASessionCarriesMessagesUntilItIsClosed: a session opens, messages pass both ways, and each end learns that the other closed.
// (DEV-1012, DEV-1013, DEV-1014)
func TestASessionCarriesMessagesUntilItIsClosed(t *testing.T) {
	for _, interrupts := range []bool{true, false} {
		b := newBench(t)
		irq := b.irq
		if !interrupts {
			irq = nil
		}
		driver, device := b.meet(t, irq)
		first := b.word(abi.ControlHeaderOpened)
		if b.cleared != 1 || first == 0 {
			t.Errorf("cleared %d times, session %d", b.cleared, b.word(abi.ControlHeaderOpened))
		}
		for _, way := range [][2]*Conn{{driver, device}, {device, driver}} {
			sent := append(text(16, 1), text(256, 2)...)
			if n, err := way[0].Write(sent); n != len(sent) || err != nil {
				t.Fatalf("%d bytes, %v", n, err)
			}
			got := make([]byte, len(sent))
			if _, err := io.ReadFull(way[1], got); err != nil || !bytes.Equal(got, sent) {
				t.Errorf("%x, %v", got, err)
			}
		}
		// The driver reads the device's last message before it learns of the end.
		if _, err := device.Write(text(20, 3)); err != nil {
			t.Fatal(err)
		}
		_ = device.Close()
		if all, err := io.ReadAll(driver); err != nil || len(all) != 20 {
			t.Errorf("%x, %v", all, err)
		}
		if _, err := driver.Write(text(16, 1)); !errors.Is(err, errEnded) {
			t.Error(err)
		}
		_ = driver.Close()
		driver, device = b.meet(t, irq)
		if now := b.word(abi.ControlHeaderOpened); now == 0 || now == first || b.cleared != 2 {
			t.Errorf("session %d, cleared %d times", b.word(abi.ControlHeaderOpened), b.cleared)
		}
		_ = driver.Close()
		if _, err := device.Read(make([]byte, 16)); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
		if _, err := device.Write(text(16, 1)); !errors.Is(err, errEnded) {
			t.Error(err)
		}
		if _, err := driver.Read(make([]byte, 16)); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	}
}

// TestAFloodOfMessagesArrivesInOrder passes many more messages than the rings hold, of all sizes, both ways at once.
// (DEV-1015)
func TestAFloodOfMessagesArrivesInOrder(t *testing.T) {
	b := newBench(t)
	driver, device := b.meet(t, b.irq)
	var all sync.WaitGroup
	for i, way := range [][2]*Conn{{driver, device}, {device, driver}} {
		const total = 2000
		seed := func() *rand.Rand { return rand.New(rand.NewPCG(1, uint64(i))) }
		all.Go(func() {
			rng := seed()
			for n := 0; n < total; {
				var batch []byte
				for range 1 + rng.IntN(4) {
					batch = append(batch, text(16+rng.IntN(241), byte(n))...)
					n++
				}
				if _, err := way[0].Write(batch); err != nil {
					t.Errorf("way %d, message %d: %v", i, n, err)
					return
				}
			}
		})
		all.Go(func() {
			rng := seed()
			for n := 0; n < total; {
				for range 1 + rng.IntN(4) {
					want := text(16+rng.IntN(241), byte(n))
					got := make([]byte, len(want))
					if _, err := io.ReadFull(way[1], got); err != nil || !bytes.Equal(got, want) {
						t.Errorf("way %d, message %d: %v", i, n, err)
						return
					}
					n++
				}
			}
		})
	}
	all.Wait()
	if b.word(abi.ControlHeaderFull) != 0 {
		t.Error("the device still waits for room")
	}
}

// TestALongListArrivesInSeveralMessages: a list of events longer than a slot arrives whole as several messages. A message that
// is longer than a slot and not a list is refused.
func TestALongListArrivesInSeveralMessages(t *testing.T) {
	b := newBench(t)
	driver, device := b.meet(t, b.irq)
	var body []byte
	for i := range uint32(1000) {
		body = binary.LittleEndian.AppendUint32(body, i)
	}
	go func() { _, _ = device.Write(abi.AppendMessage(nil, abi.MsgCQEvent, 0, body)) }()
	buf := make([]byte, abi.MaxMessage)
	for next := uint32(0); next < 1000; {
		h, list, err := abi.ReadMessage(driver, buf)
		if err != nil || h.Type != abi.MsgCQEvent || h.Length > abi.WindowMessageSize {
			t.Fatalf("%+v, %v", h, err)
		}
		for ; len(list) > 0; list = list[4:] {
			if got := binary.LittleEndian.Uint32(list); got != next {
				t.Fatalf("%d, want %d", got, next)
			}
			next++
		}
	}
	for name, m := range map[string][]byte{"long": text(257, 1), "cut off": text(20, 1)[:18], "half a header": {1, 2, 3}} {
		if _, err := device.Write(m); err == nil {
			t.Errorf("%s is written", name)
		}
	}
}

// TestADeadlineLeavesTheSessionOpen: a deadline ends a wait and leaves the session open.
func TestADeadlineLeavesTheSessionOpen(t *testing.T) {
	b := newBench(t)
	driver, device := b.meet(t, b.irq)
	_ = device.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if _, err := device.Read(make([]byte, 16)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	_ = device.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
	var err error
	for n := 0; err == nil && n < 100; n++ {
		_, err = device.Write(text(256, 1))
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	_ = device.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.ReadFull(driver, make([]byte, 256)); err != nil {
		t.Error(err)
	}
	if _, err := device.Write(text(16, 1)); err != nil {
		t.Error(err)
	}
	_ = device.SetReadDeadline(time.Unix(1, 0))
	if _, err := device.Read(make([]byte, 16)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	var timeout net.Error
	if !errors.As(error(os.ErrDeadlineExceeded), &timeout) || !timeout.Timeout() {
		t.Error("no timeout")
	}
}

// TestTheNextProcessEndsTheOldSession: a process that takes over a block ends the session of the process before it, and
// opens the session that a driver waits for.
func TestTheNextProcessEndsTheOldSession(t *testing.T) {
	b := newBench(t)
	mem := b.mem
	driver, _ := b.meet(t, b.irq)
	next := func() *Listener {
		l, err := Listen(Config{Block: mem, Interrupt: func() { signal(b.irq) }, Clear: func() {}})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l := next()
	if _, err := driver.Read(make([]byte, 16)); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	l.Close()
	b.set(abi.ControlHeaderOpen, 99) // nobody serves the block now
	l = next()
	defer l.Close()
	c, err := l.Accept()
	if err != nil || b.word(abi.ControlHeaderOpened) != 99 {
		t.Fatalf("session %d, %v", b.word(abi.ControlHeaderOpened), err)
	}
	c.Close()
}

// TestAResetEndsTheSession: a function level reset ends the session. The driver may use any session number then.
func TestAResetEndsTheSession(t *testing.T) {
	b := newBench(t)
	_, device := b.meet(t, b.irq)
	number := b.word(abi.ControlHeaderOpened)
	b.l.Reset()
	if _, err := device.Read(make([]byte, 16)); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	_ = device.Close()
	b.set(abi.ControlHeaderOpen, number)
	b.l.Look()
	c, err := b.l.Accept()
	if err != nil || b.word(abi.ControlHeaderOpened) != number {
		t.Fatal(err)
	}
	_ = c.Close()
	b.l.Look()
	if b.word(abi.ControlHeaderOpened) != 0 {
		t.Error("a number opened twice")
	}
}

// TestWrongIndicesAndLengthsAreRefused writes into the block what a driver must not write, or not at that time.
// (DEV-1016)
func TestWrongIndicesAndLengthsAreRefused(t *testing.T) {
	for name, do := range map[string]func(b *bench){
		"producer far ahead": func(b *bench) { b.set(abi.WindowRequests+abi.QueueHeaderProducer, 65) },
		"producer behind":    func(b *bench) { b.set(abi.WindowRequests+abi.QueueHeaderProducer, ^uint32(0)) },
	} {
		b := newBench(t)
		_, device := b.meet(t, b.irq)
		do(b)
		b.l.Look()
		if _, err := device.Read(make([]byte, 16)); !errors.Is(err, ring.ErrIndex) {
			t.Errorf("%s: %v", name, err)
		}
	}
	b := newBench(t)
	_, device := b.meet(t, b.irq)
	b.set(abi.WindowMessages+abi.QueueHeaderConsumer, 70)
	var err error
	for n := 0; err == nil && n < 200; n++ {
		_, err = device.Write(text(16, 1))
	}
	if !errors.Is(err, ring.ErrIndex) {
		t.Errorf("consumer ahead: %v", err)
	}
	for length, want := range map[uint32]error{0: abi.ErrMessageTooShort, 15: abi.ErrMessageTooShort, 257: abi.ErrMessageTooLong, ^uint32(0): abi.ErrMessageTooLong} {
		b := newBench(t)
		_, device := b.meet(t, b.irq)
		binary.LittleEndian.PutUint32(b.mem[abi.WindowRequests+ring.HeaderSize:], length)
		b.set(abi.WindowRequests+abi.QueueHeaderProducer, 1)
		b.l.Look()
		if _, _, err := abi.ReadMessage(device, make([]byte, abi.MaxMessage)); !errors.Is(err, want) {
			t.Errorf("message of %d bytes: %v, want %v", length, err, want)
		}
	}
	if _, err := Listen(Config{Block: make([]byte, Size-1)}); err == nil {
		t.Error("a block that is too small is taken")
	}
}

// TestADriverGivesUpOnAnUnservedBlock: a driver gives up on a block that nobody serves.
func TestADriverGivesUpOnAnUnservedBlock(t *testing.T) {
	for name, wait := range map[string]struct {
		within time.Duration // of the context; 0: for ever
		want   error
	}{"context": {1, context.DeadlineExceeded}, "time": {0, context.DeadlineExceeded}} {
		mem := make([]byte, Size)
		ctx := t.Context()
		if wait.within > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, wait.within)
			defer cancel()
		}
		rung := 0
		var now time.Duration // by a clock that moves when it is asked for
		d := Driver{Block: mem, Number: 5, Call: func() { rung++ }, After: func(d time.Duration) <-chan time.Time {
			c := make(chan time.Time, 1)
			if now += d; wait.within == 0 {
				c <- time.Unix(0, int64(now))
			}
			return c
		}}
		if _, err := d.Dial(ctx); !errors.Is(err, wait.want) || rung != 2 {
			t.Errorf("%s: %v, rung %d times", name, err, rung)
		}
		if open, _ := ring.Mem(mem).Load32(abi.ControlHeaderOpen); open != 0 {
			t.Errorf("%s: still wants session %d", name, open)
		}
	}
}

// FuzzMessages: a device that reads an arbitrary block neither faults nor returns more bytes than
// the block holds.
func FuzzMessages(f *testing.F) {
	f.Add([]byte(text(20, 1)), uint32(1))
	f.Add(make([]byte, 600), uint32(3))
	f.Fuzz(func(t *testing.T, b []byte, producer uint32) {
		mem := make([]byte, Size)
		l, err := Listen(Config{Block: mem, Interrupt: func() {}, Clear: func() {}})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		_ = ring.Mem(mem).Store32(abi.ControlHeaderOpen, 5)
		l.Look()
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		copy(mem[abi.WindowRequests+ring.HeaderSize:], b)
		_ = ring.Mem(mem).Store32(abi.WindowRequests+abi.QueueHeaderProducer, producer)
		_ = ring.Mem(mem).Store32(abi.ControlHeaderOpen, 0)
		got, _ := io.ReadAll(c)
		if len(got) > abi.WindowMessageSize<<abi.WindowControlLog2 {
			t.Errorf("%d bytes", len(got))
		}
	})
}

// TestADriverPollsOftenOnceItsInterruptsEnd: a driver with interrupts polls seldom, however many interrupts came. Once its
// interrupts have ended it polls often.
func TestADriverPollsOftenOnceItsInterruptsEnd(t *testing.T) {
	b := newBench(t)
	driver, _ := b.meet(t, b.irq)
	waits, tick, irq := make(chan time.Duration, 1000), make(chan time.Time), make(chan struct{})
	s := &driverSide{block: driver.side.(*driverSide).block, stop: make(chan struct{}), after: func(d time.Duration) <-chan time.Time {
		waits <- d
		return tick
	}}
	s.wg.Go(func() { s.watch(driver, irq) })
	defer s.wg.Wait()
	defer close(s.stop)
	const seldom = 100 * time.Millisecond
	for range 3 {
		if d := <-waits; d != seldom {
			t.Errorf("waits for %v", d)
		}
		irq <- struct{}{}
		if d := <-waits; d != seldom {
			t.Errorf("waits for %v after an interrupt", d)
		}
		tick <- time.Time{}
	}
	<-waits
	close(irq)
	if d := <-waits; d != seldom {
		t.Errorf("waits for %v", d)
	}
	tick <- time.Time{}
	if d := <-waits; d > pollMost {
		t.Errorf("waits for %v without interrupts", d)
	}
}

// TestWriteTakesWholeMessagesOnly: Write accepts a message only if it is as long as its header
// says, and no longer than a slot unless it is a list.
func TestWriteTakesWholeMessagesOnly(t *testing.T) {
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

// TestAListIsCutIntoMessagesThatASlotHolds: a list is cut into messages that fit a slot, each of
// whole elements, and no element is lost.
func TestAListIsCutIntoMessagesThatASlotHolds(t *testing.T) {
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

// TestASlotIsReadAsTheMessageItHolds: a slot is read as the message it holds, or, if its length is
// impossible, as a header alone that shows it.
func TestASlotIsReadAsTheMessageItHolds(t *testing.T) {
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

// TestAMessageMayBeReadInParts: a message may be read in parts, as from a stream.
func TestAMessageMayBeReadInParts(t *testing.T) {
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

// TestASessionsNumberIsNeverZeroOrTheLast: a driver asks for a session by a number that is not 0,
// which means none, and not the number of the open session.
func TestASessionsNumberIsNeverZeroOrTheLast(t *testing.T) {
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

// TestADriverThatWaitsLooksSeldomLater: a driver that waits for its session polls often at first
// and seldom later.
func TestADriverThatWaitsLooksSeldomLater(t *testing.T) {
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

// TestADriverWithoutInterruptsGivesUp: a driver gives up if its interrupts end before its session
// is open.
func TestADriverWithoutInterruptsGivesUp(t *testing.T) {
	irq := make(chan struct{})
	close(irq)
	d := Driver{Block: make([]byte, Size), Number: 5, Call: func() {}, Interrupts: irq, After: func(time.Duration) <-chan time.Time { return nil }}
	if _, err := d.Dial(t.Context()); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// TestADriverWithoutInterruptsLooksOftenWhileMessagesCome: a driver without interrupts polls often
// while messages come, and ever more seldom while none come.
func TestADriverWithoutInterruptsLooksOftenWhileMessagesCome(t *testing.T) {
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

// TestADeadlineThatMovedIsAsIfItHadNotPassed: a deadline that has passed wakes its waiters. Once it
// is moved into the future, it counts as not passed.
func TestADeadlineThatMovedIsAsIfItHadNotPassed(t *testing.T) {
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

// TestADeadlineThatPassesWhileItIsMovedCounts: if the old deadline passes while it is being moved,
// its waiters are woken, and the new deadline counts as not passed.
func TestADeadlineThatPassesWhileItIsMovedCounts(t *testing.T) {
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

// TestWaitersAreWokenByWhateverTheyWaitFor: a poll of the block, the end of the session and the
// deadline each wake a waiter. The last two do so even if they came before the wait.
func TestWaitersAreWokenByWhateverTheyWaitFor(t *testing.T) {
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

// TestADeviceThatWaitsForRoomSaysSo: a device that waits for room in a ring says so in the block,
// and withdraws it once there is room.
func TestADeviceThatWaitsForRoomSaysSo(t *testing.T) {
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

// TestAClosedListenerAcceptsNobody: a closed listener accepts nobody, and ends the session that
// waited to be accepted.
func TestAClosedListenerAcceptsNobody(t *testing.T) {
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
