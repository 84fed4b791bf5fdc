package rdma

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// cases are the numbered behaviours of this room: each has at least one test called
// TestCase<number>_….
var cases = []int{22, 68, 97, 98, 99, 102, 103, 104, 106}

// TestEveryCase fails when a numbered test goes missing, or has no number here.
func TestEveryCase(t *testing.T) {
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	found := map[int]bool{}
	for _, f := range files {
		text, err := os.ReadFile(f.Name())
		if err != nil || f.IsDir() {
			continue
		}
		for _, m := range regexp.MustCompile(`(?m)^func TestCase(\d+)_\w+\(t \*testing\.T\)`).FindAllSubmatch(text, -1) {
			n, _ := strconv.Atoi(string(m[1]))
			if found[n] = true; !slices.Contains(cases, n) {
				t.Errorf("case %d is not in the list", n)
			}
		}
	}
	for _, n := range cases {
		if !found[n] {
			t.Errorf("case %d has no test", n)
		}
	}
}

// TestCase22_ZeroLengthPullData: a READ that the target completes in error ends in error, and the
// queue pair goes on.
func TestCase22_ZeroLengthPullData(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{cie: true})
	x := p.remote(abi.OpRead, 0)
	x.RKey ^= 1
	p.a.post(x, p.ma.sge(0, 3000))
	p.a.post(p.remote(abi.OpRead, 0), p.ma.sge(0, 3000))
	got := p.a.send.wait(2)
	if got[0].Status != abi.WCRemAccessErr || got[1].Status != abi.WCSuccess || p.a.q.State() != abi.QPStateRTS {
		t.Fatalf("completions %s, QP in %v", describe(got), p.a.q.State())
	}
}

// TestCase97_ScatterGatherAndInline: lists up to 16 elements and inline data up to 224 bytes arrive
// whole; more is refused.
func TestCase97_ScatterGatherAndInline(t *testing.T) {
	p := newPair(t, true, 1<<16, worldConfig{}, qpConfig{sge: 16, inline: 224})
	fill(p.ma.bytes(), 97)
	for n := 1; n <= 16; n++ {
		list, total := []abi.SGE{}, 0
		for i := range n {
			list = append(list, p.ma.sge(i*3000+i, 1+i*137))
			total += 1 + i*137
		}
		p.b.receive(uint64(n), split(p.mb, 100, total, n)...)
		p.a.post(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, list...)
		success(t, p.a.send.wait(1))
		success(t, p.b.recv.wait(1))
		at := 100
		for _, s := range list {
			if string(p.mb.bytes()[at:at+int(s.Length)]) != string(p.hosts[0].bytes(s.Addr, int(s.Length))) {
				t.Fatalf("%d elements: wrong bytes", n)
			}
			at += int(s.Length)
		}
	}
	for _, n := range []int{0, 1, 3, 64, 223, 224} {
		data := make([]byte, n)
		fill(data, uint64(n))
		p.a.postInline(p.remote(abi.OpWrite, 5), data)
		success(t, p.a.send.wait(1))
		if string(p.mb.bytes()[5:5+n]) != string(data) {
			t.Fatalf("%d inline bytes: wrong", n)
		}
	}
	x := p.remote(abi.OpWrite, 0)
	x.Flags, x.InlineLen = abi.SendInline, 225
	p.a.postRaw(x, nil)
	p.a.ring()
	if st := p.a.send.wait(1)[0].Status; st != abi.WCLocLenErr {
		t.Fatalf("225 inline bytes: %v", st)
	}
	p = newPair(t, true, 4096, worldConfig{}, qpConfig{sge: 16})
	x = p.remote(abi.OpWrite, 0)
	x.NumSGE = 17
	p.a.post(x, p.ma.sge(0, 1))
	if st := p.a.send.wait(1)[0].Status; st != abi.WCLocQPOpErr {
		t.Fatalf("17 elements: %v", st)
	}
}

// TestCase98_Completions: in order, or in the order of arrival.
func TestCase98_Completions(t *testing.T) { TestCompletionOrder(t) }

// TestCase99_TargetEffects: what receives, READs and WRITEs do at the target.
func TestCase99_TargetEffects(t *testing.T) {
	t.Run("receive", TestSend)
	t.Run("READ", TestRead)
	t.Run("WRITE", TestWrite)
}

// TestCase102_CreditExhaustion runs with very little of each of the six credits: requests wait for
// it, all finish, all of it comes back.
func TestCase102_CreditExhaustion(t *testing.T) {
	for kind := range 6 {
		t.Run(fmt.Sprint(kind), func(t *testing.T) {
			limit := credit.NoLimit()
			limit[kind] = 2
			if kind == int(credit.ReqBufTx) || kind == int(credit.ReqBufRx) || kind == int(credit.DataBufTx) {
				limit[kind] = 24 // of one packet and a bit
			}
			p := newPair(t, true, 1<<16, worldConfig{credit: limit}, qpConfig{})
			for i := range 10 {
				for _, q := range []*qp{p.a, p.b} {
					mine, other := p.ma, p.mb
					if q == p.b {
						mine, other = other, mine
					}
					op := []abi.Opcode{abi.OpWrite, abi.OpRead}[i%2]
					q.post(abi.SendWQE{Opcode: op, Flags: abi.SendSignaled, RemoteAddr: other.addr, RKey: other.key}, mine.sge(32<<10, 5000))
				}
			}
			success(t, p.a.send.wait(10))
			success(t, p.b.send.wait(10))
			p.settle(1e9)
			for i, h := range p.hosts {
				if u := h.credits.InUse(); u != (credit.Cost{}) {
					t.Errorf("host %d: credits in use %v", i, u)
				}
			}
		})
	}
}

// TestCase103_Turns: queue pairs take turns.
func TestCase103_Turns(t *testing.T) { TestRoundRobin(t) }

// TestCase104_ImmediateInvalidateSequence: a WRITE with immediate takes one receive, by its SETH; a
// SEND with invalidate ends a key; a gap in the sequence of an ordered connection is an error.
func TestCase104_ImmediateInvalidateSequence(t *testing.T) {
	p := newPair(t, true, 8192, worldConfig{}, qpConfig{})
	for i := range 3 {
		p.b.receive(uint64(i), p.mb.sge(0, 8))
	}
	for i := range 3 {
		x := p.remote(abi.OpWriteImm, 100)
		x.Imm = uint32(i)
		p.a.post(x, p.ma.sge(0, 3000))
	}
	success(t, p.a.send.wait(3))
	for i, c := range p.b.recv.wait(3) {
		if c.WRID != uint64(i) || c.Imm != uint32(i) || c.Opcode != abi.WCOpRecvWriteImm || c.ByteLen != 3000 {
			t.Fatalf("receive %d: %+v", i, c)
		}
	}
	t.Run("invalidate", TestSendInvalidate)
	t.Run("gap", TestSequenceGap)
}

// TestCase106_SizeLimits: unordered mode refuses long messages that take a receive, and datagrams
// are of one packet.
func TestCase106_SizeLimits(t *testing.T) {
	TestSizeLimits(t)
	t.Run("datagrams", TestDatagramErrors)
}
