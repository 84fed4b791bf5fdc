package linuxtest_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/qemu/image"
)

// TestLongDriverHostile runs programs that write rubbish into their mapped queues and headers and
// ring with rubbish, beside honest programs of the same guest. The honest programs, the kernel and
// the NIC are not affected.
func TestLongDriverHostile(t *testing.T) {
	if testing.Short() {
		t.Skip("boots virtual machines")
	}
	vnictest.RequireGuests(t)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	m := driverImage(t, ctx, driverExtras{put: []image.Put{compiled(t, ctx, "rubbish")}})
	inDriverLab(t, m, func(l *driverLab) {
		defer l.keepConsoles()
		g := l.guests[0]
		g.must("rm -f /tmp/rubbish*; for s in 1 2; do ( (/root/rubbish 30 $s >/tmp/rubbish$s 2>&1; echo exit status $? >>/tmp/rubbish$s) &); done")
		n := 0
		for ; ; n++ {
			l.program(t, shortPrograms[n%len(shortPrograms)])
			if _, status := g.run("grep -q '^exit' /tmp/rubbish1 && grep -q '^exit' /tmp/rubbish2"); status == 0 && n > 0 {
				break
			}
		}
		said := g.must("cat /tmp/rubbish1 /tmp/rubbish2")
		t.Logf("%d honest programs beside\n%s", n, said)
		if strings.Count(said, "exit status 0") != 2 || strings.Count(said, "words of rubbish") != 2 {
			t.Error("the hostile programs did not do their work")
		}
		if kernel, _ := g.run("dmesg"); strings.Contains(kernel, "is lost") {
			t.Errorf("the function went:\n%s", kernel)
		}
		for _, p := range shortPrograms {
			l.program(t, p)
		}
	})
}
