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
)

var shellBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```")

// runPage runs every sh block of a page of docs, one after the other in one shell that ends at the
// first failure, in namespaces of its own: networks, mounts (/run among them) and processes.
// build/vnic and vnic are this program.
func runPage(t *testing.T, page string) string {
	t.Helper()
	requireRoot(t)
	text, err := os.ReadFile(filepath.Join("../../docs", page))
	if err != nil {
		t.Fatal(err)
	}
	program := vnic(t)
	script := "set -eu -o pipefail\nmount -t proc proc /proc\nmount -t tmpfs run /run\nip link set lo up\nmake() { :; }\n"
	for _, block := range shellBlock.FindAllSubmatch(text, -1) {
		script += string(block[1]) + "\n"
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "build"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(program, filepath.Join(dir, "build/vnic")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	sh := exec.CommandContext(ctx, "bash", "-x", "-c", script)
	sh.Dir, sh.Env = dir, append(os.Environ(), "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"))
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
	return string(bytes.ReplaceAll(said, []byte("\r"), nil))
}

var blanks = regexp.MustCompile("  +")

// requireIn checks that what a page promises came, in this order. How wide the columns of a table
// are says nothing: the length of the version alone changes it.
func requireIn(t *testing.T, said string, want ...string) {
	t.Helper()
	rest := blanks.ReplaceAllString(said, " ")
	for _, w := range want {
		_, after, ok := strings.Cut(rest, w)
		if !ok {
			t.Fatalf("no %q in what is left of\n%s", w, said)
		}
		rest = after
	}
}

// TestLongQuickStart runs docs/quickstart.md as it stands. F54
func TestLongQuickStart(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a virtual machine")
	}
	requireGuests(t)
	said := runPage(t, "quickstart.md")
	requireIn(t, said, "lab/host1.yaml: good", "peer 2 10.99.0.2 vnic://lab/host/2 up", "h1.pf0.vf1 (VF)", `"kind":"done"`, "RDMA_Write BW Test", "packages", "-append", `"kind":"done"`)
}

// TestLongTunnelTutorial runs docs/tunnel-tutorial.md as it stands. F63
func TestLongTunnelTutorial(t *testing.T) {
	require(t, have("iperf3"), "iperf3 is not installed")
	said := runPage(t, "tunnel-tutorial.md")
	requireIn(t, said, "10.99.0.3 vnic://lab/host/3 up", "port blue", "3 received", "3 received", "receiver", "receiver", "blue does not reach red", "blue does not reach host 3", "RDMA_Write BW Test", "RDMA_Write BW Test", "no way to host 3", "falcon", "0% packet loss", "bytes captured", "loss 1%", "receiver", "cut", "3 received", "impair.tx_lost")
}

func have(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}
