package lab_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

// TestLongARecordingOfLinuxGuestsIsReplayedElsewhere: guests with the Linux driver, one of them by a window and a
// port in its memory, one by vsock and a TAP; beside them functions that speak RoCEv2; of NICs of one and two
// shards. When the lab is gone, each NIC's recording is replayed with nothing but the program.
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
  r1: {host: a, transport: roce}
  r2: {host: b, transport: roce}
validate:
  - {run: [m1, ping, -c3, -W2, m2], wait: 20s}
  - {run: [m1, ibv_devinfo], output: 'state:\s+PORT_ACTIVE', wait: 30s}
  - run: [m1, ib_write_bw, -F, -s, "65536", -n, "100", 10.0.0.2]
    with: [m2, ib_write_bw, -F, -s, "65536", -n, "100"]
    wait: 30s
    timeout: 2m
  - run: [m1, rping, -c, -C, "10", -v, -V, -a, 10.0.0.2]
    with: [m2, rping, -s, -C, "10"]
    wait: 30s
    timeout: 2m
  - run: [r1, vnic, guest, workload, --first, --peer, 10.0.0.4, --count, "2"]
    with: [r2, vnic, guest, workload, --second, --peer, 10.0.0.3, --count, "2"]
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
