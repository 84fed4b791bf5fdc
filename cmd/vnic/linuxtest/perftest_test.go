package linuxtest_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/perf/perftest"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// perftestPeer is the peer of perftest's programs. It does its part of the work with a function of
// vnic, whose memory a test can examine.
type perftestPeer struct {
	t    testing.TB
	ctx  context.Context
	dev  *guestlib.Device
	pd   *guestlib.PD
	cq   *guestlib.CQ
	mr   *guestlib.MR
	mtu  int
	qp   *guestlib.QP
	wc   [64]guestlib.WC
	size int // bytes of a message
	typ  guestlib.QPType

	retries retries
}

// retries are the attributes that say how long a queue pair tries again.
type retries struct{ timeout, count, notReady uint8 }

// patient retries for more than eight seconds, because a guest on a busy machine sometimes stands
// still for almost a second.
var patient = retries{timeout: 18, count: 7, notReady: 7}

func newPerftestPeer(t testing.TB, ctx context.Context, url string) *perftestPeer {
	t.Helper()
	dev, err := guestlib.Open(ctx, url, guestlib.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p := &perftestPeer{t: t, ctx: ctx, dev: dev, retries: patient}
	t.Cleanup(func() { _ = dev.Close() })
	p.pd, err = dev.AllocPD(ctx)
	p.check(err)
	buf, err := dev.Alloc(8 << 20)
	p.check(err)
	p.mr, err = p.pd.RegMR(ctx, buf, guestlib.LocalWrite|guestlib.RemoteWrite|guestlib.RemoteRead|guestlib.RemoteAtomic)
	p.check(err)
	p.cq, err = dev.CreateCQ(ctx, 1024)
	p.check(err)
	return p
}

func (p *perftestPeer) check(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// firstPSN is the PSN of the peer's first request. It is so large that the PSNs soon wrap to 0.
const firstPSN = 0xfffff0

// own creates a queue pair and returns what the program must know of it.
func (p *perftestPeer) own() *perftest.Keys {
	var err error
	p.qp, err = p.pd.CreateQP(p.ctx, guestlib.QPConfig{
		Type: p.typ, SendCQ: p.cq, SendEntries: 128, RecvEntries: 512, SigAll: true, Access: guestlib.RemoteWrite | guestlib.RemoteRead | guestlib.RemoteAtomic,
	})
	p.check(err)
	return &perftest.Keys{QPN: p.qp.Address().QPN, PSN: firstPSN, RKey: p.mr.RKey(), Addr: p.mr.Addr(), Reads: 16, GID: p.qp.Address().GID}
}

// connect moves the queue pair to RTS.
func (p *perftestPeer) connect(to *perftest.Keys) {
	p.t.Helper()
	if p.typ == guestlib.UC {
		p.check(p.qp.Modify(p.ctx, abi.ModifyQP{
			State: abi.QPStateRTR, PathMTU: abi.PathMTUFor(p.mtu), DestQPN: to.QPN, DGID: to.GID, RQPSN: to.PSN,
			Mask: abi.QPAttrState | abi.QPAttrAV | abi.QPAttrPathMTU | abi.QPAttrDestQPN | abi.QPAttrRQPSN,
		}))
		p.check(p.qp.Modify(p.ctx, abi.ModifyQP{State: abi.QPStateRTS, SQPSN: firstPSN, Mask: abi.QPAttrState | abi.QPAttrSQPSN}))
		return
	}
	p.check(p.qp.Modify(p.ctx, abi.ModifyQP{
		State: abi.QPStateRTR, PathMTU: abi.PathMTUFor(p.mtu), DestQPN: to.QPN, DGID: to.GID, RQPSN: to.PSN, MinRNRTimer: 12, MaxDestRdAtomic: 16,
		Mask: abi.QPAttrState | abi.QPAttrAV | abi.QPAttrPathMTU | abi.QPAttrDestQPN | abi.QPAttrRQPSN | abi.QPAttrMaxDestRdAtomic | abi.QPAttrMinRNRTimer,
	}))
	p.check(p.qp.Modify(p.ctx, abi.ModifyQP{
		State: abi.QPStateRTS, Timeout: p.retries.timeout, RetryCnt: p.retries.count, RNRRetry: p.retries.notReady, SQPSN: firstPSN, MaxRdAtomic: 16,
		Mask: abi.QPAttrState | abi.QPAttrTimeout | abi.QPAttrRetryCnt | abi.QPAttrRNRRetry | abi.QPAttrSQPSN | abi.QPAttrMaxRdAtomic,
	}))
}

// serve is the server for one run of a program in the guest. It posts the receives, if there are
// any, before the test. It reports whether the run was complete: a guest whose network is not ready
// yet gives up and tries again.
func (p *perftestPeer) serve(c net.Conn, receives int) (done bool) {
	p.t.Helper()
	defer c.Close()
	p.check(c.SetDeadline(time.Now().Add(vnictest.Limit)))
	own := p.own()
	defer func() { p.check(p.qp.Destroy(p.ctx)) }()
	for i := range receives {
		p.receive(i)
	}
	conn, err := perftest.Server(p.ctx, c)
	if err == nil {
		_, err = p.agree(conn, 4096, own)
	}
	if err == nil {
		_, err = conn.Keys(own)
	}
	if err == nil && receives == 0 {
		_, err = conn.Report(&perftest.Report{})
	}
	if err == nil {
		err = conn.Done(own)
	}
	if err != nil {
		p.t.Log(err)
		return false
	}
	conn.Leave()
	return true
}

// agree connects the queue pair to the program's queue pair, and returns that one's keys.
func (p *perftestPeer) agree(conn *perftest.Conn, mtu int, own *perftest.Keys) (*perftest.Keys, error) {
	p.t.Helper()
	number, _, err := conn.Settle(uint8(abi.PathMTUFor(mtu)))
	if err != nil {
		return nil, err
	}
	p.mtu = abi.PathMTU(number).Bytes()
	remote, err := conn.Keys(own)
	if err != nil {
		return nil, err
	}
	p.connect(remote)
	for range 2 {
		if _, err := conn.Keys(own); err != nil {
			return nil, err
		}
	}
	return remote, nil
}

// receive posts a receive of a message.
func (p *perftestPeer) receive(slot int) {
	p.check(p.qp.PostRecv(&guestlib.RecvWR{ID: uint64(slot), SGL: []guestlib.SGE{p.mr.SGE(slot%16*p.size, p.size)}}))
}

// drive is the client of a program that is a server in the guest. work posts the requests and waits
// for them.
func (p *perftestPeer) drive(addr string, mtu int, work func(remote *perftest.Keys)) {
	p.t.Helper()
	conn, err := perftest.Client(p.ctx, p.dial(addr))
	p.check(err)
	own := p.own()
	remote, err := p.agree(conn, mtu, own)
	p.check(err)
	work(remote)
	_, err = conn.Keys(own)
	p.check(err)
	_, err = conn.Report(&perftest.Report{})
	p.check(err)
	p.check(conn.Done(own))
	conn.Leave()
	p.check(p.qp.Destroy(p.ctx))
}

// dial connects to a server in the guest, which may not have started yet.
func (p *perftestPeer) dial(addr string) (c net.Conn) {
	p.t.Helper()
	vnictest.Eventually(p.t, "a server at "+addr, func() (err error) {
		c, err = net.DialTimeout("tcp", addr, time.Second)
		return err
	})
	p.check(c.SetDeadline(time.Now().Add(vnictest.Limit)))
	return c
}

// post posts requests of n bytes, each at its own place in memory, as many at a time as fit, and
// waits until all are complete.
func (p *perftestPeer) post(count, n int, wr guestlib.SendWR) {
	p.t.Helper()
	posted, done := 0, 0
	for done < count {
		for posted < count && posted-done < 64 {
			wr.SGL = []guestlib.SGE{p.mr.SGE(posted*n, n)}
			p.check(p.qp.PostSend(&wr))
			posted++
		}
		done += p.await()
	}
}

// await waits for completions, all of which must be successful, and counts them.
func (p *perftestPeer) await() int {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, vnictest.Limit)
	defer cancel()
	for {
		n, err := p.cq.Poll(p.wc[:])
		p.check(err)
		for i := range n {
			p.check(p.wc[i].Err())
		}
		if n > 0 {
			return n
		}
		p.check(p.cq.Wait(ctx))
	}
}
