package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi/schema"
)

// compiler finds a C compiler, or skips.
func compiler(t *testing.T) string {
	t.Helper()
	cc, err := exec.LookPath("gcc")
	if err != nil {
		if os.Getenv("VNIC_TEST_REQUIRE") == "1" {
			t.Fatal("gcc is not installed: make deps")
		}
		t.Skip("gcc is not installed: make deps")
	}
	return cc
}

// TestTheCHeaderHasTheSchemasNumbers compiles a program that prints every size, offset and number of
// the C header, and compares them with the schema.
func TestTheCHeaderHasTheSchemasNumbers(t *testing.T) {
	cc, dir := compiler(t), t.TempDir()
	var probe, want printer
	probe.f("#include \"vnic_abi.h\"\n#include <stddef.h>\n#include <stdio.h>\n#define P(name, v) printf(\"%%s %%llu\\n\", name, (unsigned long long)(v))\nint main(void)\n{\n")
	print := func(expr string, v uint64) {
		probe.f("\tP(\"%s\", %s);\n", expr, expr)
		want.f("%s %d\n", expr, v)
	}
	a := &schema.Current
	print("VNIC_VERSION_MAJOR", uint64(a.Major))
	print("VNIC_VERSION_MINOR", uint64(a.Minor))
	for _, c := range a.Consts {
		print(macro(c.Name), c.Value)
	}
	for _, r := range a.Registers {
		print(macro("Reg"+r.Name), uint64(r.Offset))
	}
	for _, f := range a.Flags {
		for _, v := range f.Values {
			print(macro(f.Prefix+v.Name), v.Value)
		}
	}
	for _, e := range a.Enums {
		for _, v := range e.Values {
			print(macro(e.Prefix+v.Name), v.Value)
		}
	}
	for _, c := range a.Clauses {
		print(clauseMacro(&c), uint64(c.Number))
	}
	for _, s := range a.Structs() {
		name := "struct vnic_" + snake(s.Name)
		print("sizeof("+name+")", uint64(s.Size))
		for i := range s.Fields {
			f := &s.Fields[i]
			print(fmt.Sprintf("offsetof(%s, %s)", name, snake(f.Name)), uint64(f.Offset))
			print(fmt.Sprintf("sizeof(((%s *)0)->%s)", name, snake(f.Name)), uint64(f.Size()))
		}
	}
	probe.f("\treturn 0;\n}\n")
	for name, data := range map[string][]byte{"probe.c": probe.Bytes(), "vnic_abi.h": cHeader(a)} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	bin := filepath.Join(dir, "probe")
	if out, err := exec.Command(cc, "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-o", bin, filepath.Join(dir, "probe.c")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	got, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(got, want.Bytes()) {
		return
	}
	have, expect := strings.Split(string(got), "\n"), strings.Split(want.String(), "\n")
	if len(have) != len(expect) {
		t.Fatalf("%d lines, want %d", len(have), len(expect))
	}
	for i := range have {
		if have[i] != expect[i] {
			t.Errorf("C has %q, schema %q", have[i], expect[i])
		}
	}
}

// TestCHeaderInKernel compiles the header as a kernel would: freestanding, with
// nothing but <linux/types.h>, here a stand-in for the kernel's own.
func TestCHeaderInKernel(t *testing.T) {
	cc, dir := compiler(t), t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "linux"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"linux/types.h": "typedef unsigned char uint8_t;\ntypedef unsigned short __le16;\ntypedef unsigned int __le32;\ntypedef unsigned long long __le64;\n",
		"vnic_abi.h":    string(cHeader(&schema.Current)),
		"driver.c":      "#include \"vnic_abi.h\"\n#include \"vnic_abi.h\"\nenum vnic_state state(struct vnic_hello *h) { h->major = VNIC_VERSION_MAJOR; return VNIC_STATE_READY; }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command(cc, "-D__KERNEL__", "-nostdinc", "-ffreestanding", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I", dir,
		"-c", "-o", filepath.Join(dir, "driver.o"), filepath.Join(dir, "driver.c")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestNamesBecomeSnakeCase(t *testing.T) {
	for name, want := range map[string]string{
		"MaxMRSize": "max_mr_size", "CQE": "cqe", "SQLog2Entries": "sq_log2_entries", "GIDHi": "gid_hi", "RemoteQKey": "remote_qkey",
		"RKey": "rkey", "AdminCQEResult": "admin_cqe_result", "MTU256": "mtu256", "CMID": "cmid", "PKeyIndex": "pkey_index",
		"SLRoCEIPv4": "sl_roce_ipv4", "WCWRFlushErr": "wc_wr_flush_err", "WCMWBindErr": "wc_mw_bind_err",
		"WCRNRRetryExcErr": "wc_rnr_retry_exc_err", "WCRemOpErr": "wc_rem_op_err", "MRs": "mrs", "SRQs": "srqs", "QPState": "qp_state",
	} {
		if got := snake(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}
