package tape

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
)

// Tape records or plays. The nil Tape does neither.
type Tape struct {
	b     []byte // recording: the chunk so far; playing: the chunk
	at    int    // playing: what was read of it
	plays bool
	lists bool                      // playing: for somebody who only reads what is on the tape
	next  func() ([]byte, error)    // playing: the next chunk; io.EOF: there is none
	full  func(chunk []byte) []byte // recording: takes a chunk for an empty buffer; nil: there is none
	ended bool                      // recording: it is over
	ends  bool                      // recording: it ends with this Step
	torn  bool                      // playing: the chunk ends anywhere in a Step
	size  int                       // recording: a chunk ends at the first Step after so many bytes
	mode  Payload                   // what is kept of payload
	sums  [classes]uint32           // of what went out
	told  [classes]uint32           // as last written or compared
	cut   int64                     // recording: time of the last chunk
	steps uint64                    // Steps begun
	now   int64                     // time of the last
	last  [trail]Kind               // playing: the last entries
	count int                       // playing: entries
	taken [256]int                  // playing: entries by kind, since Entries was called
	is    *Difference               // playing: it has ended

	script *Script // playing: takes the recording apart; nil: no
	loose  *loose  // playing: some events are left out; nil: none
	place  uint64  // playing: of what is asked for next
	begins int     // playing: of the entry in the chunk
}

// trail is how many entries before a difference are named.
const trail = 12

// Record returns a tape that records, and keeps so much of payload. full is called at the end of the
// first Step that leaves size bytes or more: it takes the chunk and returns an empty buffer with room
// for size bytes and a Step. If it returns the chunk, the tape goes on with it for a Step; nil ends the
// recording.
func Record(size int, keep Payload, full func(chunk []byte) []byte) *Tape {
	return &Tape{size: size, mode: keep, full: full, b: full(nil)}
}

// Play returns a tape that plays chunks, in which so much of payload was kept. next returns io.EOF
// after the last.
func Play(keep Payload, next func() ([]byte, error)) *Tape {
	return &Tape{plays: true, mode: keep, next: next}
}

// List returns a tape that plays chunks for somebody who only reads what is on it. The first chunks may
// be missing, or others.
func List(keep Payload, next func() ([]byte, error)) *Tape {
	return &Tape{plays: true, lists: true, mode: keep, next: next}
}

// Records reports whether t records.
func (t *Tape) Records() bool { return t != nil && !t.plays && !t.ended }

// Plays reports whether t plays.
func (t *Tape) Plays() bool { return t != nil && t.plays }

// Ended reports whether the recording has ended because there was no buffer.
func (t *Tape) Ended() bool { return t != nil && t.ended }

// Steps returns how many Steps have begun.
func (t *Tape) Steps() uint64 { return t.steps }

// Now returns the time of the last Step.
func (t *Tape) Now() int64 { return t.now }

// Entries calls f for each kind of entry that was played since the last call, with how many there were.
func (t *Tape) Entries(f func(k Kind, n int)) {
	for k, n := range t.taken {
		if n > 0 {
			f(Kind(k), n)
		}
	}
	clear(t.taken[:])
}

// Event begins an event. It reports whether its values are to be written: t records.
func (t *Tape) Event(k Kind) bool {
	if !t.Records() {
		return false
	}
	t.b = append(t.b, byte(k))
	return true
}

// Begin begins a Step or a Flush.
func (t *Tape) Begin(k Kind, now int64) {
	t.b = append(t.b, byte(k))
	t.PutInt(now - t.now)
	t.begun(k, now)
}

// Begun reads what Begin wrote.
func (t *Tape) Begun(k Kind) (now int64) {
	if t.loose != nil {
		now = t.loose.begun(t)
	} else {
		now = t.now + t.Int()
	}
	if t.script != nil {
		t.script.Events[len(t.script.Events)-1].Now = now
	}
	t.begun(k, now)
	return now
}

func (t *Tape) begun(k Kind, now int64) {
	t.now = now
	if k == Step {
		t.steps++
	}
}

// Put… write values of an event.

// PutUint writes a number.
func (t *Tape) PutUint(v uint64) { t.b = binary.AppendUvarint(t.b, v) }

// PutInt writes a number with a sign.
func (t *Tape) PutInt(v int64) { t.b = binary.AppendVarint(t.b, v) }

// PutBytes writes bytes and their number.
func (t *Tape) PutBytes(b []byte) {
	t.PutUint(uint64(len(b)))
	t.b = append(t.b, b...)
}

// PutText writes a text.
func (t *Tape) PutText(s string) {
	t.PutUint(uint64(len(s)))
	t.b = append(t.b, s...)
}

// Next returns the kind of the next event, and io.EOF after the last.
func (t *Tape) Next() (Kind, error) {
	if t.loose != nil {
		return t.loose.event(t)
	}
	for {
		if err := t.more(); err != nil {
			return 0, err
		}
		if Kind(t.b[t.at]) != Where {
			return t.kind(true), nil
		}
		if err := t.arrive(); err != nil {
			return 0, err
		}
	}
}

// TornIn reports whether the recording ended in the Step that was played last, with the program that made it.
func (t *Tape) TornIn() bool { return t.is != nil && t.is.Torn }

// Missing is the error of a tape of which some chunks are missing.
type Missing struct {
	Steps, To uint64 // that were played, and that come before what is there
	Now       int64  // time of the last of those
}

func (m *Missing) Error() string {
	return fmt.Sprintf("the recording goes on after Step %d, of Steps %d and on nothing is left", m.To, m.Steps+1)
}

// where writes where the tape is, at the beginning of a chunk that is not the first.
func (t *Tape) where() {
	t.b = append(t.b, byte(Where))
	t.PutUint(t.steps)
	t.PutInt(t.now)
}

// arrive reads what where wrote.
func (t *Tape) arrive() error {
	t.script.close(t.b[t.begins:t.at])
	t.at++
	steps, now := t.Uint(), t.Int()
	t.begins = t.at
	switch {
	case t.lists:
		t.steps, t.now = steps, now
	case steps != t.steps:
		return &Missing{t.steps, steps, now}
	}
	return nil
}

// Begins returns where a tape is whose first chunk this is: how many Steps are missing, and the time of
// the last of them.
func Begins(chunk []byte) (steps uint64, now int64) {
	if len(chunk) > 0 && Kind(chunk[0]) == Torn {
		chunk = chunk[1:]
	}
	if len(chunk) == 0 || Kind(chunk[0]) != Where {
		return 0, 0
	}
	steps, n := binary.Uvarint(chunk[1:])
	if n > 0 {
		now, _ = binary.Varint(chunk[1+n:])
	}
	return steps, now
}

// more begins the next chunk if this one is read.
func (t *Tape) more() error {
	for t.at == len(t.b) {
		b, err := t.next()
		if err != nil {
			return err
		}
		t.script.close(t.b[t.begins:])
		t.b, t.at, t.begins = b, 0, 0
		if len(b) > 0 && Kind(b[0]) == Torn {
			t.torn, t.at, t.begins = true, 1, 1
		}
	}
	return nil
}

// kind reads the kind of an entry, which is an event or something that is asked for.
func (t *Tape) kind(event bool) Kind {
	t.script.close(t.b[t.begins:t.at])
	k := Kind(t.bytes(1)[0])
	if k == 0 && t.torn { // no kind is: nothing was written there yet
		t.short("")
	}
	if t.begins = t.at; t.script != nil {
		t.script.add(k, t.place, event)
	}
	t.place = 0
	t.last[t.count%trail] = k
	t.count++
	t.taken[k]++
	return k
}

// bytes returns the next n bytes of the chunk.
func (t *Tape) bytes(n uint64) []byte {
	if t.is != nil {
		panic(t.is) // it was recovered by somebody who does not know of tapes
	}
	l := t.loose
	if l != nil && l.blank {
		at := len(l.out)
		l.out = append(l.out, make([]byte, n)...)
		return l.out[at:]
	}
	if n > uint64(len(t.b)-t.at) {
		t.short("the recording ends in the middle of an entry")
	}
	b := t.b[t.at : t.at+int(n)]
	t.at += int(n)
	if l != nil {
		l.out = append(l.out, b...)
	}
	return b
}

// Uint reads a number.
func (t *Tape) Uint() uint64 {
	if t.loose != nil && t.loose.blank {
		return uint64(t.bytes(1)[0])
	}
	v, n := binary.Uvarint(t.b[t.at:])
	if n <= 0 {
		t.short("the recording has no number where one is expected")
	}
	t.bytes(uint64(n))
	return v
}

// Int reads a number with a sign.
func (t *Tape) Int() int64 {
	if t.loose != nil && t.loose.blank {
		return int64(t.bytes(1)[0])
	}
	v, n := binary.Varint(t.b[t.at:])
	if n <= 0 {
		t.short("the recording has no number where one is expected")
	}
	t.bytes(uint64(n))
	return v
}

// Bytes reads bytes. They are valid until the next call of Next.
func (t *Tape) Bytes() []byte { return t.bytes(t.Uint()) }

// Text reads a text.
func (t *Tape) Text() string { return string(t.Bytes()) }

// expect reads the kind of an entry, which must be k.
func (t *Tape) expect(k Kind) {
	if t.count == 0 { // before the first event
		if err := t.more(); err != nil {
			t.Differs("the recording is empty: %v", err)
		}
	}
	if is := t.kind(false); is != k {
		t.Differs("the recording goes on with %q, the replay with %q", is, k)
	}
}

// Ask begins an entry with what an owner takes from outside. It reports whether the values are to be
// written (t records); if not, they are to be read. It is not called on the nil Tape, nor when a
// recording has ended.
func (t *Tape) Ask(k Kind) (write bool) {
	switch {
	case !t.plays:
		t.b = append(t.b, byte(k))
		return true
	case t.loose != nil:
		t.loose.ask(t, subject{k, t.place})
		t.place = 0
	default:
		t.expect(k)
	}
	return false
}

// Active reports whether values are to be passed by t.
func (t *Tape) Active() bool { return t != nil && !t.ended }

// Number passes a number. Like the calls below that a NIC without a tape makes often, it is so short that the compiler
// puts it where it is called: there is a comparison, and no call.
func (t *Tape) Number(k Kind, v uint64) uint64 {
	if t.Active() {
		return t.number(k, v)
	}
	return v
}

func (t *Tape) number(k Kind, v uint64) uint64 {
	t.Ask(k)
	return t.Word(v)
}

// Bool passes a truth value.
func (t *Tape) Bool(k Kind, v bool) bool {
	if t.Active() {
		return t.bool(k, v)
	}
	return v
}

func (t *Tape) bool(k Kind, v bool) bool {
	t.Ask(k)
	return t.Word(bit(v)) != 0
}

// Copy passes b, whose length the owner knows: a tape that plays changes it.
func (t *Tape) Copy(b []byte) {
	if t.plays {
		copy(b, t.bytes(uint64(len(b))))
		return
	}
	t.b = append(t.b, b...)
}

// Word passes a number in as few bytes as it needs.
func (t *Tape) Word(v uint64) uint64 {
	if t.plays {
		return t.Uint()
	}
	t.PutUint(v)
	return v
}

// Error passes an error as its text.
func (t *Tape) Error(err error) error {
	if t.plays {
		if s := t.Text(); s != "" {
			return errors.New(s)
		}
		return nil
	}
	if err == nil {
		t.PutUint(0)
		return nil
	}
	t.PutText(err.Error())
	return err
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Out sums bytes that go out.
func (t *Tape) Out(c Class, b []byte) {
	if t.Active() {
		t.sums[c] = digest(t.sums[c], b)
	}
}

// OutUint sums a number that goes out.
func (t *Tape) OutUint(c Class, v uint64) {
	if t.Active() {
		t.sums[c] = mix(t.sums[c], v)
	}
}

// mix adds a number to a sum, by Fibonacci hashing: it is no more than a check.
func mix(s uint32, v uint64) uint32 {
	v = (v ^ uint64(s) ^ uint64(s)<<32) * 0x9e3779b97f4a7c15
	return uint32(v>>32) ^ uint32(v)
}

// longSum is the number of bytes from which a CRC is faster than mix: it costs a call, and less for each byte.
const longSum = 256

// digest adds bytes to a sum. The last number has their length, too, so that zeros at the end count.
func digest(s uint32, b []byte) uint32 {
	n := uint64(len(b))
	if n >= longSum {
		return mix(s, uint64(crc32.Checksum(b, castagnoli))|n<<32)
	}
	for ; len(b) >= 8; b = b[8:] {
		s = mix(s, binary.LittleEndian.Uint64(b))
	}
	last := n << 56
	for i, v := range b {
		last |= uint64(v) << (8 * i)
	}
	return mix(s, last)
}

// OutValue sums a value that goes out, which is rare.
func (t *Tape) OutValue(c Class, what string, v any) {
	if !t.Active() {
		return
	}
	t.Out(c, []byte(what))
	var own Tape // only to encode
	own.PutValue(v)
	t.Out(c, own.b)
}

// Check ends a Step: the sums are written, or compared with those written.
func (t *Tape) Check() {
	if t.Active() {
		t.check()
	}
}

func (t *Tape) check() {
	if l := t.loose; l != nil {
		l.out = t.appendSums(append(l.out, byte(StepEnd)))
		l.cut()
		return
	}
	if t.Ask(StepEnd) {
		t.b = t.appendSums(t.b)
		switch {
		case t.ends:
			t.End()
		case len(t.b) >= t.size || t.now-t.cut >= longest:
			t.exchange()
		}
		return
	}
	before, mask := t.told, t.Uint()
	if mask>>classes != 0 {
		t.Differs("the recording has the sum of an output that is none")
	}
	for c := range classes {
		if mask>>c&1 != 0 {
			t.told[c] = binary.LittleEndian.Uint32(t.bytes(4))
		}
	}
	var differ []string
	for c := range classes {
		switch {
		case t.sums[c] == t.told[c]:
		case mask>>c&1 == 0:
			differ = append(differ, c.String()+" (the recording has none in this Step)")
		case t.sums[c] == before[c]:
			differ = append(differ, c.String()+" (the replay has none in this Step)")
		default:
			differ = append(differ, c.String())
		}
	}
	if len(differ) > 0 {
		t.Differs("%s differ", strings.Join(differ, ", "))
	}
}

// appendSums appends the sums that have changed.
func (t *Tape) appendSums(b []byte) []byte {
	mask := uint64(0)
	for c := range t.sums {
		if t.sums[c] != t.told[c] {
			mask |= 1 << c
		}
	}
	b = binary.AppendUvarint(b, mask)
	for c := range t.sums {
		if mask>>c&1 != 0 {
			b = binary.LittleEndian.AppendUint32(b, t.sums[c])
		}
	}
	t.told = t.sums
	return b
}

// longest is the longest time of a chunk, ns: so much is lost with a process that is killed.
const longest = 1_000_000_000

// exchange gives the chunk away and begins another.
func (t *Tape) exchange() {
	t.cut = t.now
	if t.b = t.full(t.b); t.b == nil {
		t.ended = true
	} else if len(t.b) == 0 {
		t.where()
	}
}

// End gives away what was recorded since the last chunk, and ends the recording.
func (t *Tape) End() {
	if t.Records() {
		t.full(t.b)
		t.b, t.ended = nil, true
	}
}

// Finish ends the recording with the Step that is under way.
func (t *Tape) Finish() { t.ends = true }

// Difference says where a replay is not what was recorded.
type Difference struct {
	Step   uint64 // its number, from 1
	Now    int64  // its time
	What   string
	Before []Kind // the entries before, oldest first
	Torn   bool   // there is none: the recording ends here, in a Step, with the program that made it
}

func (d *Difference) Error() string {
	return fmt.Sprintf("Step %d: %s", d.Step, d.What)
}

// short ends the playing where the tape has nothing more to give.
func (t *Tape) short(why string) {
	if t.torn {
		t.is = &Difference{Step: t.steps, Now: t.now, What: "the recording ends in this Step", Torn: true}
		panic(t.is)
	}
	t.Differs("%s", why)
}

// Differs ends the playing with a difference, by a panic.
func (t *Tape) Differs(format string, args ...any) {
	d := &Difference{Step: t.steps, Now: t.now, What: fmt.Sprintf(format, args...)}
	for i := max(0, t.count-trail); i < t.count; i++ {
		d.Before = append(d.Before, t.last[i%trail])
	}
	t.is = d
	panic(d)
}

// Left returns how many bytes of the chunk are left.
func (t *Tape) Left() int { return len(t.b) - t.at }

// Chunks returns a next function for Play of chunks in memory.
func Chunks(list [][]byte) func() ([]byte, error) {
	return func() ([]byte, error) {
		if len(list) == 0 {
			return nil, io.EOF
		}
		b := list[0]
		list = list[1:]
		return b, nil
	}
}
