package tape

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

// asked is one thing that an owner takes from outside.
type asked struct {
	number uint64
	flag   bool
	bytes  []byte
	err    error
}

// pass passes what an owner takes from outside by a tape, a Step for each, and sums it as output. A
// tape that plays gets zeros to pass.
func pass(t *Tape, list []asked) (got []asked) {
	for i, a := range list {
		if t.Plays() {
			if k, err := t.Next(); k != Step || err != nil {
				t.Differs("%v, %v", k, err)
			}
			t.Begun(Step)
			a = asked{bytes: make([]byte, len(a.bytes))}
		} else if t != nil {
			t.Begin(Step, int64(i)*1000)
		}
		a.number, a.flag = t.Number(MemHas, a.number), t.Bool(Knows, a.flag)
		if t.Active() {
			t.Ask(MemRead)
			t.Copy(a.bytes)
			a.err = t.Error(a.err)
		}
		got = append(got, a)
		t.OutUint(Core, a.number)
		t.Out(Writes, a.bytes)
		t.Check()
	}
	return got
}

func record(list []asked, size int) (chunks [][]byte) {
	t := Record(size, Whole, func(b []byte) []byte {
		if len(b) > 0 {
			chunks = append(chunks, b)
		}
		return make([]byte, 0, size)
	})
	pass(t, list)
	t.End()
	return chunks
}

// TestATapeGivesBackWhatWasRecorded: whatever an owner passes, in chunks of any size.
func TestATapeGivesBackWhatWasRecorded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOf(rapid.Custom(func(t *rapid.T) asked {
			a := asked{rapid.Uint64().Draw(t, "number"), rapid.Bool().Draw(t, "flag"), rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"), nil}
			if a.bytes == nil {
				a.bytes = []byte{}
			}
			if text := rapid.StringN(0, 4, -1).Draw(t, "error"); text != "" {
				a.err = errors.New(text)
			}
			return a
		})).Draw(t, "values")
		tape := Play(Whole, Chunks(record(list, rapid.IntRange(1, 200).Draw(t, "chunk"))))
		if got := pass(tape, list); len(list) > 0 && !reflect.DeepEqual(got, list) {
			t.Fatalf("%v, want %v", got, list)
		}
		if _, err := tape.Next(); err != io.EOF {
			t.Fatal(err)
		}
	})
}

// differs plays a recording and returns the difference that ends it, nil if there is none.
func differs(chunk []byte, list []asked) (d *Difference) {
	defer func() {
		if v := recover(); v != nil {
			d = v.(*Difference)
		}
	}()
	pass(Play(Whole, Chunks([][]byte{chunk})), list)
	return nil
}

var some = []asked{{number: 1 << 40, flag: true, bytes: []byte("one")}, {bytes: []byte("two"), err: errors.New("no")}}

// TestARecordingThatIsCutIsADifference, wherever it is cut.
func TestARecordingThatIsCutIsADifference(t *testing.T) {
	whole := record(some, 1<<16)[0]
	for n := range whole {
		if differs(whole[:n], some) == nil {
			t.Errorf("%d of %d bytes were enough", n, len(whole))
		}
	}
	if d := differs(whole, some); d != nil {
		t.Error(d)
	}
}

// TestOutputThatIsNotTheRecordedIsADifference names the Step and the class of output.
func TestOutputThatIsNotTheRecordedIsADifference(t *testing.T) {
	whole := record(some, 1<<16)[0]
	at := bytes.Index(whole, []byte("two"))
	whole[at] ^= 1
	d := differs(whole, some)
	if d == nil || d.Step != 2 || d.Now != 1000 || d.What != "writes to guest memory differ" || d.Before[len(d.Before)-1] != StepEnd {
		t.Errorf("%+v", d)
	}
}

// TestRecordingAllocatesNothing, nor does passing values without a tape.
func TestRecordingAllocatesNothing(t *testing.T) {
	spare := [][]byte{make([]byte, 0, 1<<16), make([]byte, 0, 1<<16)}
	tape := Record(1<<12, Whole, func(b []byte) []byte {
		spare[0], spare[1] = spare[1], spare[0]
		return spare[0][:0]
	})
	for _, t2 := range []*Tape{nil, tape} {
		word, raw := uint64(7), make([]byte, 64)
		if n := testing.AllocsPerRun(1000, func() {
			if t2 != nil {
				t2.Begin(Step, 5)
				t2.Ask(MemRead)
				t2.Copy(raw)
			}
			word = t2.Number(MemLoad, word)
			t2.OutUint(Reads, word)
			t2.Out(Writes, raw)
			t2.Check()
		}); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
}

// TestARecordingEndsWhereThereIsNoBuffer: the owner goes on.
func TestARecordingEndsWhereThereIsNoBuffer(t *testing.T) {
	n := 0
	tape := Record(1, Whole, func(b []byte) []byte {
		if n++; n > 2 {
			return nil
		}
		return make([]byte, 0, 8)
	})
	for i := range int64(4) {
		if tape.Records() {
			tape.Begin(Step, i)
		}
		if v := tape.Number(MemLoad, 7); v != 7 {
			t.Error(v)
		}
		tape.Check()
	}
	if tape.Records() || !tape.Ended() {
		t.Error("it still records")
	}
}

// settings has what settings consist of.
type settings struct {
	Name  string
	On    *bool
	Off   *bool
	Addr  netip.Addr
	Net   netip.Prefix
	List  []settings
	MAC   [6]byte
	N     int8
	Big   uint64
	Named struct{ Inner netip.AddrPort }
}

// TestValuesAreTheSameAgain, with pointers to zeros and empty lists.
func TestValuesAreTheSameAgain(t *testing.T) {
	no := false
	want := settings{
		Name: "x", Off: &no, Addr: netip.MustParseAddr("::1"), Net: netip.MustParsePrefix("10.0.0.0/8"), MAC: [6]byte{1, 2}, N: -3, Big: 1 << 63,
		List: []settings{{List: []settings{}}, {}},
	}
	want.Named.Inner = netip.MustParseAddrPort("1.2.3.4:5")
	var w Tape
	w.PutValue(&want)
	var got *settings
	Play(Whole, nil).with(w.b).Value(&got)
	if !reflect.DeepEqual(got, &want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// with gives a tape that plays its chunk.
func (t *Tape) with(b []byte) *Tape {
	t.b = b
	return t
}

// FuzzValue: no bytes make reading a value fail otherwise than by a difference, and what is read is
// written again as it was read.
func FuzzValue(f *testing.F) {
	var w Tape
	w.PutValue(settings{Name: "x", List: []settings{{}}})
	f.Add(w.b)
	f.Fuzz(func(t *testing.T, b []byte) {
		defer func() {
			if v := recover(); v != nil {
				_ = v.(*Difference)
			}
		}()
		var got, again settings
		Play(Whole, nil).with(b).Value(&got)
		var w Tape
		w.PutValue(got)
		Play(Whole, nil).with(w.b).Value(&again)
		if !reflect.DeepEqual(got, again) {
			t.Errorf("%+v, then %+v", got, again)
		}
	})
}
