package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// room is one of the subjects that are measured. Its metrics begin with its
// name, or the other one it owns, and a slash; they are reported by benchmarks
// in its packages.
type room struct {
	name     string
	also     string   // another name its metrics begin with
	packages []string // in the order in which they run; "folder:pattern" runs only benchmarks that match
	needs    string   // a program without which some are skipped
	install  string   // how to get it
}

var allRooms = []room{
	{name: "falcon", also: "sim", packages: []string{"falcon/wire", "falcon/cc", "falcon", "falcon/sim", "cmd/vnic/sim/scenario", "falcon/cm"}},
	{
		name:     "tunnel",
		packages: []string{"falcon/psp", "device/underlay", "device/fabric", "device/tap", "device/gateway", "device/capture", "cmd/vnic/tunneltest:Tunnel"},
		needs:    "iperf3", install: "apt-get install iperf3",
	},
	{
		name: "uplink", packages: []string{"device/udp", "cmd/vnic/tunneltest:Uplink"},
		needs: "iperf3", install: "apt-get install iperf3",
	},
	{name: "ports", packages: []string{"qemu/virtqueue", "cmd/vnic/tunneltest:Ports"}},
	{name: "rdma", packages: []string{"queues", "queues/ring", "queues/abi", "rdma/rof/wire", "rdma", "device:DataPath|Shards"}},
	{
		name: "roce", packages: []string{"rdma:RoCE", "device:RoCE", "cmd/vnic/linuxtest:RoCE"},
		needs: "qemu-system-x86_64", install: "apt-get install qemu-system-x86",
	},
	{
		name: "iwarp", packages: []string{"rdma/iwarp", "device:IWARP", "cmd/vnic/linuxtest:IWARP"},
		needs: "qemu-system-x86_64", install: "apt-get install qemu-system-x86",
	},
	{
		name: "driver", packages: []string{"cmd/vnic/linuxtest:Driver", "cmd/vnic/linuxtest:Pyverbs"},
		needs: "qemu-system-x86_64", install: "apt-get install qemu-system-x86",
	},
	{name: "record", packages: []string{"device:Recorder"}},
	{name: "credits", packages: []string{"falcon/credit", "pf_vf", "device:QuietVF"}},
	{
		name: "fleet", packages: []string{"device/shard:Peers", "cmd/vnic/fleet"},
		needs: "etcd", install: "apt-get install etcd-server",
	},
	{
		name:     "guest",
		packages: []string{"qemu/vsock", "qemu", "guestlib", "guestlib/workload", "device:BareGuests|Doorbell", "cmd/vnic/guest:Guest|Vfio", "cmd/vnic/linuxtest:RXE"},
		needs:    "qemu-system-x86_64", install: "apt-get install qemu-system-x86",
	},
}

// selectRooms reads a list like "falcon,rdma"; "" and "all" mean every room.
func selectRooms(list string) ([]room, error) {
	if list == "" || list == "all" {
		return allRooms, nil
	}
	var names []string
	for _, r := range allRooms {
		names = append(names, r.name)
	}
	var rooms []room
	for name := range strings.SplitSeq(list, ",") {
		i := slices.Index(names, strings.TrimSpace(name))
		if i < 0 {
			return nil, fmt.Errorf("unknown room %q; use all, or one or more of %s", name, strings.Join(names, ", "))
		}
		rooms = append(rooms, allRooms[i])
	}
	return rooms, nil
}

// owns says whether metrics that begin with this name are the room's.
func (r room) owns(name string) bool { return name == r.name || name != "" && name == r.also }

// missing says what keeps some of the room's benchmarks from running, "" if
// nothing does.
func (r room) missing() string {
	if r.needs == "" {
		return ""
	}
	if _, err := exec.LookPath(r.needs); err != nil {
		return fmt.Sprintf("%s is not installed, what needs it is skipped (%s)", r.needs, r.install)
	}
	return ""
}

// job is a run of the benchmarks of a package.
type job struct{ pkg, pattern string }

// jobs lists what there is to run for the rooms, each once.
func jobs(root string, rooms []room) (list []job) {
	for _, r := range rooms {
		for _, p := range r.packages {
			folder, pattern, _ := strings.Cut(p, ":")
			tests, _ := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
			if j := (job{"./" + folder, pattern}); len(tests) > 0 && !slices.Contains(list, j) {
				list = append(list, j)
			}
		}
	}
	return list
}

type testOptions struct {
	benchtime string
	count     int
	pattern   string
}

// goTest runs a job's benchmarks and returns what they print. When ctx ends
// the whole process group ends: the test's own children too.
func goTest(ctx context.Context, root string, j job, o testOptions) (string, error) {
	if o.pattern == "" {
		o.pattern = cmp.Or(j.pattern, ".")
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", o.pattern, "-benchmem",
		"-benchtime", o.benchtime, "-count", strconv.Itoa(o.count), "-timeout", "30m", j.pkg)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}
