package tape

import (
	"encoding"
	"fmt"
	"math"
	"reflect"
)

// Values of any type that consists of numbers, texts, structs, pointers, slices and arrays are
// written field by field, in the order of their fields, for what is rare. Other encodings lose
// something of settings: JSON what is only read as text, gob the pointer to a zero.

// PutValue writes a value.
func (t *Tape) PutValue(v any) { t.put(reflect.ValueOf(v)) }

// Value reads into *v what was written of it.
func (t *Tape) Value(v any) { t.get(reflect.ValueOf(v).Elem()) }

var (
	marshals   = reflect.TypeFor[encoding.BinaryMarshaler]()
	unmarshals = reflect.TypeFor[encoding.BinaryUnmarshaler]()
)

// whole reports whether values of a type are written by the type itself, as addresses are.
func whole(is reflect.Type) bool {
	return is.Kind() == reflect.Struct && is.Implements(marshals) && reflect.PointerTo(is).Implements(unmarshals)
}

func (t *Tape) put(v reflect.Value) {
	if whole(v.Type()) {
		b, err := v.Interface().(encoding.BinaryMarshaler).MarshalBinary()
		if err != nil {
			panic(err)
		}
		t.PutBytes(b)
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		t.PutUint(bit(v.Bool()))
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		t.PutInt(v.Int())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		t.PutUint(v.Uint())
	case reflect.Float32, reflect.Float64:
		t.PutUint(math.Float64bits(v.Float()))
	case reflect.String:
		t.PutText(v.String())
	case reflect.Pointer:
		t.PutUint(bit(!v.IsNil()))
		if !v.IsNil() {
			t.put(v.Elem())
		}
	case reflect.Slice:
		n := 0 // nil
		if !v.IsNil() {
			n = v.Len() + 1
		}
		t.PutUint(uint64(n))
		t.list(v, t.put)
	case reflect.Array:
		t.list(v, t.put)
	case reflect.Struct:
		t.fields(v, t.put)
	default:
		panic(fmt.Sprintf("tape: no encoding of %s", v.Type()))
	}
}

func (t *Tape) get(v reflect.Value) {
	if whole(v.Type()) {
		if err := v.Addr().Interface().(encoding.BinaryUnmarshaler).UnmarshalBinary(t.Bytes()); err != nil {
			t.Differs("the recording has a value that is none: %v", err)
		}
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(t.Uint() != 0)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(t.Int())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(t.Uint())
	case reflect.Float32, reflect.Float64:
		v.SetFloat(math.Float64frombits(t.Uint()))
	case reflect.String:
		v.SetString(t.Text())
	case reflect.Pointer:
		if t.Uint() != 0 {
			v.Set(reflect.New(v.Type().Elem()))
			t.get(v.Elem())
		}
	case reflect.Slice:
		n := t.Uint()
		if n == 0 {
			return
		}
		if n-1 > uint64(t.Left()) {
			t.Differs("the recording has a list of %d values in %d bytes", n-1, t.Left())
		}
		v.Set(reflect.MakeSlice(v.Type(), int(n-1), int(n-1)))
		t.list(v, t.get)
	case reflect.Array:
		t.list(v, t.get)
	case reflect.Struct:
		t.fields(v, t.get)
	default:
		panic(fmt.Sprintf("tape: no encoding of %s", v.Type()))
	}
}

func (t *Tape) list(v reflect.Value, do func(reflect.Value)) {
	for i := range v.Len() {
		do(v.Index(i))
	}
}

func (t *Tape) fields(v reflect.Value, do func(reflect.Value)) {
	for i := range v.NumField() {
		if f := v.Type().Field(i); f.IsExported() {
			do(v.Field(i))
		} else if !v.Field(i).IsZero() {
			panic(fmt.Sprintf("tape: %s has the field %s, which nobody may read", v.Type(), f.Name))
		}
	}
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}
