package cc

import (
	"reflect"
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
					to = !k.Form.(bool)
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

// TestLargestWindow: a window that the state's fixed point does not hold is refused.
func TestLargestWindow(t *testing.T) {
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

// TestTimesAreBounded: a time below zero, or one that does not fit in 24 bits of Falcon units, is
// refused, and what is said names the longest, which is taken.
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
