package cc

import (
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestEachParameterHasAKey: each key stores in a field of its own, and each field has a key.
func TestEachParameterHasAKey(t *testing.T) {
	other := map[reflect.Type]any{
		reflect.TypeFor[float64](): 0.3, reflect.TypeFor[uint32](): uint32(77), reflect.TypeFor[uint8](): uint8(9),
		reflect.TypeFor[time.Duration](): 1234 * time.Microsecond,
	}
	for _, name := range Names() {
		d, ok := Lookup(name)
		if !ok || d.About == "" {
			t.Fatalf("%s: %+v, %v", name, d, ok)
		}
		for _, timing := range []Timing{Hardware, Software} {
			p := d.Parameters(timing)
			v := reflect.ValueOf(p).Elem()
			changed := map[int]string{}
			for _, k := range p.Keys() {
				before := reflect.New(v.Type()).Elem()
				before.Set(v)
				to := other[reflect.TypeOf(k.Form)]
				switch k.Form.(type) {
				case string:
					to = "reverse"
				case bool:
					to = !k.Value().(bool)
				}
				if k.Name == "rto_scalar" {
					to = 7.0
				}
				if wrong, remedy := k.Check(to); wrong != "" {
					t.Errorf("%s.%s: %v: %s; %s", name, k.Name, to, wrong, remedy)
				}
				k.Set(to)
				for i := range v.NumField() {
					if !v.Field(i).Equal(before.Field(i)) {
						if changed[i] != "" {
							t.Errorf("%s: %s and %s set %s", name, changed[i], k.Name, v.Type().Field(i).Name)
						}
						changed[i] = k.Name
					}
				}
			}
			if len(changed) != v.NumField() {
				t.Errorf("%s: keys set %d of %d parameters", name, len(changed), v.NumField())
			}
			var s State
			p.New().Init(&s)
			if s.Fcwnd == 0 || s.Ncwnd == 0 || s.RTO == 0 {
				t.Errorf("%s begins with %+v", name, s)
			}
		}
	}
	if _, ok := Lookup(Default); !ok {
		t.Error("the default is not known")
	}
}

// TestAWindowTooLargeForItsFieldIsRefused: a window that the state's fixed point does not hold is refused.
func TestAWindowTooLargeForItsFieldIsRefused(t *testing.T) {
	d, _ := Lookup(Default)
	for _, k := range d.Parameters(Software).Keys() {
		if k.Name != "initial_fcwnd" && k.Name != "max_fcwnd" {
			continue
		}
		most := float64(MaxFcwnd) / One
		if wrong, _ := k.Check(most); wrong != "" {
			t.Errorf("%s: %v: %s", k.Name, most, wrong)
		}
		if wrong, _ := k.Check(most + 1); wrong == "" {
			t.Errorf("%s: %v is taken", k.Name, most+1)
		}
		if got := fromFixed(toFixed(most)); got != most {
			t.Errorf("%v is kept as %v", most, got)
		}
	}
}

// TestTimesAreKept: a time is kept in Falcon units of 131.072 ns, the nearest.
func TestTimesAreKept(t *testing.T) {
	for d, want := range map[time.Duration]uint32{
		0: 0, 65: 0, 66: 1, 196: 1, 197: 2, time.Millisecond: 7629, 10 * time.Millisecond: 76294, MaxTime: 16777039,
	} {
		var got uint32
		k := falconTime("rto", "", &got, 0, MaxTime)
		if k.Set(d); got != want {
			t.Errorf("%s is kept as %d, want %d", d, got, want)
		}
	}
}

// TestBoundsMayBeUsed: the bounds that a refusal names are accepted, from the least to the
// greatest.
func TestBoundsMayBeUsed(t *testing.T) {
	parse := func(form any, s string) (v any, err error) {
		switch form.(type) {
		case time.Duration:
			return time.ParseDuration(s)
		case float64:
			return strconv.ParseFloat(s, 64)
		case uint32:
			n, err := strconv.ParseUint(s, 10, 32)
			return uint32(n), err
		}
		n, err := strconv.ParseUint(s, 10, 8)
		return uint8(n), err
	}
	for _, name := range Names() {
		d, _ := Lookup(name)
		for _, k := range d.Parameters(Software).Keys() {
			for _, bad := range []any{-1.0, 1e9, uint32(0), ^uint32(0), uint8(255), -time.Second, time.Hour} {
				if reflect.TypeOf(bad) != reflect.TypeOf(k.Form) {
					continue
				}
				wrong, remedy := k.Check(bad)
				if wrong == "" {
					continue // it is allowed
				}
				lo, hi, _ := strings.Cut(strings.TrimPrefix(remedy, "use "), " to ")
				for _, bound := range []string{lo, hi} {
					v, err := parse(k.Form, bound)
					if err != nil {
						t.Fatalf("%s.%s: %q: %v", name, k.Name, remedy, err)
					}
					if wrong, _ := k.Check(v); wrong != "" {
						t.Errorf("%s.%s: %q, but %s", name, k.Name, remedy, wrong)
					}
				}
			}
		}
	}
}

// TestTimesAreBounded: a time below zero, or one that does not fit in 24 bits of Falcon units, is
// refused. The message names the longest time, which is accepted.
func TestTimesAreBounded(t *testing.T) {
	for _, name := range Names() {
		d, _ := Lookup(name)
		for _, k := range d.Parameters(Software).Keys() {
			if _, ok := k.Form.(time.Duration); !ok {
				continue
			}
			for _, bad := range []time.Duration{-1, MaxTime + 1} {
				if wrong, remedy := k.Check(bad); !strings.Contains(wrong, bad.String()) || !strings.Contains(remedy, MaxTime.String()) {
					t.Errorf("%s.%s: %s: %q; %q", name, k.Name, bad, wrong, remedy)
				}
			}
			if wrong, _ := k.Check(MaxTime); wrong != "" {
				t.Errorf("%s.%s: %s", name, k.Name, wrong)
			}
		}
	}
}
