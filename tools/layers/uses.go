package main

import (
	"go/ast"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

// A shape is what of a package is measured.
type shape struct {
	path    string
	files   []string // names, sorted
	uses    []use
	methods map[string]int // by type
}

// A use is a name that one file takes from another; both by their places in shape.files.
type use struct {
	from, to int
	name     string
}

// load reads packages with their types.
func load(root string, patterns []string) ([]*shape, error) {
	pkgs, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesInfo | packages.NeedImports | packages.NeedDeps,
		Dir:  root,
	}, patterns...)
	if err != nil {
		return nil, err
	}
	var list []*shape
	for _, p := range pkgs {
		if len(p.Errors) > 0 {
			return nil, p.Errors[0]
		}
		list = append(list, shapeOf(p.PkgPath, p.Fset, p.Syntax, p.Types, p.TypesInfo))
	}
	return list, nil
}

// shapeOf measures a package that was read.
func shapeOf(path string, fset *token.FileSet, syntax []*ast.File, pkg *types.Package, info *types.Info) *shape {
	s := &shape{path: path, methods: map[string]int{}}
	name := func(at token.Pos) string { return filepath.Base(fset.Position(at).Filename) }
	for _, f := range syntax {
		s.files = append(s.files, name(f.Package))
	}
	slices.Sort(s.files)
	index := func(at token.Pos) int { i, _ := slices.BinarySearch(s.files, name(at)); return i }
	seen := map[use]bool{}
	for id, o := range info.Uses {
		if o = origin(o); o.Pkg() != pkg || !shared(o) {
			continue
		}
		u := use{index(id.Pos()), index(o.Pos()), described(o)}
		if u.from != u.to && !seen[u] {
			seen[u] = true
			s.uses = append(s.uses, u)
		}
	}
	slices.SortFunc(s.uses, func(a, b use) int {
		if a.from != b.from {
			return a.from - b.from
		}
		if a.to != b.to {
			return a.to - b.to
		}
		return strings.Compare(a.name, b.name)
	})
	for _, n := range pkg.Scope().Names() {
		if t, ok := pkg.Scope().Lookup(n).(*types.TypeName); ok && !t.IsAlias() {
			if named, ok := t.Type().(*types.Named); ok {
				s.methods[n] = named.NumMethods()
			}
		}
	}
	return s
}

// origin is what a method of an instantiated type was declared as.
func origin(o types.Object) types.Object {
	if f, ok := o.(*types.Func); ok {
		return f.Origin()
	}
	return o
}

// shared reports whether an object is one that the whole package can name: not a field, nor local.
func shared(o types.Object) bool {
	if f, ok := o.(*types.Func); ok {
		return o.Parent() == o.Pkg().Scope() || f.Signature().Recv() != nil
	}
	return o.Parent() == o.Pkg().Scope()
}

// described names an object, a method with its type.
func described(o types.Object) string {
	f, ok := o.(*types.Func)
	if !ok || f.Signature().Recv() == nil {
		return o.Name()
	}
	t := f.Signature().Recv().Type()
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	if n, ok := t.(*types.Named); ok {
		return n.Obj().Name() + "." + o.Name()
	}
	return o.Name() // of an interface without a name
}
