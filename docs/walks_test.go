package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A step of a walk through the code, as design.md lists it: a file of the repository, and a function
// in it or a method with its type.
var step = regexp.MustCompile("(?m)^[-*0-9.]+ +`([a-z_0-9/]+\\.go)` `([A-Za-z_0-9.]+)`")

// TestTheWalksOfDesignNameWhatExists reads each function that design.md's walks lead through in the
// file that they name.
func TestTheWalksOfDesignNameWhatExists(t *testing.T) {
	text, err := os.ReadFile("design.md")
	if err != nil {
		t.Fatal(err)
	}
	steps := step.FindAllStringSubmatch(string(text), -1)
	if len(steps) < 30 {
		t.Fatalf("%d steps are found in design.md: its walks are written in another form", len(steps))
	}
	for _, s := range steps {
		f, err := parser.ParseFile(token.NewFileSet(), path.Join("..", s[1]), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("design.md: %v", err)
			continue
		}
		if !slices.Contains(functions(f), s[2]) {
			t.Errorf("design.md leads through %s of %s, which has no such function", s[2], s[1])
		}
	}
}

// A path of the repository, and a name that is in a file of it.
var (
	repositoryPath = regexp.MustCompile("`([a-z_]+/[A-Za-z0-9_./-]+)`")
	nameIn         = regexp.MustCompile("(?:`([A-Za-z]+)` and )?`([A-Za-z]+)` in `([a-z_0-9/]+\\.go)`")
)

// TestPagesForDevelopersNameWhatExists looks for the paths that these pages name, and for the names that
// they say are in a file.
func TestPagesForDevelopersNameWhatExists(t *testing.T) {
	for _, page := range []string{"design.md", "development.md", "../CONTRIBUTING.md"} {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Join(strings.Fields(string(b)), " ")
		for _, m := range repositoryPath.FindAllStringSubmatch(text, -1) {
			top, _, _ := strings.Cut(m[1], "/")
			if _, err := os.Stat(path.Join("..", top)); err != nil || top == "build" { // no path, or what make makes
				continue
			}
			if _, err := os.Stat(path.Join("..", m[1])); err != nil {
				t.Errorf("%s names %s, which does not exist", page, m[1])
			}
		}
		for _, m := range nameIn.FindAllStringSubmatch(text, -1) {
			file, err := os.ReadFile(path.Join("..", m[3]))
			for _, name := range m[1:3] {
				if err != nil || name != "" && !regexp.MustCompile(`\b`+name+`\b`).Match(file) {
					t.Errorf("%s says that %s is in %s: %v", page, name, m[3], err)
				}
			}
		}
	}
}

// A test that wire.md names for a clause.
var named = regexp.MustCompile("`(Test[A-Za-z0-9_]+)`")

// TestTheTestsThatWireNamesExist looks for each test that wire.md names in the tests of rdma.
func TestTheTestsThatWireNamesExist(t *testing.T) {
	text, err := os.ReadFile("wire.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]bool{}
	for _, dir := range []string{"../rdma", "../rdma/verbs", "../rdma/iwarp", "../rdma/iwarp/wire"} {
		files, err := filepath.Glob(dir + "/*_test.go")
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", dir, len(files), err)
		}
		for _, file := range files {
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range functions(f) {
				tests[name] = true
			}
		}
	}
	names := named.FindAllStringSubmatch(string(text), -1)
	if len(names) < 20 {
		t.Errorf("%d tests are found in wire.md: they are written in another form", len(names))
	}
	for _, n := range names {
		if !tests[n[1]] {
			t.Errorf("wire.md names %s, which there is not", n[1])
		}
	}
}

// functions lists the functions of a file: F, and of a type T the method F as T.F and as F.
func functions(f *ast.File) (names []string) {
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		name := fn.Name.Name
		if fn.Recv != nil {
			names = append(names, typeName(fn.Recv.List[0].Type)+"."+name)
		}
		names = append(names, name)
	}
	return names
}

// typeName returns the name of a receiver's type, without its parameters.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.IndexListExpr:
		return typeName(e.X)
	}
	return ""
}
