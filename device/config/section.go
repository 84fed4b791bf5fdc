package config

import (
	"fmt"
	"reflect"
)

// Decode reads YAML into the struct that v points to by its yaml tags, as strictly as Parse reads a
// configuration: it reports every problem with its path. It is for other files that contain
// sections of a configuration. If the file can be read, check adds what is wrong with its values;
// nil: nothing is checked.
func Decode(b []byte, v any, check func(add func(path, what, remedy string))) error {
	r := &report{lines: map[string]int{}, zeros: map[string]bool{}}
	if len(b) > maxFileSize {
		r.add("", fmt.Sprintf("the file is larger than %d bytes", maxFileSize), "give a smaller file")
		return r.problems
	}
	root, problem := parseNodes(b)
	if problem != nil {
		problem.Remedy = "" // the remedy is about a NIC's file
		return Problems{*problem}
	}
	if root != nil {
		d := decoder{report: r}
		d.value(root, "", reflect.ValueOf(v).Elem())
	}
	if check != nil && len(r.problems) == 0 {
		check(r.add)
	}
	return r.sorted()
}

// Check reports every value of the section that is out of range.
func (f *Falcon) Check() error {
	r := &report{}
	f.check(r)
	return r.sorted()
}
