package guestlib

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/falcon-vnic/vnic/guestlib/internal/fakedev"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// buildC builds a program of testdata with the C library, and returns its path.
func buildC(t *testing.T, name string) string {
	t.Helper()
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
	bin := filepath.Join(t.TempDir(), name)
	args := append([]string{"-std=c11", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", "-g", "-Ic", "-o", bin, "testdata/" + name + ".c"}, sources...)
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return bin
}

// TestCKeepsMemory: the C library, too, does not reuse or unmap memory that the device may still
// access, if the device neither answers a command nor closes the stream afterwards. If it closes
// the stream, it no longer uses the memory.
func TestCKeepsMemory(t *testing.T) {
	bin := buildC(t, "keeps")
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
			cmd, in, lines := startC(t, bin, url)
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

// startC starts a program, which waits where it reads its input.
func startC(t *testing.T, program string, arguments ...string) (cmd *exec.Cmd, in io.Closer, lines *bufio.Scanner) {
	t.Helper()
	cmd = exec.CommandContext(testContext(t), program, arguments...)
	cmd.Stderr = &strings.Builder{}
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
	return cmd, in, bufio.NewScanner(out)
}

// TestCWaitsEndWhenTheFunctionStops: whoever waits in the C library is told when the function was
// stopped or the completion queue failed, has the event too, and can go on after a reset (DEV-304,
// DRV-307, DEV-705).
func TestCWaitsEndWhenTheFunctionStops(t *testing.T) {
	bin := buildC(t, "waits")
	const stopped = "the function was stopped, by a fault or by the host: call vnic_reset"
	fault := &abi.AsyncEvent{Type: abi.EventFunctionFault, Status: uint32(abi.FaultCommand)}
	state := &abi.AsyncEvent{Type: abi.EventFunctionState, Status: uint32(abi.StateReset)}
	for _, c := range []struct {
		waits string
		event *abi.AsyncEvent
		want  string
	}{
		{"completion", fault, stopped},
		{"completion", state, stopped},
		{"completion", &abi.AsyncEvent{Type: abi.EventCQError, Number: 2}, "completion queue 2 has failed: it was full, or its memory could not be reached; make another"},
		{"request", fault, stopped},
		{"connection", state, stopped},
		{"command", fault, stopped},
	} {
		t.Run(fmt.Sprintf("%s, %s", c.waits, c.event.Type), func(t *testing.T) {
			var silent atomic.Bool
			nic, url := startNIC(t, func(s *fakedev.Server) {
				s.Message = func(d *fakedev.Session, h abi.MsgHeader, _ []byte) bool {
					if h.Type != abi.MsgDoorbell || !silent.Swap(false) {
						return true
					}
					d.Out.Send(0, c.event) // in place of the answer
					return false
				}
			})
			cmd, in, lines := startC(t, bin, url, c.waits)
			lines.Scan() // it is about to wait
			if c.waits == "command" {
				silent.Store(true)
			} else {
				nic.Session(0).Out.Send(0, c.event)
			}
			in.Close()
			var said []string
			for lines.Scan() {
				said = append(said, lines.Text())
			}
			want := []string{c.want, fmt.Sprintf("event %d", c.event.Type), "works again"}
			if err := cmd.Wait(); err != nil || !slices.Equal(said, want) {
				t.Errorf("%v %s, %q, want %q", err, cmd.Stderr, said, want)
			}
		})
	}
}

// TestCTakesTheLastMessagesOfAWindow: the C library takes what the device wrote before it ended the
// session of a window, such as the reason of a refusal (DEV-202), and only then the end.
func TestCTakesTheLastMessagesOfAWindow(t *testing.T) {
	out, err := exec.CommandContext(testContext(t), buildC(t, "refusal")).CombinedOutput()
	const want = "the device ends the session: another driver has it\nthe device is gone: it ended the session; open it again\n"
	if err != nil || string(out) != want {
		t.Errorf("%v, %q, want %q", err, out, want)
	}
}

// TestCObjectsOfBeforeAResetAreNoNewOnes: numbers start again with a reset (DEV-906). Objects of
// before it can be destroyed afterwards, which frees their memory and leaves the new objects of
// their numbers alone; all other uses of them fail.
func TestCObjectsOfBeforeAResetAreNoNewOnes(t *testing.T) {
	_, url := startNIC(t, nil)
	if out, err := exec.CommandContext(testContext(t), buildC(t, "resets"), url).CombinedOutput(); err != nil || string(out) != "as it should\n" {
		t.Errorf("%v\n%s", err, out)
	}
}
