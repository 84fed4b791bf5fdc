package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestClauses checks that each clause of the rules is defined once, and that
// every clause named in the rules or in Go code exists, and that each is named by
// a test that holds a side to it, or where the conformance kit says why none can.
func TestClauses(t *testing.T) {
	rules, err := os.ReadFile(filepath.Join(root, "docs/abi/index.md"))
	if err != nil {
		t.Fatal(err)
	}
	defined := map[string]bool{}
	for _, m := range regexp.MustCompile(`\*\*((?:DRV|DEV)-\d+)\*\*`).FindAllStringSubmatch(string(rules), -1) {
		if defined[m[1]] {
			t.Errorf("%s is defined twice", m[1])
		}
		defined[m[1]] = true
	}
	if len(defined) < 50 {
		t.Errorf("only %d clauses found", len(defined))
	}
	named := regexp.MustCompile(`\b(?:DRV|DEV)-\d{3,4}\b`)
	tested := map[string]bool{}
	reasons := filepath.Join(root, "guestlib/conform/unseen.go") // where it is said why drivers cannot be held to a clause
	check := func(path string, text []byte) {
		for _, id := range named.FindAllString(string(text), -1) {
			tested[id] = tested[id] || strings.HasSuffix(path, "_test.go") || path == reasons
			if !defined[id] {
				t.Errorf("%s names %s, which does not exist", path, id)
			}
		}
	}
	check("docs/abi/index.md", rules)
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2:
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".go":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		check(path, text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for id := range defined {
		if !tested[id] {
			t.Errorf("no test names %s", id)
		}
	}
}
