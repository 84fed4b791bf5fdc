package counters

import (
	"maps"
	"strings"

	"github.com/falcon-vnic/vnic/device/control"
)

// Counter describes a counter or a family of them.
type Counter struct {
	Name  string // of `vnic show counters`: room and what
	Help  string
	Gauge bool // goes down too
}

// read is a counter with how it is read from a room's T.
type read[T any] struct {
	Counter
	of func(T) uint64
}

type table[T any] []read[T]

// known is every counter that has a line in a table. Tables are read before the program runs.
var known = map[string]Counter{}

func counter[T any](name, help string, of func(T) uint64) read[T] {
	known[name] = Counter{Name: name, Help: help}
	return read[T]{known[name], of}
}

func gauge[T any](name, help string, of func(T) uint64) read[T] {
	known[name] = Counter{Name: name, Help: help, Gauge: true}
	return read[T]{known[name], of}
}

// Add reads the counters of a room.
func (t table[T]) Add(to control.Counters, from T) {
	for i := range t {
		to[t[i].Name] = t[i].of(from)
	}
}

// All are the counters that have a line in a table, by name.
func All() map[string]Counter { return maps.Clone(known) }

// Of describes a counter of `vnic show counters`. One without a line in a table has no help.
func Of(name string) Counter {
	if c, ok := known[name]; ok {
		return c
	}
	return Counter{Name: name}
}

// Name makes a counter's name of a description.
func Name(s string) string {
	return strings.NewReplacer(" ", "_", "-", "_").Replace(strings.ToLower(s))
}
