package guest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/guest"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/guestlib/conform"
)

const conformConfig = `
nic: {host: 1, strict: true}
uplink: {backend: memory, name: up1, mtu: 4500, address: 10.99.0.1/24}
functions:
  - pf: 0
    tenant: 100
    address: 192.168.100.10
    guest: %[1]s
    port: {type: vhost-user, socket: %[2]s/p0, mtu: 1500}
    vf_count: 4
    vfs:
      - {vf: 1, tenant: 100, address: 192.168.100.11, guest: {unix: a}, port: {type: vhost-user, socket: %[2]s/p1, mtu: 1500}}
attach:
  - {type: unix, name: a, socket: %[2]s/a}
  - {type: unix, name: p, socket: %[2]s/p}
  - {type: vhost-user, socket: %[2]s/g.sock, cid: 1001, windows: true}
`

// checkReport reads a report. No check may have failed, and only the named clauses, given by how
// they begin, may have been left out.
func checkReport(t *testing.T, said []byte, without ...string) conform.Report {
	t.Helper()
	var r conform.Report
	if err := json.Unmarshal(said, &r); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	for _, x := range r.Results {
		if x.Outcome == conform.Failed {
			t.Errorf("%s: %s", x.Name, x.Detail)
		}
	}
	left := strings.Join(without, " ")
	for _, c := range r.Coverage {
		if c.State == "skipped" && !strings.Contains(left, c.Clause) {
			t.Errorf("%s is not checked: %s", c.Clause, c.Reason)
		}
	}
	return r
}

// pciClauses are the clauses about functions that are PCI devices.
const pciClauses = "DEV-1101 DEV-1102 DEV-1103 DEV-1104 DEV-1106"

// iwarpClauses are the clauses about functions over iWARP, which package device checks
// (TestConformanceOverIWARP).
const iwarpClauses = "DEV-970 DEV-971 DEV-972 DEV-973"

// TestTheNICPassesTheConformanceKit: the NIC passes the kit run by a bare client, on a VF and on a PF.
func TestTheNICPassesTheConformanceKit(t *testing.T) {
	dir := t.TempDir()
	vnictest.Serve(t, vnictest.WriteConfig(t, fmt.Sprintf(conformConfig, "{unix: p}", dir)))
	const windows, vfs = "DEV-1001 DEV-1002 DEV-1003 DEV-1004 DEV-1006 DEV-1008 DEV-1009 DEV-1010", "DEV-307 DEV-308 DEV-310 DEV-311"
	for name, without := range map[string][]string{"a": {windows, vfs, pciClauses, iwarpClauses}, "p": {windows, pciClauses, iwarpClauses}} {
		out, err := vnictest.Here(t, guest.ConformCommand(), "--json", "-d", "unix://"+dir+"/"+name)
		if err != nil {
			t.Error(err)
		}
		r := checkReport(t, []byte(out), without...)
		t.Logf("%s: %d checks", r.Function, len(r.Results))
	}
	out, err := vnictest.Here(t, guest.Command(), "conform", "-d", "unix://"+dir+"/a", "--run", "^hello")
	if err != nil || !strings.HasPrefix(out, "TAP version 13\n") || strings.Contains(out, "\nnot ok") || !strings.Contains(out, "\nok 1 - hello.version") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestTheKitReportsTheRulesADriverBreaks: the kit reports nothing about a driver that keeps the rules, and the broken
// rules of one that does not: the kit itself.
func TestTheKitReportsTheRulesADriverBreaks(t *testing.T) {
	dir := t.TempDir()
	vnictest.Serve(t, vnictest.WriteConfig(t, fmt.Sprintf(conformConfig, "{unix: p}", dir)))
	url := "unix://" + dir + "/a"
	out, err := vnictest.Here(t, guest.ConformCommand(), "--driver", "-d", url, "--", vnictest.Program(t), "guest", "info", "-d", url)
	if err != nil || !strings.Contains(out, "\nok ") || strings.Contains(out, "\nnot ok") {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = vnictest.Here(t, guest.ConformCommand(), "--driver", "--json", "-d", url, "--", vnictest.Program(t), "guest", "conform", "-d", url, "--run", "queue.producer|stream.framing")
	var r conform.Report
	jerr := json.Unmarshal([]byte(out[strings.Index(out, "\n{")+1:]), &r) // behind what the driver said
	if err == nil || jerr != nil {
		t.Fatalf("%v, %v\n%s", err, jerr, out)
	}
	if got := strings.Join(r.Failed(), " "); got != "DRV-201 DRV-202 DRV-206 DRV-602 DRV-603" {
		t.Errorf("broken rules: %s", got)
	}
	out, err = vnictest.Here(t, guest.ConformCommand(), "--driver", "-d", url)
	if err == nil || !strings.Contains(out, "\nnot ok") {
		t.Errorf("the device remembers nothing: %v\n%s", err, out)
	}
	_, err = vnictest.Here(t, guest.ConformCommand(), "--driver", "-d", url, "--", filepath.Join(dir, "no-such-driver"))
	if err == nil || !strings.Contains(err.Error(), "checks failed: the driver") {
		t.Errorf("a driver that does not start: %v", err)
	}
}

// TestLongConformInGuest: the NIC passes the kit in a guest with Debian's kernel, on a PF with a
// window and interrupts. Only there can the clauses about windows be checked.
func TestLongConformInGuest(t *testing.T) {
	conformInGuest(t, conformConfig, "", "vsock://2:7000", pciClauses, iwarpClauses)
}

// TestLongConformPCI is TestLongConformInGuest for a PF that is a PCI device, used through
// vfio-pci. There the clauses of section 11 can be checked, but not those that need the VFs'
// streams too, since a PCI device has only one stream.
func TestLongConformPCI(t *testing.T) {
	vnictest.RequireGuests(t)
	config := strings.Replace(conformConfig, "type: vhost-user, socket: %[2]s/g.sock, cid: 1001, windows: true", "type: vfio-user, socket: %[2]s/g.sock, cid: 1001", 1)
	conformInGuest(t, config, vnictest.NewQEMU(t, t.Context()), "pci://", "DEV-307 DEV-308 DEV-310 DEV-311", iwarpClauses)
}

func conformInGuest(t *testing.T, config, program, url string, without ...string) {
	vnictest.RequireGuests(t)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	g := vnictest.BuildGuest(t, ctx)
	g.IOMMU, g.QEMU = true, program
	dir, err := os.MkdirTemp("", "vnic-conform-") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := vnictest.WriteConfig(t, fmt.Sprintf(config, "{cid: 1001}", dir))
	vnictest.Serve(t, path)
	said, err := vnictest.BootPrinted(t, ctx, path, g, 1001, "guest", "conform", "--json", "--wait", "60s", "--device", url)
	if err != nil {
		t.Fatal(err)
	}
	r := checkReport(t, said[bytes.IndexByte(said, '{'):], without...)
	t.Logf("%s: %d checks", r.Function, len(r.Results))
}
