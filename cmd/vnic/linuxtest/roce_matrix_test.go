package linuxtest_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

// Programs run between a function with the Linux driver and Soft-RoCE: each with its server in one
// guest and then in the other, over IPv4 and IPv6, on one NIC and through the tunnel between two,
// also with losses. perftest does not verify the data; verifyingCells do.

// cell is a program that both guests run. The client's command is the server's with its address
// appended, or the part behind |.
type cell struct {
	command string
	rows    int // rows of perftest's figures
}

const (
	cellRuns = 50 // -n
	fewRuns  = 5  // -n, with all sizes
	allSizes = 23 // 2 to 8388608 bytes
)

// service is a way to connect queue pairs, with the operations that perftest has for it.
type service struct{ flags, operations string }

// A timeout of a second suits busy machines.
var (
	reliable   = service{"{dev} -x {gid} -u 18", "write read send atomic"}
	unreliable = service{"{dev} -x {gid} -c UC", "write send"}
	datagrams  = service{"{dev} -x {gid} -c UD", "send"}
	// byCM works only with IPv4 addresses in perftest 4.5.
	byCM = service{"-R -F", "write read send atomic"}
)

// cells are all operations, as bandwidth and as latency.
func (s service) cells() []cell { return slices.Concat(s.figure("bw"), s.figure("lat")) }

// figure has all operations as one of perftest's figures, bw or lat. READs and atomics have -o, because without
// it either side asks for as many at once as the other's device has.
func (s service) figure(figure string) (cells []cell) {
	sizes := map[string]string{"write": " -s 9000", "read": " -s 9000 -o 16", "send": " -s 1000", "atomic": " -o 16"}
	for operation := range strings.FieldsSeq(s.operations) {
		cells = append(cells, cell{fmt.Sprintf("ib_%s_%s %s%s -n %d", operation, figure, s.flags, sizes[operation], cellRuns), 1})
	}
	return cells
}

// sizeCells run with all sizes.
var sizeCells = []cell{
	{"ib_write_bw " + reliable.flags + " -a -n 5", allSizes},
	{"ib_read_bw " + reliable.flags + " -o 16 -a -n 5", allSizes},
	{"ib_send_bw " + reliable.flags + " -a -n 5", allSizes},
	{"ib_write_lat " + reliable.flags + " -a -n 5", allSizes},
	{"ib_read_lat " + reliable.flags + " -o 16 -a -n 5", allSizes},
	{"ib_send_lat " + reliable.flags + " -a -n 5", allSizes},
}

// verifyingCells compare the data that arrived: rping that of READ and WRITE, the others that of
// SEND.
var verifyingCells = []cell{
	{command: "rping -s -V -C 30 -S 60000{any}|rping -c -V -C 30 -S 60000 -a {peer}"},
	{command: "ibv_rc_pingpong {pp} -c -s 60000 -n 50"},
	{command: "ibv_srq_pingpong {pp} -c -n 50"},
}

// libfabricCells work only with IPv4 addresses.
var libfabricCells = []cell{{command: "fi_pingpong -p verbs -e msg -c -I 20 -S 60000"}}

// unreliableCells wait for ever if a packet is lost.
var unreliableCells = []cell{
	{command: "ibv_uc_pingpong {pp} -c -s 9000 -n 50"},
	{command: "ibv_ud_pingpong {pp} -c -s 2000 -n 50"},
	{command: "udaddy{family}|udaddy{family} -s {peer}"},
}

// otherHeaders are the programs of settings in which packets only have other headers: each operation once.
var otherHeaders = slices.Concat(reliable.figure("bw"), unreliable.figure("bw"), datagrams.figure("bw"), unreliableCells, verifyingCells)

// TestLongRoCEDriver runs all programs on one NIC, over IPv4.
func TestLongRoCEDriver(t *testing.T) {
	onTheWire(t, linuxSetting{gid: "192.168.100.11"}, reliable.cells(), unreliable.cells(), datagrams.cells(), unreliableCells, verifyingCells, libfabricCells)
}

// TestLongRoCEDriverCM lets rdma_cm connect all queue pairs.
func TestLongRoCEDriverCM(t *testing.T) {
	onTheWire(t, linuxSetting{gid: "192.168.100.11"}, byCM.cells(), cmCells)
}

// cmCells are programs that use rdma_cm.
var cmCells = []cell{
	{command: "ucmatose{family}|ucmatose{family} -s {peer}"},
	{command: "rdma_server|rdma_client -s {peer}"},
}

// TestLongRoCEDriverSizes runs all sizes of perftest.
func TestLongRoCEDriverSizes(t *testing.T) {
	onTheWire(t, linuxSetting{gid: "192.168.100.11"}, sizeCells)
}

// TestReleaseRoCEDriverIPv6 runs on one NIC, over IPv6.
func TestReleaseRoCEDriverIPv6(t *testing.T) {
	onTheWire(t, linuxSetting{gid: "fd00:100::11"}, otherHeaders, cmCells[:1])
}

// TestReleaseRoCEDriverTunnel runs between two NICs, over IPv4.
func TestReleaseRoCEDriverTunnel(t *testing.T) {
	onTheWire(t, linuxSetting{gid: "192.168.100.11", two: true}, otherHeaders, libfabricCells)
}

// TestLongRoCEDriverTunnelIPv6 runs between two NICs, over IPv6.
func TestLongRoCEDriverTunnelIPv6(t *testing.T) {
	onTheWire(t, linuxSetting{gid: "fd00:100::11", two: true}, otherHeaders)
}

// someLost is the impairment of the packets that each NIC receives from the other.
const someLost = "{loss: 1%, duplicate: 1%, reorder: 1%}"

// TestLongRoCEDriverLosses loses packets between two NICs, over IPv4.
func TestLongRoCEDriverLosses(t *testing.T) {
	onTheWire(t, linuxSetting{gid: "192.168.100.11", two: true, impair: someLost}, reliable.cells(), byCM.cells()[:1], verifyingCells, libfabricCells)
}

// TestReleaseRoCEDriverLossesIPv6 loses packets between two NICs, over IPv6.
func TestReleaseRoCEDriverLossesIPv6(t *testing.T) {
	onTheWire(t, linuxSetting{gid: "fd00:100::11", two: true, impair: someLost}, reliable.figure("bw"), verifyingCells)
}

// onTheWire runs programs with the server in one guest and the client in the other, then the other
// way round.
func onTheWire(t *testing.T, s linuxSetting, groups ...[]cell) {
	inWiredLab(t, s, 20*time.Minute, func(l *wiredLab) { l.runAll(t, s, groups...) })
}

func (l *wiredLab) runAll(t *testing.T, s linuxSetting, groups ...[]cell) {
	for server := range 2 {
		for _, c := range slices.Concat(groups...) {
			name := strings.NewReplacer(" ", "_", "{", "", "}", "").Replace(c.command)
			t.Run(fmt.Sprintf("to_%s/%s", l.dev[server], name), func(t *testing.T) { l.run(t, server, c) })
		}
	}
	for _, g := range l.guests {
		g.t = t
	}
	if c := l.counters(t, 1); s.impair != "" && (c["impair.rx_lost"] == 0 || c["roce.again"] == 0 && !s.iwarp) { // TCP counts nothing here
		t.Errorf("%d packets were lost, %d sent again", c["impair.rx_lost"], c["roce.again"])
	}
}

// run runs a program, and checks the output of both ends and what the NIC counted meanwhile.
func (l *wiredLab) run(t *testing.T, server int, c cell) {
	first, second, found := strings.Cut(c.command, "|")
	if !found {
		second = first + " {peer}"
	}
	before, begun := l.counters(t, 1), time.Now()
	defer l.explain(t)
	way := driverLab{guests: [2]*shell{l.guests[1-server], l.guests[server]}, lossy: l.lossy}
	said := way.pair(t, l.words(server, first), l.words(1-server, second))
	c.check(t, said)
	if served := l.guests[server].must("cat /tmp/server"); strings.Contains(served, "invalid data") {
		t.Errorf("%s", served)
	}
	after := l.counters(t, 1)
	packets := func(counter string) uint64 { return after[counter] - before[counter] }
	sent, received, wrong := packets(l.wire+".sent"), packets(l.wire+".received"), after[l.wire+".wrong"]
	if sent+received < uint64(c.rows*fewRuns)+1 || wrong != 0 {
		t.Errorf("%s: %d packets sent, %d received, %d wrong", l.wire, sent, received, wrong)
	}
	t.Logf("%v, %d packets sent, %d received, %d requests again", time.Since(begun).Round(time.Millisecond), sent, received, packets("roce.again"))
}

// explain logs, when something failed, what the NIC counted and how the guests see the network.
func (l *wiredLab) explain(t *testing.T) {
	if !t.Failed() {
		return
	}
	said, _, _ := vnictest.Run(t, "show", "counters", "-s", l.control(1))
	t.Log(said)
	for _, g := range l.guests {
		said, _ := g.run("ip addr; ip route; ip -6 route; ip neigh; rdma link; grep -v 0000:0000:0000:0000$ /sys/class/infiniband/*/ports/1/gids/*; ps aux | tail -n 20")
		t.Logf("%s:\n%s", g.name, said)
	}
}

// perftestRow matches bytes, iterations and figures. These are 0, inf or nan now and then, because
// of the emulated CPU's clock.
var perftestRow = regexp.MustCompile(`(?m)^ *\d+ +(\d+)(?:[ \t]+(?:[\d.]+|inf|-?nan))+[ \t]*$`)

// check looks for perftest's figures.
func (c *cell) check(t *testing.T, said string) {
	if c.rows == 0 {
		return
	}
	rows := perftestRow.FindAllStringSubmatch(said, -1)
	for _, r := range rows {
		if !strings.HasSuffix(c.command, " -n "+r[1]) {
			t.Errorf("%s", r[0])
		}
	}
	if len(rows) != c.rows {
		t.Errorf("%d rows of figures, want %d:\n%s", len(rows), c.rows, said)
	}
}

// words puts a guest's names into a command: its device, the index of its GID, its address and the
// other's.
func (l *wiredLab) words(i int, command string) string {
	peer, anyAddress, family := l.addr[1-i], "", ""
	if strings.Contains(l.ip[i], ":") {
		anyAddress, family = " -a ::", " -b "+l.ip[i]
		if strings.Contains(command, "rping") || strings.Contains(command, "{family}") {
			peer = l.ip[1-i]
		}
	}
	return strings.NewReplacer(
		"{dev}", "-d "+l.dev[i]+" -F", "{pp}", "-d "+l.dev[i]+" -g "+l.gid[i], "{gid}", l.gid[i],
		"{any}", anyAddress, "{family}", family, "{ip}", l.addr[i], "{peer}", peer).Replace(command)
}
