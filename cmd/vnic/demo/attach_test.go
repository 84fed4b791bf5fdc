package demo_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

// TestLongAttachPaths runs one workload over every way to attach: each operation in both
// directions, with every byte verified by the far side. A program must not notice which way is
// used.
func TestLongAttachPaths(t *testing.T) {
	if testing.Short() {
		t.Skip("boots virtual machines")
	}
	for _, tt := range []struct {
		path  string
		flags []string
	}{
		{"unix", []string{"--no-vm"}},
		{"vsock", nil},
		{"ivshmem", []string{"--windows"}},
		{"ivshmem-msix", []string{"--windows", "--iommu"}},
	} {
		t.Run(tt.path, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 4*vnictest.Limit)
			defer cancel()
			out := filepath.Join(t.TempDir(), "out")
			cmd := exec.CommandContext(ctx, attachBinary(t, ctx, tt.path != "unix"), append([]string{"demo", "--timeout", "20m", "--count", "2", "--out", out}, tt.flags...)...)
			cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // it takes its scene down
			cmd.WaitDelay = time.Minute
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			b, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, b)
			}
			for _, guest := range []string{"m1", "m2"} {
				if !regexp.MustCompile(guest + ` .*attached to function .* over ` + tt.path + `,`).Match(b) {
					t.Errorf("%s is not attached over %s:\n%s", guest, tt.path, b)
				}
				rows := regexp.MustCompile(`(?m)^ *`+guest+` .* yes *$`).FindAll(b, -1)
				if len(rows) < 20 || strings.Contains(string(b), "NOT VERIFIED") {
					t.Errorf("%s: %d verified rows\n%s", guest, len(rows), b)
				}
			}
		})
	}
}

// attachBinary returns the program. It skips paths that this machine does not support: those with
// guests need more.
func attachBinary(t *testing.T, ctx context.Context, guests bool) string {
	t.Helper()
	if guests {
		if os.Geteuid() != 0 {
			if os.Getenv("VNIC_TEST_REQUIRE") == "1" {
				t.Fatal("guests on TAPs need root")
			}
			t.Skip("guests on TAPs need root")
		}
		_ = vnictest.BuildGuest(t, ctx) // skips where no guest can be booted
	}
	return vnictest.Program(t)
}
