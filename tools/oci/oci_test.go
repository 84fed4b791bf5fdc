package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/go-digest"
	spec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if root := os.Getenv("VNIC_OCI_ROOT"); root != "" {
		panic(become(root, os.Args[1:]))
	}
	os.Exit(m.Run())
}

// files returns the files of a tar archive by their names.
func files(t *testing.T, r io.Reader) map[string][]byte {
	t.Helper()
	all, a := map[string][]byte{}, tar.NewReader(r)
	for {
		h, err := a.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if all[h.Name], err = io.ReadAll(a); err != nil {
			t.Fatal(err)
		}
	}
}

func decode(t *testing.T, b []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(b, v); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
}

// unpack follows an archive from its index to its layer, as an engine does, and checks every digest.
func unpack(t *testing.T, archive []byte) (config spec.Image, layer []byte) {
	t.Helper()
	all := files(t, bytes.NewReader(archive))
	blob := func(d spec.Descriptor) []byte {
		b := all["blobs/sha256/"+d.Digest.Encoded()]
		if digest.FromBytes(b) != d.Digest || int64(len(b)) != d.Size {
			t.Fatalf("blob %v of %d bytes", d, len(b))
		}
		return b
	}
	var l spec.ImageLayout
	var index spec.Index
	var manifest spec.Manifest
	decode(t, all["oci-layout"], &l)
	decode(t, all["index.json"], &index)
	if l.Version != "1.0.0" || len(index.Manifests) != 1 {
		t.Fatalf("%+v %+v", l, index)
	}
	decode(t, blob(index.Manifests[0]), &manifest)
	decode(t, blob(manifest.Config), &config)
	z, err := gzip.NewReader(bytes.NewReader(blob(manifest.Layers[0])))
	if err == nil {
		layer, err = io.ReadAll(z)
	}
	if err != nil || digest.FromBytes(layer) != config.RootFS.DiffIDs[0] {
		t.Fatalf("layer of %d bytes: %v", len(layer), err)
	}
	return config, layer
}

func TestSameInputMakesTheSameImage(t *testing.T) {
	i := image{program: "main.go", licence: "../../LICENSE", arch: "arm64", version: "1.2"}
	var a, b bytes.Buffer
	if err := errors.Join(i.archive(&a), i.archive(&b)); err != nil || !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Errorf("%v, %d and %d bytes", err, a.Len(), b.Len())
	}
	config, layer := unpack(t, a.Bytes())
	if config.Architecture != "arm64" || config.OS != "linux" || config.Config.Entrypoint[0] != "/usr/bin/vnic" {
		t.Errorf("%+v", config)
	}
	program, _ := os.ReadFile("main.go")
	if got := files(t, bytes.NewReader(layer)); !bytes.Equal(got["usr/bin/vnic"], program) || len(got["usr/share/doc/vnic/copyright"]) == 0 {
		t.Errorf("the layer has %d files", len(got))
	}
}

func TestMissingProgramLeavesNoImage(t *testing.T) {
	out := filepath.Join(t.TempDir(), "vnic.oci.tar")
	if err := (image{program: "/nonexistent/vnic"}).write(out); err == nil || !strings.Contains(err.Error(), "/nonexistent/vnic") {
		t.Errorf("%v", err)
	}
	if left, _ := filepath.Glob(out + "*"); len(left) != 0 {
		t.Errorf("left over: %v", left)
	}
}

const nicConfig = `
nic: {host: 1, name: box}
control: /run/vnic/control.sock
uplink: {name: up1, mtu: 4500, address: 10.99.0.1/24}
functions:
  - pf: 0
    vfs:
      - {vf: 1, tenant: 100, address: 192.168.100.11, guest: {unix: client}, port: {mode: direct, name: vp1}}
attach:
  - {type: unix, name: client, socket: /run/vnic/client.sock}
`

// TestImageRunsWithTwoCapabilities: a NIC runs in what the image unpacks to, as a container engine
// starts it by the line in docs/operations.md: with a root folder that cannot be written, namespaces of
// its own, /dev/net/tun, and CAP_NET_ADMIN and CAP_SETPCAP. Its worker keeps CAP_NET_ADMIN. A client
// outside uses it by the sockets in /run/vnic.
func TestImageRunsWithTwoCapabilities(t *testing.T) {
	_, err := os.Stat("/dev/net/tun")
	if os.Getuid() != 0 || err != nil {
		if os.Getenv("VNIC_TEST_REQUIRE") == "1" {
			t.Fatal("needs root and /dev/net/tun")
		}
		t.Skip("needs root and /dev/net/tun")
	}
	dir, err := os.MkdirTemp("", "vnic-oci-") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	program := filepath.Join(dir, "vnic")
	build := exec.Command("go", "-C", "../..", "build", "-o", program, "./cmd/vnic")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	archive := filepath.Join(dir, "vnic.oci.tar")
	if out, err := exec.Command("go", "run", ".", "-program", program, "-licence", "../../LICENSE", "-arch", runtime.GOARCH, "-out", archive).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	b, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	config, layer := unpack(t, b)
	root := filepath.Join(dir, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	tarx := exec.Command("tar", "-x", "-C", root)
	tarx.Stdin = bytes.NewReader(layer)
	if out, err := tarx.CombinedOutput(); err != nil {
		t.Fatalf("tar: %v %s", err, out)
	}
	for name, body := range map[string]string{"etc/vnic/nic.yaml": nicConfig, "dev/net/tun": "", "dev/null": "", "proc/.keep": ""} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755), os.WriteFile(filepath.Join(root, name), []byte(body), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	sockets := filepath.Join(dir, "run") // the volume
	if err := os.Mkdir(sockets, 0o755); err != nil {
		t.Fatal(err)
	}

	nic := exec.Command("/proc/self/exe", append(config.Config.Entrypoint[:1:1], config.Config.Cmd...)...)
	nic.Env = append(config.Config.Env, "VNIC_OCI_ROOT="+root, "VNIC_OCI_VOLUME="+sockets)
	nic.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS, Pdeathsig: syscall.SIGKILL,
	}
	var log bytes.Buffer
	nic.Stdout, nic.Stderr = &log, &log
	runtime.LockOSThread() // the thread whose end would kill it
	defer runtime.UnlockOSThread()
	if err := nic.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = nic.Process.Signal(syscall.SIGTERM)
		if err := nic.Wait(); err != nil || t.Failed() {
			t.Errorf("vnic run: %v\n%s", err, &log)
		}
	}()
	vnic := func(want string, args ...string) {
		t.Helper()
		out, err := exec.Command(program, args...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Fatalf("vnic %s: %v, want %q in\n%s", strings.Join(args, " "), err, want, out)
		}
	}
	control := filepath.Join(sockets, "control.sock")
	vnic("", "wait", "-s", control, "--timeout", "60s")
	vnic("unix client", "show", "functions", "-s", control)
	vnic("192.168.100.11", "guest", "info", "--samples", "0", "--device", "unix://"+filepath.Join(sockets, "client.sock"))

	supervisor := nic.Process.Pid
	if got := capabilities(t, supervisor, "CapBnd"); got != 1<<unix.CAP_NET_ADMIN|1<<unix.CAP_SETPCAP {
		t.Errorf("the container may have capabilities %#x", got)
	}
	var children []byte
	tasks, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(supervisor), "task/*/children")) // any thread may have started it
	for _, path := range tasks {
		b, rerr := os.ReadFile(path)
		err, children = errors.Join(err, rerr), append(children, b...)
	}
	if err != nil {
		t.Fatal(err)
	}
	workers := strings.Fields(string(children))
	if len(workers) != 1 {
		t.Fatalf("processes %q below the supervisor", workers)
	}
	worker, _ := strconv.Atoi(workers[0])
	if got := capabilities(t, worker, "CapPrm"); got != 1<<unix.CAP_NET_ADMIN {
		t.Errorf("the worker has capabilities %#x", got)
	}
}

func capabilities(t *testing.T, pid int, set string) uint64 {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), set+":")
	line, _, _ := strings.Cut(rest, "\n")
	v, err := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// become runs in new namespaces, makes them a container as an engine does, and becomes its program.
func become(root string, argv []string) error {
	runtime.LockOSThread()
	volume := os.Getenv("VNIC_OCI_VOLUME")
	for _, m := range []struct {
		from, to, kind string
		flags          uintptr
	}{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE},
		{root, root, "", unix.MS_BIND},
		{"proc", root + "/proc", "proc", 0},
		{"/dev/null", root + "/dev/null", "", unix.MS_BIND},
		{"/dev/net/tun", root + "/dev/net/tun", "", unix.MS_BIND},
		{volume, root + "/run/vnic", "", unix.MS_BIND},
		{"", root, "", unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY},
	} {
		if err := unix.Mount(m.from, m.to, m.kind, m.flags, ""); err != nil {
			return &os.PathError{Op: "mount", Path: m.to, Err: err}
		}
	}
	if err := errors.Join(unix.Chroot(root), unix.Chdir("/")); err != nil {
		return err
	}
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if c != unix.CAP_NET_ADMIN && c != unix.CAP_SETPCAP {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
				return err
			}
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return syscall.Exec(argv[0], argv, []string{"PATH=/usr/bin"})
}
