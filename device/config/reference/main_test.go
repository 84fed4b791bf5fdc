package main

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
)

// TestReferenceIsUpToDate: docs/configuration.md is what the types and tables say.
func TestReferenceIsUpToDate(t *testing.T) {
	want, err := reference()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/configuration.md is not what make generate writes")
	}
}

// TestEachKeyHasAMeaning: no key of the file, and no group of keys, is without a meaning.
func TestEachKeyHasAMeaning(t *testing.T) {
	seen := map[reflect.Type]bool{}
	var check func(typ reflect.Type, path string)
	check = func(typ reflect.Type, path string) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if !isGroup(typ) || seen[typ] {
			return
		}
		seen[typ] = true
		for i := range typ.NumField() {
			f := typ.Field(i)
			key := f.Tag.Get("yaml")
			if key != "" && f.Tag.Get("doc") == "" && !strings.HasSuffix(path, "falcon.cc") {
				t.Errorf("%s has no meaning", join(path, key))
			}
			check(f.Type, join(path, key))
		}
	}
	check(reflect.TypeFor[config.Config](), "")
}
