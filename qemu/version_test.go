package qemu

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestGuestPortsDependOnTheVersion: the arguments of a port whose rings the NIC serves fit QEMU's
// version.
func TestGuestPortsDependOnTheVersion(t *testing.T) {
	for _, tt := range []struct {
		version Version
		accel   Accel
		port    Port
		want    []string
	}{
		{parseVersion("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)"), TCG, Port{Queues: 1}, []string{
			"socket,id=port-pf0.vf1-socket,path=/run/p.sock,reconnect=1", "vhost-user,id=port-pf0.vf1,chardev=port-pf0.vf1-socket,queues=1",
			"virtio-net-pci,id=port-pf0.vf1,netdev=port-pf0.vf1,mac=02:00:00:00:00:01,host_mtu=1432,vectors=0",
		}},
		{parseVersion("11.1.3"), TCG, Port{Queues: 4, Server: true, Speed: 25000}, []string{
			"socket,id=port-pf0.vf1-socket,path=/run/p.sock,server=on,wait=off", "vhost-user,id=port-pf0.vf1,chardev=port-pf0.vf1-socket,queues=4",
			"virtio-net-pci,id=port-pf0.vf1,netdev=port-pf0.vf1,mac=02:00:00:00:00:01,host_mtu=1432,speed=25000,duplex=full,mq=on,vectors=10",
		}},
		{parseVersion("10.0.13"), TCG, Port{Queues: 1}, []string{
			"socket,id=port-pf0.vf1-socket,path=/run/p.sock,reconnect-ms=1000", "vhost-user,id=port-pf0.vf1,chardev=port-pf0.vf1-socket,queues=1",
			"virtio-net-pci,id=port-pf0.vf1,netdev=port-pf0.vf1,mac=02:00:00:00:00:01,host_mtu=1432",
		}},
		{parseVersion("9.2.0"), KVM, Port{Queues: 1}, []string{
			"socket,id=port-pf0.vf1-socket,path=/run/p.sock,reconnect-ms=1000", "vhost-user,id=port-pf0.vf1,chardev=port-pf0.vf1-socket,queues=1",
			"virtio-net-pci,id=port-pf0.vf1,netdev=port-pf0.vf1,mac=02:00:00:00:00:01,host_mtu=1432",
		}},
		{parseVersion("no QEMU"), TCG, Port{Queues: 2}, []string{
			"socket,id=port-pf0.vf1-socket,path=/run/p.sock,reconnect=1", "vhost-user,id=port-pf0.vf1,chardev=port-pf0.vf1-socket,queues=2",
			"virtio-net-pci,id=port-pf0.vf1,netdev=port-pf0.vf1,mac=02:00:00:00:00:01,host_mtu=1432,mq=on,vectors=0",
		}},
	} {
		tt.port.Function, tt.port.Socket, tt.port.MAC, tt.port.MTU = "pf0.vf1", "/run/p.sock", "02:00:00:00:00:01", 1432
		l := CommandLine{Memory: 1 << 30, Accel: tt.accel, Version: tt.version, Vsock: "/run/g.sock", Ports: []Port{tt.port}}
		argv, err := l.Argv()
		if err != nil {
			t.Fatal(err)
		}
		line := strings.Join(argv, " ")
		for i, option := range []string{"-chardev ", "-netdev ", "-device "} {
			if !strings.Contains(line+" ", option+tt.want[i]+" ") {
				t.Errorf("%d, %s: no %s%s in\n%s", tt.version, tt.accel, option, tt.want[i], line)
			}
		}
	}
}

// TestTCGMachineHasRoomForASecondProcessor: a machine that TCG emulates has room for a second CPU.
func TestTCGMachineHasRoomForASecondProcessor(t *testing.T) {
	for _, tt := range []struct {
		cpus  int
		accel Accel
		want  string
	}{{0, TCG, "1,maxcpus=2"}, {1, TCG, "1,maxcpus=2"}, {2, TCG, "2"}, {0, KVM, "1"}, {1, KVM, "1"}, {2, KVM, "2"}} {
		if got := smp(tt.cpus, tt.accel); got != tt.want {
			t.Errorf("%d CPUs with %s: %s, want %s", tt.cpus, tt.accel, got, tt.want)
		}
	}
}

// TestVirtualizationIsAFlagOfTheProcessor: the flag of either vendor's processors for
// virtualization is recognized.
func TestVirtualizationIsAFlagOfTheProcessor(t *testing.T) {
	for info, want := range map[string]bool{
		"flags : fpu vmx\n": true, "flags\t: svm fpu\n": true, "flags : fpu\n": false, "flags : vmx2\n": false, "vmx flags : svm\n": false,
		"bugs : vmx\nflags : fpu\n": false, "flags : fpu\nflags : svm\n": true, "flags": false, "": false,
	} {
		if got := hasVirtualization([]byte(info)); got != want {
			t.Errorf("%q: %t", info, got)
		}
	}
}

// TestVersionIsReadFromQEMUsOutput: the version is the first text in QEMU's output that looks like
// one.
func TestVersionIsReadFromQEMUsOutput(t *testing.T) {
	for text, want := range map[string]Version{
		"QEMU emulator version 7.2.22 (Debian 1:7.2)": 702, "11.1.3": 1101, "v10.0": 1000,
		"9.99": 999, "none": 0, "7": 0, "": 0,
	} {
		got := parseVersion(text)
		if got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
		if name := fmt.Sprintf("%d.%d", want/100, want%100); want != 0 && got.String() != name {
			t.Errorf("%d is called %s, want %s", got, got, name)
		}
	}
	if Version(702).String() != "7.2" || Version(0).String() != "not to be run here" {
		t.Errorf("%s, %s", Version(702), Version(0))
	}
	for v, want := range map[Version]string{0: "reconnect=1", 901: "reconnect=1", 902: "reconnect-ms=1000", 1101: "reconnect-ms=1000"} {
		if got := v.reconnect(); got != want {
			t.Errorf("%s: %s", v, got)
		}
	}
	for v, want := range map[Version]bool{0: true, 999: true, 1000: false, 1101: false} {
		if got := (Port{}).noMSIX(v, TCG); got != want || (Port{}).noMSIX(v, KVM) {
			t.Errorf("%s: without MSI-X %t", v, got)
		}
	}
	if v := VersionOf("/nonexistent/qemu"); v != 0 {
		t.Errorf("of none: %s", v)
	}
	script := filepath.Join(t.TempDir(), "qemu")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n[ \"$*\" = --version ] && echo QEMU emulator version 8.1.2\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if v := VersionOf(script); v != 801 {
		t.Errorf("%s, want 8.1", v)
	}
}

func TestKVMIsUsedWhereItWorks(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	device := file("kvm", "")
	vmx := file("vmx", "processor\t: 0\nflags\t\t: fpu vmx sse\n")
	none := file("none", "processor\t: 0\nflags\t\t: fpu sse\nvmx flags\t: vnmi\n")
	for _, tt := range []struct {
		cpuinfo, device string
		want            Accel
	}{{vmx, device, KVM}, {none, device, TCG}, {vmx, filepath.Join(dir, "absent"), TCG}, {filepath.Join(dir, "absent"), device, TCG}} {
		if got := detectAccel(tt.cpuinfo, tt.device); got != tt.want {
			t.Errorf("%+v: %s", tt, got)
		}
	}
}

// TestTCGKeepsMemoryBarriers lets QEMU translate a program with one memory barrier: the barrier
// must be in the translation. Without it a driver could read the event index before its producer
// index is visible (DRV-604).
func TestTCGKeepsMemoryBarriers(t *testing.T) {
	_, err := exec.LookPath("qemu-system-x86_64")
	need(t, err == nil, "qemu-system-x86_64 is not installed")
	rom := bytes.Repeat([]byte{0xf4}, 64<<10)    // hlt
	copy(rom[0xfff0:], []byte{0x0f, 0xae, 0xf0}) // mfence, at the reset vector
	bios, log := filepath.Join(t.TempDir(), "bios"), filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(bios, rom, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	translated := regexp.MustCompile(`(?s)mfence.*OP:.* hlt`)
	vm := exec.CommandContext(ctx, "qemu-system-x86_64", "-nodefaults", "-display", "none", "-machine", "q35", "-accel", "tcg", "-cpu", "max",
		"-smp", smp(1, TCG), "-m", "64M", "-bios", bios, "-d", "in_asm,op", "-D", log)
	if err := vm.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = vm.Wait()
	}()
	var said []byte
	for !translated.Match(said) {
		if ctx.Err() != nil {
			t.Fatalf("no translation:\n%s", said)
		}
		time.Sleep(10 * time.Millisecond)
		said, _ = os.ReadFile(log)
	}
	if !regexp.MustCompile(`(?m)^ mb `).Match(said) {
		t.Errorf("no barrier in what QEMU made:\n%s", said)
	}
}
