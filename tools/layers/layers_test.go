package main

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"slices"
	"strings"
	"testing"
)

// shapeFrom measures a package given as text, file by file.
func shapeFrom(t *testing.T, files map[string]string) *shape {
	t.Helper()
	fset := token.NewFileSet()
	var syntax []*ast.File
	for name, text := range files {
		f, err := parser.ParseFile(fset, name, "package p\n"+text, 0)
		if err != nil {
			t.Fatal(err)
		}
		syntax = append(syntax, f)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	pkg, err := (&types.Config{Importer: importer.Default()}).Check("p", fset, syntax, info)
	if err != nil {
		t.Fatal(err)
	}
	return shapeOf("p", fset, syntax, pkg, info)
}

func TestUses(t *testing.T) {
	s := shapeFrom(t, map[string]string{
		"a.go": `type T struct { field int }
			func (t *T) Do() { t.field++; help(); help() }
			type Door interface { Open() }
			type Of[E any] struct { e E }
			func (o *Of[E]) Get() E { return o.e }`,
		"b.go": `func help() { local := 1; _ = local }
			func (t *T) More() {}`,
		"c.go": `func top(t *T, d Door) { t.Do(); t.More(); t.field = 2; d.Open(); new(Of[int]).Get() }`,
	})
	var got []string
	for _, u := range s.uses {
		got = append(got, s.files[u.from]+" "+u.name+" "+s.files[u.to])
	}
	want := []string{
		"a.go help b.go", "b.go T a.go",
		"c.go Door a.go", "c.go Door.Open a.go", "c.go Of a.go", "c.go Of.Get a.go", "c.go T a.go", "c.go T.Do a.go", "c.go T.More b.go",
	}
	if !slices.Equal(got, want) {
		t.Errorf("uses\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if s.methods["T"] != 2 || s.methods["Of"] != 1 {
		t.Errorf("methods %v", s.methods)
	}
	o := s.order()
	if up := s.upwards(o); len(up) != 1 || s.files[o[2]] != "c.go" {
		t.Errorf("order %v: up %v", o, up)
	}
}

// TestOrder has rings of files of every length: one use of each must run upwards, and no more.
func TestOrder(t *testing.T) {
	for _, n := range []int{2, 3, 5, 11, 30, 60} { // none has the factor 7
		s := &shape{files: make([]string, n)}
		for i := range n {
			s.uses = append(s.uses, use{i * 7 % n, (i + 1) * 7 % n, "x"})
		}
		if up := s.upwards(s.order()); len(up) != 1 {
			t.Errorf("%d files: %d uses run upwards", n, len(up))
		}
	}
}

func TestReport(t *testing.T) {
	methods := "type T struct{}\n"
	for i := range maxMethods {
		methods += "func (T) M" + strings.Repeat("x", i) + "() {}\n"
	}
	for name, c := range map[string]struct {
		files map[string]string
		want  string
		fit   bool
	}{
		"downwards": {map[string]string{"a.go": "func a() {}", "b.go": "func b() { a() }"}, "", true},
		"a ring":    {map[string]string{"a.go": "func a() { b() }", "b.go": "func b() { a() }"}, "1 of 2 uses run upwards", false},
		"forty":     {map[string]string{"a.go": methods}, "", true},
		"one more":  {map[string]string{"a.go": methods + "func (*T) N() {}"}, "T has 41 methods", false},
	} {
		var out strings.Builder
		if fit := shapeFrom(t, c.files).report(&out, false); fit != c.fit || !strings.Contains(out.String(), c.want) || c.fit && out.Len() > 0 {
			t.Errorf("%s: %t\n%s", name, fit, out.String())
		}
	}
}

// TestFiles: a package that assembles has a limit of files.
func TestFiles(t *testing.T) {
	for path, most := range maxFiles {
		files := map[string]string{}
		for i := range most + 1 {
			s := shapeFrom(t, files)
			s.path = path
			if !s.report(io.Discard, false) {
				t.Errorf("%s: %d files are too many", path, i)
			}
			files[fmt.Sprintf("f%d.go", i)] = ""
		}
		s := shapeFrom(t, files)
		s.path = path
		if s.report(io.Discard, false) {
			t.Errorf("%s: %d files are allowed", path, most+1)
		}
	}
}
