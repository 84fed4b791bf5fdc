package main

import (
	"context"
	"crypto/sha256"
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// recall takes what an earlier run has measured of the same sources, and measures what is missing:
// all, what an interrupt has left, or tests that had failed.
func (r *reach) recall(ctx context.Context, t tester, p *packageReach) error {
	name, err := r.nameOf(t)
	if err != nil {
		return err
	}
	if f, err := os.Open(name); err == nil {
		if gob.NewDecoder(f).Decode(&p.reached) != nil {
			p.reached = reached{}
		}
		f.Close()
	}
	if p.Complete {
		return nil
	}
	err = r.measure(ctx, t, p)
	return errors.Join(err, r.keep(name, &p.reached))
}

func (r *reach) keep(name string, what *reached) error {
	if err := os.MkdirAll(r.kept, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(r.kept, "new")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := gob.NewEncoder(f).Encode(what); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

// nameOf is the file for what is measured of a package's tests: it tells apart their sources, and
// those of the packages that they hold.
func (r *reach) nameOf(t tester) (string, error) {
	sum := sha256.New()
	for _, dir := range append([]string{t.dir}, t.holdsDirs...) {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			return "", err
		}
		slices.Sort(files)
		for _, name := range files {
			if dir != t.dir && strings.HasSuffix(name, "_test.go") {
				continue
			}
			text, err := os.ReadFile(name)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(sum, "%s %d\n", filepath.Base(name), len(text))
			sum.Write(text)
		}
	}
	return filepath.Join(r.kept, fmt.Sprintf("%s-%x", path.Base(t.pkg), sum.Sum(nil)[:8])), nil
}
