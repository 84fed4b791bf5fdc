package param

import (
	"testing"
	"time"
)

// TestTimesAreWrittenShort: a time is written without units that are zero, and reads as the same time.
func TestTimesAreWrittenShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", time.Second: "1s", time.Minute: "1m", 90 * time.Second: "1m30s", time.Hour: "1h", 10 * time.Minute: "10m", 20 * time.Second: "20s",
		time.Hour + time.Second: "1h0m1s", 90 * time.Minute: "1h30m", 1500 * time.Microsecond: "1.5ms", -time.Minute: "-1m",
	} {
		got := Text(d)
		if back, err := time.ParseDuration(got); got != want || back != d || err != nil {
			t.Errorf("%v is written %s, want %s (%v)", d, got, want, err)
		}
	}
}

// TestKeysStoreWhatTheyAccept: a key accepts the values of its range and no others, stores them, and
// shows them again.
func TestKeysStoreWhatTheyAccept(t *testing.T) {
	var p struct {
		n    int
		pow  uint32
		on   bool
		ns   int64
		word uint8
	}
	for _, tt := range []struct {
		key       Key
		good, bad []any
	}{
		{Number("n", "a number", &p.n, 1, 9), []any{1, 9}, []any{0, 10}},
		{PowerOfTwo("pow", "a power", &p.pow, 64), []any{uint32(1), uint32(64)}, []any{uint32(0), uint32(3), uint32(128)}},
		{Flag("on", "a flag", &p.on), []any{true, false}, nil},
		{Time("ns", "a time", &p.ns, time.Microsecond, time.Second), []any{time.Microsecond, time.Second}, []any{time.Duration(0), 2 * time.Second}},
		{Choice("word", "a word", &p.word, "a", "b"), []any{"b", "a"}, []any{"", "c"}},
	} {
		for _, v := range tt.good {
			if wrong, remedy := tt.key.Check(v); wrong != "" {
				t.Errorf("%s: %v: %s; %s", tt.key.Name, v, wrong, remedy)
			}
			if tt.key.Set(v); tt.key.Value() != v {
				t.Errorf("%s is %v after %v was set", tt.key.Name, tt.key.Value(), v)
			}
		}
		for _, v := range tt.bad {
			if wrong, remedy := tt.key.Check(v); wrong == "" || remedy == "" {
				t.Errorf("%s: %v is accepted", tt.key.Name, v)
			}
		}
	}
}
