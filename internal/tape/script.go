package tape

import (
	"encoding/binary"
	"io"
)

// A recording can be played without some of its events. Its owner then does something else than it
// did: it asks for less, and later or earlier. A Script is a recording taken apart for that: the
// events, and what was asked for, by kind and place. It is made while the recording is played, and
// answers what is asked for by what comes nearest. Meanwhile a new recording is made, of what was
// played and answered, which plays like any other.

// Script is a recording taken apart.
type Script struct {
	Events []Event
	mode   Payload
	asks   []ask
	asked  map[subject][]int // asks of a subject, in order
	open   *[]byte           // of the entry that is being read
}

// Event is an event of a script.
type Event struct {
	Kind Kind
	Now  int64 // of a Step or Flush
	raw  []byte
}

// Number returns the first value of the event, which for those of drivers is the driver's number.
func (e *Event) Number() uint64 {
	v, _ := binary.Uvarint(e.raw)
	return v
}

// ask is a value that was asked for after an event.
type ask struct {
	event int
	raw   []byte
}

// subject is what an owner asks for.
type subject struct {
	kind  Kind
	place uint64
}

// Script makes a tape that plays be taken apart. It is called before the first event.
func (t *Tape) Script() *Script {
	t.script = &Script{mode: t.mode, asked: map[subject][]int{}}
	return t.script
}

// Place says whose memory is asked for next, and where. It is called before Ask, where the kind of
// an entry does not say enough.
func (t *Tape) Place(owner uint32, at, n uint64) {
	if t.Plays() {
		t.place = ((at*0x9e3779b97f4a7c15+uint64(owner))*0x9e3779b97f4a7c15 + n) | 1
	}
}

// close ends the entry that is being read, of which b was read.
func (s *Script) close(b []byte) {
	if s != nil && s.open != nil {
		*s.open = append(*s.open, b...)
	}
}

// add begins an entry.
func (s *Script) add(k Kind, place uint64, event bool) {
	switch {
	case k == StepEnd:
		s.open = nil
	case event:
		s.Events = append(s.Events, Event{Kind: k})
		s.open = &s.Events[len(s.Events)-1].raw
	default:
		is := subject{k, place}
		s.asked[is] = append(s.asked[is], len(s.asks))
		s.asks = append(s.asks, ask{event: len(s.Events) - 1})
		s.open = &s.asks[len(s.asks)-1].raw
	}
}

// loose plays a script without some of its events.
type loose struct {
	*Script
	keep   []bool // by event
	next   int    // event
	used   []bool // by ask
	begins int    // of the event in the new recording
	blank  bool   // nothing like what is asked for is in the recording: it is zero
	out    []byte // the new recording, its last chunk
	chunks [][]byte
}

// Play returns a tape that plays the events of a script that are kept.
func (s *Script) Play(keep []bool) *Tape {
	return &Tape{plays: true, mode: s.mode, loose: &loose{Script: s, keep: keep, used: make([]bool, len(s.asks))}}
}

// Played returns the recording of what a tape of a script has played.
func (t *Tape) Played() [][]byte { return append(t.loose.chunks, t.loose.out) }

// event begins the next event that is kept.
func (l *loose) event(t *Tape) (Kind, error) {
	for l.next < len(l.Events) && !l.keep[l.next] {
		l.next++
	}
	if l.next == len(l.Events) {
		return 0, io.EOF
	}
	e := &l.Events[l.next]
	l.next++
	l.begins, l.blank = len(l.out), false
	l.out = append(l.out, byte(e.Kind))
	t.b, t.at = e.raw, 0
	return e.Kind, nil
}

// begun skips the time of a Step or Flush, which is told as the difference to the one before, and writes
// what it is now.
func (l *loose) begun(t *Tape) (now int64) {
	_, n := binary.Varint(t.b)
	t.at = n
	now = l.Events[l.next-1].Now
	l.out = binary.AppendVarint(l.out, now-t.now)
	return now
}

// fleeting are kinds of what was there for one event only.
var fleeting = map[Kind]bool{BellTake: true, Opened: true, Checked: true, Taken: true, StreamEvent: true, StreamPacket: true}

// once are kinds of values of which each answers one question only.
var once = map[Kind]bool{Random: true, Epoch: true}

// longestStep is more than a Step takes from outside, bytes.
const longestStep = 64 << 20

// ask begins an answer: the next of the subject after this event in the recording; else the last before
// it, as memory keeps what is in it; else the first after it.
func (l *loose) ask(t *Tape, is subject) {
	if len(l.out) > longestStep {
		t.Differs("a Step asks for more and more, since events were left out")
	}
	l.out = append(l.out, byte(is.kind))
	now, best := l.next-1, -1
	for _, i := range l.asked[is] {
		switch at := l.asks[i].event; {
		case at == now && !l.used[i]:
			best = i
		case at < now && !once[is.kind]:
			best = i
			continue
		case at > now && best < 0 && !l.used[i]:
			best = i
		default:
			continue
		}
		break
	}
	if l.blank = best < 0 || fleeting[is.kind] && l.asks[best].event != now; !l.blank {
		l.used[best] = true
		t.b, t.at = l.asks[best].raw, 0
	}
}

// cut ends a chunk at the end of a Step.
func (l *loose) cut() {
	if len(l.out) >= 1<<20 {
		l.chunks, l.out = append(l.chunks, l.out), nil
	}
}

// Skip makes an event not be there that makes no sense without one that was left out. It reports false
// if none was left out: then there is a difference.
func (t *Tape) Skip() bool {
	if t.loose == nil {
		return false
	}
	t.loose.out = t.loose.out[:t.loose.begins]
	return true
}

// AtMost reads a number that cannot be more than most, unless events were left out.
func (t *Tape) AtMost(most uint64) (v uint64, ok bool) {
	if t.loose == nil {
		v = t.Uint()
		return v, v <= most
	}
	at := len(t.loose.out)
	v = min(t.Uint(), most)
	t.loose.out = binary.AppendUvarint(t.loose.out[:at], v)
	return v, true
}
