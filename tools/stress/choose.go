package main

import (
	"go/ast"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

// aTest is one test function that stress repeats.
type aTest struct {
	pkg   *testPackage
	name  string
	guest bool // it boots a virtual machine
}

// testPackage is a package with tests.
type testPackage struct {
	path   string // within the module
	dir    string
	binary string
	sum    string // of the binary, SHA-256
}

// listTests reads the packages and returns their tests that use the machine.
func listTests(root string, patterns []string) (list []aTest, err error) {
	loaded, err := packages.Load(&packages.Config{
		Mode:  packages.NeedName | packages.NeedFiles | packages.NeedModule | packages.NeedImports | packages.NeedTypes | packages.NeedSyntax | packages.NeedTypesInfo,
		Dir:   root,
		Tests: true,
	}, patterns...)
	if err != nil {
		return nil, err
	}
	byPath, functions := map[string]*testPackage{}, map[string]map[types.Object]*function{}
	for _, p := range loaded {
		if len(p.Errors) > 0 {
			return nil, p.Errors[0]
		}
		if p.Module == nil || !strings.Contains(p.ID, ".test]") { // without its test files
			continue
		}
		path := strings.TrimPrefix(strings.TrimSuffix(p.PkgPath, "_test"), p.Module.Path+"/")
		if byPath[path] == nil {
			byPath[path] = &testPackage{path: path, dir: filepath.Dir(p.GoFiles[0])}
			functions[path] = map[types.Object]*function{}
		}
		for _, file := range p.Syntax {
			if strings.HasSuffix(p.Fset.Position(file.Pos()).Filename, "_test.go") {
				read(p, file, functions[path])
			}
		}
	}
	for path, p := range byPath {
		list = append(list, choose(p, functions[path])...)
	}
	slices.SortFunc(list, func(a, b aTest) int { return strings.Compare(a.path(), b.path()) })
	return list, nil
}

// machineUse are the packages whose functions make a test depend on the machine, and the functions
// of each that do not.
var machineUse = map[string][]string{
	"net":      {"ParseIP", "ParseCIDR", "ParseMAC", "IPv4", "IPv4Mask", "CIDRMask", "JoinHostPort", "SplitHostPort"},
	"exec":     {},
	"unix":     {},
	"signal":   {},
	"netns":    {},
	"tap":      {},
	"netlink":  {},
	"time":     {"Unix", "UnixMilli", "Date", "ParseDuration"},
	"context":  {"Background", "TODO", "WithCancel", "WithValue"},
	"vnictest": {"Execute", "Here", "MACOf", "Main", "Median", "Need", "OnesSum", "PortConfig", "PortSocket", "Require", "RequireIn", "RequireRoot", "StripComments", "WriteConfig"},
}

// guestUse are the functions with which a test boots a virtual machine.
var guestUse = []string{"FetchKernel", "RequireGuests", "BuildGuest", "GuestOfTest"}

// function is what one function of the test files refers to.
type function struct {
	uses    []types.Object
	machine bool
	guest   bool
}

// choose returns the tests of a package that use the machine: a go statement, a clock, or one of
// the packages of machineUse, in the test or in whatever of the test files it refers to.
func choose(p *testPackage, functions map[types.Object]*function) (list []aTest) {
	for object := range functions {
		if !isTest(object) {
			continue
		}
		t, machine := aTest{pkg: p, name: object.Name()}, false
		reach(functions, object, map[types.Object]bool{}, func(f *function) {
			machine = machine || f.machine || f.guest
			t.guest = t.guest || f.guest
		})
		if machine {
			list = append(list, t)
		}
	}
	return list
}

// isTest knows the tests. TestInside… run in the guest of another, and TestMain is none.
func isTest(o types.Object) bool {
	f, ok := o.(*types.Func)
	if !ok || f.Signature().Recv() != nil {
		return false
	}
	rest, ok := strings.CutPrefix(o.Name(), "Test")
	return ok && rest != "Main" && !strings.HasPrefix(rest, "Inside") && (rest == "" || rest[0] < 'a' || rest[0] > 'z')
}

// read adds the functions of a file.
func read(p *packages.Package, file *ast.File, functions map[types.Object]*function) {
	for _, d := range file.Decls {
		fd, ok := d.(*ast.FuncDecl)
		if !ok || fd.Body == nil {
			continue
		}
		f := &function{}
		functions[p.TypesInfo.Defs[fd.Name]] = f
		ast.Inspect(fd.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				f.machine = true
			case *ast.Ident:
				if used, ok := p.TypesInfo.Uses[n].(*types.Func); ok {
					f.use(used)
				}
			case *ast.BasicLit:
				f.guest = f.guest || n.Kind == token.STRING && strings.HasPrefix(n.Value, `"qemu-system-`)
			}
			return true
		})
	}
}

// use notes that a function refers to another.
func (f *function) use(o *types.Func) {
	f.uses = append(f.uses, o)
	f.guest = f.guest || slices.Contains(guestUse, o.Name())
	if o.Pkg() == nil {
		return
	}
	harmless, ok := machineUse[o.Pkg().Name()]
	f.machine = f.machine || ok && o.Signature().Recv() == nil && !slices.Contains(harmless, o.Name())
}

// reach visits a function and all that it refers to.
func reach(functions map[types.Object]*function, o types.Object, seen map[types.Object]bool, visit func(*function)) {
	f := functions[o]
	if f == nil || seen[o] {
		return
	}
	seen[o] = true
	visit(f)
	for _, used := range f.uses {
		reach(functions, used, seen, visit)
	}
}
