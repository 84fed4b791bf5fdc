package record

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/internal/tape"
)

// ringOf returns a ring of so many bytes with some Steps of two shards, of about 1000 bytes each.
func ringOf(t testing.TB, limit int64, steps int) *Ring {
	t.Helper()
	r, err := NewRing(Config{Limit: limit, Keep: tape.Whole, Text: "nic: {host: 1}\n"}, Header{NIC: "nic1", Shards: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	for step := range steps {
		for shard := range 2 {
			on := r.Tape(shard)
			on.Begin(tape.Step, int64(step))
			on.PutUint(uint64(shard))
			on.PutBytes(make([]byte, 1000))
			on.Check()
		}
	}
	return r
}

// saved saves a ring and reads the file.
func saved(t testing.TB, save func(path string) (int64, error)) *Recording {
	t.Helper()
	path := filepath.Join(t.TempDir(), "saved")
	size, err := save(path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil || int64(len(b)) != size {
		t.Fatalf("%d bytes of %d, %v", len(b), size, err)
	}
	if st, _ := os.Stat(path); st.Mode() != 0o600 {
		t.Errorf("mode %v: others may read what guests sent", st.Mode())
	}
	r, err := Read(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestARingThatHasRoomSavesTheWholeRecording, with the beginning.
func TestARingThatHasRoomSavesTheWholeRecording(t *testing.T) {
	r := saved(t, ringOf(t, 1<<20, 100).Save)
	for shard := range 2 {
		if n, err := steps(t, r, shard); n != 100 || err != io.EOF {
			t.Errorf("shard %d: %d Steps, %v", shard, n, err)
		}
		if missing, _, err := r.Begins(shard); missing != 0 || err != nil {
			t.Errorf("%d Steps are missing, %v", missing, err)
		}
	}
}

// TestARingThatIsFullKeepsTheLast: the file says how many Steps are missing, and has the others, with
// their numbers and times. A replay says so, too.
func TestARingThatIsFullKeepsTheLast(t *testing.T) {
	r := saved(t, ringOf(t, 64<<10, 1000).Save)
	for shard := range 2 {
		missing, now, err := r.Begins(shard)
		if err != nil || missing < 960 || missing >= 1000 || now != int64(missing)-1 {
			t.Fatalf("%d Steps are missing, to %d, %v", missing, now, err)
		}
		on := r.List(shard)
		for n := missing; ; n++ {
			k, err := on.Next()
			if err == io.EOF && n == 1000 {
				break
			}
			if k != tape.Step || err != nil || on.Begun(tape.Step) != int64(n) || on.Steps() != n+1 {
				t.Fatalf("Step %d: %v, %v, %d", n, k, err, on.Now())
			}
			on.Uint()
			on.Bytes()
			if k, err := on.Next(); k != tape.StepEnd || err != nil || on.Uint() != 0 {
				t.Fatal(k, err)
			}
		}
		var gone *tape.Missing
		if _, err := r.Tape(shard).Next(); !errors.As(err, &gone) || gone.To != missing {
			t.Errorf("%v", err)
		}
	}
}

// TestAStepThatIsLargerThanTheRingIsMissing, and what follows is kept.
func TestAStepThatIsLargerThanTheRingIsMissing(t *testing.T) {
	r := ringOf(t, 64<<10, 10)
	on := r.Tape(0)
	for step, size := range []int{100_000, 10} {
		on.Begin(tape.Step, int64(10+step))
		on.PutUint(0)
		on.PutBytes(make([]byte, size))
		on.Check()
	}
	if missing, now, err := saved(t, r.Save).Begins(0); missing != 11 || now != 10 || err != nil {
		t.Errorf("%d Steps are missing, to %d, %v", missing, now, err)
	}
}

// TestWhileARingIsSavedItsShardsGoOn: what they record meanwhile waits, and is not lost.
func TestWhileARingIsSavedItsShardsGoOn(t *testing.T) {
	r := ringOf(t, 1<<20, 10)
	step := func(n int64) {
		on := r.Tape(0)
		on.Begin(tape.Step, n)
		on.PutUint(0)
		on.PutBytes(nil)
		on.Check()
	}
	r.parts[0].mu.Lock()
	step(10)
	step(11)
	r.parts[0].mu.Unlock()
	step(12)
	if n, err := steps(t, saved(t, r.Save), 0); n != 13 || err != io.EOF {
		t.Errorf("%d Steps, %v", n, err)
	}
}

// TestARingIsSavedWhileItsShardsRecord: each recording that is saved has Steps without a gap, to the end of one.
func TestARingIsSavedWhileItsShardsRecord(t *testing.T) {
	const last = 20_000
	r := ringOf(t, 4<<20, 0)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		on := r.Tape(0)
		for n := range int64(last) {
			on.Begin(tape.Step, n)
			on.PutUint(0)
			on.PutBytes(make([]byte, n%50))
			on.Check()
		}
	}()
	for before := 0; before < last; {
		select {
		case <-ended:
		default:
			runtime.Gosched()
		}
		n, err := steps(t, saved(t, r.Save), 0)
		if err != io.EOF || n < before {
			t.Fatalf("%d Steps after %d, %v", n, before, err)
		}
		before = n
	}
}

// TestAProcessMayEndWhileItsRingTakesSteps: what was in the tape's buffer is rescued once, at whichever instruction
// the process ended.
func TestAProcessMayEndWhileItsRingTakesSteps(t *testing.T) {
	r := ringOf(t, 1<<20, 7)
	p := &r.parts[0]
	before := bytes.Clone(p.mem)
	p.batch = 0 // the next Step takes them all
	on := r.Tape(0)
	on.Begin(tape.Step, 7)
	on.PutUint(0)
	on.PutBytes(nil)
	on.Check()
	after := bytes.Clone(p.mem)
	part := func(from, to int, of []byte) { copy(p.mem[from:to], of[from:to]) }
	for n, is := range []struct {
		what  string
		state func()
		steps int
	}{
		{"before anything", func() {}, 7},
		{"the entry is there", func() { part(partHead+ringBuffer, len(p.mem), after) }, 7},
		{"head has moved", func() { part(8, 16, after) }, 8},
		{"the buffer is whole no more", func() { part(24, 32, after) }, 8},
		{"half of it is clear", func() { clear(p.mem[partHead:][:100]) }, 8},
		{"all of it is", func() { part(partHead, partHead+ringBuffer, after) }, 8},
		{"base has moved", func() { part(16, 24, after) }, 8},
	} {
		if n == 0 {
			copy(p.mem, before)
		}
		is.state()
		got, err := steps(t, saved(t, func(path string) (int64, error) { return Rescue(r.File(), 1<<20, path) }), 0)
		if got != is.steps || err != io.EOF {
			t.Errorf("%s: %d Steps, %v, want %d", is.what, got, err, is.steps)
		}
	}
}

// TestTheRecordingOfAProcessThatEndedIsRescued, with the Step in which it ended.
func TestTheRecordingOfAProcessThatEndedIsRescued(t *testing.T) {
	r := ringOf(t, 1<<20, 10)
	r.Tape(0).Begin(tape.Step, 10)
	r.Tape(0).PutUint(77)
	r.Tape(0).End() // as the thread does when it ends, by a panic too
	is := saved(t, func(path string) (int64, error) { return Rescue(r.File(), 1<<20, path) })
	on := is.Tape(0)
	for {
		k, err := on.Next()
		if err != nil {
			t.Fatal(err)
		}
		if k != tape.Step {
			on.Uint() // of a StepEnd: nothing went out
			continue
		}
		if on.Begun(tape.Step) == 10 {
			break
		}
		on.Uint()
		on.Bytes()
	}
	if v := on.Uint(); v != 77 {
		t.Errorf("%d", v)
	}
	if n, err := steps(t, is, 1); n != 10 || err != io.EOF {
		t.Errorf("%d Steps, %v", n, err)
	}
}

// TestWhatAProcessDidWhenItEndedIsRescued: of the Step that did not come to its end, for a signal came or a loop has no
// end, all that was read until then is there, and nothing of the Steps before it twice.
func TestWhatAProcessDidWhenItEndedIsRescued(t *testing.T) {
	for _, whole := range []int{0, 10} {
		r := ringOf(t, 1<<20, whole)
		on := r.Tape(0)
		on.Begin(tape.Step, 10)
		on.PutUint(77)
		on.PutBytes([]byte("frame"))
		is := saved(t, func(path string) (int64, error) { return Rescue(r.File(), 1<<20, path) })
		again := is.List(0)
		for n := 0; ; n++ {
			k, err := again.Next()
			if k != tape.Step || err != nil {
				t.Fatal(k, err)
			}
			if again.Begun(tape.Step) == 10 {
				break
			}
			again.Uint()
			again.Bytes()
			if k, err := again.Next(); k != tape.StepEnd || err != nil || again.Uint() != 0 || n == whole {
				t.Fatal(k, err)
			}
		}
		if v, b := again.Uint(), again.Bytes(); v != 77 || string(b) != "frame" || again.Steps() != uint64(whole+1) {
			t.Errorf("%d, %q, Step %d", v, b, again.Steps())
		}
		func() {
			defer func() {
				if d, ok := recover().(*tape.Difference); !ok || !d.Torn || !again.TornIn() {
					t.Errorf("after that: %v", d)
				}
			}()
			again.Ask(tape.MemRead)
		}()
		if n, err := steps(t, saved(t, r.Save), 0); n != whole || err != io.EOF {
			t.Errorf("of a process that goes on: %d Steps, %v", n, err)
		}
	}
}

// FuzzRescue: no memory of a process that ended makes its supervisor fail, or a file larger than it.
func FuzzRescue(f *testing.F) {
	r := ringOf(f, 8<<10, 10)
	f.Add(bytes.Clone(r.mem))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, part, err := ringHeader(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		var out bytes.Buffer
		_, err = writeRing(&out, h, bytes.NewReader(b), int64(len(b)), part, nil)
		if out.Len() > 3*len(b)+maxHeader+chunkHeader+1 && err == nil {
			t.Errorf("%d bytes became %d", len(b), out.Len())
		}
	})
}

// TestSavedRecordingsAreBounded: a guest that does something wrong again and again fills no disk.
func TestSavedRecordingsAreBounded(t *testing.T) {
	dir := t.TempDir()
	to := func(path string) (int64, error) { return 0, os.WriteFile(path, nil, 0o600) }
	for i := range MaxSaved {
		if _, err := SaveIn(dir, "a", strings.Repeat("x", i+1), to); err != nil {
			t.Fatal(err)
		}
	}
	if path, err := SaveIn(dir, "a", "more", to); err == nil || !strings.Contains(err.Error(), "move them") {
		t.Errorf("%s, %v", path, err)
	}
	if _, err := SaveIn(dir, "b", "other", to); err != nil {
		t.Errorf("another NIC: %v", err)
	}
}
