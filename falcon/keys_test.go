package falcon

import (
	"reflect"
	"testing"
	"time"
)

// leaves returns the values of a struct's fields by their paths, those of structs in it too.
func leaves(v reflect.Value, path string, all map[string]any) map[string]any {
	for i := range v.NumField() {
		at := path + "." + v.Type().Field(i).Name
		if f := v.Field(i); f.Kind() == reflect.Struct {
			leaves(f, at, all)
		} else {
			all[at] = f.Interface()
		}
	}
	return all
}

// TestEachParameterHasAKey: each key stores in a parameter of its own, and each parameter of a
// profile but the congestion control has a key; what it shows as its value is what was stored.
func TestEachParameterHasAKey(t *testing.T) {
	levels := make([]uint32, OccupancyLevels)
	for i := range levels {
		levels[i] = uint32(10 * i)
	}
	for _, p := range []Profile{Software(), Hardware()} {
		changed := map[string]string{".Name": "", ".CC": ""}
		for _, k := range p.Keys() {
			var to any
			switch now := k.Value().(type) {
			case bool:
				to = !now
			case string:
				to = "last"
			case float64:
				to = now / 2
			case time.Duration:
				to = now/2 + 7*time.Microsecond
			case []uint32:
				to = levels
			case int:
				to = now/2 + 3
			case uint8:
				to = now + 1
			case uint16:
				to = now + 1
			case uint32:
				to = 2 * now
			}
			if wrong, remedy := k.Check(to); wrong != "" {
				t.Errorf("%s: %s: %s; %s", p.Name, k.Name, wrong, remedy)
			}
			before := leaves(reflect.ValueOf(p), "", map[string]any{})
			k.Set(to)
			if got := k.Value(); !reflect.DeepEqual(got, to) {
				t.Errorf("%s: %s is %v after %v was set", p.Name, k.Name, got, to)
			}
			n := 0
			for at, v := range leaves(reflect.ValueOf(p), "", map[string]any{}) {
				if !reflect.DeepEqual(v, before[at]) {
					if other, twice := changed[at]; twice {
						t.Errorf("%s and %s set %s", other, k.Name, at)
					}
					changed[at] = k.Name
					n++
				}
			}
			if n != 1 || k.About == "" || k.Use == "" {
				t.Errorf("%s: %s sets %d parameters; it means %q, use %q", p.Name, k.Name, n, k.About, k.Use)
			}
		}
		for at := range leaves(reflect.ValueOf(p), "", map[string]any{}) {
			if _, ok := changed[at]; !ok {
				t.Errorf("%s: no key sets %s", p.Name, at)
			}
		}
	}
}

// TestValuesOfProfilesAreValid: the defaults are in the ranges of their keys.
func TestValuesOfProfilesAreValid(t *testing.T) {
	for _, p := range []Profile{Software(), Hardware()} {
		for _, k := range p.Keys() {
			if wrong, remedy := k.Check(k.Value()); wrong != "" {
				t.Errorf("%s: %s: %s; %s", p.Name, k.Name, wrong, remedy)
			}
		}
	}
}
