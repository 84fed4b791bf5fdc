package config

import (
	"fmt"
	"reflect"
)

// Differences returns the keys whose values differ between two values of a type of this package, by
// their paths as errors name them: uplink.mtu, attach[1].cid. A list of another length is one
// difference.
func Differences[T any](was, is *T) []string {
	var list []string
	differences(reflect.ValueOf(was).Elem(), reflect.ValueOf(is).Elem(), "", &list)
	return list
}

func differences(was, is reflect.Value, path string, list *[]string) {
	switch {
	case reflect.DeepEqual(was.Interface(), is.Interface()):
	case was.Kind() == reflect.Pointer && !was.IsNil() && !is.IsNil():
		differences(was.Elem(), is.Elem(), path, list)
	case was.Kind() == reflect.Slice && was.Len() == is.Len():
		for i := range was.Len() {
			differences(was.Index(i), is.Index(i), fmt.Sprintf("%s[%d]", path, i), list)
		}
	case was.Kind() == reflect.Struct && was.NumField() > 0 && was.Type().PkgPath() == reflect.TypeFor[Config]().PkgPath():
		for i := range was.NumField() {
			f, at := was.Type().Field(i), path
			if key := f.Tag.Get("yaml"); !f.Anonymous {
				if at != "" {
					at += "."
				}
				at += key
			}
			differences(was.Field(i), is.Field(i), at, list)
		}
	default:
		*list = append(*list, path)
	}
}
