package linuxtest_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/fault"
)

// harmless are the recipes under which programs end well with a good driver: nothing is lost, it only
// comes late, twice, or when the link is back.
var harmless = []string{"slow-register", "late-event", "double-event", "slow-queue", "port-flap"}

// TestLongDriverRecipes applies each recipe of vnic inject recipe to a guest's function while a program
// connects and works. Whatever becomes of the program, afterwards none of its objects is left, and the next
// one works; the guest's kernel complains of nothing.
func TestLongDriverRecipes(t *testing.T) {
	t.Parallel() // it waits most of the time
	if testing.Short() {
		t.Skip("boots virtual machines")
	}
	vnictest.RequireGuests(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	inDriverLab(t, driverImage(t, ctx, driverExtras{}), func(l *driverLab) {
		defer l.keepConsoles()
		objects := func() string {
			f := l.VF(0)
			return fmt.Sprintf("%s: %d QPs, %d CQs, %d MRs", f.State, f.QPs, f.CQs, f.MRs)
		}
		if said, status := l.ping(120); status != 0 {
			t.Fatalf("without a recipe: exit status %d\n%s", status, said)
		}
		idle := objects()
		id := l.VF(0).ID
		for _, r := range fault.Recipes() {
			for _, rule := range r.Rules {
				_, err := l.Control(0).InjectFault(ctx, control.FaultChange{Function: id, Add: &rule})
				l.Must(err)
			}
			said, status := l.ping(30)
			if status != 0 && slices.Contains(harmless, r.Name) {
				t.Errorf("%s: exit status %d\n%s", r.Name, status, said)
			}
			_, err := l.Control(0).InjectFault(ctx, control.FaultChange{Function: id, Clear: true})
			l.Must(err)
			l.ready(0)
			vnictest.Eventually(t, r.Name+": what the program left", func() error {
				if now := objects(); now != idle {
					return fmt.Errorf("%s; before %s", now, idle)
				}
				return nil
			})
			if said, after := l.ping(120); after != 0 {
				t.Errorf("after %s: exit status %d\n%s\n%s", r.Name, after, said, l.guests[0].kernel())
			}
			t.Logf("%-16s exit status %d under it", r.Name, status)
		}
	})
}

// ping has the first guest connect to the second by the connection manager, and READ and WRITE.
func (l *driverLab) ping(seconds int) (said string, status int) {
	l.T.Helper()
	client, server := l.guests[0], l.guests[1]
	server.must(fmt.Sprintf("(bash /root/bounded %d 'rping -s -V -C 30' >/tmp/server 2>&1 &)", seconds+10))
	server.eventually("rdma res show cm_id | grep -q 'LISTEN.*rping'")
	said, status = client.runFor(time.Duration(seconds)*time.Second, fmt.Sprintf("bash /root/bounded %d 'rping -c -V -C 30 -a %s' 2>&1 | tail -n 40; (exit ${PIPESTATUS[0]})", seconds, l.Hosts[1].TenantIP))
	server.run("pkill -KILL rping; while pgrep rping; do sleep 0.1; done >/dev/null")
	if stumbled(status, said) {
		status = 0
	}
	return said, status
}
