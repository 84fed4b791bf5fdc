package device

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/rdma/iwarp/wire"
)

// A hostile peer over iWARP is a program on a host in the tenant's network, with sockets of Linux. What it
// attacks is the listener of a function that has a connection to another NIC, too.

// target is a function under attack.
type target struct {
	*endpoint // its connection to a friend
	pd        *guestlib.PD
	cq        *guestlib.CQ
	secret    *guestlib.MR // that no queue pair of the attackers may reach
}

const (
	hostilePort  = 6000
	hostileAddr  = "192.168.100.12"
	halfOpenAddr = "192.168.100.99" // nobody answers there
	targetAddr   = "192.168.100.11"
)

// serve accepts every call with a queue pair of its own, until ctx ends.
func (v *target) serve(ctx context.Context, l *guestlib.Listener) {
	for {
		r, err := l.Accept(ctx)
		if err != nil {
			return
		}
		qp, err := v.pd.CreateQP(ctx, guestlib.QPConfig{SendCQ: v.cq, Access: allAccess})
		if err != nil { // as many as the function may have: the others wait
			_ = r.Reject(ctx, 0, nil)
			continue
		}
		go func() {
			if r.Accept(ctx, qp, nil) == nil {
				select {
				case <-qp.Down():
				case <-ctx.Done():
				}
			}
			_ = qp.Destroy(context.WithoutCancel(ctx))
		}()
	}
}

// request is a right request for a connection.
func request() []byte {
	f := wire.Frame{CRC: true, Revision: wire.Revision2, HasEnhanced: true, Enhanced: wire.Enhanced{PeerToPeer: true, RTR: wire.RTRWrite, IRD: 4, ORD: 4}}
	return f.Append(nil)
}

// fpduOf is an FPDU.
func fpduOf(h *wire.Header, body []byte) []byte {
	b := make([]byte, wire.FPDUHeaderLen, 64<<10)
	b = append(h.Append(b), body...)
	n := len(b) - wire.FPDUHeaderLen
	b = b[:wire.FPDULen(n)]
	wire.PutFPDU(b, n, true)
	return b
}

// attacks are what a hostile peer does on a connection of TCP.
var attacks = map[string]func(c net.Conn, rng *rand.Rand){
	"bytes of all kinds": func(c net.Conn, rng *rand.Rand) {
		b := make([]byte, 1+rng.IntN(5000))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		_, _ = c.Write(b)
	},
	"a request that is cut off": func(c net.Conn, rng *rand.Rand) {
		b := request()
		_, _ = c.Write(b[:rng.IntN(len(b))])
	},
	"a request byte by byte, and then rubbish": func(c net.Conn, rng *rand.Rand) {
		for _, b := range request() {
			_, _ = c.Write([]byte{b})
		}
		_, _ = c.Write(bytes.Repeat([]byte{0xff}, 1+rng.IntN(200)))
	},
	"STags of others": func(c net.Conn, rng *rand.Rand) {
		begin(c)
		for range 50 {
			h := wire.Header{Opcode: wire.OpWrite, Last: true, STag: rng.Uint32(), TO: rng.Uint64()}
			_, _ = c.Write(fpduOf(&h, make([]byte, 100)))
			r := wire.ReadRequest{SinkSTag: rng.Uint32(), Size: rng.Uint32(), SourceSTag: rng.Uint32(), SourceTO: rng.Uint64()}
			_, _ = c.Write(fpduOf(&wire.Header{Opcode: wire.OpReadRequest, Last: true, MSN: 1}, r.Append(nil)))
		}
	},
	"message numbers out of order": func(c net.Conn, rng *rand.Rand) {
		begin(c)
		for range 20 {
			h := wire.Header{Opcode: wire.OpSend, Last: rng.IntN(2) == 0, MSN: uint32(rng.IntN(4)), MO: uint32(rng.IntN(3) * 100)}
			_, _ = c.Write(fpduOf(&h, make([]byte, 100)))
		}
	},
	"Terminates": func(c net.Conn, rng *rand.Rand) {
		begin(c)
		x := wire.Terminate{Cause: wire.Cause(rng.Uint32())}
		x.SetSegment([]byte{0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0}[:rng.IntN(19)])
		for range 3 {
			_, _ = c.Write(fpduOf(&wire.Header{Opcode: wire.OpTerminate, Last: true, MSN: 1}, x.Append(nil)))
		}
	},
	"answers that nobody asked for": func(c net.Conn, rng *rand.Rand) {
		begin(c)
		_, _ = c.Write(fpduOf(&wire.Header{Opcode: wire.OpReadResponse, Last: true, STag: rng.Uint32()}, make([]byte, 50)))
	},
	"an FPDU that never ends": func(c net.Conn, rng *rand.Rand) {
		begin(c)
		_, _ = c.Write(append([]byte{0xff, 0xff}, make([]byte, rng.IntN(60000))...))
		time.Sleep(time.Duration(rng.IntN(200)) * time.Millisecond)
	},
	"opcodes of all kinds, and a reset": func(c net.Conn, rng *rand.Rand) {
		begin(c)
		for range 10 {
			h := wire.Header{Opcode: wire.Opcode(rng.IntN(16)), Last: true, MSN: 1}
			if h.Opcode.Valid() {
				_, _ = c.Write(fpduOf(&h, make([]byte, rng.IntN(60))))
			}
		}
		_ = c.(*net.TCPConn).SetLinger(0)
	},
}

// begin makes a connection of iWARP, if the target takes it.
func begin(c net.Conn) {
	_, _ = c.Write(request())
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	_, _ = c.Read(make([]byte, 600))
	_, _ = c.Write(fpduOf(&wire.Header{Opcode: wire.OpWrite, Last: true}, nil))
}

// flood sends SYNs from ports of a station that does not answer.
func flood(n int, rng *rand.Rand) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	from, to := net.ParseIP(halfOpenAddr).To4(), net.ParseIP(targetAddr).To4()
	for range n {
		b := make([]byte, 40)
		copy(b, []byte{0x45, 0, 0, 40, 0, 0, 0, 0, 64, unix.IPPROTO_TCP})
		copy(b[12:], from)
		copy(b[16:], to)
		t := b[20:]
		binary.BigEndian.PutUint16(t, uint16(1024+rng.IntN(60000)))
		binary.BigEndian.PutUint16(t[2:], hostilePort)
		binary.BigEndian.PutUint32(t[4:], rng.Uint32())
		t[12], t[13] = 5<<4, 2 // SYN
		binary.BigEndian.PutUint16(t[14:], 1000)
		sum := uint32(unix.IPPROTO_TCP + 20)
		for i := 12; i < 40; i += 2 {
			sum += uint32(binary.BigEndian.Uint16(b[i:]))
		}
		sum = sum>>16 + sum&0xffff
		binary.BigEndian.PutUint16(t[16:], ^uint16(sum>>16+sum))
		if err := unix.Sendto(fd, b, 0, &unix.SockaddrInet4{Addr: [4]byte(to)}); err != nil && err != unix.ENOBUFS {
			return err
		}
	}
	return nil
}

// TestAHostilePeerOverIWARPDisturbsNobody: whatever a program in the tenant's network does with a listener of
// a function, the function's connection to another NIC goes on, no memory changes that is not the
// connection's, nothing is kept of the attackers, and the listener serves whoever comes next.
func TestAHostilePeerOverIWARPDisturbsNobody(t *testing.T) {
	attackIWARP(t, 6)
}

// TestLongAHostilePeerOverIWARPDisturbsNobody is the same for longer.
func TestLongAHostilePeerOverIWARPDisturbsNobody(t *testing.T) {
	attackIWARP(t, 60)
}

func attackIWARP(t *testing.T, rounds int) {
	t.Helper()
	onPorts(t, func(i int, c *config.Config) {
		c.RDMA.Transport = config.TransportIWARP
		if i == 0 {
			devicetest.AddPort(c, 1, &config.Port{Name: "vp12", Netns: c.Functions[0].VFs[0].Port.Netns, Addresses: devicetest.Addrs(halfOpenAddr)})
		}
	}, func(w *world, host, _ *namespace) {
		host.sh("ip addr del %s/24 dev vp1; ip addr add %s/24 dev vp12", targetAddr, hostileAddr)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		a, b := newEndpoint(t, w.open(0, "pf0.vf1")), newEndpoint(t, w.open(1, "pf0.vf1"))
		connect(t, a, b, 5000)
		v := &target{endpoint: a}
		v.pd, v.cq = newAttacked(t, a)
		v.secret = newSecret(t, a)
		l, err := a.dev.Listen(ctx, hostilePort)
		must(t, err)
		go v.serve(ctx, l)

		done := make(chan struct{})
		var friend sync.WaitGroup
		friend.Go(func() { bystand(t, a, b, done) })
		n := 0
		for round := range rounds {
			for name, attack := range attacks {
				rng := rand.New(rand.NewPCG(uint64(round), uint64(n)))
				n++
				host.in(func() {
					if err := flood(20, rng); err != nil {
						t.Error(err)
					}
					c, err := net.DialTimeout("tcp", fmt.Sprintf("%s:%d", targetAddr, hostilePort), testTime)
					if err != nil {
						t.Errorf("%s: %v", name, err)
						return
					}
					attack(c, rng)
					go func() {
						_ = c.SetReadDeadline(time.Now().Add(time.Second))
						_, _ = io.Copy(io.Discard, c)
						_ = c.Close()
					}()
				})
			}
		}
		close(done)
		friend.Wait()
		for i, x := range v.secret.Bytes() {
			if x != 0x5a {
				t.Fatalf("byte %d of the secret has changed", i)
			}
		}
		eventually(t, "nothing is left of the attackers", func() bool {
			list, err := w.nics[0].Connections(ctx)
			must(t, err)
			return len(list) == 1
		})
		if refused, wrong := w.counter(0, "iwarp.refused"), w.counter(0, "iwarp.wrong"); refused == 0 || wrong == 0 || w.counter(0, "iwarp.faults") != 0 {
			t.Errorf("%d refused, %d wrong, %d faults", refused, wrong, w.counter(0, "iwarp.faults"))
		}
		again, err := b.pd.CreateQP(ctx, guestlib.QPConfig{SendCQ: b.cq, Access: allAccess})
		must(t, err)
		if _, err := b.dev.Connect(ctx, again, a.dev.GID(), hostilePort, nil); err != nil {
			t.Errorf("who comes next: %v", err)
		}
	})
}

// newAttacked returns a protection domain and a CQ for the queue pairs of the attackers.
func newAttacked(t testing.TB, e *endpoint) (*guestlib.PD, *guestlib.CQ) {
	t.Helper()
	pd, err := e.dev.AllocPD(testContext(t))
	must(t, err)
	cq, err := e.dev.CreateCQ(testContext(t), 4096)
	must(t, err)
	return pd, cq
}

// newSecret registers memory that peers of another protection domain may use.
func newSecret(t testing.TB, e *endpoint) *guestlib.MR {
	t.Helper()
	buf, err := e.dev.Alloc(1 << 20)
	must(t, err)
	mr, err := e.pd.RegMR(testContext(t), buf, allAccess)
	must(t, err)
	for i := range mr.Bytes() {
		mr.Bytes()[i] = 0x5a
	}
	return mr
}

// bystand writes and reads until done, at least ten times, and compares.
func bystand(t testing.TB, a, b *endpoint, done <-chan struct{}) {
	const n = 100_000
	for round := 0; ; round++ {
		select {
		case <-done:
			if round >= 10 {
				return
			}
		default:
		}
		for i := range n {
			a.mr.Bytes()[i] = byte(i*7 + round)
		}
		a.do(t, guestlib.SendWR{Opcode: guestlib.Write, SGL: []guestlib.SGE{a.mr.SGE(0, n)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
		a.do(t, guestlib.SendWR{Opcode: guestlib.Read, SGL: []guestlib.SGE{a.mr.SGE(1<<20, n)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
		if !bytes.Equal(a.mr.Bytes()[:n], a.mr.Bytes()[1<<20:][:n]) {
			t.Errorf("round %d: other bytes came back", round)
			return
		}
	}
}
