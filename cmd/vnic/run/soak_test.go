package run_test

import (
	"context"
	"fmt"
	"math/rand"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

// soakTime is the duration of TestSoakLeavesNothing, unless VNIC_SOAK gives another.
const soakTime = 15 * time.Second

// soak runs two NICs with their clients, and disturbs them at random.
type soak struct {
	*vnictest.Lab
	rnd    *rand.Rand
	begin  func(l *vnictest.Lab, host int) (stop func(), said *follower) // starts a client
	stops  [2]func()
	guests [2]*follower
	total  int // operations verified by clients that are gone
}

// soakArgs returns the arguments of an endless workload that recovers from losses.
func soakArgs(h *vnictest.Host, device string) []string {
	return append(h.WorkloadArgs(device, 5), "--repeat", "100000", "--recover", "2m")
}

// TestSoakLeavesNothing: while clients work, workers are killed and upgraded, functions reset, VFs enabled and
// disabled, and clients restarted, in an order that VNIC_SOAK_SEED decides. Nothing may be left
// afterwards: no descriptors, goroutines, memory, network devices or processes.
func TestSoakLeavesNothing(t *testing.T) { soakClients(t, 1) }

// TestLongSoakShards is TestSoakLeavesNothing with NICs of two shards.
func TestLongSoakShards(t *testing.T) { soakClients(t, 2) }

func soakClients(t *testing.T, shards int) {
	t.Helper()
	runSoak(t, false, shards, beginEndless)
}

// beginEndless starts a bare client with an endless workload.
func beginEndless(l *vnictest.Lab, i int) (stop func(), said *follower) {
	l.T.Helper()
	h := l.Hosts[i]
	cmd := exec.Command(vnictest.Program(l.T), soakArgs(h, "unix://"+h.Socket)...)
	out, in, err := os.Pipe()
	if err != nil {
		l.T.Fatal(err)
	}
	l.T.Cleanup(func() { out.Close() })
	cmd.Stdout = in
	p, err := labkit.StartCommand(h.Guest(), cmd)
	in.Close()
	if err != nil {
		l.T.Fatal(err)
	}
	l.T.Cleanup(func() { p.Stop(0) })
	return func() { p.Stop(0) }, follow(out)
}

// TestLongSoakGuests is TestSoakLeavesNothing with two QEMU guests that have windows and are
// switched off and booted again.
func TestLongSoakGuests(t *testing.T) {
	if testing.Short() {
		t.Skip("boots virtual machines")
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	g := workloadGuest(t, ctx)
	runSoak(t, true, 1, func(l *vnictest.Lab, i int) (func(), *follower) {
		l.T.Helper()
		stop, said := bootGuest(l, ctx, g, i, soakArgs(l.Hosts[i], guestURL)...)
		l.T.Cleanup(stop)
		return stop, said
	})
}

func runSoak(t *testing.T, vm bool, shards int, begin func(*vnictest.Lab, int) (func(), *follower)) {
	t.Helper()
	long, seed := soakTime, time.Now().UnixNano()
	if s := os.Getenv("VNIC_SOAK"); s != "" {
		var err error
		if long, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	if s := os.Getenv("VNIC_SOAK_SEED"); s != "" {
		seed, _ = strconv.ParseInt(s, 10, 64)
	}
	t.Logf("VNIC_SOAK=%v VNIC_SOAK_SEED=%d", long, seed)
	space := ""
	vnictest.InLab(t, vm, func(l *vnictest.Lab) {
		space, _ = os.Readlink("/proc/thread-self/ns/net")
		s := &soak{Lab: l, rnd: rand.New(rand.NewSource(seed)), begin: begin}
		for i := range l.Hosts {
			l.UseShards(i, shards)
			l.Start(i)
		}
		l.Joined()
		s.boot()
		s.settle() // everything has been made once
		for i := range l.Hosts {
			s.enable(i)
		}
		before := s.take()
		happened := map[string]int{}
		for end := time.Now().Add(long); time.Now().Before(end); {
			happened[s.happen()]++
			time.Sleep(time.Duration(s.rnd.Intn(400)) * time.Millisecond)
		}
		s.halt()
		for i := range s.Hosts { // killed so often, a worker is started again only after seconds: the clients wait
			s.kill(s.NIC(i, 0).Worker, syscall.SIGKILL)
		}
		s.boot()
		s.settle()
		after := s.take()
		t.Logf("%d operations verified; %v", s.total, happened)
		for i := range after {
			after[i].compare(t, before[i])
		}
	})
	vnictest.Eventually(t, "namespace gone", func() error {
		if in := inhabitants(space); len(in) > 0 || space == "" {
			return fmt.Errorf("still in %s: %q", space, in)
		}
		return nil
	})
}

// boot starts both clients.
func (s *soak) boot() {
	s.T.Helper()
	for i := range s.Hosts {
		s.stops[i], s.guests[i] = s.begin(s.Lab, i)
	}
}

// halt kills both clients.
func (s *soak) halt() {
	s.T.Helper()
	for i, stop := range s.stops {
		stop()
		said := s.guests[i].now()
		s.total += said.operations
		if len(said.wrong) > 0 {
			s.T.Errorf("client %d: %q", i+1, said.wrong)
		}
	}
}

// settle waits until the clients have verified something, ends them and waits until the NICs have
// freed everything.
func (s *soak) settle() {
	s.T.Helper()
	for i := range s.guests {
		vnictest.Eventually(s.T, "client works", func() error {
			if s.guests[i].verified() == 0 {
				return fmt.Errorf("client %d: %q, %q", i+1, s.guests[0].now().last, s.guests[1].now().last)
			}
			return nil
		})
	}
	s.halt()
	s.Free(0)
	s.Free(1)
}

// happen causes a random disturbance and returns its name.
func (s *soak) happen() string {
	s.T.Helper()
	host := s.rnd.Intn(2)
	control := s.Hosts[host].Control
	switch s.rnd.Intn(8) {
	case 0, 1, 2:
		n := s.NIC(host, 0)
		if err := syscall.Kill(n.Worker, syscall.SIGKILL); err != nil {
			s.T.Fatal(err)
		}
		return "kill"
	case 3:
		s.NIC(host, 0)
		if out, errs, code := vnictest.Run(s.T, "upgrade", "-s", control); code != 0 {
			s.T.Fatalf("exit status %d: %s%s", code, out, errs)
		}
		return "upgrade"
	case 4:
		s.vnic("vf", "reset", "-s", control, "pf0.vf1")
		return "reset"
	case 5:
		s.enable(host)
		return "VF enabled"
	case 6:
		_, _, _ = vnictest.Run(s.T, "vf", "disable", "-s", control, "pf0.vf3") // it may not be there
		return "VF disabled"
	}
	s.halt()
	s.boot()
	return "clients anew"
}

// enable gives a host one more VF.
func (s *soak) enable(host int) {
	s.T.Helper()
	h, guest := s.Hosts[host], "unix:guest"
	if !h.Bare {
		guest = fmt.Sprintf("cid:%d", h.GuestCID)
	}
	s.vnic("vf", "set", "-s", h.Control, "pf0.vf3", "enable", "tenant", "100", "address", fmt.Sprintf("192.168.100.5%d", host), "guest", guest)
}

// vnic runs a command until it succeeds, because a worker may be starting.
func (s *soak) vnic(args ...string) {
	s.T.Helper()
	vnictest.Eventually(s.T, strings.Join(args, " "), func() error {
		if out, errs, code := vnictest.Run(s.T, args...); code != 0 {
			return fmt.Errorf("exit status %d: %s%s", code, out, errs)
		}
		return nil
	})
}

// holding counts the resources that the processes of a NIC hold.
type holding struct {
	name                          string
	supervisorFDs, workerFDs      int
	supervisorTasks               int
	supervisorMemory              int // KiB, without pages of the program, which the kernel drops and reads again
	children, goroutines, devices int
	open                          string // the supervisor's descriptors
}

// take counts what the processes of both NICs hold. It ends the workers by SIGQUIT, so that they
// print their goroutines.
func (s *soak) take() (all [2]holding) {
	s.T.Helper()
	for i, h := range s.Hosts {
		// A worker that has just started holds only what every worker needs.
		n := s.NIC(i, 0)
		s.kill(n.Worker, syscall.SIGKILL)
		n = s.NIC(i, n.Worker)
		s.Joined()
		v := &all[i]
		v.name = h.Name()
		vnictest.Eventually(s.T, "descriptors closed", func() error {
			v.supervisorFDs, v.workerFDs = descriptorsOf(n.PID), descriptorsOf(n.Worker)
			time.Sleep(100 * time.Millisecond)
			if now := descriptorsOf(n.PID); now != v.supervisorFDs {
				return fmt.Errorf("supervisor: %d, now %d", v.supervisorFDs, now)
			}
			return nil
		})
		v.supervisorTasks, v.supervisorMemory = status(n.PID, "Threads:"), status(n.PID, "RssAnon:")
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", n.PID))
		for _, task := range tasks {
			kids, _ := os.ReadFile(task)
			v.children += len(strings.Fields(string(kids)))
		}
		v.open = openOf(n.PID)
		links, err := net.Interfaces()
		if err != nil {
			s.T.Fatal(err)
		}
		v.devices = len(links)
		logged, _ := os.ReadFile(h.Log)
		s.kill(n.Worker, syscall.SIGQUIT)
		s.NIC(i, n.Worker)
		more, _ := os.ReadFile(h.Log)
		v.goroutines = goroutinesIn(string(more[len(logged):]))
	}
	s.Joined()
	return all
}

// goroutinesIn counts the goroutines in a dump that the program started. It leaves out the
// runtime's collector workers and net/http's reader for each request, whose number depends on the
// moment.
func goroutinesIn(dump string) (n int) {
	for _, g := range strings.Split(dump, "\ngoroutine ")[1:] {
		_, by, ok := strings.Cut(g, "\ncreated by ")
		if ok && !strings.HasPrefix(by, "runtime.") && !strings.HasPrefix(by, "net/http.(*connReader)") {
			n++
		}
	}
	return n
}

func (s *soak) kill(pid int, sig syscall.Signal) {
	s.T.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		s.T.Fatal(err)
	}
}

// openOf lists a process's descriptors.
func openOf(pid int) string {
	var all []string
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, l := range links {
		to, _ := os.Readlink(l)
		all = append(all, filepath.Base(l)+" "+to)
	}
	return strings.Join(all, ", ")
}

func descriptorsOf(pid int) int {
	all, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return len(all)
}

// status returns a number from /proc/PID/status.
func status(pid int, key string) (n int) {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			_, _ = fmt.Sscan(rest, &n)
		}
	}
	return n
}

// compare fails the test for everything of which there is more than before.
func (v holding) compare(t *testing.T, before holding) {
	t.Helper()
	t.Logf("%+v, before %+v", v, before)
	const (
		spareTasks  = 8        // threads of the runtime
		spareMemory = 16 << 10 // KiB: 4 or 5 MiB at first, and 14 from when the collector has run, however long it goes on
		spare       = 2        // a connection to the peer, on the way
	)
	for _, c := range []struct {
		what        string
		now, before int
		spare       int
	}{
		{"descriptors of the supervisor", v.supervisorFDs, before.supervisorFDs, 0},
		{"descriptors of the worker", v.workerFDs, before.workerFDs, spare},
		{"goroutines of the worker", v.goroutines, before.goroutines, spare},
		{"threads of the supervisor", v.supervisorTasks, before.supervisorTasks, spareTasks},
		{"KiB of the supervisor", v.supervisorMemory, before.supervisorMemory, spareMemory},
		{"children of the supervisor", v.children, 1, 0},
		{"network devices", v.devices, before.devices, 0},
	} {
		if c.now > c.before+c.spare || c.now == 0 {
			t.Errorf("%s: %d %s, %d before", v.name, c.now, c.what, c.before)
		}
	}
}

// inhabitants returns the threads of other processes in a network namespace.
func inhabitants(space string) (in []string) {
	links, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*/ns/net")
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && to == space && !strings.HasPrefix(l, fmt.Sprintf("/proc/%d/", os.Getpid())) {
			in = append(in, l)
		}
	}
	return in
}
