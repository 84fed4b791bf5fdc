package tcp_test

import (
	"crypto/sha256"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// asRead are the functions of gVisor that process (inline_unsafe.go) calls without their being exported, or repeats,
// or relies on, with the beginning of the SHA-256 of their text as it was when process was written.
var asRead = map[string]string{
	"handleConnected":        "0a1842a2ee9a",
	"handleConnecting":       "225269329f55",
	"handleListen":           "e5c992248f69",
	"handleTimeWait":         "09be281fbb75",
	"processor.start":        "c05d7058a9d3",
	"dispatcher.queuePacket": "ff0e294e3074",
	"Endpoint.LockUser":      "9f0befd583a6",
	"Endpoint.UnlockUser":    "694f3a30f3db",
	"Endpoint.StopWork":      "dfd5f85f074b",
	"Endpoint.ResumeWork":    "89543d0413f0",
}

// TestGVisorIsWhatWasRead: the compiler does not compare what go:linkname names with what is there, so another
// version of gVisor could be called with wrong arguments, or expect more of its caller. Whoever updates gVisor
// compares process with the functions that are named here, and notes their sums.
func TestGVisorIsWhatWasRead(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}", "gvisor.dev/gvisor/pkg/tcpip/transport/tcp").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(out)), "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, file, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				is := text[set.Position(fn.Pos()).Offset:set.Position(fn.End()).Offset]
				found[qualified(fn)] = fmt.Sprintf("%x", sha256.Sum256(is))[:12]
			}
		}
	}
	for name, sum := range asRead {
		if found[name] != sum {
			t.Errorf("%s of gVisor is another one (sum %q): compare process in inline_unsafe.go with it", name, found[name])
		}
	}
}

// qualified returns the name of a function, behind its receiver's type.
func qualified(fn *ast.FuncDecl) string {
	if fn.Recv != nil {
		if p, ok := fn.Recv.List[0].Type.(*ast.StarExpr); ok {
			if t, ok := p.X.(*ast.Ident); ok {
				return t.Name + "." + fn.Name.Name
			}
		}
	}
	return fn.Name.Name
}
