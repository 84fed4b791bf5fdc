package inject_test

import (
	"context"
	"os/exec"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/fault"
)

// refusedAlone is the recipe after which a program of guestlib may end with an error, since a command was
// refused to it.
const refusedAlone = "command-refused"

// waitsForEvents is the recipe that a program of guestlib does not get over: it sleeps until the event of
// its completion queue comes, and one is lost.
const waitsForEvents = "lost-event"

// TestLongGuestlibGoesThroughRecipes applies each recipe to a function whose program is guestlib's workload.
// All of its data is verified at the end; where its objects were lost, it has made them anew. When it has
// ended, the function has nothing of it.
func TestLongGuestlibGoesThroughRecipes(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		for i := range l.Hosts {
			l.Start(i)
		}
		l.Joined()
		id := l.VF(0).ID
		for _, r := range fault.Recipes() {
			if r.Name == waitsForEvents {
				continue
			}
			for _, rule := range r.Rules {
				_, err := l.Control(0).InjectFault(t.Context(), control.FaultChange{Function: id, Add: &rule})
				l.Must(err)
			}
			if first, second := workload(t, l); r.Name != refusedAlone && (first != nil || second != nil) {
				t.Errorf("%s: %v, %v", r.Name, first, second)
			}
			_, err := l.Control(0).InjectFault(t.Context(), control.FaultChange{Function: id, Clear: true})
			l.Must(err)
			l.Free(0)
			l.Free(1)
		}
		l.Works()
	})
}

// workload runs guestlib's workload at both hosts, and ends the second's when the first's has failed.
func workload(t *testing.T, l *vnictest.Lab) (first, second error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var sides [2]*exec.Cmd
	for i, h := range l.Hosts {
		sides[i] = exec.CommandContext(ctx, vnictest.Program(t), append(h.WorkloadArgs("unix://"+h.Socket, 2), "--recover", "2m")...)
		l.Must(sides[i].Start())
	}
	if first = sides[0].Wait(); first != nil {
		cancel()
	}
	return first, sides[1].Wait()
}
