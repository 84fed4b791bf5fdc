package cc

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Timing selects the defaults for the parameters of an algorithm.
type Timing uint8

// Timings, one for each timing profile of package falcon.
const (
	Hardware Timing = iota // a fabric of microseconds
	Software               // TAP devices: milliseconds under load
)

// Definition holds all that other files know of an algorithm. The algorithm's own file registers
// it.
type Definition struct {
	Name       string // in configurations (falcon.cc.algorithm) and for display
	About      string // what it does, in a phrase
	Parameters func(Timing) Parameters
}

// Parameters holds the parameters of one algorithm, with defaults until keys replace them.
type Parameters interface {
	Keys() []Key
	New() Algorithm
}

// Default is the algorithm that is used unless another one is named.
const Default = "swift"

var definitions = map[string]Definition{}

// register makes an algorithm known. The algorithm's file calls it where it declares the
// definition.
func register(d Definition) Definition {
	if _, twice := definitions[d.Name]; twice {
		panic("cc: algorithm " + d.Name + " is registered twice")
	}
	definitions[d.Name] = d
	return d
}

// Lookup returns the algorithm with that name.
func Lookup(name string) (Definition, bool) {
	d, ok := definitions[name]
	return d, ok
}

// Names returns the names of all algorithms, sorted.
func Names() []string {
	var names []string
	for n := range definitions {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Key is a configurable parameter. Make it with one of the functions below.
type Key struct {
	Name     string
	Form     any    // a value of the configured type: float64, uint32, uint8, bool, string or time.Duration
	NotAbove string // another key; if both are given, this one may not be above it
	Use      string // the valid values, for display: "0 to 1"; empty: all of Form

	set   func(any)
	check func(any) (wrong, remedy string)
}

// Set stores a value of the type of Form in the parameters.
func (k *Key) Set(v any) { k.set(v) }

// Check returns what is wrong with a value and the remedy, empty strings if it is valid.
func (k *Key) Check(v any) (wrong, remedy string) { return k.check(v) }

func number[T float64 | uint32 | uint8](name string, p *T, lo, hi T) Key {
	use := fmt.Sprintf("%v to %v", lo, hi)
	return Key{
		Name: name, Form: *p, Use: use, set: func(v any) { *p = v.(T) },
		check: func(v any) (string, string) {
			if n := v.(T); n < lo || n > hi {
				return fmt.Sprintf("%v is out of range", n), "use " + use
			}
			return "", ""
		},
	}
}

func flag(name string, p *bool) Key {
	return Key{Name: name, Form: *p, set: func(v any) { *p = v.(bool) }, check: anything}
}

// duration makes a key for a time that is stored in Falcon units of 131.072 ns, rounded to the
// nearest.
func duration(name string, p *uint32, lo, hi time.Duration) Key {
	return Key{
		Name: name, Form: time.Duration(0), set: func(v any) { *p = uint32((uint64(v.(time.Duration))*1000 + FUPicos/2) / FUPicos) },
		check: func(v any) (string, string) {
			if d := v.(time.Duration); d < lo || d > hi {
				return fmt.Sprintf("%s is out of range", d), fmt.Sprintf("use %s to %s", lo, hi)
			}
			return "", ""
		},
	}
}

// choice makes a key for one of some words, whose values count from 0.
func choice[T ~uint8](name string, p *T, words ...string) Key {
	return Key{
		Name: name, Form: "", set: func(v any) { *p = T(slices.Index(words, v.(string))) },
		check: func(v any) (string, string) {
			if !slices.Contains(words, v.(string)) {
				return fmt.Sprintf("%q is not known", v), "write one of " + strings.Join(words, ", ")
			}
			return "", ""
		},
	}
}

func anything(any) (wrong, remedy string) { return "", "" }

// notAbove limits k to at most the value of another key.
func (k Key) notAbove(other string) Key {
	k.NotAbove = other
	return k
}

// MaxTime is the longest time in congestion control: 24 bits of Falcon units.
const MaxTime = 2199 * time.Millisecond
