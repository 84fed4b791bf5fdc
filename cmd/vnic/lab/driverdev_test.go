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
	headers, err := exec.CommandContext(t.Context(), "../../../guestlib/linux/fetch.sh", "headers", k.Release).Output()
	vnictest.Need(t, err, "the kernel's headers")
	dir := t.TempDir()
	makefile := ""
	for name, text := range modules {
		if err := os.WriteFile(filepath.Join(dir, name+".c"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		makefile += "obj-m += " + name + ".o\n"
	}
	if err := os.WriteFile(filepath.Join(dir, "Kbuild"), []byte(makefile), 0o644); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "make", "-s", "-C", strings.TrimSpace(string(headers)), "M="+dir, "KCFLAGS=-g", "modules")
	build.Env = append(os.Environ(), "MAKEFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Setenv(sourceVariable, dir)
	apart(t, "TestInsideADriverIsDebuggedInALab")
}

func TestInsideADriverIsDebuggedInALab(t *testing.T) {
	inside(t)
	t.Chdir(os.Getenv(sourceVariable))
	vnictest.RequireIn(t, vnic(t, "lab", "up", "driver-dev"), "guests: 1 started", "dev", "memory", "service: memory")
	vnictest.RequireIn(t, vnic(t, "lab", "exec", "dev", "ls", "/src/"), "boom.c", "boom.ko", "calm.ko")
	vnictest.RequireIn(t, refused(t, "lab", "crash", "dev"), "has not crashed")

	vnictest.RequireIn(t, refused(t, "lab", "reload", "dev", "boom.ko"), "guest dev has crashed, and is up again", "NULL pointer", "RIP:", "boom.c:6", "boom_begin", "boom.c:8")
	vnictest.RequireIn(t, vnic(t, "lab", "crash", "dev"), "boom.c:6")
	vnictest.Eventually(t, "what the guest was", func() error {
		if said, err := try("lab", "exec", "dev", "cat", "/src/Kbuild", "/proc/sys/kernel/hostname"); err != nil || !strings.Contains(said, "dev") {
			return errors.New(said)
		}
		return nil
	})
	// A module that the guest loads by itself, from the folder.
	vnictest.RequireIn(t, refused(t, "lab", "exec", "dev", "insmod", "/src/boom.ko"), "has crashed", "boom.c:6")

	vnictest.RequireIn(t, vnic(t, "lab", "reload", "dev", "calm.ko"), "calm: 42")
	vnictest.RequireIn(t, vnic(t, "lab", "gdb", "dev", "-batch", "-ex", "info line calm_number", "-ex", "x/2i calm_number"), "calm.c", "calm_number", "<calm_number")
	vnic(t, "lab", "exec", "dev", "true") // it goes on
	vnic(t, "lab", "down")
	nothingLeft(t)
	vnictest.RequireIn(t, vnic(t, "lab", "test", "driver-dev"), "PASS", "PASS", "PASS", "PASS")
	nothingLeft(t)
}
