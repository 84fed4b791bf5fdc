package doctor

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/device/tap"
)

func TestMain(m *testing.M) { vnictest.Main(m) }

// doctor runs the command and returns its report.
func doctor(t *testing.T, check machineCheck, args ...string) (r report, err error) {
	t.Helper()
	out, err := vnictest.Here(t, Command(check), append(args, "--json")...)
	text, _, _ := strings.Cut(out, "\nError")
	if jerr := json.NewDecoder(strings.NewReader(text)).Decode(&r); jerr != nil {
		t.Fatalf("%v: %s", jerr, out)
	}
	return r, err
}

// about returns what a check found.
func (r *report) about(check string) (all string) {
	for _, f := range r.Findings {
		if f.Check == check {
			all += f.About + ": " + f.Wrong + "\n"
		}
	}
	return all
}

func lacksNothing(*config.Config) error { return nil }

// TestTheDoctorOfRealNICs: with NICs, a bridge and an identity as people have them.
func TestTheDoctorOfRealNICs(t *testing.T) {
	vnictest.RequireRoot(t)
	dir := t.TempDir()
	run, err := os.MkdirTemp("", "vnic-doctor-") // t.TempDir is too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(run) })
	if err := cmlink.Init(dir+"/keys", "lab", []string{"1", "2"}); err != nil {
		t.Fatal(err)
	}
	ports, err := labkit.FreePorts()
	if err != nil {
		t.Fatal(err)
	}
	path := vnictest.WriteConfig(t, fmt.Sprintf(`
nic: {host: 1}
control: %[1]s/control
uplink: {backend: memory, name: up1, mtu: 4500, address: 10.0.0.1/24}
cm: {listen: 127.0.0.1:%[3]d, identity: %[2]s/keys}
peers: [{host: 2, underlay: 10.0.0.2, cm: "127.0.0.1:%[4]d", identity: "vnic://lab/host/2", tenants: [100]}]
functions: [{pf: 0, vfs: [{vf: 1, tenant: 100, address: 192.168.100.1, guest: {unix: guest}}]}]
attach: [{type: unix, name: guest, socket: %[1]s/guest}]
`, run, dir, ports[0], ports[1]))
	r, err := doctor(t, func(*config.Config) error { return errors.New("there is no bridge") }, "-c", path, "-s", run+"/nobody")
	if err == nil || len(r.Looked) != 3 {
		t.Errorf("%v, %+v", err, r)
	}
	if got := r.about("answer"); !strings.Contains(got, "is `vnic run` running") {
		t.Error("answer: ", got)
	}
	if got := r.about("machine"); !strings.Contains(got, path+": there is no bridge") {
		t.Error("machine: ", got)
	}
	vnictest.Serve(t, path)
	r, err = doctor(t, lacksNothing, "-c", path)
	if err == nil {
		t.Error("nothing is wrong")
	}
	for check, want := range map[string]string{
		"peer": "peer vnic://lab/host/2 is not reached", "guest": "h1.pf0.vf1: no driver of unix guest is attached", "version": "the NIC is vnic dev, this program test",
	} {
		if got := r.about(check); !strings.Contains(got, want) {
			t.Errorf("%s: %s", check, got)
		}
	}
	for _, check := range []string{"answer", "configuration", "machine", "certificate", "function", "impaired"} {
		if got := r.about(check); got != "" {
			t.Errorf("%s: %s", check, got)
		}
	}
	// The same, seen in two years.
	s := look(t.Context(), &options{files: []string{path}, check: lacksNothing}, "test")
	s.now = s.now.AddDate(20, 0, 0)
	later := report{Findings: s.findings()}
	if got := later.about("certificate"); strings.Count(got, "expires on") != 2 { // the file's, and the one in use
		t.Error("certificate: ", got)
	}
}

func TestTheDoctorSeesABridgeAsItIs(t *testing.T) {
	vnictest.RequireRoot(t)
	netns.Run(t, func() {
		if err := tap.NewBridge("br0", 1500); err != nil {
			t.Fatal(err)
		}
		path := vnictest.WriteConfig(t, strings.ReplaceAll(first, "/keys", t.TempDir()))
		if got := (&report{Findings: look(t.Context(), &options{files: []string{path}, check: lacksNothing}, "").findings()}).about("carrier"); !strings.Contains(got, "nothing but this NIC is in bridge br0") {
			t.Error(got)
		}
		br, err := netlink.LinkByName("br0")
		if err != nil {
			t.Fatal(err)
		}
		cable := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "cable", MTU: 1500, MasterIndex: br.Attrs().Index}, PeerName: "far", PeerMTU: 1500}
		if err := errors.Join(netlink.LinkAdd(cable), netlink.LinkSetUp(cable)); err != nil {
			t.Fatal(err)
		}
		r := report{Findings: look(t.Context(), &options{files: []string{path}, check: lacksNothing}, "").findings()}
		if got := r.about("carrier"); !strings.Contains(got, "cable in bridge br0 has no carrier") || strings.Contains(got, "nothing but") {
			t.Error(got)
		}
		if got := r.about("mtu"); !strings.Contains(got, "cable in bridge br0 has an MTU of 1500, uplink.mtu is 4500") {
			t.Error(got)
		}
		far, err := netlink.LinkByName("far")
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(netlink.LinkSetMTU(cable, 4500), netlink.LinkSetUp(far)); err != nil {
			t.Fatal(err)
		}
		vnictest.Eventually(t, "a bridge in order", func() error {
			r := report{Findings: look(t.Context(), &options{files: []string{path}, check: lacksNothing}, "").findings()}
			if got := r.about("carrier") + r.about("mtu"); got != "" {
				return errors.New(got)
			}
			return nil
		})
	})
}

// TestQEMUsUserMayNotOpenAClosedSocket: neither by the socket's mode nor by that of a folder on the
// way to it.
func TestQEMUsUserMayNotOpenAClosedSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "vnic-doctor-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "guest")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := good(t)
	s.files[0].cfg.Attach[0].Socket = socket
	s.qemu = &account{name: "qemu", uid: 4711}
	for _, c := range []struct {
		folder, socket os.FileMode
		want           string
	}{
		{0o700, 0o666, dir + " is closed to qemu"},
		{0o755, 0o660, socket + " is closed to qemu"},
		{0o755, 0o666, ""},
	} {
		if err := errors.Join(os.Chmod(dir, c.folder), os.Chmod(socket, c.socket)); err != nil {
			t.Fatal(err)
		}
		found := s.findings()
		if c.want == "" && len(found) > 0 || c.want != "" && (len(found) != 1 || found[0].Check != "socket" || found[0].Wrong != c.want) {
			t.Errorf("%v, %v: %+v", c.folder, c.socket, found)
		}
	}
	if err := os.Chmod(socket, 0o660); err != nil {
		t.Fatal(err)
	}
	s.qemu.groups = []uint32{uint32(os.Getegid())}
	if found := s.findings(); len(found) > 0 {
		t.Errorf("in the socket's group: %+v", found)
	}
}

func TestTheDoctorSaysWhatItFoundAndWhatToDo(t *testing.T) {
	path := vnictest.WriteConfig(t, "nic: {host: 1}\nuplink: {name: up, address: 10.0.0.1/24}\nrmda: {}\n")
	out, err := vnictest.Here(t, Command(lacksNothing), "-c", path)
	if !errors.Is(err, errFound) {
		t.Error(err)
	}
	for _, want := range []string{
		"configuration: " + path + `: line 3: rmda: unknown key; did you mean "rdma"?`, "\n  each line says what to write",
		"looked at this machine, " + path + ": ", fmt.Sprintf(" %d checks, ", len(checks)), "found something wrong",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}
