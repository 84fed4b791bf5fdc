package ring

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/falcon-vnic/vnic/internal/leak"
)

// TestMain makes the models walk far enough to pass over the rings often.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.steps", "300"); err != nil {
		panic(err)
	}
	leak.Main(m)
}

func entry(n int, v uint64) []byte {
	b := make([]byte, n)
	binary.LittleEndian.PutUint64(b, v)
	b[n-1] ^= byte(v)
	return b
}

// startAt moves both sides of a queue, and its header, to index i.
func startAt(t testing.TB, i uint32, p *Producer, c *Consumer) {
	t.Helper()
	p.next, p.published, p.consumer = i, i, i
	c.next, c.producer = i, i
	for _, off := range []uint64{offProducer, offConsumer, offEventIndex} {
		if err := p.mem.Store32(off, i); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAQueueBehavesLikeAList drives both sides of a queue against a plain list, started
// anywhere, also shortly before the indices wrap at 2^32 (DRV-602, DRV-604,
// DEV-605).
func TestAQueueBehavesLikeAList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log2 := rapid.Uint8Range(1, 5).Draw(t, "log2")
		l := QueueLayout(log2, 6)
		if rapid.Bool().Draw(t, "admin") {
			l = AdminLayout(1 << log2)
		}
		mem := newMem(l)
		p, c := NewProducer(mem, l), NewConsumer(mem, l)
		start := rapid.OneOf(rapid.Just(uint32(0)), rapid.Uint32Range(1<<32-40, 1<<32-1), rapid.Uint32()).Draw(t, "start")
		p.next, p.published, p.consumer, c.next, c.producer = start, start, start, start, start
		for _, off := range []uint64{offProducer, offConsumer, offEventIndex} {
			must(t, mem.Store32(off, start))
		}
		var (
			pushed, published []uint64 // not yet published, published and not read
			held              int      // read and not committed
			value             uint64
			bell              = start // last doorbell
			armed             = true
		)
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				value++
				err := p.Push(entry(64, value))
				if full := len(pushed)+len(published)+held == int(l.Entries()); full != errors.Is(err, ErrFull) {
					t.Fatalf("full %t: %v", full, err)
				}
				if err == nil {
					pushed = append(pushed, value)
				}
			},
			"publish": func(t *rapid.T) {
				index, need, err := p.Publish()
				must(t, err)
				if want := armed && len(pushed) > 0; need != want {
					t.Fatalf("need a doorbell: %t, want %t", need, want)
				}
				if need {
					armed = false
				}
				published = append(published, pushed...)
				pushed = nil
				bell = index
			},
			"doorbell": func(t *rapid.T) {
				n, err := c.Doorbell(bell)
				must(t, err)
				if int(n) != len(published) {
					t.Fatalf("%d ready, want %d", n, len(published))
				}
			},
			"read": func(t *rapid.T) {
				if c.Ready() == 0 {
					return
				}
				got := make([]byte, 64)
				must(t, c.Read(got))
				if want := entry(64, published[0]); string(got) != string(want) {
					t.Fatalf("read %x, want %x", got, want)
				}
				c.Take()
				published = published[1:]
				held++
			},
			"commit": func(t *rapid.T) {
				must(t, c.Commit())
				held = 0
			},
			"arm": func(t *rapid.T) {
				// Everything published is seen by the poll before, so that
				// the model knows where the event index is.
				_, err := c.Poll()
				must(t, err)
				n, err := c.Arm()
				must(t, err)
				if int(n) != len(published) {
					t.Fatalf("%d ready, want %d", n, len(published))
				}
				armed = true
			},
			"": func(t *rapid.T) {
				if int(c.Ready()) > len(published) {
					t.Fatal("more ready than published")
				}
			},
		})
	})
}

func must(t interface{ Fatal(...any) }, err error) {
	if err != nil {
		t.Fatal(err)
	}
}

// TestACompletionQueueBehavesLikeAList drives both sides of a completion queue against a plain list
// (DRV-703, DRV-704, DEV-705).
func TestACompletionQueueBehavesLikeAList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log2 := rapid.Uint8Range(1, 5).Draw(t, "log2")
		l := CQLayout(log2)
		if rapid.Bool().Draw(t, "admin") {
			l = AdminLayout(1 << log2)
		}
		mem := newMem(l)
		w, r := NewCQWriter(mem, l), NewCQReader(mem, l)
		// Whole passes before the wrap, so that the phase of the empty ring fits.
		start := -rapid.Uint32Range(0, 3).Draw(t, "passes") * 2 << l.log2
		w.next, w.consumer, r.next = start, start, start
		must(t, mem.Store32(offCQConsumer, start))
		var list []uint64
		held := 0
		var value uint64
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				value++
				e := entry(int(l.Stride()), value)
				err := w.Write(e)
				if full := len(list)+held == int(l.Entries()); full != errors.Is(err, ErrFull) {
					t.Fatalf("full %t: %v", full, err)
				}
				if err == nil {
					list = append(list, value)
				}
			},
			"read": func(t *rapid.T) {
				got := make([]byte, l.Stride())
				ok, err := r.Poll(got)
				must(t, err)
				if ok != (len(list) > 0) {
					t.Fatalf("entry %t, %d written", ok, len(list))
				}
				if ok {
					if v := binary.LittleEndian.Uint64(got); v != list[0] {
						t.Fatalf("read %d, want %d", v, list[0])
					}
					list = list[1:]
					held++
				}
			},
			"commit": func(t *rapid.T) {
				must(t, r.Commit())
				must(t, w.Commit())
				held = 0
			},
		})
	})
}

// TestThePhaseFlipsOnEachPass walks several passes over a ring and the wrap of the index
// (DEV-702).
func TestThePhaseFlipsOnEachPass(t *testing.T) {
	l := CQLayout(2)
	for i, want := range map[uint32]uint64{0: phaseBit, 3: phaseBit, 4: 0, 7: 0, 8: phaseBit, 1<<32 - 1: 0, 1<<32 - 5: phaseBit} {
		if got := l.phase(i); got != want {
			t.Errorf("phase of %#x: %#x, want %#x", i, got, want)
		}
	}
}

func TestSlotsFillTheirLayoutExactly(t *testing.T) {
	for _, c := range []struct {
		l               Layout
		entries, stride uint32
		size            uint64
	}{
		{QueueLayout(4, 7), 16, 128, 128 + 16*128},
		{QueueLayout(16, 12), 1 << 16, 4096, 128 + 1<<28},
		{CQLayout(3), 8, 64, 128 + 8*64},
		{AdminLayout(64), 64, 128, 128 + 64*128},
		{AdminLayout(0), 1, 128, 128 + 128},
		{QueueLayout(255, 255), 1 << 30, 1 << 16, 128 + 1<<46},
	} {
		if c.l.Entries() != c.entries || c.l.Stride() != c.stride || c.l.Size() != c.size {
			t.Errorf("%+v: %d × %d in %d", c.l, c.l.Entries(), c.l.Stride(), c.l.Size())
		}
		last := c.l.slot(c.entries - 1)
		if last+uint64(c.stride) != c.size || c.l.slot(c.entries) != c.l.slot(0) {
			t.Errorf("%+v: last slot at %d", c.l, last)
		}
	}
}

// TestAWrongProducerIndexIsRefused lets the driver write every kind of wrong index
// (DEV-503, DEV-605).
func TestAWrongProducerIndexIsRefused(t *testing.T) {
	l := QueueLayout(3, 6)
	for _, c := range []struct {
		next, seen, mem, bell uint32
		want                  error
	}{
		{0, 0, 8, 8, nil},
		{0, 0, 9, 9, ErrIndex},            // more than a queue
		{0, 0, 0xffffffff, 0, ErrIndex},   // backwards
		{5, 7, 6, 6, ErrIndex},            // back behind what was seen
		{5, 7, 7, 8, ErrIndex},            // doorbell ahead of memory
		{5, 7, 7, 3, nil},                 // old doorbell
		{1<<32 - 2, 1<<32 - 2, 6, 6, nil}, // wrap
		{1<<32 - 2, 1<<32 - 2, 7, 7, ErrIndex},
		{0, 0, 4, 0x80000004 - 1, ErrIndex},
	} {
		mem := newMem(l)
		d := NewConsumer(mem, l)
		d.next, d.producer = c.next, c.seen
		must(t, mem.Store32(offProducer, c.mem))
		if _, err := d.Doorbell(c.bell); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestAWrongConsumerIndexIsRefused lets the other side write wrong consumer indices
// (DEV-705).
func TestAWrongConsumerIndexIsRefused(t *testing.T) {
	l := CQLayout(1)
	for _, bad := range []uint32{3, 0xffffffff, 0x80000000} {
		mem := newMem(l)
		w := NewCQWriter(mem, l)
		e := make([]byte, CQEntrySize)
		must(t, w.Write(e))
		must(t, w.Write(e))
		must(t, mem.Store32(offCQConsumer, bad))
		if err := w.Write(e); !errors.Is(err, ErrIndex) {
			t.Errorf("CQ consumer %#x: %v", bad, err)
		}
	}
	// A consumer that goes back would turn into room that is not there.
	mem := newMem(l)
	w := NewCQWriter(mem, l)
	e := make([]byte, CQEntrySize)
	must(t, w.Write(e))
	must(t, w.Write(e))
	must(t, mem.Store32(offCQConsumer, 1))
	must(t, w.Write(e))
	must(t, mem.Store32(offCQConsumer, 0))
	if err := w.Write(e); !errors.Is(err, ErrIndex) {
		t.Errorf("CQ consumer went back: %v", err)
	}

	q := QueueLayout(1, 6)
	mem = newMem(q)
	p := NewProducer(mem, q)
	must(t, p.Push(e))
	must(t, p.Push(e))
	_, _, err := p.Publish()
	must(t, err)
	must(t, mem.Store32(offConsumer, 3))
	if err := p.Push(e); !errors.Is(err, ErrIndex) {
		t.Errorf("queue consumer ahead of the producer: %v", err)
	}
}

func TestNoAccessGoesBeyondAnEntry(t *testing.T) {
	l := QueueLayout(2, 6)
	mem := newMem(l)
	p, c := NewProducer(mem, l), NewConsumer(mem, l)
	if err := p.Push(make([]byte, 65)); !errors.Is(err, ErrBounds) {
		t.Errorf("entry longer than the stride: %v", err)
	}
	if err := c.Read(make([]byte, 8)); !errors.Is(err, ErrBounds) {
		t.Errorf("read of an empty queue: %v", err)
	}
	c.Take()
	if c.Next() != 0 {
		t.Error("took from an empty queue")
	}
	must(t, p.Push(entry(64, 1)))
	_, _, err := p.Publish()
	must(t, err)
	_, err = c.Poll()
	must(t, err)
	for _, part := range []struct {
		off uint32
		n   int
	}{{0, 65}, {64, 1}, {65, 0}, {0xffffffff, 8}} {
		if err := c.ReadPart(part.off, make([]byte, part.n)); !errors.Is(err, ErrBounds) {
			t.Errorf("%+v: %v", part, err)
		}
	}
	for _, off := range []uint32{0, 8, 60} {
		want := entry(64, 1)[off:]
		got := make([]byte, len(want))
		if must(t, c.ReadPart(off, got)); !bytes.Equal(got, want) {
			t.Errorf("from %d on: %x, want %x", off, got, want)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// failing is Bytes that fails from a given access on.
type failing struct {
	Mem
	left int
}

var errBroken = errors.New("broken")

func (f *failing) use() error {
	if f.left--; f.left < 0 {
		return errBroken
	}
	return nil
}

func (f *failing) ReadAt(off uint64, dst []byte) error {
	return errors.Join(f.use(), f.Mem.ReadAt(off, dst))
}

func (f *failing) WriteAt(off uint64, src []byte) error {
	return errors.Join(f.use(), f.Mem.WriteAt(off, src))
}

func (f *failing) Load32(off uint64) (uint32, error) {
	v, err := f.Mem.Load32(off)
	return v, errors.Join(f.use(), err)
}

func (f *failing) Store32(off uint64, v uint32) error {
	return errors.Join(f.use(), f.Mem.Store32(off, v))
}

func (f *failing) Load64(off uint64) (uint64, error) {
	v, err := f.Mem.Load64(off)
	return v, errors.Join(f.use(), err)
}

func (f *failing) Store64Release(off, v uint64) error {
	return errors.Join(f.use(), f.Mem.Store64Release(off, v))
}

// TestAMemoryErrorLeavesNothingHalfDone breaks the memory at every access of a walk through all
// operations: the error comes out, and nothing is half done.
func TestAMemoryErrorLeavesNothingHalfDone(t *testing.T) {
	walk := func(q, cq *failing) error {
		l, cl := QueueLayout(1, 6), CQLayout(1)
		p, c := NewProducer(q, l), NewConsumer(q, l)
		w, r := NewCQWriter(cq, cl), NewCQReader(cq, cl)
		e := make([]byte, 64)
		for range 5 {
			if err := p.Push(e); err != nil {
				return err
			}
			index, _, err := p.Publish()
			if err != nil {
				return err
			}
			if _, err := c.Doorbell(index); err != nil {
				return err
			}
			if err := c.Read(e); err != nil {
				return err
			}
			c.Take()
			if err := c.Commit(); err != nil {
				return err
			}
			if _, err := c.Arm(); err != nil {
				return err
			}
			before := w.Next()
			if err := w.Write(e); err != nil {
				if w.Next() != before {
					return fmt.Errorf("index moved on %w", err)
				}
				return err
			}
			if err := w.Commit(); err != nil {
				return err
			}
			if ok, err := r.Poll(e); err != nil || !ok {
				return fmt.Errorf("poll %t: %w", ok, err)
			}
			if err := r.Commit(); err != nil {
				return err
			}
		}
		return nil
	}
	const plenty = 1 << 20
	for which := range 2 {
		for n := 0; ; n++ {
			q, cq := &failing{newMem(QueueLayout(1, 6)), plenty}, &failing{newMem(CQLayout(1)), plenty}
			[]*failing{q, cq}[which].left = n
			err := walk(q, cq)
			if err == nil {
				break
			}
			if !errors.Is(err, errBroken) || n > 200 {
				t.Fatalf("access %d: %v", n, err)
			}
		}
	}
}

func TestNoAllocations(t *testing.T) {
	l, cl := QueueLayout(4, 6), CQLayout(4)
	qm, cm := newMem(l), newMem(cl)
	p, c := NewProducer(qm, l), NewConsumer(qm, l)
	w, r := NewCQWriter(cm, cl), NewCQReader(cm, cl)
	e := make([]byte, 64)
	if n := testing.AllocsPerRun(1000, func() {
		must(t, p.Push(e))
		index, _, err := p.Publish()
		must(t, err)
		_, err = c.Doorbell(index)
		must(t, err)
		must(t, c.Read(e))
		c.Take()
		must(t, c.Commit())
		must(t, w.Write(e))
		_, err = r.Poll(e)
		must(t, err)
		must(t, r.Commit())
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

// TestAnEntryIsPendingUntilTheDeviceTookIt: an entry is pending until the device took it; a
// consumer that cannot be is noticed.
func TestAnEntryIsPendingUntilTheDeviceTookIt(t *testing.T) {
	l := QueueLayout(2, 6)
	mem := newMem(l)
	p := NewProducer(mem, l)
	for range 3 {
		must(t, p.Push(make([]byte, 64)))
	}
	_, _, err := p.Publish()
	must(t, err)
	for taken := range uint32(4) {
		must(t, mem.Store32(offConsumer, taken))
		for i := range uint32(3) {
			if pending, err := p.Pending(i); err != nil || pending != (i >= taken) {
				t.Errorf("%d taken: entry %d is pending: %t, %v", taken, i, pending, err)
			}
		}
	}
	for _, bad := range []uint32{4, 1<<32 - 2} {
		must(t, mem.Store32(offConsumer, bad))
		if _, err := p.Pending(0); !errors.Is(err, ErrIndex) {
			t.Errorf("consumer %#x: %v", bad, err)
		}
	}
	f := &failing{mem, 0}
	if _, err := NewProducer(f, l).Pending(0); !errors.Is(err, errBroken) {
		t.Error(err)
	}
}

// TestFreeSlotsAreAskedForOnlyWhenNoneSeemsFree: how many slots are free, asked of the device only
// when none seems to be.
func TestFreeSlotsAreAskedForOnlyWhenNoneSeemsFree(t *testing.T) {
	l := QueueLayout(2, 6)
	mem := newMem(l)
	p := NewProducer(mem, l)
	for i := range uint32(4) {
		if free, err := p.Free(); err != nil || free != 4-i {
			t.Errorf("%d free with %d pushed, %v", free, i, err)
		}
		must(t, p.Push(make([]byte, 64)))
	}
	_, _, err := p.Publish()
	must(t, err)
	must(t, mem.Store32(offConsumer, 3))
	if free, err := p.Free(); err != nil || free != 3 {
		t.Errorf("%d free with 3 taken, %v", free, err)
	}
	must(t, mem.Store32(offConsumer, 4))
	if free, err := p.Free(); err != nil || free != 3 { // there are some
		t.Errorf("%d free, %v", free, err)
	}
}

// TestADriverFindsWhatCameBeforeItSleeps: a driver that is about to sleep finds an entry that
// is there already; if it waits for solicited ones only, one that is solicited or failed,
// wherever it is among the others.
func TestADriverFindsWhatCameBeforeItSleeps(t *testing.T) {
	const plain, solicited, failed = 0, 1, 2
	for _, c := range []struct {
		entries    []int
		any, ready bool
	}{
		{nil, false, false},
		{[]int{plain}, true, false},
		{[]int{solicited}, true, true},
		{[]int{failed}, true, true},
		{[]int{plain, plain, solicited}, true, true},
		{[]int{plain, plain, plain, failed}, true, true},
		{[]int{plain, plain, plain, plain}, true, false},
	} {
		l := CQLayout(2)
		mem := newMem(l)
		w, r := NewCQWriter(mem, l), NewCQReader(mem, l)
		for _, kind := range c.entries {
			e := make([]byte, CQEntrySize)
			switch kind {
			case solicited:
				e[statusOffset+2] = solicitedFlag
			case failed:
				e[statusOffset] = 5
			}
			e[statusOffset+1], e[statusOffset+2] = 0x80, e[statusOffset+2]|1 // opcode, another flag
			must(t, w.Write(e))
		}
		for only, want := range map[bool]bool{false: c.any, true: c.ready} {
			if got, err := r.Ready(only); err != nil || got != want {
				t.Errorf("%v: ready %t with solicited only %t, %v", c.entries, got, only, err)
			}
		}
		for n := range 4 { // memory that fails
			f := &failing{mem, n}
			if got, err := NewCQReader(f, l).Ready(true); f.left < 0 && (got || !errors.Is(err, errBroken)) {
				t.Errorf("%v: ready %t when access %d fails, %v", c.entries, got, n, err)
			}
		}
	}
}

// TestArmingNumbersAreNeverZero: armings are numbered from 1 and never 0, which is a word that was
// never written.
func TestArmingNumbersAreNeverZero(t *testing.T) {
	l := CQLayout(2)
	mem := newMem(l)
	r := NewCQReader(mem, l)
	number := func(only bool) uint64 {
		must(t, r.Arm(only))
		word, err := mem.Load64(offCQArm)
		must(t, err)
		if uint32(word) != r.next || (word&armSolicited != 0) != only {
			t.Errorf("word %#x", word)
		}
		return word >> armNumber
	}
	r.next = 1<<32 - 1
	if a, b := number(false), number(true); a != 1 || b != 2 {
		t.Errorf("armings %d and %d", a, b)
	}
	r.arming = 1<<31 - 2
	if a, b := number(true), number(false); a != 1<<31-1 || b != 1 {
		t.Errorf("armings %d and %d", a, b)
	}
}

// TestADeviceSeesHowManySlotsTheDriverFreed: how many slots the driver has freed.
func TestADeviceSeesHowManySlotsTheDriverFreed(t *testing.T) {
	l := CQLayout(1)
	mem := newMem(l)
	w := NewCQWriter(mem, l)
	must(t, w.Write(make([]byte, CQEntrySize)))
	if free, err := w.Look(); err != nil || free != 1 || w.Consumer() != 0 {
		t.Errorf("%d free, %v", free, err)
	}
	must(t, mem.Store32(offCQConsumer, 1))
	if free, err := w.Look(); err != nil || free != 2 || w.Consumer() != 1 || w.Entries() != 2 || w.Next() != 1 {
		t.Errorf("%d free, consumer %d, %v", free, w.Consumer(), err)
	}
}
