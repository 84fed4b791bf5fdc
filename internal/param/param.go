package param

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Key is one parameter. Make it with one of the functions below.
type Key struct {
	Name       string // in the configuration; group.name in a group of keys
	About      string // what it means, in a phrase
	Use        string // the valid values, for display: "0 to 1"; empty: all of Form
	Form       any    // a value of the configured type
	NotAbove   string // another key; if both are given, this one may not be above it
	Simulation bool   // only simulations need it

	get   func() any
	set   func(any)
	check func(any) (wrong, remedy string)
}

// Set stores a value of the type of Form.
func (k *Key) Set(v any) { k.set(v) }

// Value returns the value that is stored, as it is configured.
func (k *Key) Value() any { return k.get() }

// Check returns what is wrong with a value and the remedy, empty strings if it is valid.
func (k *Key) Check(v any) (wrong, remedy string) { return k.check(v) }

// NoMoreThan limits k to at most the value of another key.
func (k Key) NoMoreThan(other string) Key {
	k.NotAbove = other
	return k
}

// ForSimulation marks a key that only simulations need.
func (k Key) ForSimulation() Key {
	k.Simulation = true
	return k
}

// Of makes a key for a value of any type. check returns what is wrong with a value and the remedy;
// nil: every value is valid.
func Of[T any](name, about, use string, get func() T, set func(T), check func(T) (wrong, remedy string)) Key {
	var form T
	return Key{
		Name: name, About: about, Use: use, Form: form,
		get: func() any { return get() },
		set: func(v any) { set(v.(T)) },
		check: func(v any) (string, string) {
			if check == nil {
				return "", ""
			}
			return check(v.(T))
		},
	}
}

func stored[T any](name, about, use string, p *T, check func(T) (wrong, remedy string)) Key {
	return Of(name, about, use, func() T { return *p }, func(v T) { *p = v }, check)
}

type numeric interface {
	float64 | int | uint8 | uint16 | uint32
}

// Number makes a key for a number from lo to hi.
func Number[T numeric](name, about string, p *T, lo, hi T) Key {
	use := fmt.Sprintf("%v to %v", lo, hi)
	return stored(name, about, use, p, func(v T) (string, string) { return inRange(v, use, v >= lo && v <= hi) })
}

// PowerOfTwo makes a key for a power of two from 1 to hi.
func PowerOfTwo(name, about string, p *uint32, hi uint32) Key {
	use := fmt.Sprintf("a power of two, 1 to %d", hi)
	return stored(name, about, use, p, func(v uint32) (string, string) { return inRange(v, use, v > 0 && v <= hi && v&(v-1) == 0) })
}

// Flag makes a key for true or false.
func Flag(name, about string, p *bool) Key { return stored(name, about, "true or false", p, nil) }

// Time makes a key for a time that is stored in nanoseconds.
func Time(name, about string, p *int64, lo, hi time.Duration) Key {
	return Of(name, about, span(lo, hi), func() time.Duration { return time.Duration(*p) }, func(v time.Duration) { *p = int64(v) }, InSpan(lo, hi))
}

// InSpan returns a check for times from lo to hi.
func InSpan(lo, hi time.Duration) func(time.Duration) (wrong, remedy string) {
	return func(v time.Duration) (string, string) { return inRange(v, span(lo, hi), v >= lo && v <= hi) }
}

// Text formats a time as short as it can be written: 1m, not 1m0s.
func Text(d time.Duration) string {
	s := d.String()
	for _, zero := range []string{"0s", "0m"} {
		if t, ok := strings.CutSuffix(s, zero); ok && strings.ContainsAny(t, "mh") && strings.ContainsRune("mh", rune(t[len(t)-1])) {
			s = t
		}
	}
	return s
}

func span(lo, hi time.Duration) string { return Text(lo) + " to " + Text(hi) }

func inRange(v any, use string, ok bool) (wrong, remedy string) {
	if ok {
		return "", ""
	}
	return fmt.Sprintf("%v is out of range", v), "use " + use
}

// Choice makes a key for one of some words, whose values count from 0.
func Choice[T ~uint8](name, about string, p *T, words ...string) Key {
	return Of(
		name, about, strings.Join(words, ", "),
		func() string { return words[*p] },
		func(v string) { *p = T(slices.Index(words, v)) },
		func(v string) (string, string) {
			if !slices.Contains(words, v) {
				return fmt.Sprintf("%q is not known", v), "write one of " + strings.Join(words, ", ")
			}
			return "", ""
		},
	)
}
