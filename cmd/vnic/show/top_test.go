package show

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/control"
)

func topSamples() (was, is sample) {
	was.at = time.Unix(100, 0)
	is.at = time.Unix(102, 0)
	is.nic = control.NIC{Name: "nic1", Host: 1, UptimeMS: 61000, Peers: []control.Peer{{Up: true}, {}}}
	was.counters = control.Counters{"shard.tx_packets": 1000, "rdma.bytes_tx": 0, "drop.psp_auth": 1, "drop.replay": 4}
	is.counters = control.Counters{"shard.tx_packets": 5000, "rdma.bytes_tx": 250e6, "drop.psp_auth": 7, "drop.replay": 4, "falcon.conns": 3}
	was.functions = []control.Function{{ID: "h1.pf0.vf1", TxBytes: 10}, {ID: "h1.pf0.vf2"}}
	is.functions = []control.Function{
		{ID: "h1.pf0.vf1", State: "READY", TxBytes: 10, LinkUp: true},
		{ID: "h1.pf0.vf2", State: "ERROR", TxBytes: 2e6, Objects: control.Objects{QPs: 2}, Fault: "bad doorbell: \x1b[31mred"},
	}
	is.credits = []control.CreditNode{{Name: "h1.pf0.vf2", InUse: map[string]uint32{"req-pkt-tx": 5}, Limit: map[string]uint32{"req-pkt-tx": 64}}}
	return was, is
}

func TestTopShowsRatesAndTheBusiestFunctions(t *testing.T) {
	was, is := topSamples()
	var b strings.Builder
	view(&b, &was, &is, size{24, 120})
	want := `vnic nic1  host 1  up 1m1s  peers 1 of 2  connections 3
packets/s  in 0  out 2k   data  in 0bit/s  out 1Gbit/s   sent again 0/s  waited for credit 0/s
drops      drop.psp_auth 3/s

FUNCTION    STATE  LINK  OUT BIT/S  IN BIT/S  QP  REQ-PKT-TX  DATA-PKT-TX  FAULT
h1.pf0.vf2  ERROR  down  8M         0         2   5/64        0/0          bad doorbell: ` + "\x1b" + `[31mred
h1.pf0.vf1  READY  up    0          0         0   0/0         0/0          
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
	b.Reset()
	view(&b, &was, &is, size{7, 120})
	if !strings.Contains(b.String(), "… 1 more") || strings.Contains(b.String(), "vf1 ") {
		t.Errorf("seven lines:\n%s", b.String())
	}
}

// TestTopFitsANarrowTerminal: long lines are broken, and the least important columns of functions
// are left out.
func TestTopFitsANarrowTerminal(t *testing.T) {
	was, is := topSamples()
	for columns, want := range map[int]string{
		72: `vnic nic1  host 1  up 1m1s  peers 1 of 2  connections 3
packets/s  in 0  out 2k   data  in 0bit/s  out 1Gbit/s   sent again 0/s
  waited for credit 0/s
drops      drop.psp_auth 3/s

FUNCTION    STATE  LINK  OUT BIT/S  IN BIT/S  QP  REQ-PKT-TX  FAULT
`,
		46: `vnic nic1  host 1  up 1m1s  peers 1 of 2
  connections 3
packets/s  in 0  out 2k   data  in 0bit/s
  out 1Gbit/s   sent again 0/s
  waited for credit 0/s
drops      drop.psp_auth 3/s

FUNCTION    STATE  OUT BIT/S  IN BIT/S  FAULT
`,
		30: `vnic nic1  host 1  up 1m1s
  peers 1 of 2  connections 3
packets/s  in 0  out 2k   data
  in 0bit/s  out 1Gbit/s
  sent again 0/s
  waited for credit 0/s
drops      drop.psp_auth 3/s

FUNCTION    OUT BIT/S  IN BIT/S
`,
	} {
		var b strings.Builder
		view(&b, &was, &is, size{20, columns})
		if !strings.HasPrefix(b.String(), want) {
			t.Errorf("%d columns: got\n%swant\n%s", columns, b.String(), want)
		}
	}
}

// TestTopRedrawsATerminal: on a pseudo terminal vnic top stays within the size, prints no control
// characters from guests, and restores the screen at the end.
func TestTopRedrawsATerminal(t *testing.T) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	defer master.Close()
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	if err := unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 6, Col: 40}); err != nil {
		t.Fatal(err)
	}
	s := newScreen(slave)
	if !s.terminal {
		t.Fatal("not seen as a terminal")
	}
	was, is := topSamples()
	for range 2 {
		s.draw(func(w io.Writer, fit size) { view(w, &was, &is, fit) })
	}
	s.leave()
	_ = slave.Close()
	var got []byte
	buf := make([]byte, 4096)
	for {
		n, err := master.Read(buf)
		got = append(got, buf[:n]...)
		if err != nil {
			break
		}
	}
	text := string(got)
	if !strings.HasPrefix(text, enterScreen+cursorHome) || !strings.HasSuffix(text, leaveScreen) || strings.Count(text, enterScreen) != 1 {
		t.Errorf("%q", text)
	}
	if strings.Contains(text, "\x1b[31m") {
		t.Error("an escape sequence of a guest reached the terminal")
	}
	frame := text[strings.LastIndex(text, cursorHome)+len(cursorHome):]
	lines := strings.Split(strings.TrimSuffix(frame, clearRest+leaveScreen), "\r\n")
	if len(lines) > 6 {
		t.Errorf("%d lines on a terminal of 6", len(lines))
	}
	for _, l := range lines {
		if n := len([]rune(strings.TrimSuffix(strings.TrimRight(l, "\r"), clearLine))); n > 40 {
			t.Errorf("%d characters: %q", n, l)
		}
	}
}
