package linuxtest_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/qemu"
	"github.com/falcon-vnic/vnic/qemu/image"
)

// TestLongDriverStall stops the NIC, for longer than its driver waits, while an unprivileged program
// is written to whose memory the NIC has: regions, device memory, and queues of all kinds. The
// program dies, or destroys all it has. Memory that the NIC may still reach is given to nobody else
// until the NIC goes on and has released it; then it is given back. The same holds when the driver
// is unloaded meanwhile.
func TestLongDriverStall(t *testing.T) {
	t.Parallel() // it waits most of the time
	if testing.Short() {
		t.Skip("boots virtual machines")
	}
	vnictest.RequireGuests(t)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	m := driverImage(t, ctx, driverExtras{put: []image.Put{compiled(t, ctx, "stalled")}})
	patient := func(l *vnictest.Lab) { l.Rewrite(0, "nic: {", "nic: {watchdog: 0s, ") }
	makeDriverLab(t, vnictest.Options{Windows: true}, [2]qemu.Machine{m, m}, patient, func(l *driverLab) {
		defer l.keepConsoles()
		l.stall(t, "kill -KILL")
		l.program(t, shortPrograms[0])
		l.stall(t, "kill -USR2", "rmmod vnic && "+loadDriver)
		l.program(t, shortPrograms[0])
	})
}

// stall stops the NIC of the first guest while the stalled program runs there, and ends the program
// and does what else it is told before the NIC goes on.
func (l *driverLab) stall(t *testing.T, end string, meanwhile ...string) {
	t.Helper()
	g := l.guests[0]
	g.must("rm -f /tmp/run /tmp/fill /tmp/filled /tmp/verify /tmp/meanwhile; dmesg -C; chmod 666 /dev/infiniband/*")
	before := l.reached()
	g.must(fmt.Sprintf("(setpriv --reuid 65534 --regid 65534 --clear-groups /root/stalled run %s %s >/tmp/run 2>&1 &)", l.device(0), l.gid(0)))
	g.eventually("grep -q running /tmp/run")
	words := strings.Fields(g.must("grep owner /tmp/run"))
	writer, owner := words[1], words[3]
	held := l.reached()
	if held.pinned < before.pinned+1000 || held.queues <= before.queues {
		t.Fatalf("the programs hold %+v, before them it was %+v", held, before)
	}

	worker := l.NIC(0, 0).Worker
	if err := syscall.Kill(worker, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	goOn := func() { _ = syscall.Kill(worker, syscall.SIGCONT) }
	defer goOn()
	g.must("kill -USR1 " + writer)
	g.must(end + " " + owner) // it waits for the NIC
	g.eventually("dmesg | grep 'the NIC is lost: it takes no doorbells'")
	g.eventually("! test -d /proc/" + owner)
	for _, command := range meanwhile {
		g.must(fmt.Sprintf("((%s; echo $? >/tmp/meanwhile) &) >/dev/null 2>&1", command))
	}
	g.must("free=$(free -m | grep Mem: | tr -s ' ' | cut -d' ' -f7); ((/root/stalled fill $((free-64)) /tmp/verify >/tmp/fill 2>&1; echo $? >/tmp/filled) &) 2>/dev/null")
	g.eventually("grep -q filled /tmp/fill")
	g.eventually("dmesg | grep 'the NIC does not let go of memory'")
	if now := l.reached(); now != held {
		t.Errorf("while the NIC is stopped %+v are kept of %+v that it reaches", now, held)
	}
	if _, status := g.run("test -e /tmp/meanwhile"); len(meanwhile) > 0 && status == 0 {
		t.Errorf("%q did not wait for the NIC", meanwhile)
	}

	goOn()
	if len(meanwhile) > 0 {
		g.eventually("grep -q '^0$' /tmp/meanwhile")
	}
	g.eventually("dmesg | grep ': function .* is up'")
	l.ready(0)
	g.must("kill -KILL " + writer + "; touch /tmp/verify")
	g.eventually("test -s /tmp/filled")
	if said := g.must("cat /tmp/fill /tmp/filled"); !strings.HasSuffix(said, "\n0") {
		t.Errorf("the NIC wrote to memory of another process: %s", said)
	}
	vnictest.Eventually(t, "memory", func() error {
		if now := l.reached(); now != before {
			return fmt.Errorf("%+v are kept, before it was %+v", now, before)
		}
		return nil
	})
}

// reached is how many pages the guest's kernel keeps pinned, and how many bytes of queues and device
// memory the driver has.
type reached struct{ pinned, queues int }

func (l *driverLab) reached() (r reached) {
	l.T.Helper()
	said := l.guests[0].must("cat /proc/sys/vm/stat_refresh; grep nr_foll_pin /proc/vmstat; grep vnic_area_alloc /proc/vmallocinfo")
	for line := range strings.Lines(said) {
		words := strings.Fields(line)
		n, err := strconv.Atoi(words[1])
		if err != nil {
			l.T.Fatal(err)
		}
		switch words[0] {
		case "nr_foll_pin_acquired":
			r.pinned += n
		case "nr_foll_pin_released":
			r.pinned -= n
		default: // of /proc/vmallocinfo: ADDRESS-ADDRESS BYTES CALLER
			r.queues += n
		}
	}
	return r
}
