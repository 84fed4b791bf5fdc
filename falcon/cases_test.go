package falcon_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestCaseNumbers: every numbered behaviour case of the transport has a test named after it here or in a package below,
// so that `go test ./falcon/... -list Case` is the list of what is held. Some tests carry several numbers. RACK and TLP
// (53 and 54) are optional and not built.
func TestCaseNumbers(t *testing.T) {
	span := func(lo, hi int) (out []int) {
		for n := lo; n <= hi; n++ {
			out = append(out, n)
		}
		return out
	}
	var want []int
	for _, s := range [][]int{
		span(1, 49),
		{51, 52},
		{55, 57, 58, 59},
		{61, 62},
		span(65, 70),
		{72, 73, 74, 76, 78},
		{79, 80},
		span(83, 87), span(89, 94),
		{102},
		span(107, 111),
	} {
		want = append(want, s...)
	}
	have := map[int]bool{}
	name := regexp.MustCompile(`func TestCase([0-9]+(?:_[0-9]+)*)_`)
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		src, err := os.ReadFile(path)
		for _, m := range name.FindAllStringSubmatch(string(src), -1) {
			for _, s := range strings.Split(m[1], "_") {
				n, _ := strconv.Atoi(s)
				have[n] = true
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range want {
		if !have[n] {
			t.Errorf("case %d has no test", n)
		}
	}
}
