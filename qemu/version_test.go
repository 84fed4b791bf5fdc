package qemu

import (
	"strings"
	"testing"
)

// TestGuestPortLine: what differs between QEMUs in the line of a port whose rings the NIC serves.
func TestGuestPortLine(t *testing.T) {
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
		l := Line{Memory: 1 << 30, Accel: tt.accel, Version: tt.version, Vsock: "/run/g.sock", Ports: []Port{tt.port}}
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
