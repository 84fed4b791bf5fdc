package main

import (
	"context"
	"strings"
	"testing"
	"time"
)

// TestLongDriver has programs that know nothing of vnic run between two guests of two NICs, over the
// Linux driver and its provider. The long form is TestLongDriverPrograms.
func TestLongDriver(t *testing.T) {
	if testing.Short() {
		t.Skip("boots virtual machines")
	}
	requireGuests(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	inDriverLab(t, driverImage(t, ctx), func(l *driverLab) {
		defer l.keepConsoles()
		if said := l.guests[0].must("ibv_devinfo -v"); !strings.Contains(said, "PORT_ACTIVE") || !strings.Contains(said, "vnic") {
			t.Errorf("ibv_devinfo -v:\n%s", said)
		}
		for _, p := range shortPrograms {
			l.program(t, p)
		}
		l.sane(t)
	})
}

// TestLongDriverPrograms is TestLongDriver with all programs.
func TestLongDriverPrograms(t *testing.T) {
	if testing.Short() {
		t.Skip("boots virtual machines")
	}
	requireGuests(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	inDriverLab(t, driverImage(t, ctx), func(l *driverLab) {
		defer l.keepConsoles()
		for _, p := range longPrograms {
			t.Run(strings.NewReplacer(" ", "_", "{", "", "}", "").Replace(p), func(t *testing.T) { l.program(t, p) })
		}
		l.sane(t)
	})
}

// program runs a program in both guests. The client gets the server's address as last word; where
// that is not enough, its command is what stands behind |.
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
}

// shortPrograms are one of each kind.
var shortPrograms = []string{
	"ibv_rc_pingpong {dev} -g {gid}",
	"ibv_rc_pingpong {dev} -g {gid} -e -n 200",
	"ib_write_bw {dev} -x {gid} -F -n 500",
	"rping -s -C 10|rping -c -C 10 -a {peer}",
}

var longPrograms = []string{
	"ibv_rc_pingpong {dev} -g {gid} -c",
	"ibv_rc_pingpong {dev} -g {gid} -e",
	"ibv_ud_pingpong {dev} -g {gid}",
	"ibv_ud_pingpong {dev} -g {gid} -e",
	"ibv_srq_pingpong {dev} -g {gid}",
	"ibv_srq_pingpong {dev} -g {gid} -e",
	"ibv_xsrq_pingpong {dev} -g {gid} -n 200",
	"ib_write_bw {dev} -x {gid} -F",
	"ib_write_bw {dev} -x {gid} -F -a -n 100",
	"ib_write_bw {dev} -x {gid} -F -q 16 -n 200",
	"ib_write_lat {dev} -x {gid} -F",
	"ib_read_bw {dev} -x {gid} -F -n 300",
	"ib_read_lat {dev} -x {gid} -F -n 300",
	"ib_send_bw {dev} -x {gid} -F",
	"ib_send_bw {dev} -x {gid} -F -e",
	"ib_send_bw {dev} -x {gid} -F -c UD",
	"ib_send_lat {dev} -x {gid} -F",
	"ib_send_lat {dev} -x {gid} -F -e",
	"ib_send_lat {dev} -x {gid} -F -c UD",
	"ib_atomic_bw {dev} -x {gid} -F -n 500",
	"ib_atomic_lat {dev} -x {gid} -F -n 500",
	"ib_write_bw -R -F -n 500",
	"ib_send_lat -R -F -n 500",
	"rping -s -C 100|rping -c -C 100 -a {peer}",
	"udaddy|udaddy -s {peer}",
	"rdma_server|rdma_client -s {peer}",
}
