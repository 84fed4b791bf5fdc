package linuxtest_test

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/perf/perftest"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// linuxEnd controls a program in a stock guest that uses a queue pair of Soft-RoCE
// (testdata/ends.c). The guest's init restarts it when it is killed.
type linuxEnd struct {
	t     testing.TB
	addr  string
	conn  net.Conn
	lines *bufio.Reader
}

// buildEnds builds that program.
func buildEnds(t testing.TB, ctx context.Context) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ends")
	out, err := exec.CommandContext(ctx, "gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o", file, "testdata/ends.c", "-l:libibverbs.so.1").CombinedOutput()
	vnictest.Require(t, err == nil, fmt.Sprintf("gcc testdata/ends.c: %v\n%s", err, out))
	return file
}

// tell sends the program a line.
func (e *linuxEnd) tell(format string, a ...any) {
	e.t.Helper()
	if _, err := fmt.Fprintf(e.conn, format+"\n", a...); err != nil {
		e.t.Fatal(err)
	}
}

// answer returns the program's next line.
func (e *linuxEnd) answer() string {
	e.t.Helper()
	_ = e.conn.SetDeadline(time.Now().Add(vnictest.Limit))
	line, err := e.lines.ReadString('\n')
	if err != nil {
		e.t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

func (e *linuxEnd) ask(format string, a ...any) string {
	e.t.Helper()
	e.tell(format, a...)
	return e.answer()
}

// open connects to the program, which may still be starting, and lets it create a queue pair.
func (e *linuxEnd) open() *perftest.Keys {
	e.t.Helper()
	vnictest.Eventually(e.t, "a program at "+e.addr, func() (err error) {
		if e.conn == nil {
			if e.conn, err = net.DialTimeout("tcp", e.addr, 5*time.Second); err != nil {
				e.conn = nil
				return err
			}
			e.lines = bufio.NewReader(e.conn)
		}
		return nil
	})
	k, gid := new(perftest.Keys), ""
	if _, err := fmt.Sscan(e.ask("open"), &k.QPN, &k.PSN, &k.Addr, &k.RKey, &gid); err != nil {
		e.t.Fatal(err)
	}
	if _, err := hex.Decode(k.GID[:], []byte(gid)); err != nil {
		e.t.Fatal(err)
	}
	return k
}

// connect takes the queue pair to RTS.
func (e *linuxEnd) connect(to *perftest.Keys, r retries) {
	e.t.Helper()
	e.ask("connect %d %d %x %d %d %d", to.QPN, to.PSN, to.GID, r.timeout, r.count, r.notReady)
}

// kill kills the program.
func (e *linuxEnd) kill() {
	e.t.Helper()
	e.tell("kill")
	_, _ = e.lines.ReadString('\n') // returns when the program has ended
	e.conn.Close()
	e.conn = nil
}

// statuses returns the statuses of the next n completions.
func (e *linuxEnd) statuses(n int) []abi.WCStatus {
	e.t.Helper()
	return parseStatuses(e.t, e.ask("wait %d", n))
}

func parseStatuses(t testing.TB, line string) (all []abi.WCStatus) {
	t.Helper()
	for _, w := range strings.Fields(line) {
		var st int
		if _, err := fmt.Sscan(w, &st); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, abi.WCStatus(st)) // the numbers are verbs'
	}
	return all
}

// statuses returns the statuses of the next n completions.
func (p *perftestPeer) statuses(n int) (all []abi.WCStatus) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, vnictest.Limit)
	defer cancel()
	for len(all) < n {
		got, err := p.cq.Poll(p.wc[:min(len(p.wc), n-len(all))])
		p.check(err)
		for _, wc := range p.wc[:got] {
			all = append(all, wc.Status)
		}
		if got == 0 {
			p.check(p.cq.Wait(ctx))
		}
	}
	return all
}

// flushed checks the statuses of n requests: some succeed, the next fails with a status, and the
// rest are flushed.
func flushed(t testing.TB, who string, got []abi.WCStatus, want abi.WCStatus) {
	t.Helper()
	at := slices.IndexFunc(got, func(st abi.WCStatus) bool { return st != abi.WCSuccess })
	if at < 0 || got[at] != want || slices.ContainsFunc(got[at+1:], func(st abi.WCStatus) bool { return st != abi.WCWRFlushErr }) {
		t.Errorf("%s: completions %v, want %v, and the rest flushed", who, got, want)
	}
}

// short makes a requester give up soon enough for a test: after 4 × 268 ms.
var short = retries{timeout: 16, count: 3, notReady: 1}

// answered makes a requester wait for the peer's answer, as long as a guest on a busy machine takes.
var answered = retries{timeout: patient.timeout, count: patient.count, notReady: 1}

// inTime checks how long a requester took to give up, counted from a time at which its peer no
// longer answered. Its last answer may have come a timeout earlier. A timeout may take up to four
// times the value that was set (IBA §9.7.6.1.3); the rest of the limit is for a busy machine.
func inTime(t testing.TB, who string, since time.Time) {
	t.Helper()
	once := 4096 * time.Nanosecond << short.timeout
	least, most := time.Duration(short.count)*once, 4*time.Duration(short.count+1)*once+time.Minute
	if took := time.Since(since); took < least || took > most {
		t.Errorf("%s: gave up after %v, want %v to %v", who, took, least, most)
	}
}

// Each request is long, so that the end comes while they are under way.
const (
	endsRequests = 40
	endsBytes    = 1 << 20
)

// TestLongRoCEEnds ends a program or a queue pair on one side while the other sends, and sends
// requests that cannot be served, between a function and Soft-RoCE in a stock guest, in both
// directions.
func TestLongRoCEEnds(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a virtual machine")
	}
	const guest = "192.168.100.22"
	ctx, cancel := context.WithTimeout(t.Context(), 2*vnictest.Limit)
	defer cancel()
	program := buildEnds(t, ctx)
	m := stockGuest(t, ctx, program)
	netns.Run(t, func() {
		l := newLinuxLab(t, ctx, linuxSetting{gid: "192.168.100.11"}, m, []string{"programs", guest + "/24", "ends,rxe0,@0,7471"})
		defer l.stop()
		e := &linuxEnd{t: t, addr: guest + ":7471"}
		ourProgramKilled(t, l, e)
		p := newPerftestPeer(t, ctx, "unix://"+l.dir+"/bare.sock")
		defer p.dev.Close()
		p.mtu = 1024
		for name, is := range map[string]struct {
			end     func(p *perftestPeer, e *linuxEnd, to *perftest.Keys)
			retries retries
		}{
			"Linux's program is killed": {linuxProgramKilled, short},
			"Linux's queue pair fails":  {linuxFails, short},
			"our queue pair fails":      {weFail, short},
			"Linux has the wrong key":   {linuxWrongKey, answered},
			"we have the wrong key":     {ourWrongKey, answered},
			"Linux sends too much":      {linuxTooLong, answered},
			"we send too much":          {weTooLong, answered},
			"we have no receive":        {weNotReady, answered},
			"Linux has no receive":      {linuxNotReady, answered},
		} {
			t.Log(name)
			p.retries = is.retries
			own, to := p.own(), e.open()
			p.connect(to)
			e.connect(own, is.retries)
			is.end(p, e, to)
			p.check(p.qp.Destroy(ctx))
		}
		if c := l.counters(t, 1); c["roce.wrong"] != 0 {
			t.Errorf("%d packets were wrong", c["roce.wrong"])
		}
	})
}

// ourProgramKilled kills a program that has our end of a connection.
func ourProgramKilled(t *testing.T, l *linuxLab, e *linuxEnd) {
	to := e.open()
	program := exec.Command(os.Args[0], "-test.run", "^TestInsideRoCEEnds$")
	program.Env = append(os.Environ(), "VNIC_ROCE_ENDS=unix://"+l.dir+"/bare.sock", "VNIC_ROCE_ENDS_TO="+to.String())
	program.Stderr = os.Stderr
	says, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p, err := labkit.StartCommand("our program", program)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop(0)
	line, err := bufio.NewReader(says).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	own, err := perftest.ParseKeys([]byte(strings.TrimSpace(line)))
	if err != nil {
		t.Fatalf("our program said %q: %v", line, err)
	}
	e.connect(own, short)
	e.ask("write %d %d %d %d", endsRequests, endsBytes, own.Addr, own.RKey)
	got := e.statuses(1)
	killed := time.Now()
	p.Stop(0)
	got = append(got, e.statuses(endsRequests-1)...)
	inTime(t, "our program was killed: Linux", killed)
	flushed(t, "our program was killed: Linux", got, abi.WCRetryExcErr)
}

// TestInsideRoCEEnds is the program with our end of the connection, which TestLongRoCEEnds kills.
func TestInsideRoCEEnds(t *testing.T) {
	url := os.Getenv("VNIC_ROCE_ENDS")
	if url == "" {
		return
	}
	to, err := perftest.ParseKeys([]byte(os.Getenv("VNIC_ROCE_ENDS_TO")))
	if err != nil {
		t.Fatal(err)
	}
	p := newPerftestPeer(t, t.Context(), url)
	p.mtu = 1024
	own := p.own()
	p.connect(to)
	fmt.Println(own)
	select {}
}

// write posts WRITEs and waits for the first completion.
func (p *perftestPeer) write(to *perftest.Keys) []abi.WCStatus {
	for i := range endsRequests {
		p.check(p.qp.PostSend(&guestlib.SendWR{
			Opcode: guestlib.Write, RemoteAddr: to.Addr, RKey: to.RKey, SGL: []guestlib.SGE{p.mr.SGE(i%8*endsBytes, endsBytes)},
		}))
	}
	return p.statuses(1)
}

func linuxProgramKilled(p *perftestPeer, e *linuxEnd, to *perftest.Keys) {
	got := p.write(to)
	killed := time.Now()
	e.kill()
	got = append(got, p.statuses(endsRequests-1)...)
	inTime(p.t, "Linux's program was killed: we", killed)
	flushed(p.t, "Linux's program was killed: we", got, abi.WCRetryExcErr)
}

func linuxFails(p *perftestPeer, e *linuxEnd, to *perftest.Keys) {
	got := p.write(to)
	failed := time.Now()
	e.ask("receive 2 100")
	e.ask("error")
	if rest := e.statuses(2); rest[0] != abi.WCWRFlushErr || rest[1] != abi.WCWRFlushErr {
		p.t.Errorf("receives of Linux's queue pair that failed: %v", rest)
	}
	got = append(got, p.statuses(endsRequests-1)...)
	inTime(p.t, "Linux's queue pair failed: we", failed)
	flushed(p.t, "Linux's queue pair failed: we", got, abi.WCRetryExcErr)
}

func weFail(p *perftestPeer, e *linuxEnd, _ *perftest.Keys) {
	own := p.mr
	p.size = 100
	p.receive(0)
	e.ask("write %d %d %d %d", endsRequests, endsBytes, own.Addr(), own.RKey())
	got := e.statuses(1)
	failed := time.Now()
	p.check(p.qp.Fail(p.ctx))
	if rest := p.statuses(1); rest[0] != abi.WCWRFlushErr {
		p.t.Errorf("a receive of our queue pair that failed: %v", rest)
	}
	got = append(got, e.statuses(endsRequests-1)...)
	inTime(p.t, "our queue pair failed: Linux", failed)
	flushed(p.t, "our queue pair failed: Linux", got, abi.WCRetryExcErr)
}

// failed checks that our queue pair is in ERR.
func (p *perftestPeer) failed(why string) {
	p.t.Helper()
	vnictest.Eventually(p.t, why+": our queue pair", func() error {
		if q, err := p.qp.Query(p.ctx); err != nil || q.State != abi.QPStateErr {
			return fmt.Errorf("state %v, %v, want ERR", q.State, err)
		}
		return nil
	})
}

// failed checks that Linux's queue pair is in ERR.
func (e *linuxEnd) failed(why string) {
	e.t.Helper()
	if st := e.ask("state"); st != fmt.Sprint(int(abi.QPStateErr)) {
		e.t.Errorf("%s: Linux's queue pair is in state %s, want ERR", why, st)
	}
}

func linuxWrongKey(p *perftestPeer, e *linuxEnd, _ *perftest.Keys) {
	e.ask("write 3 5000 %d %d", p.mr.Addr(), p.mr.RKey()^0xff00)
	flushed(p.t, "Linux has the wrong key: Linux", e.statuses(3), abi.WCRemAccessErr)
	p.failed("Linux has the wrong key")
	e.failed("Linux has the wrong key")
}

func ourWrongKey(p *perftestPeer, e *linuxEnd, to *perftest.Keys) {
	for _, op := range []guestlib.Opcode{guestlib.Read, guestlib.Write, guestlib.Write} {
		p.check(p.qp.PostSend(&guestlib.SendWR{Opcode: op, RemoteAddr: to.Addr, RKey: to.RKey ^ 0xff00, SGL: []guestlib.SGE{p.mr.SGE(0, 5000)}}))
	}
	flushed(p.t, "we have the wrong key: we", p.statuses(3), abi.WCRemAccessErr)
	p.failed("we have the wrong key")
	e.failed("we have the wrong key")
}

func linuxTooLong(p *perftestPeer, e *linuxEnd, _ *perftest.Keys) {
	p.size = 3000
	p.receive(0)
	p.receive(1)
	e.ask("send 3 5000 0 0")
	flushed(p.t, "Linux sends too much: Linux", e.statuses(3), abi.WCRemInvReqErr)
	flushed(p.t, "Linux sends too much: we", p.statuses(2), abi.WCLocLenErr)
	p.failed("Linux sends too much")
}

func weTooLong(p *perftestPeer, e *linuxEnd, _ *perftest.Keys) {
	e.ask("receive 2 3000")
	for range 3 {
		p.check(p.qp.PostSend(&guestlib.SendWR{Opcode: guestlib.Send, SGL: []guestlib.SGE{p.mr.SGE(0, 5000)}}))
	}
	// The NAK of an invalid request would be right; Linux 6.1 sends the one of a failed operation.
	flushed(p.t, "we send too much: we", p.statuses(3), abi.WCRemOpErr)
	if got := e.statuses(2); got[0] == abi.WCSuccess {
		p.t.Errorf("we send too much: Linux's receives ended with %v", got)
	}
	e.failed("we send too much")
}

func weNotReady(p *perftestPeer, e *linuxEnd, _ *perftest.Keys) {
	e.ask("send 3 100 0 0")
	flushed(p.t, "we have no receive: Linux", e.statuses(3), abi.WCRNRRetryExcErr)
	e.failed("we have no receive")
}

func linuxNotReady(p *perftestPeer, _ *linuxEnd, _ *perftest.Keys) {
	for range 3 {
		p.check(p.qp.PostSend(&guestlib.SendWR{Opcode: guestlib.Send, SGL: []guestlib.SGE{p.mr.SGE(0, 100)}}))
	}
	flushed(p.t, "Linux has no receive: we", p.statuses(3), abi.WCRNRRetryExcErr)
	p.failed("Linux has no receive")
}
