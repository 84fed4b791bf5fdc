package lab_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/qemu/image"
)

// sourceVariable is the environment variable with the folder of the modules.
const sourceVariable = "VNIC_LAB_TEST_SOURCE"

// buildVariable is the environment variable with the folder in which a kernel was built.
const buildVariable = "VNIC_LAB_TEST_BUILD"

// boom crashes when it is loaded; calm does not.
var modules = map[string]string{
	"boom": `#include <linux/module.h>
MODULE_LICENSE("GPL");
static int *nothing;
static noinline int boom(void)
{
	return *(volatile int *)nothing;
}
static int __init boom_begin(void) { return boom() + 1; }
module_init(boom_begin);
`,
	"calm": `#include <linux/module.h>
MODULE_LICENSE("GPL");
int calm_number(void);
noinline int calm_number(void)
{
	return 42;
}
static int __init calm_begin(void) { pr_info("calm: %d\n", calm_number()); return 0; }
static void __exit calm_end(void) {}
module_init(calm_begin);
module_exit(calm_end);
`,
}

// TestLongADriverIsDebuggedInALab: in the lab driver-dev a module that crashes the guest's kernel is named
// with the line of its source, the guest is back with its folder, and gdb knows the symbols of the next
// module that is loaded.
func TestLongADriverIsDebuggedInALab(t *testing.T) {
	vnictest.RequireGuests(t)
	for _, tool := range []string{"make", "gcc-12", "gdb", "addr2line"} {
		_, err := exec.LookPath(tool)
		vnictest.Need(t, err, tool)
	}
	cache, err := image.DefaultCache()
	if err != nil {
		t.Fatal(err)
	}
	k, err := image.FetchKernel(t.Context(), cache)
	vnictest.Need(t, err, "guest kernel")
	t.Setenv(sourceVariable, buildModules(t, k.Release, modules))
	apart(t, "TestInsideADriverIsDebuggedInALab")
}

func TestInsideADriverIsDebuggedInALab(t *testing.T) {
	inside(t)
	t.Chdir(os.Getenv(sourceVariable))
	vnictest.RequireIn(t, vnic(t, "lab", "up", "driver-dev"), "guests: 1 started", "dev", "memory", "service: memory")
	vnictest.RequireIn(t, vnic(t, "lab", "exec", "dev", "ls", "/src/"), "boom.c", "boom.ko", "calm.ko")
	vnictest.RequireIn(t, refused(t, "lab", "crash", "dev"), "has not crashed")

	vnictest.RequireIn(t, refused(t, "lab", "reload", "dev", "boom.ko"), "guest dev has crashed, and was up again after", "NULL pointer", "RIP:", "boom.c:6", "boom_begin", "boom.c:8")
	vnictest.RequireIn(t, vnic(t, "lab", "crash", "dev"), "boom.c:6")
	vnictest.Eventually(t, "what the guest was", func() error {
		if said, err := try("lab", "exec", "dev", "cat", "/src/Kbuild", "/proc/sys/kernel/hostname"); err != nil || !strings.Contains(said, "dev") {
			return errors.New(said)
		}
		return nil
	})
	// A module that the guest loads by itself, from the folder.
	vnictest.RequireIn(t, refused(t, "lab", "exec", "dev", "insmod", "/src/boom.ko"), "has crashed", "boom.c:6")

	// What the kernel says is told also when its messages fill their buffer.
	vnic(t, "lab", "exec", "dev", "sh", "-c", "for i in $(seq 6000); do echo $i > /dev/kmsg; done")
	if said := vnic(t, "lab", "reload", "dev", "calm.ko"); !strings.Contains(said, "calm: 42") || strings.Contains(said, "6000") {
		t.Error(said)
	}
	vnictest.RequireIn(t, vnic(t, "lab", "gdb", "dev", "-batch", "-ex", "info line calm_number", "-ex", "x/2i calm_number"), "calm.c", "calm_number", "<calm_number")
	vnic(t, "lab", "exec", "dev", "true") // it goes on

	// Paused at its start it waits for gdb, which ends here at the end of its input; then it boots as ever.
	vnictest.RequireIn(t, vnic(t, "lab", "restart", "dev", "--gdb"), "guest dev: paused before its first instruction", "fff0 in ?? ()")
	vnictest.Eventually(t, "a guest that has its folder", func() error {
		_, err := try("lab", "exec", "dev", "test", "-d", "/src/")
		return err
	})
	vnic(t, "lab", "down")
	nothingLeft(t)
	vnictest.RequireIn(t, vnic(t, "lab", "test", "driver-dev"), "PASS", "PASS", "PASS", "PASS")
	nothingLeft(t)
}

// buildModules builds modules for a kernel, each of one file, and returns their folder.
func buildModules(t *testing.T, release string, sources map[string]string) (dir string) {
	t.Helper()
	headers, err := exec.CommandContext(t.Context(), "../../../guestlib/linux/fetch.sh", "headers", release).Output()
	vnictest.Need(t, err, "the kernel's headers")
	dir = t.TempDir()
	kbuild := ""
	for name, text := range sources {
		if err := os.WriteFile(filepath.Join(dir, name+".c"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		kbuild += "obj-m += " + name + ".o\n"
	}
	if err := os.WriteFile(filepath.Join(dir, "Kbuild"), []byte(kbuild), 0o644); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "make", "-s", "-C", strings.TrimSpace(string(headers)), "M="+dir, "KCFLAGS=-g", "modules")
	build.Env = append(os.Environ(), "MAKEFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

// stale reads memory that it has given back. Debian's kernel does not notice.
var stale = map[string]string{"stale": `#include <linux/module.h>
#include <linux/slab.h>
MODULE_LICENSE("GPL");
static noinline int look(volatile int *p)
{
	return *p;
}
static int __init stale_begin(void)
{
	int *p = kzalloc(64, GFP_KERNEL);
	kfree(p);
	return look(p) & 0;
}
static void __exit stale_end(void) {}
module_init(stale_begin);
module_exit(stale_end);
`}

// TestLongTheKernelThatFindsFaults: the kernel debug finds what a module does wrong, and the lab says in which
// line. Where that kernel was not built (make driver-debug), the lab says how.
func TestLongTheKernelThatFindsFaults(t *testing.T) {
	vnictest.RequireGuests(t)
	cache, err := image.DefaultCache()
	if err != nil {
		t.Fatal(err)
	}
	built, _ := filepath.Glob(filepath.Join(filepath.Dir(cache), "driver", "debug-kernel-*", "made-with"))
	if len(built) > 0 {
		k, err := image.OpenKernel(filepath.Dir(built[len(built)-1]))
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv(sourceVariable, buildModules(t, k.Release, stale))
		t.Setenv(buildVariable, filepath.Join(filepath.Dir(built[len(built)-1]), "usr/src/linux"))
	}
	apart(t, "TestInsideTheKernelThatFindsFaults")
}

func TestInsideTheKernelThatFindsFaults(t *testing.T) {
	inside(t)
	source := os.Getenv(sourceVariable)
	if source == "" {
		vnictest.RequireIn(t, refused(t, "lab", "up", "--kernel", "debug", file(t, "name: debug\nhosts: {a: {}}\nmachines: {d: {host: a, guest: {}}}\n")), "guestlib/linux/debug-kernel.sh")
		nothingLeft(t)
		return
	}
	vnic(t, "lab", "up", "--kernel", "debug", file(t, `
name: debug
hosts: {a: {}}
machines: {d: {host: a, guest: {memory: 1536M, share: `+source+`}}}
`))
	vnictest.RequireIn(t, vnic(t, "lab", "exec", "d", "uname", "-r"), "vnic-debug")
	vnictest.RequireIn(t, vnic(t, "lab", "reload", "d", filepath.Join(source, "stale.ko")), "KASAN")
	vnictest.Eventually(t, "what the kernel found", func() error {
		said, err := try("lab", "crash", "d")
		if err != nil || !strings.Contains(said, "stale.c:6") {
			return errors.New(said)
		}
		return nil
	})
	vnic(t, "lab", "exec", "d", "true") // it goes on

	// gdb has the kernel's own functions, from the folder in which it was built.
	vnictest.RequireIn(t, vnic(t, "lab", "restart", "d", "--kernel", os.Getenv(buildVariable)), "guests: 1 started")
	vnictest.RequireIn(t, vnic(t, "lab", "exec", "d", "uname", "-r"), "vnic-debug")
	vnictest.RequireIn(t, vnic(t, "lab", "gdb", "d", "-batch", "-ex", "info address panic"), `"panic" is at 0xffffffff8`)
	vnic(t, "lab", "down")
	nothingLeft(t)
}
