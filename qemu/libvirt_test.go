package qemu

import (
	"path/filepath"
	"strings"
	"testing"

	"libvirt.org/go/libvirtxml"
)

// libvirtGuest is a guest with all that a domain has words for.
func libvirtGuest() CommandLine {
	return CommandLine{
		Binary: "/nonexistent/qemu", Version: 702, Name: "g", Memory: 1 << 30, CPUs: 1, Accel: TCG, Vsock: "/run/vnic/g.sock",
		Windows: []Window{{"pf0.vf1", "/run/vnic/g.pf0.vf1"}},
		Ports:   []Port{{Function: "pf0.vf1", Socket: "/run/vnic/net.sock", Queues: 1, MAC: "02:56:4e:01:00:01", MTU: 4432, Speed: 100000}},
	}
}

func domainOf(t *testing.T, l CommandLine) (d libvirtxml.Domain, text string) {
	t.Helper()
	text, err := l.Domain()
	if err == nil {
		err = d.Unmarshal(text)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d, text
}

// TestDomainIsTheCommandLine: a domain has what the command line of the same guest has, in libvirt's
// words where there are some.
func TestDomainIsTheCommandLine(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*CommandLine)
		want   []string
		no     []string
	}{
		"memory that the NIC can map": {func(*CommandLine) {}, []string{`<memory unit="MiB">1024</memory>`, `<source type="memfd">`, `<access mode="shared">`}, nil},
		"room for a second processor under TCG": {
			func(*CommandLine) {},
			[]string{`<domain type="qemu"`, `<vcpu current="1">2</vcpu>`, `<cpu mode="maximum">`},
			nil,
		},
		"KVM":               {func(l *CommandLine) { l.Accel, l.CPUs = KVM, 4 }, []string{`<domain type="kvm"`, `>4</vcpu>`, `<cpu mode="host-passthrough">`}, []string{"vectors\" type"}},
		"vsock and windows": {func(*CommandLine) {}, []string{"vhost-user-vsock-pci,id=vsock,chardev=vsock,bus=pcie.0,addr=1d.0", "ivshmem-doorbell,id=pf0.vf1,chardev=window-pf0.vf1,vectors=5,bus=pcie.0,addr=08.0"}, nil},
		"a port in guest memory": {
			func(*CommandLine) {},
			[]string{`type="vhostuser"`, `mode="client"`, `<reconnect enabled="yes" timeout="1">`, `alias="ua-port-pf0-vf1"`, `name="host_mtu" type="unsigned" value="4432"`, `name="vectors" type="unsigned" value="0"`, `name="speed" type="signed" value="100000"`},
			[]string{"<mtu", "<driver queues"},
		},
		"with MSI-X where QEMU has it": {func(l *CommandLine) { l.Version = 1000 }, nil, []string{`name="vectors"`}},
		"a port for which QEMU listens, with several queues": {
			func(l *CommandLine) { l.Ports[0].Server, l.Ports[0].Queues = true, 4 },
			[]string{`mode="server"`, `<driver queues="4">`},
			[]string{"<reconnect"},
		},
		"a TAP in its bridge": {
			func(l *CommandLine) {
				l.Ports = []Port{{Function: "pf0.vf1", TAP: "vp1g", Bridge: "gbr1", MAC: "02:56:4e:01:00:01", MTU: 4432}}
			},
			[]string{`<interface type="bridge">`, `<source bridge="gbr1">`, `<target dev="vp1g">`, `<mtu size="4432">`},
			[]string{"qemu:override", "override xmlns"},
		},
		"a TAP of the operator's": {
			func(l *CommandLine) { l.Ports = []Port{{Function: "pf0.vf1", TAP: "vp1g", MTU: 1500}} },
			[]string{`<interface type="ethernet">`, `<target dev="vp1g" managed="no">`},
			nil,
		},
		"vfio-user and an IOMMU": {
			func(l *CommandLine) {
				l.Vsock, l.Windows, l.IOMMU, l.Vfio = "", nil, true, []Vfio{{Function: "pf0.vf1", Socket: "/run/vnic/g.pf0.vf1"}}
			},
			[]string{`<iommu model="intel">`, `intremap="on" caching_mode="on"`, `<ioapic driver="qemu">`, "vfio-user-pci"},
			[]string{"vsock"},
		},
		"files by absolute paths": {
			func(l *CommandLine) {
				l.Disk, l.Share, l.Kernel, l.Initrd, l.Append = "doc.go", "image", "k", "i", "console=ttyS0"
				l.NoReboot, l.Extra = true, []string{"-d", "guest_errors"}
			},
			[]string{"/qemu/doc.go", "/qemu/k</kernel>", "/qemu/i</initrd>", "<cmdline>console=ttyS0<", `type="raw"`, `accessmode="mapped"`, `/qemu/image"`, `<target dir="share">`, "<on_reboot>destroy<", `value="guest_errors"`},
			nil,
		},
	} {
		l := libvirtGuest()
		tt.change(&l)
		_, text := domainOf(t, l)
		for _, want := range tt.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %s in\n%s", name, want, text)
			}
		}
		for _, no := range tt.no {
			if strings.Contains(text, no) {
				t.Errorf("%s: there is %s in\n%s", name, no, text)
			}
		}
	}
}

func TestDomainRefusesWhatLibvirtCannotDo(t *testing.T) {
	for want, change := range map[string]func(*CommandLine){
		"libvirt names such files itself": func(l *CommandLine) { l.KernelVsock = &KernelVsock{CID: 42, RAMFile: "/dev/shm/g"} },
		"64 or more":                      func(l *CommandLine) { l.Memory = 1 << 20 },
		"disk image":                      func(l *CommandLine) { l.Disk = filepath.Join(t.TempDir(), "absent") },
	} {
		l := libvirtGuest()
		change(&l)
		if _, err := l.Domain(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
