package main

import (
	"fmt"
	"strings"

	"github.com/falcon-vnic/vnic/queues/abi/schema"
)

// goReserved renders which bits of each structure have to be zero.
func goReserved(a *schema.ABI) ([]byte, error) {
	p := new(printer)
	p.head("")
	for _, s := range a.Structs() {
		if s.OffsetsOnly {
			continue
		}
		is := "false"
		if mask := string(a.Reserved(s)); strings.Trim(mask, "\x00") != "" {
			is = fmt.Sprintf("anySet(b, %s)", hexString(mask))
		}
		for i := range s.Fields {
			f := &s.Fields[i]
			if f.Where.Field == "" {
				continue
			}
			of := s.Field(f.Where.Field)
			is += fmt.Sprintf(" || b[%d] != 0 && %s(b[%d]) != %s%s", f.Offset, of.Enum, of.Offset, a.Enum(of.Enum).Prefix, f.Where.Value)
		}
		arg := "b"
		if is == "false" {
			arg = ""
		}
		p.f("// Reserved reports whether something is in the reserved bytes or bits of b[:%sSize].\n", s.Name)
		p.f("func (*%s) Reserved(%s []byte) bool { return %s }\n\n", s.Name, arg, is)
	}
	return p.goSource()
}

// hexString writes bytes as a Go string of hexadecimal escapes.
func hexString(s string) string {
	var b strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&b, "\\x%02x", s[i])
	}
	return `"` + b.String() + `"`
}
