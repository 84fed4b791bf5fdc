package linuxtest_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vf"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/qemu/image"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestLongDriver runs programs between two guests of two NICs over the Linux driver and its
// provider. TestLongDriverPrograms runs all of them.
func TestLongDriver(t *testing.T) { testDriver(t, "") }

// TestLongDriverNewest is TestLongDriver with the newest kernel that Debian has for the suite.
func TestLongDriverNewest(t *testing.T) { testDriver(t, "newest") }

func testDriver(t *testing.T, kernel string) {
	t.Helper()
	if testing.Short() {
		t.Skip("boots virtual machines")
	}
	vnictest.RequireGuests(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	put := []image.Put{compiled(t, ctx, "clock"), compiled(t, ctx, "window")}
	inDriverLab(t, driverImage(t, ctx, driverExtras{put: put, kernel: kernel}), func(l *driverLab) {
		defer l.keepConsoles()
		if said := l.guests[0].must("ibv_devinfo -v"); !strings.Contains(said, "PORT_ACTIVE") || !strings.Contains(said, "vnic") {
			t.Errorf("ibv_devinfo -v:\n%s", said)
		}
		for _, p := range shortPrograms {
			l.program(t, p)
		}
		t.Log(l.guests[0].must("/root/clock"))
		t.Log(l.guests[0].must(fmt.Sprintf("/root/window %s %s 2>&1", l.device(0), l.gid(0))))
		l.counters(t)
		l.speed(t)
	})
}

// counters checks that Linux shows the device's counters.
func (l *driverLab) counters(t testing.TB) {
	t.Helper()
	g := l.guests[0]
	var want []string
	for c := abi.Counter(0); !strings.HasPrefix(c.String(), "Counter("); c++ {
		want = append(want, c.String())
	}
	slices.Sort(want)
	got := strings.Fields(g.must("cd /sys/class/infiniband/*/ports/1/hw_counters && LC_ALL=C ls | grep -v lifespan; cd"))
	if !slices.Equal(got, want) {
		t.Errorf("counters %q, the ABI has %q", got, want)
	}
	said := g.must("rdma statistic show")
	for _, counter := range []abi.Counter{abi.CounterTxBytes, abi.CounterRxBytes, abi.CounterCompletions} {
		if !regexp.MustCompile(`\b` + counter.String() + ` [1-9][0-9]{3}`).MatchString(said) {
			t.Errorf("after all these programs %s is in rdma statistic:\n%s", counter, said)
		}
	}
}

// speed lowers the function's rate and checks that the driver reports it.
func (l *driverLab) speed(t testing.TB) {
	t.Helper()
	for rate, want := range map[string]string{"10000": "10 Gb/sec (1X FDR10)", "0": "100 Gb/sec (4X EDR)"} {
		if out, err := vnictest.Here(t, vf.Command(), "set", "-s", l.Hosts[0].Control, "pf0.vf1", "rate", rate); err != nil {
			t.Fatal(err, out)
		}
		if said := l.guests[0].must("cat /sys/class/infiniband/*/ports/1/rate"); said != want {
			t.Errorf("with a rate of %s the port has %q, want %q", rate, said, want)
		}
	}
}

// TestLongDriverPrograms is TestLongDriver with all programs.
func TestLongDriverPrograms(t *testing.T) {
	if testing.Short() {
		t.Skip("boots virtual machines")
	}
	vnictest.RequireGuests(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	inDriverLab(t, driverImage(t, ctx, driverExtras{packages: []string{"libfabric-bin", "ucx-utils"}}), func(l *driverLab) {
		defer l.keepConsoles()
		name := strings.NewReplacer(" ", "_", "{", "", "}", "")
		for _, p := range longPrograms {
			t.Run(name.Replace(p), func(t *testing.T) { l.program(t, p) })
		}
		for _, p := range endlessServers {
			t.Run(name.Replace(p), func(t *testing.T) { l.endless(t, l.expand(1, p), l.expand(0, p+" -s {peer}")) })
		}
	})
}

// program runs a program in both guests. The client's command is the server's with its address
// appended, or what stands behind |.
func (l *driverLab) program(t testing.TB, words string) {
	t.Helper()
	start := time.Now()
	server, client, found := strings.Cut(words, "|")
	if !found {
		client = server + " {peer}"
	}
	said := l.pair(t, l.expand(1, server), l.expand(0, client))
	lines := strings.Split(said, "\n")
	t.Logf("%s: %v: %s", words, time.Since(start).Round(time.Millisecond), lines[max(0, len(lines)-2)])
	if strings.Contains(words, " -a ") {
		t.Log(figures(lines))
	}
}

// figures matches perftest's lines of figures for all sizes.
func figures(lines []string) string {
	var text strings.Builder
	for _, l := range lines {
		if l = strings.TrimSpace(l); l != "" && (l[0] == '#' || l[0] >= '0' && l[0] <= '9') {
			text.WriteString("\n" + l)
		}
	}
	return text.String()
}

// shortPrograms are one program of each kind.
var shortPrograms = []string{
	"ibv_rc_pingpong {dev} -g {gid}",
	"ibv_rc_pingpong {dev} -g {gid} -e -n 200",
	"ibv_rc_pingpong {dev} -g {local}",
	"ib_write_bw {dev} -x {gid} -F -n 500",
	"rping -s -C 10|rping -c -C 10 -a {peer}",
}

var longPrograms = []string{
	"ibv_rc_pingpong {dev} -g {gid} -c",
	"ibv_rc_pingpong {dev} -g {gid} -e",
	"ibv_uc_pingpong {dev} -g {gid}",
	"ibv_uc_pingpong {dev} -g {gid} -e",
	"ibv_ud_pingpong {dev} -g {gid}",
	"ibv_ud_pingpong {dev} -g {gid} -e",
	"ibv_ud_pingpong {dev} -g {local}",
	"ib_write_bw {dev} -x {local} -F -n 500",
	"ibv_srq_pingpong {dev} -g {gid}",
	"ibv_srq_pingpong {dev} -g {gid} -e",
	"ibv_xsrq_pingpong {dev} -g {gid} -n 200",
	"ib_write_bw {dev} -x {gid} -F",
	"ib_write_bw {dev} -x {gid} -F -a -n 5",
	"ib_write_bw {dev} -x {gid} -F -q 16 -n 200",
	"ib_write_lat {dev} -x {gid} -F",
	"ib_write_lat {dev} -x {gid} -F -a -n 5",
	"ib_read_bw {dev} -x {gid} -F -n 300",
	"ib_read_bw {dev} -x {gid} -F -a -n 5",
	"ib_read_lat {dev} -x {gid} -F -n 300",
	"ib_read_lat {dev} -x {gid} -F -a -n 5",
	"ib_send_bw {dev} -x {gid} -F",
	"ib_send_bw {dev} -x {gid} -F -a -n 5",
	"ib_send_bw {dev} -x {gid} -F -e",
	"ib_send_bw {dev} -x {gid} -F -c UD",
	"ib_write_bw {dev} -x {gid} -F -c UC",
	"ib_write_lat {dev} -x {gid} -F -c UC",
	"ib_send_lat {dev} -x {gid} -F -c UC",
	"ib_send_lat {dev} -x {gid} -F",
	"ib_send_lat {dev} -x {gid} -F -a -n 5",
	"ib_send_lat {dev} -x {gid} -F -e",
	"ib_send_lat {dev} -x {gid} -F -c UD",
	"ib_atomic_bw {dev} -x {gid} -F -n 500",
	"ib_atomic_lat {dev} -x {gid} -F -n 500",
	"ib_write_bw -R -F -n 500",
	"ib_send_lat -R -F -n 500",
	"rping -s -C 100|rping -c -C 100 -a {peer}",
	"udaddy|udaddy -s {peer}",
	// What is sent before the receiver has joined is lost.
	"mckey -m 239.1.2.3 -b {ip}|bash -c 'for i in {1..3}; do mckey -m 239.1.2.3 -b {ip} -s || exit; done'",
	"rdma_server|rdma_client -s {peer}",
	"ucmatose|ucmatose -s {peer}",
	"fi_pingpong -p verbs -e msg -I 100",
	"fi_pingpong -p 'verbs;ofi_rxm' -e rdm -I 100",
	"ucx_perftest|ucx_perftest {peer} -t tag_lat -n 1000",
	"ucx_perftest|ucx_perftest {peer} -t tag_bw -n 1000 -s 65536",
	"ucx_perftest|ucx_perftest {peer} -t ucp_put_bw -n 1000",
	"ucx_perftest|ucx_perftest {peer} -t ucp_get -n 1000 -s 4096",
	"ucx_perftest|ucx_perftest {peer} -t ucp_fadd -n 1000",
}

// endlessServers lists servers that wait for the next client instead of ending. In rdma-core 44
// cmtime is one, over Soft-RoCE too.
var endlessServers = []string{"cmtime -c 20"}
