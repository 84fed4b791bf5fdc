package falcon_test

import (
	"bufio"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestCasesAreDescribed: the number in the name of a test is a case of docs/cases.md.
func TestCasesAreDescribed(t *testing.T) {
	page, err := os.ReadFile("../docs/cases.md")
	if err != nil {
		t.Fatal(err)
	}
	described := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\* \*\*(\d+)\.\*\* `).FindAllSubmatch(page, -1) {
		described[string(m[1])] = true
	}
	name := regexp.MustCompile(`^func TestCase(\d+(?:_\d+)*)`)
	err = filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			if m := name.FindStringSubmatch(s.Text()); m != nil {
				for _, n := range strings.Split(m[1], "_") {
					n = strings.TrimLeft(n, "0")
					if !described[n] {
						t.Errorf("%s: %s is no case of docs/cases.md", path, m[0])
					}
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
