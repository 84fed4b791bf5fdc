package run_test

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/control"
)

// TestLongSettles: the resources of a NIC's processes do not grow with the number of operations.
// Each operation is repeated until everything that is made on demand exists, and then several times
// as often (with VNIC_SOAK, five times more). That may need no more descriptors, and no more
// memory, apart from what the garbage collector has not freed yet.
func TestLongSettles(t *testing.T) {
	times := 1
	if os.Getenv("VNIC_SOAK") != "" {
		times = 5
	}
	t.Setenv("GOGC", "10") // of the NICs: memory is what is in use, and little more
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		l.Start(0)
		l.Start(1)
		l.Joined()
		set := func(action string, to map[string]string) {
			t.Helper()
			vnictest.Eventually(t, action+" pf0.vf3", func() error {
				_, err := l.Control(0).ChangeFunction(context.Background(), control.FunctionChange{Function: "pf0.vf3", Action: action, Set: to})
				return err
			})
		}
		cycle := func(n int) {
			t.Helper()
			for range n {
				set("enable", map[string]string{"tenant": "100", "address": "192.168.100.53", "guest": "unix:guest", "port": "name=vp3"})
				set("reset", nil)
				set("enable", map[string]string{"port": "none"})
				set("disable", nil)
			}
			l.Works()
			l.Free(0)
		}
		cycle(10)
		mid := heldBy(l, 0)
		cycle(40 * times)
		settled(l, 0, mid, true)

		replace := func(n int) {
			t.Helper()
			for i := range n {
				w := l.NIC(0, 0).Worker
				if i%2 == 0 {
					if err := syscall.Kill(w, syscall.SIGKILL); err != nil {
						t.Fatal(err)
					}
				} else if err := syscall.Kill(l.NICs[0].Cmd.Process.Pid, syscall.SIGUSR2); err != nil {
					t.Fatal(err)
				}
				l.NIC(0, w)
			}
			l.Joined()
		}
		replace(10)
		mid = heldBy(l, 0)
		replace(20 * times)
		settled(l, 0, mid, false)
	})
}

// held is the number of resources that the processes of a NIC hold.
type held struct {
	supervisorFDs, workerFDs       int
	supervisorMemory, workerMemory int // KiB
}

func heldBy(l *vnictest.Lab, i int) held {
	l.T.Helper()
	n := l.NIC(i, 0)
	return held{descriptorsOf(n.PID), descriptorsOf(n.Worker), status(n.PID, "RssAnon:"), status(n.Worker, "RssAnon:")}
}

// settled waits until a NIC holds no more than before. It queries the NIC, which makes it collect
// garbage.
func settled(l *vnictest.Lab, i int, before held, sameWorker bool) {
	l.T.Helper()
	const spare = 2 << 10 // KiB
	var now held
	vnictest.Eventually(l.T, "a NIC that has settled", func() error {
		now = heldBy(l, i)
		if now.supervisorFDs > before.supervisorFDs || now.supervisorMemory > before.supervisorMemory+spare ||
			sameWorker && (now.workerFDs > before.workerFDs || now.workerMemory > before.workerMemory+spare) {
			return fmt.Errorf("it holds %+v, and held %+v", now, before)
		}
		return nil
	})
	l.T.Logf("it holds %+v, and held %+v", now, before)
}
