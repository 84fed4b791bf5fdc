package image

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// writeELF writes a program or module for a kind of machine, with what it says of itself as a
// module; "": it has no such section.
func writeELF(t *testing.T, path string, machine elf.Machine, info string) string {
	t.Helper()
	const names = "\x00.modinfo\x00.shstrtab\x00"
	sections := []elf.Section64{{}}
	at := uint64(binary.Size(elf.Header64{}))
	add := func(name int, kind elf.SectionType, body string) {
		sections = append(sections, elf.Section64{Name: uint32(name), Type: uint32(kind), Off: at, Size: uint64(len(body))})
		at += uint64(len(body))
	}
	if info != "" {
		add(strings.Index(names, ".modinfo"), elf.SHT_PROGBITS, info)
	}
	add(strings.Index(names, ".shstrtab"), elf.SHT_STRTAB, names)
	h := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_REL), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT),
		Shoff: at, Ehsize: 64, Shentsize: 64, Shnum: uint16(len(sections)), Shstrndx: uint16(len(sections) - 1),
	}
	var b bytes.Buffer
	for _, part := range []any{&h, []byte(info + names), sections} {
		if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// testKernel has modules by name, each with what it depends on.
func testKernel(t *testing.T, depends map[string]string) Kernel {
	t.Helper()
	k := Kernel{Release: "1", Modules: filepath.Join(t.TempDir(), "modules")}
	for name, on := range depends {
		writeELF(t, filepath.Join(k.Modules, "kernel", name+".ko"), elf.EM_X86_64, "license=GPL\x00depends="+on+"\x00name="+name+"\x00")
	}
	return k
}

// TestModulesInOrder: each module is listed once, after those that it depends on, whichever of its
// names is used.
func TestModulesInOrder(t *testing.T) {
	k := testKernel(t, map[string]string{
		"a": "b,c-x", "b": "d", "c_x": "d,built", "d": "", "self": "self", "f": "absent",
		"r1": "r2", "r2": "r1",
	})
	if err := os.WriteFile(filepath.Join(k.Modules, "modules.builtin"), []byte("kernel/built.ko\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	own := writeELF(t, filepath.Join(t.TempDir(), "own-x.ko"), elf.EM_X86_64, "depends=b\x00")
	bare := writeELF(t, filepath.Join(k.Modules, "bare.ko"), elf.EM_X86_64, "")
	if err := os.WriteFile(filepath.Join(k.Modules, "text.ko"), []byte("this is no module at all"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(k.Modules, "packed.ko.xz"), nil, 0o600); err != nil { // others are not
		t.Fatal(err)
	}
	for _, tt := range []struct {
		asked []string
		want  string // names in order; or what is wrong
	}{
		{nil, ""},
		{[]string{"d"}, "d"},
		{[]string{"a"}, "d b c_x a"},
		{[]string{"c-x", "a", "d"}, "d c_x b a"},
		{[]string{"built"}, ""},
		{[]string{own}, "d b own_x"},
		{[]string{"self"}, "module self depends on itself"},
		{[]string{"r1"}, "module r1 depends on itself"},
		{[]string{"f"}, "kernel 1 has no module absent, which f needs"},
		{[]string{"own_x"}, "kernel 1 has no module own_x"},
		{[]string{"bare"}, "module " + bare + " has no .modinfo section"},
		{[]string{"d", "text"}, "bad magic number"},
		{[]string{"/nonexistent/x.ko"}, "no such file"},
	} {
		files, err := moduleClosure(k, tt.asked)
		if err != nil {
			if !strings.Contains(err.Error(), tt.want) || tt.want == "" || files != nil {
				t.Errorf("%q: %v, %v", tt.asked, files, err)
			}
			continue
		}
		var names []string
		for _, f := range files {
			names = append(names, moduleName(f))
		}
		if got := strings.Join(names, " "); got != tt.want {
			t.Errorf("%q: %s, want %s", tt.asked, got, tt.want)
		}
	}
	k.Modules += "2"
	if _, err := moduleClosure(k, nil); err == nil {
		t.Error("modules of a folder that there is not")
	}
}

// TestAnInitramfsAppearsWholeOrNotAtAll: the archive appears complete, with modules in the order in which they are loaded;
// or not at all.
func TestAnInitramfsAppearsWholeOrNotAtAll(t *testing.T) {
	k := testKernel(t, map[string]string{"a": "b", "b": ""})
	dir := t.TempDir()
	init := writeELF(t, filepath.Join(t.TempDir(), "init"), elf.EM_X86_64, "")
	out := filepath.Join(dir, "initramfs")
	good := Initramfs{Kernel: k, Init: init, Modules: []string{"a"}, Put: []Put{{init, "/bin/other"}}}
	if err := good.Write(out); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	text := listed(t, b)
	at := 0
	for _, want := range []string{
		"40755 dev\n", "41777 tmp\n", " lib\n", " lib/modules\n", "20600 dev/console\n",
		"100755 init\n", "100755 bin/other\n", "100644 lib/modules/b.ko\n",
		"100644 lib/modules/a.ko\n", "100644 lib/modules/order\n",
	} {
		next := strings.Index(text[at:], want)
		if next < 0 {
			t.Errorf("no %q in its place in\n%s", want, text)
			continue
		}
		at += next
	}
	if strings.Contains(text, "usr") || strings.Contains(text, "etc/vnic") {
		t.Errorf("without packages there is more than was asked for:\n%s", text)
	}
	if !bytes.Contains(b, []byte("/lib/modules/b.ko\n/lib/modules/a.ko\n")) {
		t.Error("the list of modules is another")
	}
	before := slices.Clone(b)
	for says, spoil := range map[string]func(*Initramfs){
		"no such file":           func(r *Initramfs) { r.Init += "2" },
		"the guest is EM_X86_64": func(r *Initramfs) { r.Init = writeELF(t, filepath.Join(t.TempDir(), "arm"), elf.EM_AARCH64, "") },
		"has no module c":        func(r *Initramfs) { r.Modules = []string{"c"} },
		"program /absent":        func(r *Initramfs) { r.Programs = []string{"/absent"} },
		"not a file":             func(r *Initramfs) { r.Files = []string{"/absent"} },
		"/absent/put":            func(r *Initramfs) { r.Put = []Put{{"/absent/put", "/x"}} },
		"package x: ":            func(r *Initramfs) { r.Packages = []Package{{Name: "x", File: "/absent/x.deb"}} },
	} {
		r := good
		spoil(&r)
		if err := r.Write(out); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
		if b, err := os.ReadFile(out); err != nil || !bytes.Equal(b, before) {
			t.Errorf("%s: the archive of before has changed: %v", says, err)
		}
	}
	if err := good.Write(filepath.Join(dir, "absent", "initramfs")); err == nil {
		t.Error("written to a folder that there is not")
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".initramfs-*")); err != nil || len(left) != 0 {
		t.Errorf("left over: %v, %v", left, err)
	}
}
