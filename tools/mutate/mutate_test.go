package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "module example.com/m\n\ngo 1.26\n"

const code = `package m

// Within is held at both borders by the test.
func Within(n, low, high int) bool { return n >= low && n <= high }

// Half is not tested at all.
func Half(n int) int { return n / 2 }
`

const test = `package m

import "testing"

func TestWithin(t *testing.T) {
	for n, want := range map[int]bool{1: false, 2: true, 3: true, 4: true, 5: false} {
		if Within(n, 2, 4) != want {
			t.Fatal(n)
		}
	}
}
`

func project(t *testing.T, code, test string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": module, "m.go": code, "m_test.go": test} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func mutate(t *testing.T, root string, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := run(context.Background(), append([]string{"-root", root}, args...), &out, &out)
	return out.String(), err
}

func TestReportsWhatNoTestNotices(t *testing.T) {
	root := project(t, code, test)
	out, err := mutate(t, root, "-n", "100", "./...")
	if !errors.Is(err, errLeft) {
		t.Fatalf("err = %v, want %v\n%s", err, errLeft, out)
	}
	if !strings.Contains(out, "4 changes tried: 3 noticed, 1 not") || !strings.Contains(out, "m.go Half: n / 2: / -> *") {
		t.Fatalf("want the change in Half alone:\n%s", out)
	}
}

func TestUnreached(t *testing.T) {
	root := project(t, code, test)
	out, err := mutate(t, root, "-unreached", "./...")
	if err != nil || !strings.Contains(out, "  1 m.go Half: lines [") || !strings.HasSuffix(out, "1 of 4 operators are executed by no test\n") ||
		strings.Contains(out, "Within") {
		t.Errorf("%v, want the operator of Half alone\n%s", err, out)
	}
}

func TestOnly(t *testing.T) {
	root := project(t, code, test)
	if out, err := mutate(t, root, "-only", "Within", "./..."); err != nil || !strings.Contains(out, "5 changes tried: 5 noticed") {
		t.Errorf("%v, want every replacement of Within's three operators\n%s", err, out)
	}
	if out, err := mutate(t, root, "-only", "(", "./..."); err == nil || errors.Is(err, errLeft) {
		t.Errorf("err = %v, want the expression refused\n%s", err, out)
	}
}

func TestExplainedIsStillCounted(t *testing.T) {
	root := project(t, code, test)
	explained := "m.go Half: n / 2: / -> *\n\tNobody calls it.\n"
	if err := os.WriteFile(filepath.Join(root, "why.txt"), []byte(explained), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := mutate(t, root, "-n", "100", "-explained", "why.txt", "-share", "0.3", "./..."); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := mutate(t, root, "-n", "100", "-explained", "why.txt", "-share", "0.1", "./..."); !errors.Is(err, errLeft) {
		t.Fatalf("one of four is more than a tenth: %v\n%s", err, out)
	}
}

func TestReasonsAreAskedFor(t *testing.T) {
	root := project(t, code, test)
	for name, text := range map[string]string{"none": "m.go Half: n / 2: / -> *\n", "alone": "\tbecause\n"} {
		if err := os.WriteFile(filepath.Join(root, "why.txt"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := mutate(t, root, "-explained", "why.txt", "./..."); err == nil || errors.Is(err, errLeft) {
			t.Errorf("%s: err = %v, want the file refused\n%s", name, err, out)
		}
	}
}

// A test that fails anyway would notice everything: it is left out, said so, and the others count.
func TestTestsThatFailAnywayAreAnError(t *testing.T) {
	root := project(t, code, test+"\nfunc TestFails(t *testing.T) { Half(1); t.Fatal() }\n")
	out, err := mutate(t, root, "-n", "100", "./...")
	if err == nil || !strings.Contains(err.Error(), "without any change") || !strings.Contains(out, "left out: TestFails of") ||
		!strings.Contains(out, "4 changes tried: 3 noticed, 1 not") {
		t.Fatalf("err = %v\n%s", err, out)
	}
}

// A test may fail of the variants alone, without any being chosen: it is left out.
func TestTestsThatFailOfTheVariantsAreAnError(t *testing.T) {
	root := project(t, code, test+`
func TestFails(t *testing.T) {
	Half(1)
	if testing.CoverMode() == "" {
		panic("no coverage")
	}
}
`)
	out, err := mutate(t, root, "-n", "100", "./...")
	if err == nil || !strings.Contains(err.Error(), "without any change") || !strings.Contains(out, "left out: TestFails of") ||
		!strings.Contains(out, "4 changes tried: 3 noticed, 1 not") {
		t.Fatalf("err = %v\n%s", err, out)
	}
}

// Only tests that execute the changed statement are run; the condition of a case stands in no
// statement, and every test that executes its function is.
func TestOnlyTestsThatReachIt(t *testing.T) {
	root := project(t, `package m

func Size(n int) string {
	switch {
	case n < 10:
		return "small"
	default:
		return "large"
	}
}

func Half(n int) int { return n / 2 }
`, `package m

import (
	"os"
	"testing"
)

func note(text string) {
	f, err := os.OpenFile("../ran", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	f.WriteString(text)
}

func TestSize(t *testing.T) { note("size "); Size(9) }
func TestHalf(t *testing.T) { note("half "); if Half(4) != 2 { t.Fatal() } }
`)
	ran := filepath.Join(filepath.Dir(root), "ran")
	for _, c := range []struct{ only, want string }{
		// Each once for what it reaches, then what reaches the change, and without it since it
		// failed.
		{"Half", "size half half half "},
		{"Half", "half half "}, // what they reach is known
		{"Size: n < 10: < -> <=", "size "},
	} {
		os.Remove(ran)
		out, err := mutate(t, root, "-only", c.only, "./...")
		if err != nil && !errors.Is(err, errLeft) {
			t.Fatalf("%v\n%s", err, out)
		}
		if b, _ := os.ReadFile(ran); string(b) != c.want {
			t.Errorf("%s: ran %q, want %q", c.only, b, c.want)
		}
	}
}

func TestEndlessLoopIsNoticed(t *testing.T) {
	root := project(t, `package m

func Count(n int) (sum int) {
	for i := 0; i < n; i++ {
		sum = i
	}
	return sum
}
`, `package m

import "testing"

func TestCount(t *testing.T) {
	if Count(1) != 0 || Count(3) != 2 || Count(0) != 0 {
		t.Fatal()
	}
}
`)
	if out, err := mutate(t, root, "-n", "100", "-slack", "1s", "./..."); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestSeedDrawsTheSame(t *testing.T) {
	all, err := sites("m.go", []byte(code))
	if err != nil {
		t.Fatal(err)
	}
	order := func(seed uint64) string {
		var b strings.Builder
		for _, m := range draw(all, ".", seed) {
			b.WriteString(m.key(".") + "\n")
		}
		return b.String()
	}
	if order(3) != order(3) {
		t.Error("one seed drew two orders")
	}
	if order(3) == order(4) && order(3) == order(5) && order(3) == order(6) {
		t.Error("the seed changes nothing")
	}
}

// An edit elsewhere leaves the others drawn in the same order, with the same replacements.
func TestDrawOutlivesEdits(t *testing.T) {
	order := func(code string) (keys []string) {
		all, err := sites("m.go", []byte(code))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range draw(all, ".", 7) {
			if m.fn == "Within" {
				keys = append(keys, m.key("."))
			}
		}
		return keys
	}
	before := order(code)
	after := order(strings.Replace(code, "n / 2", "(n + 1) / 2", 1))
	if !slices.Equal(before, after) {
		t.Errorf("before %q, after %q", before, after)
	}
}

// Each replacement has to parse: a typo in the table would hide as "does not compile".
func TestReplacementsParse(t *testing.T) {
	src := []byte("package p\nfunc f(a, b int, ok bool) {\n" +
		"_ = a+b; _ = a-b; _ = a*b; _ = a/b; _ = a%b; _ = a&b; _ = a|b; _ = a^b; _ = a&^b; _ = a<<b; _ = a>>b\n" +
		"_ = ok&&ok; _ = ok||ok; _ = a==b; _ = a!=b; _ = a<b; _ = a<=b; _ = a>b; _ = a>=b; _ = !ok\n" +
		"a+=b; a-=b; a|=b; a&=b; a<<=b; a>>=b; a++; a--\n}\n")
	all, err := sites("p.go", src)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != len(replacements) {
		t.Errorf("%d operators found, %d in the table", len(all), len(replacements))
	}
	for _, s := range all {
		for _, r := range s.news {
			m := mutant{site: s, replace: r}
			if _, err := sites("p.go", m.apply(src)); err != nil {
				t.Errorf("%s: %v", m.key("."), err)
			}
		}
	}
}

// TestRoomNotices: what a package of the same folder tests counts, whatever another room tests does
// not.
func TestRoomNotices(t *testing.T) {
	const untested = `package parts

func Half(n int) int { return n / 2 }
`
	const asks = `package %s

import (
	"testing"

	"example.com/m/room/parts"
)

func TestHalf(t *testing.T) {
	if parts.Half(8) != 4 {
		t.Fail()
	}
}
`
	for _, c := range []struct {
		tests, want string
	}{
		{"room", "1 changes tried: 1 noticed"},
		{"other", "0 operators in 0 packages"},
	} {
		root := t.TempDir()
		files := map[string]string{
			"go.mod": module, "room/parts/p.go": untested, c.tests + "/x.go": "package " + c.tests, c.tests + "/x_test.go": fmt.Sprintf(asks, c.tests),
		}
		for name, text := range files {
			name = filepath.Join(root, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		out, err := mutate(t, root, "./room/parts")
		if err != nil || !strings.Contains(out, c.want) {
			t.Errorf("tests in %s: %v, want %q\n%s", c.tests, err, c.want, out)
		}
	}
}

// TestHelpersOfTestsStayOut: a package that no program is made of is not changed, if there is a
// program.
func TestHelpersOfTestsStayOut(t *testing.T) {
	all := []goPackage{
		{ImportPath: "m", Name: "main", Imports: []string{"fmt", "m/a"}},
		{ImportPath: "m/a", Name: "a", Imports: []string{"m/b"}},
		{ImportPath: "m/b", Name: "b", TestImports: []string{"m/help"}},
		{ImportPath: "m/help", Name: "help", Imports: []string{"m/b"}},
	}
	if got := programs(all); len(got) != 3 || got["m/help"] {
		t.Errorf("made of %v", got)
	}
	if got := programs(all[1:]); len(got) != 0 {
		t.Errorf("without a program: %v", got)
	}
}

// TestVariants: functions of every form run with the change that is chosen, and without the others.
func TestVariants(t *testing.T) {
	root := project(t, `package m

type pair[T any] struct{ a, b T }

func (pair[T]) size(int) int { return 1 + 1 }

func (p *pair[T]) Swap(_ bool, more ...T) (n int, err error) {
	if n := len(more); n == 2 {
		p.a, p.b = more[1], more[0]
	}
	n++
	return
}

func pick[K comparable, V any](of map[K]V, keys ...K) (sum int) {
outer:
	for k := range of {
		for _, other := range keys {
			if k == other {
				sum += 2
				continue outer
			}
		}
	}
	return sum
}

var total int

func add(n int) { total += n }

func survive() {
	if recover() != nil {
		total = 0
	}
}
`, `package m

import "testing"

func TestAll(t *testing.T) {
	p := pair[int]{1, 2}
	if n, err := p.Swap(true, 3, 4); n != 1 || err != nil || p.a != 4 || p.b != 3 {
		t.Error(n, err, p)
	}
	if p.size(0) != 2 {
		t.Error("size")
	}
	if n := pick(map[int]string{1: "", 2: ""}, 2, 3); n != 2 {
		t.Error(n)
	}
	if add(3); total != 3 {
		t.Error(total)
	}
	defer func() {
		if total != 0 {
			t.Error("not survived")
		}
	}()
	defer survive()
	panic("")
}
`)
	out, err := mutate(t, root, "-v", "-n", "100", "./...")
	if err != nil || !strings.Contains(out, "6 changes tried: 6 noticed") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestDoesNotCompile: another change is drawn in the place of one that does not compile.
func TestDoesNotCompile(t *testing.T) {
	root := project(t, `package m

func Join(a, b string) string { return a + b }

func Half(n int) int { return n / 2 }
`, "package m\n")
	for n := range 3 {
		out, err := mutate(t, root, "-v", "-n", fmt.Sprint(n+1), "./...")
		if !errors.Is(err, errLeft) || !strings.Contains(out, "1 changes tried: 0 noticed") || strings.Contains(out, "Join") {
			t.Errorf("-n %d: %v\n%s", n+1, err, out)
		}
	}
}
