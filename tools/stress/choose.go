package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// aTest is one test function that stress repeats.
type aTest struct {
	pkg   *testPackage
	name  string
	guest bool // it boots a virtual machine
}

// testPackage is a package as go list describes it.
type testPackage struct {
	ImportPath   string
	Dir          string
	TestGoFiles  []string
	XTestGoFiles []string
	Module       struct{ Path string }

	binary string
}

func (p *testPackage) short() string {
	if p.ImportPath == p.Module.Path {
		return "."
	}
	return strings.TrimPrefix(p.ImportPath, p.Module.Path+"/")
}

// listPackages asks go list for the packages under root that have tests.
func listPackages(root string, patterns []string) (list []*testPackage, err error) {
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles,Module"}, patterns...)...)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		var e *exec.ExitError
		if errors.As(err, &e) {
			return nil, fmt.Errorf("go list: %w\n%s", err, e.Stderr)
		}
		return nil, fmt.Errorf("go list: %w", err)
	}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		p := new(testPackage)
		switch err := d.Decode(p); {
		case errors.Is(err, io.EOF):
			return list, nil
		case err != nil:
			return nil, fmt.Errorf("go list: %w", err)
		}
		if len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 {
			list = append(list, p)
		}
	}
}

// machineUse are the packages through which a test depends on the machine, by the last element of
// their import path, and what of each does not count. Whatever else a test calls from them does.
var machineUse = map[string][]string{
	"net":     {"IP", "IPv4", "IPMask", "HardwareAddr", "ParseIP", "ParseCIDR", "ParseMAC", "ErrClosed"},
	"exec":    {},
	"unix":    {},
	"signal":  {},
	"netns":   {},
	"tap":     {"Offload", "Received", "Stats", "Capabilities"},
	"netlink": {},
	"time": {
		"Duration", "Time", "Unix", "Date", "UTC", "Nanosecond", "Microsecond", "Millisecond", "Second", "Minute", "Hour", "RFC3339",
		"ParseDuration",
	},
}

// function is what one function of the test files refers to.
type function struct {
	calls   []string
	machine bool
	guest   bool
}

// choose returns the tests of a package that use the machine: a go statement, a clock, or one of the
// packages of machineUse, in the test or in whatever of the test files it calls. Calls are followed by
// name alone: it rather takes one too many.
func choose(p *testPackage) (list []aTest, err error) {
	functions := map[string]*function{}
	for _, f := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, f), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		read(file, functions)
	}
	for name := range functions {
		if !isTest(name) {
			continue
		}
		t := aTest{pkg: p, name: name}
		machine := false
		reach(functions, name, map[string]bool{}, func(f *function) {
			machine = machine || f.machine || f.guest
			t.guest = t.guest || f.guest
		})
		if machine {
			list = append(list, t)
		}
	}
	slices.SortFunc(list, func(a, b aTest) int { return strings.Compare(a.name, b.name) })
	return list, nil
}

// isTest knows the tests. TestInside… run in the guest of another, and TestMain is none.
func isTest(name string) bool {
	rest, ok := strings.CutPrefix(name, "Test")
	return ok && rest != "Main" && !strings.HasPrefix(rest, "Inside") && (rest == "" || rest[0] < 'a' || rest[0] > 'z')
}

// read adds the functions of a file. Methods are known by their name.
func read(file *ast.File, functions map[string]*function) {
	imports := map[string]bool{}
	for _, i := range file.Imports {
		path, _ := strconv.Unquote(i.Path.Value)
		name := filepath.Base(path)
		if _, ok := machineUse[name]; ok {
			imports[name] = true
		}
	}
	for _, d := range file.Decls {
		fd, ok := d.(*ast.FuncDecl)
		if !ok || fd.Body == nil {
			continue
		}
		f := functions[fd.Name.Name]
		if f == nil {
			f = &function{}
			functions[fd.Name.Name] = f
		}
		ast.Inspect(fd.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				f.machine = true
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && imports[x.Name] {
					f.machine = f.machine || !slices.Contains(machineUse[x.Name], n.Sel.Name)
				} else {
					f.calls = append(f.calls, n.Sel.Name)
				}
				f.guest = f.guest || n.Sel.Name == "FetchKernel"
			case *ast.Ident:
				f.calls = append(f.calls, n.Name)
			case *ast.BasicLit:
				f.guest = f.guest || n.Kind == token.STRING && strings.HasPrefix(n.Value, `"qemu-system-`)
			}
			return true
		})
	}
}

// reach visits a function and all that it refers to.
func reach(functions map[string]*function, name string, seen map[string]bool, visit func(*function)) {
	f := functions[name]
	if f == nil || seen[name] {
		return
	}
	seen[name] = true
	visit(f)
	for _, c := range f.calls {
		if !isTest(c) {
			reach(functions, c, seen, visit)
		}
	}
}
