package lab_test

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/lab"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

const crashing = `static inline __attribute__((always_inline)) int inner(int *p)
{
	__asm__ volatile("nop");
	return *p;
}

int outer(int *p)
{
	return inner(p) + 1;
}

__attribute__((section(".init.text"))) int begin(int *p)
{
	return outer(p) + 2;
}
`

// TestACrashNamesLinesOfSource: of functions of a module in whichever section, of those inlined, and not
// of a module of another build.
func TestACrashNamesLinesOfSource(t *testing.T) {
	for _, tool := range []string{"gcc", "addr2line"} {
		_, err := exec.LookPath(tool)
		vnictest.Need(t, err, tool)
	}
	dir := t.TempDir()
	source, object := filepath.Join(dir, "boom.c"), filepath.Join(dir, "boom.ko")
	if err := os.WriteFile(source, []byte(crashing), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-g", "-O1", "-fno-inline-functions-called-once", "-fcf-protection=none", "-c", "-o", object, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	size := func(name string) uint64 {
		f, err := elf.Open(object)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		all, err := f.Symbols()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			if s.Name == name {
				return s.Size
			}
		}
		t.Fatalf("no symbol %s", name)
		return 0
	}
	text := fmt.Sprintf("BUG: kernel NULL pointer dereference\x1b[31m, address: 0\n"+
		"RIP: 0010:outer+0x0/%#x [boom]\n"+
		"Call Trace:\n"+
		" begin+0x5/%#x [boom]\n"+
		" outer+0x1/0x999999 [boom]\n"+ // as in a kernel, where a function reaches to the next symbol
		" outer+0x1/0x1 [boom]\n"+
		" ? do_one_initcall+0x56/0x230\n", size("outer"), size("begin"))
	said := lab.WithSymbols(context.Background(), text, func(module string) []string {
		if module == "boom" {
			return []string{filepath.Join(dir, "none.ko"), source, object}
		}
		return nil
	})
	lines := strings.Split(said, "\n")
	for i, want := range []string{
		"address: 0",
		"]   at " + source + ":3 in inner, inlined at " + source + ":9",
		"Call Trace:",
		"]   at " + source + ":14",
		"]   at " + source + ":3 in inner, inlined at " + source + ":9",
		"outer+0x1/0x1 [boom]",
		"0x56/0x230",
	} {
		if !strings.HasSuffix(lines[i], want) {
			t.Errorf("line %d: %q, want …%q", i+1, lines[i], want)
		}
	}
	if strings.Contains(said, "\x1b") {
		t.Errorf("%q has what a terminal obeys", said)
	}
}
