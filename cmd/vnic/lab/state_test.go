package lab_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/lab"
)

// TestOneCommandChangesALab: whoever has the lock has that of the folder that is there, and has it alone,
// also when others remove the folder.
func TestOneCommandChangesALab(t *testing.T) { apart(t, "TestInsideOneCommandChangesALab") }

func TestInsideOneCommandChangesALab(t *testing.T) {
	inside(t)
	var holders atomic.Int32
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 3000 {
				unlock, err := lab.Lock("x")
				if err != nil {
					continue // another has it
				}
				if n := holders.Add(1); n != 1 {
					t.Errorf("%d have the lock", n)
				}
				if err := os.Mkdir(filepath.Join(lab.Folder("x"), "mine"), 0o755); err != nil {
					t.Error(err)
				}
				holders.Add(-1)
				_ = os.RemoveAll(lab.Folder("x"))
				_ = unlock()
				if t.Failed() {
					return
				}
			}
		})
	}
	all.Wait()
}

// TestChangesOfALinkAreNotLost: of commands at the same time, what those did that succeeded is there.
func TestChangesOfALinkAreNotLost(t *testing.T) { apart(t, "TestInsideChangesOfALinkAreNotLost") }

func TestInsideChangesOfALinkAreNotLost(t *testing.T) {
	inside(t)
	vnic(t, "lab", "up", file(t, "{name: x, hosts: {a: {}}, machines: {m: {host: a}}}"))
	values := map[string]string{"delay": "1ms", "jitter": "2ms", "loss": "3%", "rate": "40M"}
	for range 5 {
		vnic(t, "lab", "link", "all", "--clear")
		started := map[string]*exec.Cmd{}
		for name, value := range values {
			started[value] = exec.Command(os.Getenv(programVariable), "lab", "link", "all", "--"+name, value)
			if err := started[value].Start(); err != nil {
				t.Fatal(err)
			}
		}
		var changed []string
		for value, c := range started {
			if c.Wait() == nil {
				changed = append(changed, value)
			}
		}
		said := vnic(t, "lab", "link")
		for _, value := range changed {
			if !strings.Contains(said, value) {
				t.Errorf("%s is lost of %v:\n%s", value, changed, said)
			}
		}
	}
	vnic(t, "lab", "down")
	nothingLeft(t)
}
