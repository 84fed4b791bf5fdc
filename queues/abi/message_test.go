package abi

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

func stream() []byte {
	b := AppendStruct(nil, 1, &Hello{Major: VersionMajor, Function: FunctionAssigned, Features: FeatureEventIndex})
	b = AppendStruct(b, 2, &RegWrite{Offset: RegControl, Width: 4, Value: uint64(ControlEnable)})
	var bells [2 * DoorbellSize]byte
	(&Doorbell{Kind: DoorbellSQ, Queue: 17, Index: 3}).Marshal(bells[:])
	(&Doorbell{Kind: DoorbellCQArm, Flags: ArmSolicitedOnly, Queue: 4}).Marshal(bells[DoorbellSize:])
	b = AppendMessage(b, MsgDoorbell, 0, bells[:])
	return AppendMessage(b, MsgGoodbye, 9, nil)
}

func TestAStreamIsReadMessageByMessage(t *testing.T) {
	for name, r := range map[string]io.Reader{
		"whole":        bytes.NewReader(stream()),
		"byte by byte": iotest.OneByteReader(bytes.NewReader(stream())),
		"data and EOF": iotest.DataErrReader(bytes.NewReader(stream())),
	} {
		buf := make([]byte, MaxMessage)
		var types []MsgType
		var tags []uint64
		for {
			h, body, err := ReadMessage(r, buf)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			types, tags = append(types, h.Type), append(tags, h.Tag)
			if h.Type == MsgRegWrite {
				var m RegWrite
				if err := Decode(body, &m); err != nil {
					t.Fatal(err)
				}
				if want := (RegWrite{Offset: RegControl, Width: 4, Value: 1}); m != want {
					t.Error(cmp.Diff(want, m))
				}
			}
		}
		if d := cmp.Diff([]MsgType{MsgHello, MsgRegWrite, MsgDoorbell, MsgGoodbye}, types); d != "" {
			t.Error(name, d)
		}
		if d := cmp.Diff([]uint64{1, 2, 0, 9}, tags); d != "" {
			t.Error(name, d)
		}
	}
}

// TestACutMessageEndsUnexpectedly cuts the stream at every byte.
func TestACutMessageEndsUnexpectedly(t *testing.T) {
	whole := stream()
	ends := map[int]bool{0: true}
	for at := 0; at < len(whole); {
		var h MsgHeader
		h.Unmarshal(whole[at:])
		at += int(h.Length)
		ends[at] = true
	}
	buf := make([]byte, MaxMessage)
	for n := range len(whole) {
		r := bytes.NewReader(whole[:n])
		var err error
		for err == nil {
			_, _, err = ReadMessage(r, buf)
		}
		want := io.ErrUnexpectedEOF
		if ends[n] {
			want = io.EOF
		}
		if err != want {
			t.Fatalf("cut at %d: %v, want %v", n, err, want)
		}
	}
}

// TestALengthOutOfRangeIsRefused announces lengths out of range (DRV-201).
func TestALengthOutOfRangeIsRefused(t *testing.T) {
	buf := make([]byte, MaxMessage)
	for _, c := range []struct {
		length uint32
		want   error
	}{
		{0, ErrMessageTooShort},
		{MsgHeaderSize - 1, ErrMessageTooShort},
		{MaxMessage + 1, ErrMessageTooLong},
		{0xffffffff, ErrMessageTooLong},
		{MaxMessage, io.ErrUnexpectedEOF},
	} {
		h := MsgHeader{Length: c.length, Type: MsgHello}
		b := make([]byte, MsgHeaderSize)
		h.Marshal(b)
		if _, _, err := ReadMessage(bytes.NewReader(b), buf); !errors.Is(err, c.want) {
			t.Errorf("length %d: %v, want %v", c.length, err, c.want)
		}
	}
}

func TestNoMessageIsLongerThanTheLargest(t *testing.T) {
	b := AppendMessage(nil, MsgDoorbell, 7, make([]byte, MaxMessage-MsgHeaderSize))
	_, body, err := ReadMessage(bytes.NewReader(b), make([]byte, MaxMessage))
	if err != nil || len(body) != MaxMessage-MsgHeaderSize {
		t.Fatalf("%d bytes, %v", len(body), err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a longer message did not panic")
		}
	}()
	AppendMessage(nil, MsgDoorbell, 7, make([]byte, MaxMessage-MsgHeaderSize+1))
}

func TestAnErrorOfTheReaderIsReturned(t *testing.T) {
	want := errors.New("broken")
	if _, _, err := ReadMessage(iotest.ErrReader(want), make([]byte, MaxMessage)); err != want {
		t.Fatal(err)
	}
}

func TestFramingDoesNotAllocate(t *testing.T) {
	whole := stream()
	r := bytes.NewReader(whole)
	buf, out := make([]byte, MaxMessage), make([]byte, 0, MaxMessage)
	var bell [DoorbellSize]byte
	ev := &AsyncEvent{Type: EventEstablished}
	if n := testing.AllocsPerRun(100, func() {
		r.Reset(whole)
		for {
			if _, _, err := ReadMessage(r, buf); err != nil {
				break
			}
		}
		out = AppendMessage(out[:0], MsgDoorbell, 0, bell[:])
		out = AppendStruct(out, 0, ev)
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func FuzzReadMessage(f *testing.F) {
	f.Add(stream())
	f.Add([]byte{})
	f.Add(AppendMessage(nil, 0xffff, 1, []byte("x")))
	buf := make([]byte, MaxMessage)
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		var again []byte
		for {
			h, body, err := ReadMessage(r, buf)
			if err != nil {
				break
			}
			if h.Flags != 0 {
				return // AppendMessage writes none
			}
			again = AppendMessage(again, h.Type, h.Tag, body)
		}
		if !bytes.HasPrefix(b, again) {
			t.Fatalf("%x became %x", b, again)
		}
	})
}

// TestATextThatIsTooLongEndsBehindAWord: a text that is too long ends with dots behind a word,
// where there is one in the second half of the room; without room for dots it is cut.
func TestATextThatIsTooLongEndsBehindAWord(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"exactly sixteen.", 16, "exactly sixteen."},
		{"exactly sixteen.", 15, "exactly sixteen"}, // no dots below 16
		{"one more, sixteen", 16, "one more..."},
		{"abcdef ghijklmnopq", 16, "abcdef ghijkl..."},  // the space is at 6, half of the room for text
		{"abcdefg hijklmnopq", 16, "abcdefg..."},        // just behind it
		{"abcdefghijklm nopqr", 16, "abcdefghijklm..."}, // the last that the room allows
		{"abcdefghijklmn opqr", 16, "abcdefghijklm..."},
		{"abcdefghi ,;: klmnopq", 16, "abcdefghi..."},
		{"éé", 3, "é"},
		{"é", 1, ""},
		{"é", 0, ""},
		{"", 0, ""},
	} {
		if got := Shorten(c.in, c.n); got != c.want {
			t.Errorf("%q to %d: %q, want %q", c.in, c.n, got, c.want)
		}
	}
	for n := range 30 {
		if got := Shorten(strings.Repeat("é ", 20), n); len(got) > n {
			t.Errorf("%q is longer than %d bytes", got, n)
		}
	}
}
