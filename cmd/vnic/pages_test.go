package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

// A page has commands in blocks of sh, and their output in blocks of text.
var (
	shellBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```")
	textBlock  = regexp.MustCompile("(?ms)^```text\n(.*?)^```")
	traced     = regexp.MustCompile(`(?m)^\++ .*\n`) // a command, as bash -x prints it
)

// pageShell is how the shell of a page begins.
const pageShell = `set -eu -o pipefail
mount -t proc proc /proc
mount -t tmpfs run /run
cp -a /etc /run/etc && rm -rf /run/etc/netns && mount --bind /run/etc /etc && mkdir -p /etc/netns
ip link set lo up
make() { :; }
`

// runPage runs all sh blocks of a page of docs in one shell, which ends at the first failure. The
// shell has its own namespaces for networks, mounts (with /run and /etc) and processes. build/vnic and
// vnic are this program.
func runPage(t *testing.T, page string) string {
	t.Helper()
	dir, program := t.TempDir(), vnictest.Program(t)
	if err := os.Mkdir(filepath.Join(dir, "build"), 0o755); err != nil {
		t.Fatal(err)
	}
	top, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"build/vnic": program, "docs": top + "/docs", "guestlib": top + "/guestlib"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	return runPageIn(t, page, dir, pageShell+"PATH="+filepath.Dir(program)+":$PATH\n")
}

// runPageIn is runPage in a folder, with a shell that begins otherwise.
func runPageIn(t *testing.T, page, dir, script string) string {
	t.Helper()
	vnictest.RequireRoot(t)
	text, err := os.ReadFile(filepath.Join("../../docs", page))
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range shellBlock.FindAllSubmatch(text, -1) {
		script += string(block[1]) + "\n"
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	sh := exec.CommandContext(ctx, "bash", "-x", "-c", script)
	sh.Dir = dir
	sh.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL,
	}
	out, err := os.Create(filepath.Join(dir, "out")) // a file: what runs in the background may hold it longer
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	sh.Stdout, sh.Stderr = out, out
	err = sh.Run()
	said, rerr := os.ReadFile(out.Name())
	if err != nil || rerr != nil {
		logs, _ := filepath.Glob(filepath.Join(dir, "lab/*.log"))
		for _, log := range logs {
			b, _ := os.ReadFile(log)
			t.Logf("%s:\n%s", log, b)
		}
		t.Fatalf("docs/%s: %v, %v\n%s", page, err, rerr, said)
	}
	printed := string(bytes.ReplaceAll(said, []byte("\r"), nil))
	output := traced.ReplaceAllString(printed, "")
	for _, block := range textBlock.FindAllSubmatch(text, -1) {
		if !quotes(string(block[1])).MatchString(output) {
			t.Errorf("docs/%s shows what its commands do not print:\n%s\nThey printed\n%s", page, block[1], printed)
		}
	}
	return printed
}

// quotes returns a pattern for the output that a page shows. Words with a digit may differ, since
// processes, versions and ports have other numbers each time; so may the word after "vnic", which
// is a version. A line of … stands for any lines.
func quotes(shown string) *regexp.Regexp {
	var lines []string
	for line := range strings.Lines(shown) {
		words := strings.Fields(line)
		for i, word := range words {
			switch {
			case i > 0 && words[i-1] == "vnic", strings.ContainsAny(word, "0123456789"):
				words[i] = `\S+`
			default:
				words[i] = regexp.QuoteMeta(word)
			}
		}
		switch pattern := strings.Join(words, ` +`); pattern {
		case "…":
			lines = append(lines, `(?s:.*)`)
		default:
			lines = append(lines, ` *`+pattern+` *\n`)
		}
	}
	return regexp.MustCompile(`(?m)^` + strings.Join(lines, ""))
}

// TestTheLabPageIsTrue runs docs/lab.md as it stands.
func TestTheLabPageIsTrue(t *testing.T) {
	said := runPage(t, "lab.md")
	vnictest.RequireIn(t, said, "3 received", "PASS", "PASS", "nothing was made", "1 received", "(VF)", "peer b", "10.0.0.1/24", "RDMA_Write BW Test", "cut", " PSP, ", "bytes captured", "bytes captured", "PASS", "PASS", "PASS")
}

// TestTheTutorialOfALostPacketIsTrue runs docs/lost-packet.md as it stands.
func TestTheTutorialOfALostPacketIsTrue(t *testing.T) {
	vnictest.Require(t, have("tshark"), "tshark is not installed")
	said := runPage(t, "lost-packet.md")
	vnictest.RequireIn(t, said, "loss: 20%", "sent again", "last_sealed", "cqe_written", "PushData", "PSN", "PushData", "impair.tx_lost", "falcon.drop_behind_window")
}

// TestTheTutorialOfBringingUpADriverIsTrue runs docs/bring-up.md as it stands.
func TestTheTutorialOfBringingUpADriverIsTrue(t *testing.T) {
	vnictest.Require(t, have("gcc"), "gcc is not installed")
	said := runPage(t, "bring-up.md")
	vnictest.RequireIn(t, said, "service: memory", "the memory has", "cqe_written", "status 10", "WCRemAccessErr", "cqe-error", "status")
}

// TestTheFleetPageIsTrue runs docs/fleet.md as it stands: ten hosts from nothing.
func TestTheFleetPageIsTrue(t *testing.T) {
	vnictest.RequireEtcd(t)
	said := runPage(t, "fleet.md")
	vnictest.RequireIn(t, said, "1 received", "MAY HAVE", "a here", "3 hosts, of which 2 are peers", "fleet lab", "host10: joined lab", "3 received", "HOST", "host1 here", "host10 here", "192.168.100.10", "watching", "10 hosts, of which 9 are peers", "record there")
}

// TestLongQuickStart runs docs/quickstart.md as it stands.
func TestLongQuickStart(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a virtual machine")
	}
	vnictest.RequireGuests(t)
	said := runPage(t, "quickstart.md")
	vnictest.RequireIn(t, said, "lab/host1.yaml: good", "peer 2 10.99.0.2 vnic://lab/host/2 up", "h1.pf0.vf1 (VF)", `"kind":"done"`, "RDMA_Write BW Test", "packages", "-append", `"kind":"done"`)
}

// installing has a /usr and /var of the shell's own over those of this machine.
const installing = `for d in usr var; do
	mkdir -p /run/over/$d/new /run/over/$d/work
	mount -t overlay -o lowerdir=/$d,upperdir=/run/over/$d/new,workdir=/run/over/$d/work over /$d
done
`

// TestLongTwoGuestsFromThePackage runs docs/two-guests.md as it stands, with a package that is built for it
// and really installed, in a /usr of the test's own.
func TestLongTwoGuestsFromThePackage(t *testing.T) {
	if testing.Short() {
		t.Skip("boots two virtual machines")
	}
	vnictest.RequireGuests(t)
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "../../guestlib/linux/packages.sh", dir, "vnic")
	build.Env = append(os.Environ(), "VNIC="+vnictest.Program(t), "MAKEFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("packages.sh: %v\n%s", err, out)
	}
	said := runPageIn(t, "two-guests.md", dir, pageShell+installing)
	vnictest.RequireIn(t, said, "Setting up vnic", "guests: 2 started", "Linux 6", "10.0.0.1/24", "3 received", "h1.pf0.vf1", "RDMA_Write BW Test", "frames", "10.0.0.2")
}

// TestLongTunnelTutorial runs docs/tunnel-tutorial.md as it stands, with two guests at its end.
func TestLongTunnelTutorial(t *testing.T) {
	if testing.Short() {
		t.Skip("boots two virtual machines")
	}
	vnictest.RequireGuests(t)
	vnictest.Require(t, have("iperf3") && have("tcpdump"), "iperf3 or tcpdump is not installed")
	said := runPage(t, "tunnel-tutorial.md")
	vnictest.RequireIn(t, said, "two-tenants.red3", "name: b", "port blue1", "3 received", "3 received", "receiver", "receiver", "blue does not reach red", "blue does not reach host c", "RDMA_Write BW Test", "RDMA_Write BW Test", "no way to host c", "falcon", "0% packet loss", "PSP", "bytes captured", "loss: 1%", "receiver", "cut", "3 received", "impair.tx_lost",
		"guests: 2 started", "Linux", "10.0.0.1/24", "3 received", "3 received", "the guest's port has the ping", "the switch does not have it")
}

// messageQuote matches what a table of symptoms quotes: words between asterisks, or a line of
// dmesg.
var messageQuote = regexp.MustCompile("\\*([^*]+)\\*|`dmesg`: `([^`]+)`")

// TestDocsQuoteMessagesThatExist: each message that a table of symptoms quotes is in this project's
// source, so that a reader who searches the docs for a message finds it.
func TestDocsQuoteMessagesThatExist(t *testing.T) {
	source := allSource(t)
	for _, page := range []string{"troubleshooting.md", "linux.md", "roce.md", "faults.md"} {
		text, err := os.ReadFile(filepath.Join("../../docs", page))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			symptom, isRow := strings.CutPrefix(line, "| ")
			symptom, _, _ = strings.Cut(symptom, " | ")
			if !isRow || strings.HasPrefix(symptom, "QEMU: ") || strings.HasSuffix(symptom, "on vsock") { // QEMU's words, or Linux'
				continue
			}
			for _, quote := range messageQuote.FindAllStringSubmatch(symptom, -1) {
				for part := range strings.SplitSeq(quote[1]+quote[2], "…") {
					if !strings.Contains(source, strings.TrimSpace(part)) {
						t.Errorf("docs/%s quotes %q, which nothing says", page, quote[1]+quote[2])
					}
				}
			}
		}
	}
}

// allSource returns the text of all programs. Strings that are written over several lines are
// joined.
func allSource(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir("../..", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if err == nil && (d.Name() == "build" || strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2) {
				return filepath.SkipDir
			}
			return err
		}
		switch filepath.Ext(path) {
		case ".go", ".c", ".h":
			if strings.HasSuffix(path, "_test.go") {
				return nil
			}
			b, err := os.ReadFile(path)
			all.Write(b)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(`"\s*\+?\s*\n\s*"`).ReplaceAllString(all.String(), "")
}

// TestGuestReachesTheWorldThroughAFunction: with the configuration in docs/guests.md a tenant's
// host, here a namespace, reaches what the NIC's host reaches. A route stands for the address
// translation on the way back.
func TestGuestReachesTheWorldThroughAFunction(t *testing.T) {
	vnictest.RequireRoot(t)
	page, err := os.ReadFile("../../docs/guests.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "## The world outside")
	_, part, _ := strings.Cut(section, "```yaml\n")
	part, _, _ = strings.Cut(part, "```")
	dir := t.TempDir()
	config := "nic: {host: 1}\ncontrol: /run/c.sock\nuplink: {name: up1, mtu: 1500, address: 10.99.0.1/24}\nrdma: {mtu: 1024}\n" +
		strings.Replace(part, "mode: bridged, name: vp1, bridge: gbr1", "mode: direct, name: vp1, netns: guest", 1)
	if err := os.WriteFile(filepath.Join(dir, "nic.yaml"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	sh := exec.CommandContext(t.Context(), "bash", "-ec", `
mount -t proc proc /proc; mount -t tmpfs run /run; mkdir /run/netns; ip link set lo up
ip netns add guest; ip netns add world
ip link add eth0 type veth peer name eth0 netns world
ip addr add 203.0.113.1/24 dev eth0; ip link set eth0 up
ip -n world addr add 203.0.113.7/24 dev eth0; ip -n world link set eth0 up
ip -n world route add 192.168.100.0/24 via 203.0.113.1
vnic run -c nic.yaml 2> log & vnic wait -s /run/c.sock || { cat log; exit 1; }
ip addr add 192.168.100.1/24 dev outside; ip link set outside up; sysctl -qw net.ipv4.ip_forward=1
ip -n guest addr add 192.168.100.11/24 dev vp1; ip -n guest link set vp1 up; ip -n guest route add default via 192.168.100.254
ip netns exec guest ping -c 3 -i 0.2 -W 10 203.0.113.7
kill %1; wait`)
	sh.Dir, sh.Env = dir, append(os.Environ(), "PATH="+filepath.Dir(vnictest.Program(t))+":"+os.Getenv("PATH"))
	sh.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL,
	}
	out, err := sh.CombinedOutput()
	if !strings.Contains(string(out), " 0% packet loss") {
		t.Fatalf("%v\n%s", err, out)
	}
}

func have(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}
