package lab_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

// fleetOf is a lab with etcd whose hosts have a machine each, and its checks: that the first machine reaches
// all others, and that etcd has the records of the hosts, and of no others.
func fleetOf(hosts ...string) string {
	var list, machines, pings, records []string
	for i, h := range hosts {
		list, machines = append(list, h+": {}"), append(machines, fmt.Sprintf("m%s: {host: %[1]s}", h))
		if i > 0 {
			pings = append(pings, "ping -c1 -W2 m"+h)
		}
		records = append(records, h)
	}
	return fmt.Sprintf(`
name: pair
directory: etcd
hosts: {%s}
machines: {%s}
validate:
  - {run: [m%s, sh, -c, "%s"], wait: 20s}
  - {run: [etcd, sh, -c, "vnic fleet hosts | awk '$2 == \"here\" {print $1}' | xargs"], output: "^%s$", wait: 20s}
`, strings.Join(list, ", "), strings.Join(machines, ", "), hosts[0], strings.Join(pings, " && "), strings.Join(records, " "))
}

// TestLongHostsOfALabFindEachOtherByEtcd: the lab fleet passes. Hosts that an edit adds join, those that it
// takes out leave, and the NICs of others go on meanwhile; down leaves nothing, whatever was killed.
func TestLongHostsOfALabFindEachOtherByEtcd(t *testing.T) {
	vnictest.RequireEtcd(t)
	apart(t, "TestInsideHostsOfALabFindEachOtherByEtcd")
}

func TestInsideHostsOfALabFindEachOtherByEtcd(t *testing.T) {
	shipped(t, "fleet")
	check := func(t *testing.T) {
		t.Helper()
		if said, err := try("lab", "validate"); err != nil || strings.Count(said, "PASS") != 2 {
			status, _ := try("lab", "status")
			t.Fatalf("%v\n%s\n%s", err, said, status)
		}
	}
	up := func(t *testing.T, text string) {
		t.Helper()
		vnic(t, "lab", "up", file(t, text))
		check(t)
	}
	up(t, fleetOf("a", "b"))
	vnictest.RequireIn(t, vnic(t, "lab", "status"), "etcd up https://172.16.255.1:2379", "a up", "1 of 1", "b up", "1 of 1")
	vnictest.RequireIn(t, vnic(t, "lab", "config", "a"), `directory: {etcd: {endpoints: ["https://172.16.255.1:2379"], prefix: /vnic/pair}}`)
	vnictest.RequireIn(t, vnic(t, "lab", "config", "etcd"), "listen-client-urls: https://172.16.255.1:2379")
	vnictest.RequireIn(t, vnic(t, "lab", "graph"), "├─ etcd 172.16.255.1")
	vnictest.RequireIn(t, vnic(t, "lab", "exec", "a", "vnic", "fleet", "hosts"), "a here", "b here")
	nics, etcd := pidsOf("run", "pair/a.yaml"), pidsOf("etcd --config-file")
	goOn := func(t *testing.T, what string) {
		t.Helper()
		if now := pidsOf("run", "pair/a.yaml"); !slices.Equal(now, nics) {
			t.Errorf("%s: NIC a is of processes %v, before %v", what, now, nics)
		}
		if now := pidsOf("etcd --config-file"); !slices.Equal(now, etcd) {
			t.Errorf("%s: etcd is of processes %v, before %v", what, now, etcd)
		}
	}

	up(t, fleetOf("a", "b"))
	goOn(t, "nothing has changed")
	for range 2 { // the second time the host comes back
		up(t, fleetOf("a", "b", "c"))
		goOn(t, "a host was added")
		up(t, fleetOf("a", "b"))
		goOn(t, "a host was taken out")
		vnictest.RequireIn(t, vnic(t, "lab", "exec", "etcd", "vnic", "fleet", "hosts"), "c revoked")
	}
	// A tenant that an edit adds is granted to all hosts, and to none any more when it is taken out.
	granted := func(want string) {
		t.Helper()
		said := vnic(t, "lab", "exec", "etcd", "vnic", "fleet", "hosts", "--json")
		for _, h := range []string{"a", "b"} {
			if !regexp.MustCompile(fmt.Sprintf(`"name": "%s",[^}]*"allowed": "%s"`, h, want)).MatchString(said) {
				t.Errorf("%s may have more or less than %s:\n%s", h, want, said)
			}
		}
	}
	up(t, strings.ReplaceAll(fleetOf("a", "b"), "{host:", "{tenant: lab, host:")+"tenants: {lab: {subnet: 192.168.100.0/24}, other: {subnet: 10.200.0.0/24}}\n")
	goOn(t, "a tenant was added")
	granted("1:any,2:any")
	up(t, fleetOf("a", "b"))
	granted("1:any")
	for _, pid := range etcd {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	vnictest.RequireIn(t, vnic(t, "lab", "exec", "ma", "ping", "-c1", "-W2", "mb"), "1 received")
	vnictest.RequireIn(t, vnic(t, "lab", "status"), "etcd down")
	up(t, fleetOf("a", "b"))
	if now := pidsOf("run", "pair/a.yaml"); !slices.Equal(now, nics) {
		t.Errorf("etcd was killed: NIC a is of processes %v, before %v", now, nics)
	}
	// Without the directory, and with it again.
	vnic(t, "lab", "up", file(t, pair))
	vnictest.RequireIn(t, vnic(t, "lab", "validate"), "PASS")
	if left := pidsOf("etcd --config-file"); len(left) > 0 {
		t.Errorf("etcd runs in a lab without it: %v", left)
	}
	up(t, fleetOf("a", "b"))
	vnic(t, "lab", "down")
	nothingLeft(t)
}

// TestLongDownFindsWhatIsLeftOfAFleet: also when the command that made it was killed. What was begun can be
// gone on with.
func TestLongDownFindsWhatIsLeftOfAFleet(t *testing.T) {
	vnictest.RequireEtcd(t)
	apart(t, "TestInsideDownFindsWhatIsLeftOfAFleet")
}

func TestInsideDownFindsWhatIsLeftOfAFleet(t *testing.T) {
	inside(t)
	path := file(t, fleetOf("a", "b"))
	vnic(t, "lab", "up", path)
	for _, pid := range pidsOf("pair") { // NICs, etcd, the signer, and the processes that keep logs
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	vnic(t, "lab", "down", "pair")
	if nothingLeft(t); t.Failed() {
		t.FailNow()
	}
	for after := 100 * time.Millisecond; ; after += 300 * time.Millisecond {
		cmd := exec.Command(os.Getenv(programVariable), "lab", "up", path)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(after)
		_ = cmd.Process.Kill()
		err := cmd.Wait()
		vnic(t, "lab", "up", path)
		if said := vnic(t, "lab", "validate"); strings.Count(said, "PASS") != 2 {
			t.Errorf("vnic lab up, killed after %v, and again:\n%s", after, said)
		}
		vnic(t, "lab", "down", "pair")
		if nothingLeft(t); t.Failed() {
			t.FailNow()
		}
		if err == nil {
			break
		}
	}
}

// TestALabWithEtcdNeedsItInstalled: otherwise that is said before anything is made.
func TestALabWithEtcdNeedsItInstalled(t *testing.T) {
	apart(t, "TestInsideALabWithEtcdNeedsItInstalled")
}

func TestInsideALabWithEtcdNeedsItInstalled(t *testing.T) {
	inside(t)
	ip, err := exec.LookPath("ip")
	if err != nil {
		t.Fatal(err)
	}
	path := t.TempDir()
	if err := os.Symlink(ip, filepath.Join(path, "ip")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", path)
	vnictest.RequireIn(t, refused(t, "lab", "up", "fleet"), `directory: there is no program "etcd"; install it (Debian: etcd-server), or leave directory out`)
	nothingLeft(t)
}
