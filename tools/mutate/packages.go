package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// generated is the line of https://go.dev/s/generatedcode.
var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

type goPackage struct {
	ImportPath   string
	Name         string
	Dir          string
	Export       string // the file for its importers, if asked for
	Module       struct{ Path string }
	GoFiles      []string
	TestGoFiles  []string
	XTestGoFiles []string
	Imports      []string
	TestImports  []string
	XTestImports []string

	testers []tester // whose tests hold it, its own first
}

// A tester is a package with tests, and the packages that they hold.
type tester struct {
	pkg, dir  string
	holds     []string // import paths
	holdsDirs []string
}

// list asks the go command for the packages of the patterns that tests of their own room hold.
func list(ctx context.Context, root string, patterns []string) ([]goPackage, error) {
	asked, err := goList(ctx, root, patterns)
	if err != nil {
		return nil, err
	}
	all, err := goList(ctx, root, []string{"./..."})
	if err != nil {
		return nil, err
	}
	var held []goPackage
	shipped := programs(all)
	for _, p := range asked {
		if len(shipped) > 0 && !shipped[p.ImportPath] {
			continue // what helps tests fails only when they do
		}
		if p.testers = testersOf(&p, all); len(p.testers) > 0 {
			held = append(held, p)
		}
	}
	paths, dirs := map[string][]string{}, map[string][]string{}
	for _, p := range held {
		for _, t := range p.testers {
			paths[t.pkg], dirs[t.pkg] = append(paths[t.pkg], p.ImportPath), append(dirs[t.pkg], p.Dir)
		}
	}
	for _, p := range held {
		for i := range p.testers {
			t := &p.testers[i]
			t.holds, t.holdsDirs = paths[t.pkg], dirs[t.pkg]
		}
	}
	return held, nil
}

// programs lists the packages that a program of the module is made of.
func programs(all []goPackage) map[string]bool {
	known, in := map[string]*goPackage{}, map[string]bool{}
	for i := range all {
		known[all[i].ImportPath] = &all[i]
	}
	var add func(*goPackage)
	add = func(p *goPackage) {
		if p == nil || in[p.ImportPath] {
			return
		}
		in[p.ImportPath] = true
		for _, i := range p.Imports {
			add(known[i])
		}
	}
	for i := range all {
		if all[i].Name == "main" {
			add(&all[i])
		}
	}
	return in
}

// testersOf returns whose tests hold a package: its own, then those of packages that use it and
// are of the same room, the top-level folder. A room's tests stand where its parts meet; what only
// another room would notice, this one does not test.
func testersOf(p *goPackage, all []goPackage) (list []tester) {
	for i := range all {
		q := &all[i]
		if len(q.TestGoFiles)+len(q.XTestGoFiles) == 0 {
			continue
		}
		t := tester{pkg: q.ImportPath, dir: q.Dir}
		switch {
		case q.ImportPath == p.ImportPath:
			list = slices.Insert(list, 0, t)
		case q.room() == p.room() && (slices.Contains(q.Imports, p.ImportPath) || slices.Contains(q.TestImports, p.ImportPath) || slices.Contains(q.XTestImports, p.ImportPath)):
			list = append(list, t)
		}
	}
	return list
}

// room is the top-level folder of a package; "" is the module's root.
func (p *goPackage) room() string {
	rel := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, p.Module.Path), "/")
	room, _, _ := strings.Cut(rel, "/")
	return room
}

func goList(ctx context.Context, root string, patterns []string) (pkgs []goPackage, err error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-json=ImportPath,Name,Dir,Export,Module,GoFiles,TestGoFiles,XTestGoFiles,Imports,TestImports,XTestImports"}, patterns...)...)
	cmd.Dir = root
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		pkgs = append(pkgs, p)
	}
}

// findAll finds the sites of all packages, generated files left out.
func findAll(pkgs []goPackage) ([]site, error) {
	var all []site
	for _, p := range pkgs {
		for _, name := range p.GoFiles {
			path := filepath.Join(p.Dir, name)
			src, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			if generated.Match(src) {
				continue
			}
			s, err := sites(path, src)
			if err != nil {
				return nil, err
			}
			for i := range s {
				s[i].pkg, s[i].testers = p.ImportPath, p.testers
			}
			all = append(all, s...)
		}
	}
	return all, nil
}
