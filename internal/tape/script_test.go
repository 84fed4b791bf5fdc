package tape

import (
	"errors"
	"io"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// taken is what an owner took from outside in a Step.
type taken struct {
	Now    int64
	Number uint64
	Raw    [5]byte
	Err    string
	Part   []byte
}

// recordSteps records an owner that takes these from outside. In every other Step it takes a part, too.
func recordSteps(steps []taken, keep Payload, size int) (chunks [][]byte) {
	t := Record(size, keep, func(b []byte) []byte {
		if len(b) > 0 {
			chunks = append(chunks, b)
		}
		return make([]byte, 0, size)
	})
	for i := range steps {
		t.Begin(Step, steps[i].Now)
		(&steps[i]).pass(t)
	}
	t.End()
	return chunks
}

// pass passes what the owner takes by the tape, and sums it as output.
func (is *taken) pass(t *Tape) {
	is.Number = t.Number(MemHas, is.Number)
	t.Place(7, is.Number, 5)
	t.Ask(AreaRead)
	var err error
	if is.Err != "" {
		err = errors.New(is.Err)
	}
	if err = t.Error(err); err != nil {
		is.Err = err.Error()
	} else {
		t.Part(is.Raw[:], len(is.Raw))
		t.Out(Messages, is.Raw[:])
	}
	if is.Number%2 == 1 {
		t.Ask(AreaRead)
		_ = t.Error(nil)
		t.Part(is.Part, 4)
		t.OutPart(Writes, is.Part, 4, 1)
	}
	t.OutUint(Core, is.Number)
	t.Check()
}

// playSteps plays all that is on a tape. Parts have partLen bytes.
func playSteps(t *Tape) (steps []taken, err error) {
	defer func() {
		if d, ok := recover().(*Difference); ok {
			err = d
		}
	}()
	for {
		k, err := t.Next()
		if err == io.EOF {
			return steps, nil
		}
		if err != nil || k != Step {
			t.Differs("%s, %v", k, err)
		}
		is := taken{Now: t.Begun(Step), Part: make([]byte, partLen)}
		is.pass(t)
		steps = append(steps, is)
	}
}

const partLen = 12

// someSteps draws what an owner takes from outside.
func someSteps(t *rapid.T) (steps []taken) {
	now := int64(0)
	for range rapid.IntRange(0, 20).Draw(t, "steps") {
		now += rapid.Int64Range(0, 2e9).Draw(t, "time")
		is := taken{Now: now, Number: rapid.Uint64().Draw(t, "number"), Part: rapid.SliceOfN(rapid.Byte(), partLen, partLen).Draw(t, "part")}
		copy(is.Raw[:], rapid.SliceOfN(rapid.Byte(), 5, 5).Draw(t, "raw"))
		if rapid.Bool().Draw(t, "fails") {
			is.Err = "no"
		}
		steps = append(steps, is)
	}
	return steps
}

// as returns what is given back of steps of which so much payload was kept.
func as(steps []taken, keep Payload) (is []taken) {
	for _, s := range steps {
		s.Part = slices.Clone(s.Part)
		if keep != Whole {
			clear(s.Part[4:])
		}
		if s.Number%2 == 0 {
			clear(s.Part) // it was not taken
		}
		if s.Err != "" {
			clear(s.Raw[:])
		}
		is = append(is, s)
	}
	return is
}

// TestWhatIsKeptOfPayloadIsGivenBack: the rest of it is zeros, whatever is kept, and chunks end where they like.
func TestWhatIsKeptOfPayloadIsGivenBack(t *testing.T) {
	for p := range None + 1 {
		if back, ok := ParsePayload(p.String()); !ok || back != p {
			t.Errorf("%s is read as %s", p, back)
		}
	}
	if _, ok := ParsePayload("some"); ok {
		t.Error("there is no such choice")
	}
	rapid.Check(t, func(t *rapid.T) {
		keep := Payload(rapid.IntRange(0, int(None)).Draw(t, "keep"))
		steps := someSteps(t)
		want := as(steps, keep)
		got, err := playSteps(Play(keep, Chunks(recordSteps(steps, keep, rapid.IntRange(1, 200).Draw(t, "chunk")))))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%v: %+v, want %+v", err, got, want)
		}
	})
}

// TestARecordingWithoutSomeEventsIsARecording: the Steps that are kept take what they took, as far as there is something
// like it, and what was played so plays again.
func TestARecordingWithoutSomeEventsIsARecording(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keep := Payload(rapid.IntRange(0, int(None)).Draw(t, "keep"))
		steps := someSteps(t)
		want := as(steps, keep)
		on := Play(keep, Chunks(recordSteps(steps, keep, 100)))
		script := on.Script()
		if _, err := playSteps(on); err != nil {
			t.Fatal(err)
		}
		stays := rapid.SliceOfN(rapid.Bool(), len(script.Events), len(script.Events)).Draw(t, "stays")
		var left []taken
		at := 0
		for i, e := range script.Events {
			if e.Kind != Step {
				t.Fatalf("event %d is %s", i, e.Kind)
			}
			if stays[i] {
				left = append(left, want[at])
			}
			at++
		}
		less := script.Play(stays)
		got, err := playSteps(less)
		if err != nil || !reflect.DeepEqual(got, left) {
			t.Fatalf("%v: %+v, want %+v", err, got, left)
		}
		again, err := playSteps(Play(keep, Chunks(less.Played())))
		if err != nil || !reflect.DeepEqual(again, left) {
			t.Fatalf("again: %v: %+v, want %+v", err, again, left)
		}
	})
}

// TestAListHasWhatIsLeftOfARecording: whoever only reads a recording passes over what Steps took, and finds the numbers and
// times of the Steps, whichever chunks are missing.
func TestAListHasWhatIsLeftOfARecording(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		steps := someSteps(t)
		chunks := recordSteps(steps, Digest, 60)
		gone := rapid.IntRange(0, len(chunks)).Draw(t, "chunks that are missing")
		on := List(Digest, Chunks(chunks[gone:]))
		var missing uint64
		if gone < len(chunks) {
			missing, _ = Begins(chunks[gone])
		}
		for {
			k, err := on.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if k != Step {
				on.Pass(k)
				continue
			}
			now := on.Begun(Step)
			if n := on.Steps(); n <= missing || steps[n-1].Now != now {
				t.Fatalf("Step %d at %d", n, now)
			}
		}
		if gone < len(chunks) && on.Steps() != uint64(len(steps)) {
			t.Fatalf("%d of %d Steps", on.Steps(), len(steps))
		}
	})
}

// TestAPlayerHearsThatChunksAreMissing: it cannot go on behind a gap.
func TestAPlayerHearsThatChunksAreMissing(t *testing.T) {
	steps := make([]taken, 9)
	for i := range steps {
		steps[i] = taken{Now: int64(i), Number: 1, Part: make([]byte, partLen)}
	}
	chunks := recordSteps(steps, Whole, 1)
	on := Play(Whole, Chunks(append(chunks[:3:3], chunks[5:]...)))
	for range 3 {
		if _, err := on.Next(); err != nil {
			t.Fatal(err)
		}
		is := taken{Now: on.Begun(Step), Part: make([]byte, partLen)}
		is.pass(on)
	}
	var gap *Missing
	if _, err := on.Next(); !errors.As(err, &gap) || gap.Steps != 3 || gap.To != 5 || gap.Now != 4 ||
		gap.Error() != "the recording goes on after Step 5, of Steps 4 and on nothing is left" {
		t.Errorf("%v, %+v", err, gap)
	}
}

// TestARecordingOfAKilledProgramEndsInAStep: what its last chunk says beyond the last whole Step is no difference.
func TestARecordingOfAKilledProgramEndsInAStep(t *testing.T) {
	steps := []taken{{Now: 1, Number: 1, Part: make([]byte, partLen)}, {Now: 2, Number: 3, Part: make([]byte, partLen)}}
	whole := recordSteps(steps, Whole, 1<<16)[0]
	torn := 0
	for n := range len(whole) + 1 {
		last := append([]byte{byte(Torn)}, whole[:n]...)
		if n == len(whole) {
			last = append(last, make([]byte, 40)...) // nothing was written there
		}
		on := Play(Whole, Chunks([][]byte{last}))
		got, err := playSteps(on)
		var d *Difference
		if err != nil && (!errors.As(err, &d) || !d.Torn) || on.TornIn() != (err != nil) || len(got) > 0 && !reflect.DeepEqual(got, steps[:len(got)]) {
			t.Fatalf("%d bytes: %v after %+v", n, err, got)
		}
		if err != nil {
			torn++
		}
	}
	if torn < len(whole)-len(steps) {
		t.Errorf("of %d bytes %d end in a Step", len(whole), torn)
	}
	if n, now := Begins(append([]byte{byte(Torn)}, whole...)); n != 0 || now != 0 {
		t.Errorf("it begins after Step %d, at %d", n, now)
	}
}

// TestEachKindOfEntryIsNamed, also for people who look at a recording of a newer program.
func TestEachKindOfEntryIsNamed(t *testing.T) {
	seen := map[string]bool{}
	for k := range names {
		if name := k.String(); name == "" || seen[name] {
			t.Errorf("%#x is %q, as another is", uint8(k), name)
		} else {
			seen[name] = true
		}
	}
	for k := range values {
		if names[k] == "" {
			t.Errorf("%#x has no name", uint8(k))
		}
	}
	if got := Kind(0xff).String(); got != "unknown entry 0xff" {
		t.Error(got)
	}
	for c := range classes + 1 {
		if c.String() == "" || c < classes && c.String() == classes.String() {
			t.Errorf("class %d has no name", c)
		}
	}
}
