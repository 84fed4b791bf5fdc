package qemu

import (
	"context"
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestLibvirtExample keeps the example of docs/attach.md true: a real QEMU takes its
// arguments, together with what libvirt makes of the rest, and finds the NIC.
func TestLibvirtExample(t *testing.T) {
	_, err := exec.LookPath("qemu-system-x86_64")
	need(t, err == nil, "qemu-system-x86_64 is not installed")
	text, err := os.ReadFile("../docs/attach.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```xml\n")
	example, _, _ := strings.Cut(rest, "```")
	var d struct {
		Type    string `xml:"type,attr"`
		Backing struct {
			Source struct {
				Type string `xml:"type,attr"`
			} `xml:"source"`
			Access struct {
				Mode string `xml:"mode,attr"`
			} `xml:"access"`
		} `xml:"memoryBacking"`
		OS struct {
			Type struct {
				Machine string `xml:"machine,attr"`
			} `xml:"type"`
		} `xml:"os"`
		Args []struct {
			Value string `xml:"value,attr"`
		} `xml:"commandline>arg"`
	}
	if err := xml.Unmarshal([]byte(example), &d); err != nil {
		t.Fatal(err)
	}
	if d.Backing.Source.Type != "memfd" || d.Backing.Access.Mode != "shared" || d.OS.Type.Machine != "q35" {
		t.Errorf("%+v", d)
	}
	v, _ := startBackend(t)
	window := filepath.Join(filepath.Dir(v.Path()), "w")
	if err := v.AddWindow(1, abi.FunctionVF, window); err != nil {
		t.Fatal(err)
	}
	monitor := filepath.Join(t.TempDir(), "qmp")
	args := []string{
		"-S", "-nodefaults", "-nographic", "-serial", "none", "-monitor", "none", "-machine", "q35,accel=tcg,memory-backend=pc.ram", "-m", "64M",
		"-object", "memory-backend-memfd,id=pc.ram,share=on,size=64M", "-qmp", "unix:" + monitor + ",server=on,wait=off",
	}
	paths := strings.NewReplacer("/run/vnic/guest1.sock", v.Path(), "/run/vnic/guest1.pf0.vf1", window)
	for _, a := range d.Args {
		args = append(args, paths.Replace(a.Value))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var said tail
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	var q *QMP
	for q == nil {
		if q, err = DialQMP(ctx, monitor); ctx.Err() != nil {
			t.Fatalf("%v %s", err, said.String())
		}
		time.Sleep(20 * time.Millisecond)
	}
	defer q.Close()
	s, err := Inspect(ctx, q)
	if err != nil || len(s.Devices) != 2 {
		t.Fatalf("%+v %v", s, err)
	}
	for i, want := range []Device{
		{ID: "pf0.vf1", Driver: "ivshmem-doorbell", PCI: "08.0", Backend: "window-pf0.vf1", Connected: true},
		{ID: "vsock", Driver: "vhost-user-vsock-pci", PCI: "1d.0", Backend: "vnic0", Connected: true},
	} {
		if s.Devices[i] != want {
			t.Errorf("%+v, want %+v", s.Devices[i], want)
		}
	}
}
