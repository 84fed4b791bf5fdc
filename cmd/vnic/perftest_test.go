package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// perftestPeer stands at the other end of perftest's programs (version 4.5): it speaks what they
// say to each other over TCP before, between and after, and does its part of the work with a
// function of vnic's.
//
//	client                                     server
//	  ├── version 16, cycle 4, line 4, MTU 2 ───▶│  each is answered at once with as many bytes
//	  ├── keys 108 ─────────────────────────────▶│  queue pair, PSN, key, address, GID: of both
//	  ├── keys, keys ───────────────────────────▶│  both are ready
//	  │            … the test …                  │
//	  ├── keys, reports, keys, "done" ──────────▶│
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

// retries are how long a queue pair tries again, as verbs have it.
type retries struct{ timeout, count, notReady uint8 }

// patient are more than eight seconds: a guest on a busy machine stands still for most of one now
// and then.
var patient = retries{timeout: 18, count: 7, notReady: 7}

// perftestPort is where perftest's servers listen.
const perftestPort = 18515

// keysLen is the length of perftest's message with the keys.
const keysLen = 108

// keys are what perftest's sides tell each other.
type keys struct {
	qpn, psn, rkey uint32
	addr           uint64
	gid            [16]byte
}

func (k *keys) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%04x:%04x:%06x:%06x:%08x:%016x:", 0, 16, k.qpn, k.psn, k.rkey, k.addr)
	for _, g := range k.gid {
		fmt.Fprintf(&b, "%02x:", g)
	}
	fmt.Fprintf(&b, "%08x:", 0)
	return b.String()
}

func (k *keys) parse(msg []byte) error {
	text := strings.ReplaceAll(string(bytes.TrimRight(msg, "\x00")), ":", " ")
	var lid, reads uint32
	at := []any{&lid, &reads, &k.qpn, &k.psn, &k.rkey, &k.addr}
	for i := range k.gid {
		at = append(at, &k.gid[i])
	}
	_, err := fmt.Sscanf(text, strings.TrimSpace(strings.Repeat("%x ", len(at))), at...)
	return err
}

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

// firstPSN is what the peer's requests begin with: soon they begin anew at 0.
const firstPSN = 0xfffff0

// own makes a queue pair and says what it is reached by.
func (p *perftestPeer) own() *keys {
	var err error
	p.qp, err = p.pd.CreateQP(p.ctx, guestlib.QPConfig{
		Type: p.typ, SendCQ: p.cq, SendEntries: 128, RecvEntries: 512, SigAll: true, Access: guestlib.RemoteWrite | guestlib.RemoteRead | guestlib.RemoteAtomic,
	})
	p.check(err)
	return &keys{qpn: p.qp.Address().QPN, psn: firstPSN, rkey: p.mr.RKey(), addr: p.mr.Addr(), gid: p.qp.Address().GID}
}

// connect takes the queue pair to RTS.
func (p *perftestPeer) connect(to *keys) {
	p.t.Helper()
	if p.typ == guestlib.UC {
		p.check(p.qp.Modify(p.ctx, abi.ModifyQP{
			State: abi.QPStateRTR, PathMTU: abi.PathMTUFor(p.mtu), DestQPN: to.qpn, DGID: to.gid, RQPSN: to.psn,
			Mask: abi.QPAttrState | abi.QPAttrAV | abi.QPAttrPathMTU | abi.QPAttrDestQPN | abi.QPAttrRQPSN,
		}))
		p.check(p.qp.Modify(p.ctx, abi.ModifyQP{State: abi.QPStateRTS, SQPSN: firstPSN, Mask: abi.QPAttrState | abi.QPAttrSQPSN}))
		return
	}
	p.check(p.qp.Modify(p.ctx, abi.ModifyQP{
		State: abi.QPStateRTR, PathMTU: abi.PathMTUFor(p.mtu), DestQPN: to.qpn, DGID: to.gid, RQPSN: to.psn, MinRNRTimer: 12, MaxDestRdAtomic: 16,
		Mask: abi.QPAttrState | abi.QPAttrAV | abi.QPAttrPathMTU | abi.QPAttrDestQPN | abi.QPAttrRQPSN | abi.QPAttrMaxDestRdAtomic | abi.QPAttrMinRNRTimer,
	}))
	p.check(p.qp.Modify(p.ctx, abi.ModifyQP{
		State: abi.QPStateRTS, Timeout: p.retries.timeout, RetryCnt: p.retries.count, RNRRetry: p.retries.notReady, SQPSN: firstPSN, MaxRdAtomic: 16,
		Mask: abi.QPAttrState | abi.QPAttrTimeout | abi.QPAttrRetryCnt | abi.QPAttrRNRRetry | abi.QPAttrSQPSN | abi.QPAttrMaxRdAtomic,
	}))
}

// serve is the server of one run of a program in the guest. During the test it takes what comes;
// receives, if there are any, are posted before. It tells whether the run got to its end: a guest
// whose network is not ready yet gives up and asks once more.
func (p *perftestPeer) serve(c net.Conn, receives int) (done bool) {
	p.t.Helper()
	defer c.Close()
	own, asked := p.own(), 0
	for i := range receives {
		p.receive(i)
	}
	buf := make([]byte, 256)
	for {
		p.check(c.SetDeadline(time.Now().Add(testTime)))
		n, err := c.Read(buf)
		msg := buf[:n]
		switch {
		case errors.Is(err, io.EOF):
			p.check(p.qp.Destroy(p.ctx))
			return done
		case err != nil:
			p.t.Fatal(err)
		case n == keysLen:
			if asked++; asked == 1 {
				var peer keys
				p.check(peer.parse(msg))
				p.connect(&peer)
			}
			clear(msg)
			copy(msg, own.String())
		case n == 2: // the path MTU as verbs have it; ours is the larger one
			p.mtu = 128 << (msg[0] - '0')
		case string(msg) == "done\x00":
			done = true
			continue
		}
		_, err = c.Write(msg)
		p.check(err)
	}
}

// receive posts a receive of a message.
func (p *perftestPeer) receive(slot int) {
	p.check(p.qp.PostRecv(&guestlib.RecvWR{ID: uint64(slot), SGL: []guestlib.SGE{p.mr.SGE(slot%16*p.size, p.size)}}))
}

// drive is the client of a program that is a server in the guest. work posts requests, which are
// awaited.
func (p *perftestPeer) drive(addr string, mtu int, work func(remote *keys)) {
	p.t.Helper()
	c := p.dial(addr)
	defer c.Close()
	say := func(msg []byte) []byte {
		p.t.Helper()
		_, err := c.Write(msg)
		p.check(err)
		answer := make([]byte, len(msg))
		_, err = io.ReadFull(c, answer)
		p.check(err)
		return answer
	}
	say(append([]byte("6.10"), make([]byte, 12)...))
	say(binary.BigEndian.AppendUint32(nil, 4096))
	say(binary.BigEndian.AppendUint32(nil, 64))
	p.mtu = mtu
	say([]byte{byte('0' + abi.PathMTUFor(mtu)), 0})
	own := make([]byte, keysLen)
	copy(own, p.own().String())
	var remote keys
	p.check(remote.parse(say(own)))
	p.connect(&remote)
	say(own)
	say(own)
	work(&remote)
	say(own)
	for range 5 { // of the report
		say(make([]byte, 8))
	}
	say(own)
	_, err := c.Write([]byte("done\x00"))
	p.check(err)
	p.check(p.qp.Destroy(p.ctx))
}

// dial connects to a server in the guest, which may not be there yet.
func (p *perftestPeer) dial(addr string) (c net.Conn) {
	p.t.Helper()
	eventually(p.t, "a server at "+addr, func() (err error) {
		c, err = net.DialTimeout("tcp", addr, time.Second)
		return err
	})
	p.check(c.SetDeadline(time.Now().Add(testTime)))
	return c
}

// post posts requests with n bytes each, every one at its own place, and waits for their ends, as
// many at a time as fit.
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

// await waits for completions and counts them; each must be a success.
func (p *perftestPeer) await() int {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, testTime)
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
