package lab_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

// TestLongARecordingOfLinuxGuestsIsReplayedElsewhere: two guests do what those of make demo do, RDMA and plain IP of
// guestlib, then ib_write_bw and rping of the Linux driver, one of them by a window and a port in its memory, one by
// vsock and a TAP. A third one speaks RoCEv2 by the Linux driver. Their NICs have one shard, and two. When the lab is
// gone, each NIC's recording is replayed with nothing but the program.
func TestLongARecordingOfLinuxGuestsIsReplayedElsewhere(t *testing.T) {
	vnictest.RequireDriver(t)
	apart(t, "TestInsideARecordingOfLinuxGuests")
}

const recordedLab = `
name: recorded
hosts:
  a: {config: {nic: {recorder: {size: 512M}}}}
  b: {config: {nic: {recorder: {size: 512M}, shards: 2}}}
tenants:
  lab: {subnet: 10.0.0.0/24}
machines:
  m1: {host: a, guest: {driver: DRIVER, memory: 768M, function: window}}
  m2: {host: b, guest: {driver: DRIVER, memory: 768M, port: tap}}
  m3: {host: b, transport: roce, guest: {driver: DRIVER, memory: 768M, function: window}}
  r1: {host: a, transport: roce}
validate:
  - {run: [m1, ping, -c3, -W2, m2], wait: 20s}
  - {run: [m1, rmmod, vnic], wait: 30s}
  - {run: [m2, rmmod, vnic], wait: 30s}
  - run: [m1, vnic, guest, workload, --first, --peer, 10.0.0.2, --count, "2", --ip, 10.0.0.1/24, --verbs, /lib/modules/vnic.ko]
    with: [m2, vnic, guest, workload, --second, --peer, 10.0.0.1, --count, "2", --ip, 10.0.0.2/24, --verbs, /lib/modules/vnic.ko]
    output: '(?s)"ib_write_bw [^}]*"did":.*"rping [^}]*"did":'
    timeout: 3m
  - run: [r1, vnic, guest, perf, write_bw, -s, "65536", -n, "100", 10.0.0.3]
    with: [m3, ib_write_bw, -F, -x, "1", -s, "65536", -n, "100"]
    wait: 30s
    timeout: 2m
`

func TestInsideARecordingOfLinuxGuests(t *testing.T) {
	inside(t)
	driver, err := filepath.Abs("../../../build/linux")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	vnic(t, "lab", "up", file(t, strings.ReplaceAll(recordedLab, "DRIVER", driver)))
	if said := vnic(t, "lab", "validate"); strings.Count(said, "PASS") != 5 {
		t.Error(said)
	}
	for _, host := range []string{"a", "b"} {
		vnic(t, "record", "save", filepath.Join(dir, host), "-s", "/run/vnic/lab/recorded/"+host+".sock")
	}
	vnic(t, "lab", "down")
	nothingLeft(t)
	for _, host := range []string{"a", "b"} {
		t.Log(vnictest.ReplayElsewhere(t, os.Getenv(programVariable), filepath.Join(dir, host)))
	}
}
