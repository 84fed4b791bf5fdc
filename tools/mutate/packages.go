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
)

// generated is the line of https://go.dev/s/generatedcode.
var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

type goPackage struct {
	ImportPath   string
	Dir          string
	GoFiles      []string
	TestGoFiles  []string
	XTestGoFiles []string
}

// list asks the go command for the packages of the patterns that have tests of their own: who has
// none is held by the tests of others, which is another question.
func list(ctx context.Context, root string, patterns []string) ([]goPackage, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-json=ImportPath,Dir,GoFiles,TestGoFiles,XTestGoFiles"}, patterns...)...)
	cmd.Dir = root
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var pkgs []goPackage
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		if len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 {
			pkgs = append(pkgs, p)
		}
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
			s, err := sites(p.ImportPath, path, src)
			if err != nil {
				return nil, err
			}
			all = append(all, s...)
		}
	}
	return all, nil
}
