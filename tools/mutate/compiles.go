package main

import (
	"context"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

// A checker tells whether a change compiles: it checks the types of its package, which takes a
// hundredth of compiling it.
type checker struct {
	fset     *token.FileSet
	packages map[string]*checkedPackage // by import path
	imports  types.Importer
}

type checkedPackage struct {
	files []string // absolute paths
	trees map[string]*ast.File
}

func newChecker(ctx context.Context, root string, pkgs []goPackage) (*checker, error) {
	c := &checker{fset: token.NewFileSet(), packages: map[string]*checkedPackage{}}
	var paths []string
	for _, p := range pkgs {
		paths = append(paths, p.ImportPath)
		known := &checkedPackage{trees: map[string]*ast.File{}}
		for _, name := range p.GoFiles {
			known.files = append(known.files, filepath.Join(p.Dir, name))
		}
		c.packages[p.ImportPath] = known
	}
	if len(paths) == 0 {
		return c, nil
	}
	compiled, err := goList(ctx, root, append([]string{"-export", "-deps"}, paths...))
	if err != nil {
		return nil, err
	}
	exports := map[string]string{}
	for _, p := range compiled {
		exports[p.ImportPath] = p.Export
	}
	c.imports = importer.ForCompiler(c.fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	return c, nil
}

// firstCompiling returns the first n mutants that compile, and where each stood.
func (c *checker) firstCompiling(ctx context.Context, mutants []mutant, n int) (list []mutant, at []int, err error) {
	for i, m := range mutants {
		if len(list) == n {
			break
		}
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		ok, err := c.compiles(m)
		if err != nil {
			return nil, nil, err
		}
		if ok {
			list, at = append(list, m), append(at, i)
		}
	}
	return list, at, nil
}

func (c *checker) compiles(m mutant) (bool, error) {
	p := c.packages[m.pkg]
	var trees []*ast.File
	for _, name := range p.files {
		if name == m.file {
			src, err := os.ReadFile(name)
			if err != nil {
				return false, err
			}
			tree, err := parser.ParseFile(c.fset, name, m.apply(src), parser.SkipObjectResolution)
			if err != nil {
				return false, nil // it is not even Go
			}
			trees = append(trees, tree)
			continue
		}
		if p.trees[name] == nil {
			tree, err := parser.ParseFile(c.fset, name, nil, parser.SkipObjectResolution)
			if err != nil {
				return false, err
			}
			p.trees[name] = tree
		}
		trees = append(trees, p.trees[name])
	}
	config := types.Config{Importer: c.imports, Sizes: types.SizesFor("gc", runtime.GOARCH)}
	_, err := config.Check(m.pkg, c.fset, trees, nil)
	return err == nil, nil
}
