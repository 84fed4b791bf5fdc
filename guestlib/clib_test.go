package guestlib

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/falcon-vnic/vnic/guestlib/internal/fakedev"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestCKeepsMemory: the C library, too, does not reuse or unmap memory that the device may still
// access, if the device neither answers a command nor closes the stream afterwards. If it closes
// the stream, it no longer uses the memory.
func TestCKeepsMemory(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		if os.Getenv("VNIC_TEST_REQUIRE") != "" {
			t.Fatal("gcc is not installed")
		}
		t.Skip("gcc is not installed")
	}
	sources, err := filepath.Glob("c/*.c")
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(t.TempDir(), "keeps")
	args := append([]string{"-std=c11", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", "-g", "-Ic", "-o", bin, "testdata/keeps.c"}, sources...)
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	for _, c := range []struct {
		name   string
		closes bool
		want   string
	}{
		{"it goes on", false, "kept\nmapped"},
		{"it closes the stream", true, "given out\nunmapped"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var bad atomic.Bool
			_, url := startNIC(t, func(s *fakedev.Server) {
				s.Message = func(d *fakedev.Session, h abi.MsgHeader, _ []byte) bool {
					switch {
					case !bad.Load():
						return true
					case h.Type == abi.MsgDoorbell && c.closes:
						go s.Close()
					case h.Type == abi.MsgDoorbell:
						d.Out.Raw(abi.AppendStruct(nil, 0, &abi.ErrorMsg{Code: abi.StatusInvalidArgument}))
					}
					return false
				}
			})
			cmd := exec.CommandContext(testContext(t), bin, url)
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			lines.Scan() // it has opened the device
			bad.Store(true)
			in.Close()
			var said []string
			for lines.Scan() {
				said = append(said, lines.Text())
			}
			if err := cmd.Wait(); err != nil || len(said) != 3 || strings.Join(said[1:], "\n") != c.want {
				t.Errorf("%v, %q, want %q", err, said, c.want)
			}
		})
	}
}
