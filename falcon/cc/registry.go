package cc

import (
	"slices"
	"time"

	"github.com/falcon-vnic/vnic/internal/param"
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
	Keys() []param.Key
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

// falconTime makes a key for a time that is stored in Falcon units of 131.072 ns, rounded to the
// nearest.
func falconTime(name, about string, p *uint32, lo, hi time.Duration) param.Key {
	return param.Of(name, about, param.Text(lo)+" to "+param.Text(hi), func() time.Duration { return shortest(*p) }, func(v time.Duration) { *p = toUnits(v) }, param.InSpan(lo, hi))
}

func toUnits(v time.Duration) uint32 { return uint32((uint64(v)*1000 + FUPicos/2) / FUPicos) }

// shortest returns the roundest time that is stored as so many Falcon units.
func shortest(units uint32) time.Duration {
	at := time.Duration(uint64(units) * FUPicos / 1000)
	for unit := time.Second; unit > 1; unit /= 10 {
		if v := at.Round(unit); toUnits(v) == units {
			return v
		}
	}
	return at
}

// MaxTime is the longest time in congestion control: 24 bits of Falcon units.
const MaxTime = 2199 * time.Millisecond
