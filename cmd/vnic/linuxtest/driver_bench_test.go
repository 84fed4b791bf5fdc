package linuxtest_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/qemu"
)

// Stock programs measure between two guests, in turn over the Linux driver and over Linux'
// Soft-RoCE. For Soft-RoCE alone, each guest has a second virtio-net device; a plain bridge
// connects these, without vnic.

const (
	plainBridge = "rxe-br0"
	plainMTU    = 4400 // the same as on the functions' ports: room for packets with 4 KiB of data
)

// plainNIC returns a virtio-net device on the plain bridge.
func plainNIC(t testing.TB, i int) qemu.NIC {
	t.Helper()
	if i == 0 {
		if err := tap.NewBridge(plainBridge, plainMTU); err != nil {
			t.Fatal(err)
		}
	}
	nic, err := tap.OpenGuest(fmt.Sprintf("rxe%d", i), plainBridge, plainMTU)
	if err != nil {
		t.Fatal(err)
	}
	return qemu.NIC{TAP: nic, MAC: fmt.Sprintf("52:54:00:00:00:0%d", i+1), MTU: plainMTU}
}

// verbsDevice is a device by the name that programs use, and its addresses. An RNIC has no gid that
// programs use: rdma_cm finds it by the address.
type verbsDevice struct {
	guest           *shell
	name, gid, addr string
	foreign         bool // not vnic's
}

// words are perftest's words for the device. Those of a GID have a timeout of two seconds (-u 19): with
// the default of 67 ms and eight attempts, a guest that waits too long for its processor would end the
// measurement.
func (d verbsDevice) words() string {
	if d.gid == "" {
		return " -F -R"
	}
	return " -F -u 19 -d " + d.name + " -x " + d.gid
}

// plainDevices creates devices of a software driver, rxe or siw, on the guests' second interfaces.
func plainDevices(guests [2]*shell, driver string) (devices [2]verbsDevice) {
	for i, g := range guests {
		d := verbsDevice{guest: g, name: driver + "1", addr: fmt.Sprintf("10.77.0.%d", i+1), foreign: true}
		g.must(fmt.Sprintf("ip addr add %s/24 dev eth1; ip link set eth1 up; rdma link add %s type %s netdev eth1", d.addr, d.name, driver))
		devices[i] = d
	}
	return devices
}

// plainRXE creates Soft-RoCE devices there.
func plainRXE(guests [2]*shell) [2]verbsDevice {
	devices := plainDevices(guests, "rxe")
	for i, g := range guests {
		d := &devices[i]
		gids := "/sys/class/infiniband/" + d.name + "/ports/1/gids/*"
		g.eventually(fmt.Sprintf("grep -qi %q %s", gidText(d.addr), gids))
		d.gid = filepath.Base(g.must(fmt.Sprintf("grep -li %q %s | head -n 1", gidText(d.addr), gids)))
	}
	return devices
}

// stockRuns is odd, because medians are reported.
const stockRuns = 5

// Columns of what perftest prints.
const (
	averageMBs = 3 // of bandwidth
	millions   = 4 // of bandwidth: messages a second
	typicalUS  = 4 // of latency
)

// stockMetric is a metric that one of perftest's programs measures.
type stockMetric struct {
	name, program string
	column        int
	factor        float64
}

// stockWay is a pair of devices, the client's and the server's.
type stockWay struct {
	suffix         string // of the metric
	client, server verbsDevice
}

// measureStock measures over each pair of devices in turn, and reports medians.
func measureStock(b *testing.B, metrics []stockMetric, ways ...stockWay) {
	b.Helper()
	for _, m := range metrics {
		values := make([][]float64, len(ways))
		for range stockRuns {
			for i, w := range ways {
				values[i] = append(values[i], w.measure(b, m))
			}
		}
		for i, w := range ways {
			b.Logf("%s%s: %.4g", m.name, w.suffix, values[i])
			b.ReportMetric(vnictest.Median(values[i]), m.name+w.suffix)
		}
	}
}

// measure runs one of perftest's programs.
func (w stockWay) measure(b *testing.B, m stockMetric) float64 {
	b.Helper()
	l := driverLab{guests: [2]*shell{w.client.guest, w.server.guest}, foreign: w.client.foreign && w.server.foreign}
	for range clockTries {
		said := l.pair(b, m.program+w.server.words(), m.program+w.client.words()+" "+w.server.addr)
		if !strings.Contains(said, noClock) {
			return m.factor * column(b, said, m.column)
		}
		b.Logf("%s%s: perftest could not tell the clock's rate, once more", m.name, w.suffix)
	}
	b.Fatalf("%s%s: perftest could not tell the clock's rate in %d runs", m.name, w.suffix, clockTries)
	return 0
}

// perftest first compares two clocks. If the guest had to wait for its processor meanwhile, it
// prints noClock instead of figures. That happens now and then on a busy machine.
const (
	noClock    = "Correlation coefficient"
	clockTries = 10
)

// column returns a figure from perftest's output.
func column(b testing.TB, said string, i int) float64 {
	b.Helper()
	row := rxeRow.FindStringSubmatch(strings.ReplaceAll(said, "\t", " "))
	if row == nil || len(strings.Fields(row[1])) <= i {
		b.Fatalf("no row of figures:\n%s", said)
	}
	v, err := strconv.ParseFloat(strings.Fields(row[1])[i], 64)
	if err != nil {
		b.Fatal(err)
	}
	return v
}

// BenchmarkDriver compares programs over the driver, which uses Falcon between two NICs, with the
// same programs over Soft-RoCE.
func BenchmarkDriver(b *testing.B) {
	vnictest.RequireGuests(b)
	ctx, cancel := context.WithTimeout(b.Context(), 25*time.Minute)
	defer cancel()
	m := driverImage(b, ctx, driverExtras{packages: nvmeExtras.packages, modules: slices.Concat(rxeModules, nvmeExtras.modules)})
	for b.Loop() {
		makeDriverLab(b, vnictest.Options{Windows: true}, [2]qemu.Machine{m, m}, func(l *vnictest.Lab) { l.Plain = true }, func(l *driverLab) {
			var own [2]verbsDevice
			for i := range own {
				own[i] = verbsDevice{guest: l.guests[i], name: l.device(i), gid: l.gid(i), addr: l.Hosts[i].TenantIP}
			}
			rxe := plainRXE(l.guests)
			measureStock(b, []stockMetric{
				{"driver/write64k_mbs", "ib_write_bw -s 65536 -n 500", averageMBs, 1},
				{"driver/write64_lat_us", "ib_write_lat -s 64 -n 1000", typicalUS, 1},
				{"driver/send64_lat_us", "ib_send_lat -s 64 -n 1000", typicalUS, 1},
				{"driver/event_lat_us", "ib_send_lat -s 64 -n 1000 -e", typicalUS, 1},
				{"driver/write64_msgs_per_s", "ib_write_bw -s 64 -n 50000", millions, 1e6},
			}, stockWay{"", own[0], own[1]}, stockWay{"@rxe", rxe[0], rxe[1]})
			l.overGuestlib(b, own)
			l.randomReads(b, map[string]string{"": own[1].addr, "@rxe": rxe[1].addr})
		})
	}
}

// overGuestlib compares the driver with the Go library on the same functions, while the module is
// not loaded.
func (l *driverLab) overGuestlib(b *testing.B, own [2]verbsDevice) {
	b.Helper()
	const flags = " -s 64 -n 1000"
	var ratios []float64
	for range stockRuns {
		driver := stockWay{"", own[0], own[1]}.measure(b, stockMetric{"", "ib_write_lat" + flags, typicalUS, 1})
		for _, g := range l.guests {
			g.must("rmmod vnic")
		}
		program := "/init guest perf write_lat" + flags
		library := column(b, l.pair(b, program, program+" "+l.Hosts[0].PeerGI), typicalUS)
		for i, g := range l.guests {
			g.must(loadDriver)
			l.ready(i)
		}
		ratios = append(ratios, driver/library)
		b.Logf("write_lat of 64 bytes: driver %.4g µs, guestlib %.4g µs", driver, library)
	}
	b.ReportMetric(vnictest.Median(ratios), "driver/write64_lat_over_guestlib")
}

// randomReads measures reads of a disk in the other guest over the devices with these addresses.
func (l *driverLab) randomReads(b *testing.B, addresses map[string]string) {
	b.Helper()
	l.nvmeTarget(l.Hosts[1].TenantIP)
	l.nvmePort(2, addresses["@rxe"])
	rates := map[string][]float64{}
	for range stockRuns {
		for suffix, addr := range addresses {
			l.nvmeConnectTo(addr)
			said := l.guests[0].must("timeout 100 fio --name=read --filename=/dev/nvme0n1 --rw=randread --bs=4k --ioengine=libaio --iodepth=16 --direct=1 " +
				"--time_based --runtime=5 --output-format=terse --terse-version=3")
			fields := strings.Split(said[strings.LastIndex(said, "3;fio"):], ";")
			rate, err := strconv.ParseFloat(fields[7], 64) // a second
			if err != nil {
				b.Fatalf("%v: %s", err, said)
			}
			rates[suffix] = append(rates[suffix], rate)
			l.guests[0].must("echo 1 >/sys/class/nvme/nvme0/delete_controller")
			l.guests[0].eventually("test ! -e /dev/nvme0n1")
		}
	}
	for suffix, r := range rates {
		b.Logf("random reads of 4 KiB a second%s: %.4g", suffix, r)
		b.ReportMetric(vnictest.Median(r), "driver/nvme_randread4k_iops"+suffix)
	}
}

// BenchmarkRoCELinux compares programs between the driver in one guest and Soft-RoCE in the other
// with programs between Soft-RoCE in both.
func BenchmarkRoCELinux(b *testing.B) {
	for b.Loop() {
		inWiredLab(b, linuxSetting{gid: "192.168.100.11", beside: true}, 25*time.Minute, func(l *wiredLab) {
			var ends [2]verbsDevice // vnic's, and its peer
			for i := range ends {
				ends[i] = verbsDevice{guest: l.guests[i], name: l.dev[i], gid: l.gid[i], addr: l.addr[i], foreign: i == 1}
			}
			rxe := plainRXE(l.guests)
			alone := stockWay{"@rxe", rxe[0], rxe[1]}
			before := l.counters(b, 1)
			measureStock(b, []stockMetric{
				{"roce/rxe_write64k_mbs", "ib_write_bw -s 65536 -n 500", averageMBs, 1},
				{"roce/rxe_read64k_mbs", "ib_read_bw -s 65536 -n 500 -o 16", averageMBs, 1},
				{"roce/rxe_write64_lat_us", "ib_write_lat -s 64 -n 1000", typicalUS, 1},
			}, stockWay{"", ends[0], ends[1]}, alone)
			measureStock(b, []stockMetric{
				{"roce/from_rxe_write64k_mbs", "ib_write_bw -s 65536 -n 500", averageMBs, 1},
			}, stockWay{"", ends[1], ends[0]}, alone)
			after := l.counters(b, 1)
			if after["roce.sent"] == before["roce.sent"] {
				b.Error("nothing was sent by RoCEv2")
			}
			b.Logf("%d packets sent, %d of them again, %d timeouts", after["roce.sent"]-before["roce.sent"],
				after["roce.again"]-before["roce.again"], after["roce.timeouts"]-before["roce.timeouts"])
		})
	}
}

// BenchmarkIWARPLinux compares programs between the driver in one guest and siw in the other with programs
// between siw in both, which never have checksums: one way, the other and both at once, with checksums and without.
func BenchmarkIWARPLinux(b *testing.B) {
	for b.Loop() {
		for how, noCRC := range map[string]bool{"": false, "nocrc_": true} {
			inWiredLab(b, linuxSetting{gid: "192.168.100.11", beside: true, iwarp: true, noCRC: noCRC}, 25*time.Minute, func(l *wiredLab) {
				var ends [2]verbsDevice // vnic's, and its peer
				for i := range ends {
					ends[i] = verbsDevice{guest: l.guests[i], addr: l.addr[i], foreign: i == 1}
				}
				siw := plainDevices(l.guests, "siw")
				before := l.counters(b, 1)
				measureStock(b, []stockMetric{
					{"iwarp/siw_" + how + "write64k_mbs", "ib_write_bw -s 65536 -n 500", averageMBs, 1},
				}, stockWay{"", ends[0], ends[1]}, stockWay{"@siw", siw[0], siw[1]})
				measureStock(b, []stockMetric{
					{"iwarp/from_siw_" + how + "write64k_mbs", "ib_write_bw -s 65536 -n 500", averageMBs, 1},
				}, stockWay{"", ends[1], ends[0]}, stockWay{"@siw", siw[1], siw[0]})
				measureStock(b, []stockMetric{
					{"iwarp/both_siw_" + how + "write64k_mbs", "ib_write_bw -b -s 65536 -n 500", averageMBs, 1},
				}, stockWay{"", ends[0], ends[1]}, stockWay{"@siw", siw[0], siw[1]})
				if l.counters(b, 1)["iwarp.sent"] == before["iwarp.sent"] {
					b.Error("nothing was sent by iWARP")
				}
			})
		}
	}
}
