package linuxtest_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/qemu/image"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// A function speaks iWARP with Linux's siw. The function belongs to a bare client, which is the test;
// behind the port of the other one is a stock guest with siw on its virtio-net, whose programs use
// rdma_cm: rping, and testdata/iwarp.c, which does what the test says and verifies every byte.

// siwModules are the modules of a guest with siw, which looks for crc32c when it is loaded.
func siwModules(t testing.TB, ctx context.Context) []string {
	t.Helper()
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, "../../../guestlib/linux/siw.sh")
	cmd.Stderr = &said
	out, err := cmd.Output()
	vnictest.Require(t, err == nil, fmt.Sprintf("siw.sh: %v\n%s", err, &said))
	return []string{"crc32c_generic", strings.TrimSpace(string(out))}
}

// Addresses and ports of the tests with siw.
const (
	siwControl = "192.168.100.22:7471" // of testdata/iwarp.c
	siwService = 7472                  // where calls are expected, by either end
	siwPing    = 7174                  // rping's
)

// siwLab is one or two NICs, the test's client on a function, and the guest with siw.
type siwLab struct {
	*wiredLab
	t    testing.TB
	ctx  context.Context
	own  guestlib.GID // of the function
	peer guestlib.GID // the guest's address
	e    *siwEnd
	p    *perftestPeer
	aux  *guestlib.MR // beside p.mr, which all data goes to and comes from
}

// inSIWLab boots the guest.
func inSIWLab(t *testing.T, s linuxSetting, f func(l *siwLab)) {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a virtual machine")
	}
	vnictest.RequireGuests(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*vnictest.Limit)
	defer cancel()
	s.iwarp = true
	m := driverImage(t, ctx, driverExtras{modules: siwModules(t, ctx), put: []image.Put{buildSIWEnd(t, ctx)}})
	vnictest.Program(t)
	netns.Run(t, func() {
		w := &wiredLab{linuxLab: newLinuxNICs(t, ctx, s)}
		defer w.stop()
		// The NIC takes TCP ports of its connections from 49152 on.
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("20000 40000"), 0); err != nil {
			t.Fatal(err)
		}
		ip(t, "link set vp1 up", "addr add 192.168.100.11/24 dev vp1")
		w.bootShell(t, 1, m, w.mac)
		g := w.guests[1]
		g.begin()
		g.must("ip addr flush dev eth0 scope global; ip addr add 192.168.100.22/24 dev eth0")
		g.must("ip addr add fe80::22/64 dev eth0 nodad; ip addr add fd00:100::22/64 dev eth0 nodad")
		g.must("rdma link add siw0 type siw netdev eth0")
		g.must("(while :; do /root/iwarp 7471; done >/tmp/iwarp 2>&1 &)")
		l := &siwLab{wiredLab: w, t: t, ctx: ctx, e: &siwEnd{linuxEnd{t: t, addr: siwControl}}}
		var err error
		l.own, err = guestlib.ParseGID(s.gid)
		if err != nil {
			t.Fatal(err)
		}
		guest := "192.168.100.22"
		if strings.Contains(s.gid, ":") {
			guest = "fd00:100::22"
		}
		if l.peer, err = guestlib.ParseGID(guest); err != nil {
			t.Fatal(err)
		}
		l.e.dial()
		l.e.ask("listen %s %d", guest, siwService)
		l.open()
		f(l)
		if c := l.counters(t, 1); c["iwarp.sent"] == 0 || c["iwarp.wrong"] != 0 {
			t.Errorf("iwarp.sent %d, iwarp.wrong %d", c["iwarp.sent"], c["iwarp.wrong"])
		}
		(&driverLab{guests: w.guests}).sane(t)
	})
}

// buildSIWEnd builds the guest's program. rdma-core's source has the header of rdma_cm.
func buildSIWEnd(t testing.TB, ctx context.Context) image.Put {
	t.Helper()
	source, err := exec.CommandContext(ctx, "../../../guestlib/linux/fetch.sh", "rdma-core").Output()
	vnictest.Require(t, err == nil, fmt.Sprint("fetch.sh rdma-core: ", err))
	at := filepath.Join(t.TempDir(), "iwarp")
	out, err := exec.CommandContext(ctx, "gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-I"+strings.TrimSpace(string(source))+"/librdmacm",
		"-o", at, "testdata/iwarp.c", "-l:librdmacm.so.1", "-l:libibverbs.so.1").CombinedOutput()
	vnictest.Require(t, err == nil, fmt.Sprintf("gcc testdata/iwarp.c: %v\n%s", err, out))
	return image.Put{From: at, To: "/root/iwarp"}
}

// open opens the function.
func (l *siwLab) open() {
	l.p = newPerftestPeer(l.t, l.ctx, "unix://"+l.dir+"/bare.sock")
	buf, err := l.p.dev.Alloc(1 << 16)
	l.p.check(err)
	l.aux, err = l.p.pd.RegMR(l.ctx, buf, guestlib.LocalWrite|guestlib.RemoteWrite|guestlib.RemoteRead)
	l.p.check(err)
}

// siwEnd controls the guest's program, which is started again when it is killed.
type siwEnd struct{ linuxEnd }

// siwMemory is the guest's memory for the data of a connection.
type siwMemory struct {
	addr uint64
	rkey uint32
}

// dial connects to the program.
func (e *siwEnd) dial() {
	vnictest.Eventually(e.t, "a program at "+e.addr, func() (err error) {
		if e.conn, err = net.DialTimeout("tcp", e.addr, 5*time.Second); err == nil {
			e.lines = bufio.NewReader(e.conn)
		}
		return err
	})
}

// established parses what the program says of a new connection.
func (e *siwEnd) established(line string) (private string, m siwMemory) {
	e.t.Helper()
	if _, err := fmt.Sscanf(line, "ok %s %d %d", &private, &m.addr, &m.rkey); err != nil {
		e.t.Fatalf("siw's end said %q: %v", line, err)
	}
	return private, m
}

// is checks an answer.
func (e *siwEnd) is(want, command string, a ...any) {
	e.t.Helper()
	if got := e.ask(command, a...); got != want {
		e.t.Errorf("%s: %s, want %s", fmt.Sprintf(command, a...), got, want)
	}
}

// weCall connects to the program.
func (l *siwLab) weCall() siwMemory {
	l.t.Helper()
	l.e.tell("answer welcome")
	l.p.own()
	private, err := l.p.dev.Connect(l.ctx, l.p.qp, l.peer, siwService, []byte("hello"))
	l.p.check(err)
	if string(private) != "welcome" {
		l.t.Errorf("siw's private data is %q", private)
	}
	heard, m := l.e.established(l.e.answer())
	if heard != "hello" {
		l.t.Errorf("siw heard %q", heard)
	}
	return m
}

// siwCalls lets the program connect.
func (l *siwLab) siwCalls() siwMemory {
	l.t.Helper()
	listener, err := l.p.dev.Listen(l.ctx, siwService)
	l.p.check(err)
	l.e.tell("call %s %d hello", l.own, siwService)
	r, err := listener.Accept(l.ctx)
	l.p.check(err)
	if string(r.Private) != "hello" || r.GID != l.peer {
		l.t.Errorf("siw called with %q from %s", r.Private, r.GID)
	}
	l.p.own()
	l.p.check(l.p.qp.PostRecv(&guestlib.RecvWR{SGL: []guestlib.SGE{l.aux.SGE(0, 64)}}))
	l.p.check(r.Accept(l.ctx, l.p.qp, []byte("welcome")))
	l.p.check(listener.Close(l.ctx))
	heard, m := l.e.established(l.e.answer())
	// We send nothing before siw has sent something (RFC 5044 §7.1.2).
	l.e.is("ok", "send 1 1 0 0")
	l.e.is("0", "wait 1")
	l.succeed(1)
	if heard != "welcome" {
		l.t.Errorf("siw heard %q", heard)
	}
	return m
}

// bothCall runs f over a connection that siw made, and over one that we made.
func (l *siwLab) bothCall(f func(m siwMemory)) {
	for _, call := range []func() siwMemory{l.siwCalls, l.weCall} {
		f(call())
		l.p.check(l.p.qp.Destroy(l.ctx))
	}
}

// siwPattern is what a seed stands for. testdata/iwarp.c has the same.
func siwPattern(seed uint32, b []byte) []byte {
	for i := range b {
		b[i] = byte((uint32(i)*2654435761 + seed*40503) >> 24)
	}
	return b
}

// succeed waits for completions, all of which must be successful.
func (l *siwLab) succeed(n int) {
	l.t.Helper()
	for i, st := range l.p.statuses(n) {
		if st != abi.WCSuccess {
			l.t.Fatalf("our completion %d: %v", i, st)
		}
	}
}

// post posts a request of ours.
func (l *siwLab) post(op guestlib.Opcode, at guestlib.SGE, m siwMemory) {
	l.p.check(l.p.qp.PostSend(&guestlib.SendWR{Opcode: op, SGL: []guestlib.SGE{at}, RemoteAddr: m.addr, RKey: m.rkey}))
}

// arrived checks what is in our memory.
func (l *siwLab) arrived(what string, seed uint32, n int) {
	l.t.Helper()
	if got, want := l.p.mr.Bytes()[:n], siwPattern(seed, make([]byte, n)); !bytes.Equal(got, want) {
		at := 0
		for i := range got {
			if got[i] != want[i] {
				at = i
				break
			}
		}
		l.t.Fatalf("%s of %d bytes: byte %d is %d, want %d", what, n, at, got[at], want[at])
	}
}

// exchange sends n bytes by each operation in each direction, and compares what arrives.
func (l *siwLab) exchange(m siwMemory, seed uint32, n int) {
	l.t.Helper()
	own, e := l.p.mr, l.e
	// A WRITE is done when TCP has it acknowledged. What follows it tells when it is in memory.
	clear(own.Bytes())
	l.p.check(l.p.qp.PostRecv(&guestlib.RecvWR{SGL: []guestlib.SGE{l.aux.SGE(0, 64)}}))
	e.is("ok", "fill %d %d", seed, n)
	e.is("ok", "write 1 %d %d %d", n, own.Addr(), own.RKey())
	e.is("ok", "send 1 1 0 0")
	e.is("0 0", "wait 2")
	l.succeed(1)
	l.arrived("siw's WRITE", seed, n)

	siwPattern(seed+1, own.Bytes()[:n])
	e.is("ok", "read 1 %d %d %d", n, own.Addr(), own.RKey())
	e.is("0", "wait 1")
	e.is("ok", "check %d %d", seed+1, n)

	l.p.check(l.p.qp.PostRecv(&guestlib.RecvWR{SGL: []guestlib.SGE{own.SGE(0, n)}}))
	e.is("ok", "fill %d %d", seed+2, n)
	e.is("ok", "send 1 %d 0 0", n)
	e.is("0", "wait 1")
	l.succeed(1)
	if got := l.p.wc[0].ByteLen; int(got) != n {
		l.t.Errorf("siw's SEND of %d bytes has %d", n, got)
	}
	l.arrived("siw's SEND", seed+2, n)

	siwPattern(seed+3, own.Bytes()[:n])
	l.post(guestlib.Write, own.SGE(0, n), m)
	l.post(guestlib.Read, l.aux.SGE(0, 1), m)
	l.succeed(2)
	e.is("ok", "check %d %d", seed+3, n)

	e.is("ok", "fill %d %d", seed+4, n)
	l.post(guestlib.Read, own.SGE(0, n), m)
	l.succeed(1)
	l.arrived("our READ", seed+4, n)

	siwPattern(seed+5, own.Bytes()[:n])
	e.is("ok", "receive 1 %d", n)
	l.post(guestlib.Send, own.SGE(0, n), m)
	l.succeed(1)
	e.is("0", "wait 1")
	e.is("ok", "check %d %d", seed+5, n)
}

// siwSizes are messages of all sizes: around each power of two, and around the segments of TCP.
func siwSizes(most int) (sizes []int) {
	for n := 1; n <= most; n *= 2 {
		sizes = append(sizes, n)
		if n >= 4 && n < most && n <= 1<<16 {
			sizes = append(sizes, n-1, n+1)
		}
	}
	for _, mss := range []int{4332, 4344} {
		for d := range 24 {
			sizes = append(sizes, mss-d)
		}
	}
	return sizes
}

// TestLongAFunctionAndSIWExchangeAllSizes: a function and siw send each other messages of all sizes by SEND, WRITE and READ, over
// connections that either end made, and no byte is wrong.
func TestLongAFunctionAndSIWExchangeAllSizes(t *testing.T) {
	for name, s := range map[string]linuxSetting{
		"IPv4":                   {gid: "192.168.100.11"},
		"IPv6, no checksums":     {gid: "fd00:100::11", noCRC: true},
		"two NICs":               {gid: "192.168.100.11", two: true},
		"two NICs, IPv6, losses": {gid: "fd00:100::11", two: true, impair: someLost},
	} {
		t.Run(name, func(t *testing.T) {
			most := 8 << 20
			if s.impair != "" {
				most = 1 << 20
			}
			inSIWLab(t, s, func(l *siwLab) {
				l.bothCall(func(m siwMemory) {
					for i, n := range siwSizes(most) {
						l.exchange(m, uint32(6*i), n)
					}
				})
				l.rejected()
				l.rpings()
			})
		})
	}
}

// rejected: both ends reject calls, with private data.
func (l *siwLab) rejected() {
	l.t.Helper()
	l.p.own()
	l.e.tell("refuse no")
	_, err := l.p.dev.Connect(l.ctx, l.p.qp, l.peer, siwService, []byte("please"))
	var rejected *guestlib.RejectedError
	if !errors.As(err, &rejected) || string(rejected.Private) != "no" {
		l.t.Errorf("siw rejected: %v", err)
	}
	if heard := l.e.answer(); heard != "ok please" {
		l.t.Errorf("siw heard %q", heard)
	}
	if _, err = l.p.dev.Connect(l.ctx, l.p.qp, l.peer, siwService+1, nil); !errors.Is(err, guestlib.ErrUnreachable) {
		l.t.Errorf("nobody listens: %v", err)
	}
	l.p.check(l.p.qp.Destroy(l.ctx))
	listener, err := l.p.dev.Listen(l.ctx, siwService)
	l.p.check(err)
	l.e.tell("call %s %d please", l.own, siwService)
	r, err := listener.Accept(l.ctx)
	l.p.check(err)
	l.p.check(r.Reject(l.ctx, 7, []byte("never")))
	if said := l.e.answer(); said != "RDMA_CM_EVENT_REJECTED never" {
		l.t.Errorf("siw was rejected, and says %q", said)
	}
	l.p.check(listener.Close(l.ctx))
}

// rping's messages: big endian.
type rpingInfo struct {
	addr uint64
	rkey uint32
	size uint32
}

func (i rpingInfo) put(b []byte) {
	binary.BigEndian.PutUint64(b, i.addr)
	binary.BigEndian.PutUint32(b[8:], i.rkey)
	binary.BigEndian.PutUint32(b[12:], i.size)
}

func getRping(b []byte) rpingInfo {
	return rpingInfo{binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])}
}

// Where the data of rping stands in our memory, and its messages in aux.
const (
	rpingCount = 30
	rpingSize  = 60000
	rpingLen   = 16
	rpingHeard = 64 // receives in aux
)

// rpings: rping verifies what we read and write, as its client and as its server.
func (l *siwLab) rpings() {
	l.t.Helper()
	g := l.guests[1]
	arguments := fmt.Sprintf("-V -C %d -S %d -p %d", rpingCount, rpingSize, siwPing)
	listener, err := l.p.dev.Listen(l.ctx, siwPing)
	l.p.check(err)
	g.must(fmt.Sprintf("(bash -c 'rping -c %s -a %s >/tmp/rping 2>&1; echo $? >/tmp/rc' &)", arguments, l.own))
	r, err := listener.Accept(l.ctx)
	l.p.check(err)
	l.p.own()
	l.hear()
	l.p.check(r.Accept(l.ctx, l.p.qp, nil))
	for i := range rpingCount {
		from := l.heard()
		l.post(guestlib.Read, l.p.mr.SGE(0, int(from.size)), siwMemory{from.addr, from.rkey})
		l.succeed(1)
		if want := fmt.Sprintf("rdma-ping-%d: ", i); from.size != rpingSize || !bytes.HasPrefix(l.p.mr.Bytes(), []byte(want)) {
			l.t.Fatalf("rping's data of %d bytes begins with %q, want %q", from.size, l.p.mr.Bytes()[:20], want)
		}
		l.say(rpingInfo{})
		to := l.heard()
		l.post(guestlib.Write, l.p.mr.SGE(0, int(to.size)), siwMemory{to.addr, to.rkey})
		l.succeed(1)
		l.say(rpingInfo{})
	}
	<-l.p.qp.Down()
	l.p.check(l.p.qp.Destroy(l.ctx))
	l.p.check(listener.Close(l.ctx))
	l.rpingEnded()

	g.must(fmt.Sprintf("(bash -c 'rping -s %s -a %s >/tmp/rping 2>&1; echo $? >/tmp/rc' &)", arguments, l.peer))
	l.p.own()
	l.hear()
	vnictest.Eventually(l.t, "rping listens", func() error {
		_, err := l.p.dev.Connect(l.ctx, l.p.qp, l.peer, siwPing, nil)
		return err
	})
	own := l.p.mr
	for i := range rpingCount {
		for k := range rpingSize - 1 { // rping writes back a text of C
			own.Bytes()[k] = byte('A' + (k+i)%58)
		}
		own.Bytes()[rpingSize-1] = 0
		l.say(rpingInfo{own.Addr(), own.RKey(), rpingSize})
		l.heard()
		l.say(rpingInfo{own.Addr() + 1<<20, own.RKey(), rpingSize})
		l.heard()
		if !bytes.Equal(own.Bytes()[:rpingSize], own.Bytes()[1<<20:][:rpingSize]) {
			l.t.Fatalf("rping's answer %d is not what it read", i)
		}
	}
	l.p.check(l.p.qp.Disconnect(l.ctx))
	l.p.check(l.p.qp.Destroy(l.ctx))
	l.rpingEnded()
}

// hear posts a receive for a message of rping.
func (l *siwLab) hear() {
	l.p.check(l.p.qp.PostRecv(&guestlib.RecvWR{SGL: []guestlib.SGE{l.aux.SGE(rpingHeard, rpingLen)}}))
}

// heard waits for a message of rping.
func (l *siwLab) heard() rpingInfo {
	l.t.Helper()
	l.succeed(1)
	info := getRping(l.aux.Bytes()[rpingHeard:])
	l.hear()
	return info
}

// say sends rping a message.
func (l *siwLab) say(i rpingInfo) {
	l.t.Helper()
	i.put(l.aux.Bytes())
	l.post(guestlib.Send, l.aux.SGE(0, rpingLen), siwMemory{})
	l.succeed(1)
}

// rpingEnded waits for the end of rping, which must be content.
func (l *siwLab) rpingEnded() {
	l.t.Helper()
	g := l.guests[1]
	g.eventually("test -s /tmp/rc")
	if rc := g.must("cat /tmp/rc; rm /tmp/rc"); rc != "0" {
		l.t.Errorf("rping: exit status %s\n%s", rc, g.must("cat /tmp/rping"))
	}
}

// TestLongSIWEnds: a program or a queue pair on one side ends while the other sends, and requests come
// that cannot be served, between a function and siw, in both directions. Each connection ends at both
// ends, and what was not done yet fails or is flushed.
func TestLongSIWEnds(t *testing.T) {
	inSIWLab(t, linuxSetting{gid: "192.168.100.11"}, func(l *siwLab) {
		l.ourProgramKilled()
		for _, end := range []struct {
			name string
			f    func(m siwMemory)
		}{
			{"siw disconnects", l.siwDisconnects},
			{"we disconnect", l.weDisconnect},
			{"our queue pair fails", l.weFail},
			{"siw has the wrong key", l.siwWrongKey},
			{"we have the wrong key", l.weWrongKey},
			{"siw sends too much", func(siwMemory) { l.siwSends(3000, 5000, abi.WCLocLenErr) }},
			{"we have no receive", func(siwMemory) { l.siwSends(0, 100, abi.WCWRFlushErr) }},
			{"we send too much", func(m siwMemory) { l.weSend(m, 3000, 5000) }},
			{"siw has no receive", func(m siwMemory) { l.weSend(m, 0, 100) }},
			{"siw's program is killed", l.siwKilled},
		} {
			l.t.Log(end.name)
			l.bothCall(func(m siwMemory) {
				end.f(m)
				l.over(end.name)
			})
		}
		l.nicKilled()
		l.guestKilled()
	})
}

// nicKilled kills the worker of the function's NIC. Whoever gets siw's packets then knows no connection.
func (l *siwLab) nicKilled() {
	l.siwCalls()
	got := l.siwWrites(l.p.mr.Addr(), l.p.mr.RKey())
	nic, err := control.NewClient(l.control(1)).NIC(l.ctx)
	l.p.check(err)
	l.p.check(syscall.Kill(nic.Worker, syscall.SIGKILL))
	endedIn(l.t, "the NIC was killed: siw", append(got, l.e.statuses(endsRequests-1)...), siwGaveUp...)
	l.e.is("ok", "gone")
	_ = l.p.dev.Close()
	if _, said, code := vnictest.Run(l.t, "wait", "-s", l.control(1)); code != 0 {
		l.t.Fatal(said)
	}
	l.open()
}

// guestKilled kills siw's guest, after which nobody answers.
func (l *siwLab) guestKilled() {
	got := l.ourWrites(l.weCall())
	l.p.check(l.vms[1].Kill())
	l.guests[1] = nil
	endedIn(l.t, "siw's guest was killed: we", append(got, l.p.statuses(endsRequests-1)...), abi.WCRetryExcErr)
	l.over("siw's guest was killed")
}

// over: the connection is over at our end.
func (l *siwLab) over(why string) {
	l.t.Helper()
	select {
	case <-l.p.qp.Down():
	case <-time.After(vnictest.Limit):
		l.t.Fatalf("%s: our end of the connection is still up", why)
	}
	l.p.failed(why)
}

// siwGaveUp are siw's statuses of the request that was under way when a connection ended.
var siwGaveUp = []abi.WCStatus{abi.WCLocQPOpErr, abi.WCGeneralErr}

// endedIn checks the statuses of requests when a connection ends: some succeed, the next fails with one of
// the wanted statuses, and the rest are flushed. A SEND or WRITE may have succeeded that the peer refused,
// because TCP had it acknowledged.
func endedIn(t testing.TB, who string, got []abi.WCStatus, want ...abi.WCStatus) {
	t.Helper()
	at := slices.IndexFunc(got, func(st abi.WCStatus) bool { return st != abi.WCSuccess })
	if at < 0 || !slices.Contains(append(want, abi.WCWRFlushErr), got[at]) || slices.ContainsFunc(got[at+1:], func(st abi.WCStatus) bool { return st != abi.WCWRFlushErr }) {
		t.Errorf("%s: completions %v, want one of %v, and the rest flushed", who, got, want)
	}
}

// ourWrites posts WRITEs and waits for the first completion.
func (l *siwLab) ourWrites(m siwMemory) []abi.WCStatus {
	for range endsRequests {
		l.post(guestlib.Write, l.p.mr.SGE(0, endsBytes), m)
	}
	return l.p.statuses(1)
}

// siwWrites lets siw write, and waits for the first completion.
func (l *siwLab) siwWrites(addr uint64, rkey uint32) []abi.WCStatus {
	l.e.is("ok", "write %d %d %d %d", endsRequests, endsBytes, addr, rkey)
	return l.e.statuses(1)
}

func (l *siwLab) siwDisconnects(m siwMemory) {
	got := l.ourWrites(m)
	l.e.is("ok", "disconnect")
	endedIn(l.t, "siw disconnects: we", append(got, l.p.statuses(endsRequests-1)...), abi.WCRetryExcErr)
}

func (l *siwLab) weDisconnect(siwMemory) {
	got := l.siwWrites(l.p.mr.Addr(), l.p.mr.RKey())
	l.p.check(l.p.qp.Disconnect(l.ctx))
	endedIn(l.t, "we disconnect: siw", append(got, l.e.statuses(endsRequests-1)...), siwGaveUp...)
	l.e.is("ok", "gone")
}

func (l *siwLab) weFail(siwMemory) {
	l.p.size = 100
	l.p.receive(0)
	got := l.siwWrites(l.p.mr.Addr(), l.p.mr.RKey())
	l.p.check(l.p.qp.Fail(l.ctx))
	if rest := l.p.statuses(1); rest[0] != abi.WCWRFlushErr {
		l.t.Errorf("a receive of our queue pair that failed: %v", rest)
	}
	endedIn(l.t, "our queue pair failed: siw", append(got, l.e.statuses(endsRequests-1)...), siwGaveUp...)
	l.e.is("ok", "gone")
}

func (l *siwLab) siwWrongKey(siwMemory) {
	l.e.is("ok", "read 3 5000 %d %d", l.p.mr.Addr(), l.p.mr.RKey()^0xff00)
	endedIn(l.t, "siw has the wrong key: siw", l.e.statuses(3), append(siwGaveUp, abi.WCRemAccessErr)...)
	l.e.is("ok", "gone")
}

func (l *siwLab) weWrongKey(m siwMemory) {
	for range 3 {
		l.post(guestlib.Read, l.p.mr.SGE(0, 5000), siwMemory{m.addr, m.rkey ^ 0xff00})
	}
	endedIn(l.t, "we have the wrong key: we", l.p.statuses(3), abi.WCRemAccessErr)
}

// siwSends lets siw send more than our receives take; receive 0: there are none.
func (l *siwLab) siwSends(receive, n int, want abi.WCStatus) {
	if receive > 0 {
		l.p.size = receive
		l.p.receive(0)
	}
	l.e.is("ok", "send 1 %d 0 0", n)
	l.e.is("ok", "gone")
	l.e.statuses(1)
	if receive > 0 {
		if got := l.p.statuses(1); got[0] != want {
			l.t.Errorf("siw sends too much: our receive ends with %v, want %v", got, want)
		}
	}
}

// weSend sends more than siw's receives take; receive 0: there are none.
func (l *siwLab) weSend(m siwMemory, receive, n int) {
	if receive > 0 {
		l.e.is("ok", "receive 1 %d", receive)
	}
	l.post(guestlib.Send, l.p.mr.SGE(0, n), m)
	l.over("we send what siw does not take")
	l.p.statuses(1)
}

func (l *siwLab) siwKilled(m siwMemory) {
	got := l.ourWrites(m)
	l.e.kill()
	endedIn(l.t, "siw's program was killed: we", append(got, l.p.statuses(endsRequests-1)...), abi.WCRetryExcErr)
	vnictest.Eventually(l.t, "the program that was started again", func() (err error) { // what is left of the old one may answer, too
		if l.e.conn, err = net.DialTimeout("tcp", l.e.addr, 5*time.Second); err != nil {
			return err
		}
		l.e.lines = bufio.NewReader(l.e.conn)
		_ = l.e.conn.SetDeadline(time.Now().Add(vnictest.Limit))
		if _, err = fmt.Fprintf(l.e.conn, "listen %s %d\n", l.peer, siwService); err == nil {
			_, err = l.e.lines.ReadString('\n')
		}
		return err
	})
}

// ourProgramKilled kills a program that has our end of a connection.
func (l *siwLab) ourProgramKilled() {
	l.p.check(l.p.dev.Close())
	program := exec.Command(os.Args[0], "-test.run", "^TestInsideSIWEnds$")
	program.Env = append(os.Environ(), "VNIC_SIW_ENDS=unix://"+l.dir+"/bare.sock", fmt.Sprintf("VNIC_SIW_ENDS_TO=%s", l.peer))
	program.Stderr = os.Stderr
	says, err := program.StdoutPipe()
	l.p.check(err)
	l.e.tell("answer -")
	p, err := labkit.StartCommand("our program", program)
	l.p.check(err)
	defer p.Stop(0)
	var addr uint64
	var rkey uint32
	if _, err := fmt.Fscanln(says, &addr, &rkey); err != nil {
		l.t.Fatalf("our program: %v", err)
	}
	l.e.established(l.e.answer())
	got := l.siwWrites(addr, rkey)
	p.Stop(0)
	endedIn(l.t, "our program was killed: siw", append(got, l.e.statuses(endsRequests-1)...), siwGaveUp...)
	l.e.is("ok", "gone")
	l.open()
}

// TestInsideSIWEnds is the program with our end of the connection, which TestLongSIWEnds kills.
func TestInsideSIWEnds(t *testing.T) {
	url := os.Getenv("VNIC_SIW_ENDS")
	if url == "" {
		return
	}
	to, err := guestlib.ParseGID(os.Getenv("VNIC_SIW_ENDS_TO"))
	if err != nil {
		t.Fatal(err)
	}
	p := newPerftestPeer(t, t.Context(), url)
	p.own()
	_, err = p.dev.Connect(t.Context(), p.qp, to, siwService, nil)
	p.check(err)
	fmt.Println(p.mr.Addr(), p.mr.RKey())
	select {}
}
