package linuxtest_test

import (
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

// Programs run between a function with the Linux driver, which is an RNIC, and siw: each with its server in one
// guest and then in the other, and all connect by rdma_cm.

// siwPrograms are programs that take IPv4 addresses. perftest does not verify the data. In ib_write_lat and ucmatose
// the end that was called sends first, for which a function waits a while (RFC 5044 §7.1.2).
var siwPrograms = append(service{byCM.flags, "write read send"}.cells(),
	cell{command: "rdma_server|rdma_client -s {peer}"}, cell{command: "ucmatose|ucmatose -s {peer}"})

// siwVerified verifies the data, over IPv4 and IPv6.
var siwVerified = []cell{{command: "rping -s -V -C 30 -S 60000{any}|rping -c -V -C 30 -S 60000 -a {peer}"}}

// TestLongSIWDriver: between the driver and siw, on two NICs, all programs run that siw has the operations for. A
// program that is killed in either guest ends the other's. The disk of each guest is used by the other
// one over NVMe, with every byte verified; so it is over IPv6 without checksums, where packets are lost.
func TestLongSIWDriver(t *testing.T) {
	s := linuxSetting{gid: "192.168.100.11", two: true, iwarp: true}
	t.Run("IPv4", func(t *testing.T) {
		inWiredLab(t, s, 20*time.Minute, func(l *wiredLab) {
			l.runAll(t, s, siwPrograms, siwVerified)
			l.eachWay(t, func(way *driverLab, server string) { way.killed(t, server) })
			l.eachWay(t, nvmeIsVerified)
		})
	})
	s = linuxSetting{gid: "fd00:100::11", two: true, impair: someLost, iwarp: true, noCRC: true}
	t.Run("IPv6, no checksums, losses", func(t *testing.T) {
		inWiredLab(t, s, 20*time.Minute, func(l *wiredLab) {
			l.runAll(t, s, siwVerified)
			l.eachWay(t, nvmeIsVerified)
		})
	})
}

// eachWay runs f with each guest as the second, which has that address.
func (l *wiredLab) eachWay(t *testing.T, f func(way *driverLab, server string)) {
	for server := range l.guests {
		f(&driverLab{Lab: &vnictest.Lab{T: t}, guests: [2]*shell{l.guests[1-server], l.guests[server]}}, l.ip[server])
	}
}

// nvmeIsVerified writes and reads a disk of the second guest.
func nvmeIsVerified(way *driverLab, server string) {
	way.nvmeTarget(server)
	way.nvmeConnectTo(server)
	fio := way.startFio()
	fio.moves(way.T, "before the end")
	fio.wait(way.T)
	way.guests[0].must("echo 1 >/sys/class/nvme/nvme0/delete_controller")
}
