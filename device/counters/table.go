package counters

import (
	"maps"
	"strings"

	"github.com/falcon-vnic/vnic/device/control"
)

// Counter describes a counter or a family of them.
type Counter struct {
	Name  string // as in `vnic show counters`: package and counter
	Help  string
	Gauge bool // its value can also fall
}

// read is a counter and the function that reads it from a T.
type read[T any] struct {
	Counter
	of func(T) uint64
}

type table[T any] []read[T]

// known holds every counter that has a line in a table. It is filled when the program initialises.
var known = map[string]Counter{}

func counter[T any](name, help string, of func(T) uint64) read[T] {
	known[name] = Counter{Name: name, Help: help}
	return read[T]{known[name], of}
}

func gauge[T any](name, help string, of func(T) uint64) read[T] {
	known[name] = Counter{Name: name, Help: help, Gauge: true}
	return read[T]{known[name], of}
}

// Add reads the counters of one table.
func (t table[T]) Add(to control.Counters, from T) {
	for i := range t {
		to[t[i].Name] = t[i].of(from)
	}
}

// All returns the counters that have a line in a table, by name.
func All() map[string]Counter { return maps.Clone(known) }

// Of returns the description of a counter in `vnic show counters`. A counter without a line in a
// table has no help text.
func Of(name string) Counter {
	if c, ok := known[name]; ok {
		return c
	}
	return Counter{Name: name}
}

// Name converts a description to a counter's name.
func Name(s string) string {
	return strings.NewReplacer(" ", "_", "-", "_").Replace(strings.ToLower(s))
}
