package service_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/cmd/vnic/run/service"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/fabric"
	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/queues/abi"
)

func TestMain(m *testing.M) { vnictest.Main(m) }

// nicConfig is the configuration of host %[1]d; the other host is %[2]d. Ports are in no guest's
// memory: they only give the functions a place for RoCEv2.
const nicConfig = `
nic: {host: %[1]d}
control: %[6]s/c%[1]d
uplink: {backend: memory, name: up%[1]d, mtu: 4500, address: 10.99.0.%[1]d/24}
rdma: {transport: %[7]s}
cm: {listen: 127.0.0.1:%[3]d, identity: %[5]s}
peers:
  - {host: %[2]d, underlay: 10.99.0.%[2]d, cm: 127.0.0.1:%[4]d, identity: vnic://service/host/%[2]d, tenants: [100]}
functions:
  - pf: 0
    vfs:
      - {vf: 1, tenant: 100, address: 192.168.100.%[1]d1, guest: {unix: bare}, port: {type: vhost-user, socket: %[6]s/p%[1]d1}}
      - {vf: 2, tenant: 100, address: 192.168.100.%[1]d2, service: echo, port: {type: vhost-user, socket: %[6]s/p%[1]d2}}
      - {vf: 3, tenant: 100, address: 192.168.100.%[1]d3, service: memory, port: {type: vhost-user, socket: %[6]s/p%[1]d3}}
      - {vf: 4, tenant: 100, address: 192.168.100.%[1]d4, service: pattern, port: {type: vhost-user, socket: %[6]s/p%[1]d4}}
attach:
  - {type: unix, name: bare, socket: %[6]s/g%[1]d}
`

// start runs two NICs and returns the folder with their sockets.
func start(t *testing.T, transport string) (dir string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "vnic-service-") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	keys := filepath.Join(dir, "keys")
	if err := cmlink.Init(keys, "service", []string{"1", "2"}); err != nil {
		t.Fatal(err)
	}
	ports, err := labkit.FreePorts()
	if err != nil {
		t.Fatal(err)
	}
	segment := fabric.New(4500)
	for i := range 2 {
		vnictest.ServeOn(t, segment, vnictest.WriteConfig(t, fmt.Sprintf(nicConfig, i+1, 2-i, ports[i], ports[1-i], keys, dir, transport)))
	}
	return dir
}

// driver is a bare client that uses a service.
type driver struct {
	*testing.T
	ctx context.Context
	dev *guestlib.Device
	pd  *guestlib.PD
	mr  *guestlib.MR
	cq  *guestlib.CQ
	qp  *guestlib.QP
	ud  *guestlib.QP

	peer    guestlib.GID
	welcome service.Welcome
}

// half is half of the driver's region: the first is sent, the second received.
const half = 32 << 10

// open opens a function and connects it to a service: by the connection manager, or by number.
func open(t *testing.T, url, peer string, byNumber bool) *driver {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), vnictest.Limit)
	t.Cleanup(cancel)
	d := &driver{T: t, ctx: ctx}
	var err error
	d.dev, err = guestlib.Open(ctx, url, guestlib.Options{})
	d.must(err)
	t.Cleanup(func() { d.dev.Close() })
	d.pd, err = d.dev.AllocPD(ctx)
	d.must(err)
	buf, err := d.dev.Alloc(2 * half)
	d.must(err)
	d.mr, err = d.pd.RegMR(ctx, buf, guestlib.LocalWrite)
	d.must(err)
	d.cq, err = d.dev.CreateCQ(ctx, 64)
	d.must(err)
	d.ud, err = d.pd.CreateQP(ctx, guestlib.QPConfig{SendCQ: d.cq, Type: guestlib.UD, QKey: service.QKey})
	d.must(err)
	d.peer, err = guestlib.ParseGID(peer)
	d.must(err)
	d.newQP()
	var answer []byte
	for answer == nil { // the service, and what its NIC tells the other of it, may come a little later
		answer, err = d.dev.Connect(ctx, d.qp, d.peer, service.Number, nil)
		if err != nil && !errors.Is(err, guestlib.ErrRefused) && !errors.Is(err, guestlib.ErrUnreachable) && !errors.Is(err, guestlib.ErrTimeout) {
			d.must(err)
		}
		if err != nil {
			time.Sleep(20 * time.Millisecond)
		}
	}
	d.welcome, err = service.ParseWelcome(answer)
	d.must(err)
	if byNumber {
		d.must(d.qp.Destroy(ctx))
		d.newQP()
		got := d.datagram(service.WireRequest(d.qp.Num()))
		d.welcome, err = service.ParseWelcome(got)
		d.must(err)
		d.must(d.qp.Wire(ctx, guestlib.QPAddress{GID: d.peer, QPN: d.welcome.QPN}))
	}
	return d
}

func (d *driver) must(err error) {
	d.Helper()
	if err != nil {
		d.Fatal(err)
	}
}

func (d *driver) newQP() {
	d.Helper()
	var err error
	d.qp, err = d.pd.CreateQP(d.ctx, guestlib.QPConfig{SendCQ: d.cq})
	d.must(err)
}

// next waits for a completion.
func (d *driver) next() guestlib.WC {
	d.Helper()
	wc, err := d.nextUntil(d.ctx)
	d.must(err)
	return wc
}

func (d *driver) nextUntil(ctx context.Context) (guestlib.WC, error) {
	for {
		var wc [1]guestlib.WC
		n, err := d.cq.Poll(wc[:])
		if n == 1 || err != nil {
			return wc[0], err
		}
		if err := d.cq.Wait(ctx); err != nil {
			return wc[0], err
		}
	}
}

// do carries out a request and returns its status.
func (d *driver) do(wr guestlib.SendWR) guestlib.WCStatus {
	d.Helper()
	wr.Flags = guestlib.Signaled
	d.must(d.qp.PostSend(&wr))
	wc := d.next()
	return wc.Status
}

// remote accesses bytes from off of the service's region.
func (d *driver) remote(op guestlib.Opcode, off, at, n int) guestlib.WCStatus {
	d.Helper()
	return d.do(guestlib.SendWR{Opcode: op, SGL: []guestlib.SGE{d.mr.SGE(at, n)}, RemoteAddr: d.welcome.Addr + uint64(off), RKey: d.welcome.RKey})
}

// message sends a message on a queue pair and returns the answer and its completion.
func (d *driver) message(qp *guestlib.QP, wr guestlib.SendWR, b []byte) ([]byte, guestlib.WC) {
	d.Helper()
	copy(d.mr.Bytes(), b)
	d.must(qp.PostRecv(&guestlib.RecvWR{ID: 1, SGL: []guestlib.SGE{d.mr.SGE(half, half)}}))
	wr.Flags, wr.SGL = guestlib.Signaled, []guestlib.SGE{d.mr.SGE(0, len(b))}
	for {
		d.must(qp.PostSend(&wr))
		ctx, cancel := context.WithTimeout(d.ctx, patience)
		for {
			wc, err := d.nextUntil(ctx)
			if err != nil && qp == d.ud && d.ctx.Err() == nil {
				break // the datagram or its answer was lost
			}
			d.must(err)
			d.must(wc.Err())
			if wc.Opcode == abi.WCOpRecv {
				cancel()
				return bytes.Clone(d.mr.Bytes()[half:][:wc.ByteLen]), wc
			}
		}
		cancel()
	}
}

// patience is how long a driver waits for the answer to a datagram before it sends it again, and how
// long it waits for that to a message.
const patience = 30 * time.Second

// datagram sends a datagram to the service and returns the answer.
func (d *driver) datagram(b []byte) []byte {
	d.Helper()
	got, wc := d.message(d.ud, guestlib.SendWR{Opcode: guestlib.Send, To: guestlib.AHConfig{GID: d.peer}, RemoteQPN: d.welcome.Datagram, RemoteQKey: d.welcome.QKey}, b)
	if wc.SrcQP != d.welcome.Datagram {
		d.Errorf("a datagram from queue pair %#x, want %#x", wc.SrcQP, d.welcome.Datagram)
	}
	return got[guestlib.GRHSize:]
}

// use checks what a service of a kind answers.
func (d *driver) use(kind string) {
	d.Helper()
	text := []byte("a message of 27 bytes, or so")
	n := half / 2
	switch kind {
	case "echo":
		got, wc := d.message(d.qp, guestlib.SendWR{Opcode: guestlib.SendImm, Imm: 77}, text)
		if !bytes.Equal(got, text) || wc.Imm != 77 || d.welcome.Length != 0 {
			d.Errorf("%q came back with immediate data %d; region %+v", got, wc.Imm, d.welcome)
		}
		if got := d.datagram(text); !bytes.Equal(got, text) {
			d.Errorf("datagram: %q came back", got)
		}
	case "memory":
		for i := range n {
			d.mr.Bytes()[i] = byte(i * 7)
		}
		if st := d.remote(guestlib.Write, 1001, 0, n); st != guestlib.WCSuccess {
			d.Fatalf("WRITE: %v", st)
		}
		if st := d.remote(guestlib.Read, 1001, half, n); st != guestlib.WCSuccess || !bytes.Equal(d.mr.Bytes()[half:][:n], d.mr.Bytes()[:n]) {
			d.Errorf("READ: %v, or other bytes than written", st)
		}
		if st := d.remote(guestlib.Read, service.RegionSize-1, half, 2); st != abi.WCRemAccessErr {
			d.Errorf("READ behind the region: %v", st)
		}
	case "pattern":
		if st := d.remote(guestlib.Read, 500, half, n); st != guestlib.WCSuccess {
			d.Fatalf("READ: %v", st)
		}
		for i, b := range d.mr.Bytes()[half:][:n] {
			if b != service.Pattern(500+i) {
				d.Fatalf("byte %d is %#x", 500+i, b)
			}
		}
		right := make([]byte, 1000)
		for i := range right {
			right[i] = service.Pattern(i)
		}
		wrong := bytes.Clone(right)
		wrong[640]++
		for _, c := range []struct {
			b    []byte
			want uint64
		}{{right, 1000}, {wrong, 640}, {nil, 0}} {
			if got, _ := d.message(d.qp, guestlib.SendWR{Opcode: guestlib.Send}, c.b); len(got) != 8 || binary.LittleEndian.Uint64(got) != c.want {
				d.Errorf("% x counted, want %d", got, c.want)
			}
		}
		if st := d.remote(guestlib.Write, 0, 0, 1); st != abi.WCRemAccessErr {
			d.Errorf("WRITE to the pattern: %v", st)
		}
	}
}

// TestServicesAnswer: each service answers a function of its own NIC and one of another NIC, which
// connects by the connection manager or by number, over the loopback, Falcon and RoCEv2.
func TestServicesAnswer(t *testing.T) {
	for _, transport := range []string{"auto", "roce"} {
		dir := start(t, transport)
		for host := 1; host <= 2; host++ {
			for i, kind := range []string{"echo", "memory", "pattern"} {
				for _, byNumber := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s/%s from host %d, by number %t", transport, kind, host, byNumber), func(t *testing.T) {
						d := open(t, fmt.Sprintf("unix://%s/g%d", dir, host), fmt.Sprintf("192.168.100.1%d", 2+i), byNumber)
						d.use(kind)
					})
				}
			}
		}
		c := control.NewClient(filepath.Join(dir, "c1"))
		counters, err := c.Counters(t.Context())
		if err != nil || (counters["roce.sent"] > 0) != (transport == "roce") {
			t.Errorf("%s: %d packets over RoCEv2, %v", transport, counters["roce.sent"], err)
		}
		fs, err := c.Functions(t.Context())
		if err != nil || len(fs) < 4 {
			t.Fatalf("%d functions, %v", len(fs), err)
		}
		for _, f := range fs {
			if f.ID == "h1.pf0.vf3" && (f.Guest != "service memory" || f.Attached != "in-process") {
				t.Errorf("shown as %q, %q", f.Guest, f.Attached)
			}
		}
	}
}

// TestServiceComesBack: a service whose function is reset begins anew.
func TestServiceComesBack(t *testing.T) {
	dir := start(t, "auto")
	url := "unix://" + dir + "/g1"
	t.Run("before", func(t *testing.T) { open(t, url, "192.168.100.13", false).use("memory") })
	if _, err := control.NewClient(filepath.Join(dir, "c1")).ChangeFunction(t.Context(), control.FunctionChange{Function: "pf0.vf3", Action: "reset"}); err != nil {
		t.Fatal(err)
	}
	t.Run("after", func(t *testing.T) { open(t, url, "192.168.100.13", false).use("memory") })
}

// begin makes a service of which the test plays a part, on the function that host 1 gives to guests.
func begin(t *testing.T, dir string) service.Life {
	t.Helper()
	dev, err := guestlib.Open(t.Context(), "unix://"+dir+"/g1", guestlib.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	v, err := service.Begin(t.Context(), dev)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestAnAnswerThatFailsEndsNoService: answers to other datagrams go on.
func TestAnAnswerThatFailsEndsNoService(t *testing.T) {
	dir := start(t, "auto")
	v := begin(t, dir)
	d := open(t, "unix://"+dir+"/g2", "192.168.100.12", false)
	var err error
	d.peer, err = guestlib.ParseGID("192.168.100.11")
	d.must(err)
	d.welcome.Datagram = v.Datagram()
	for range 2 {
		d.must(d.ud.PostSend(&guestlib.SendWR{
			Opcode: guestlib.Send, Flags: guestlib.Signaled, SGL: []guestlib.SGE{d.mr.SGE(0, 8)},
			To: guestlib.AHConfig{GID: d.peer}, RemoteQPN: d.welcome.Datagram, RemoteQKey: service.QKey,
		}))
		d.must(v.FailOne(d.ctx))
	}
	ctx, cancel := context.WithCancel(d.ctx)
	ended := make(chan error, 1)
	go func() { ended <- v.Answer(ctx) }()
	for i := range 40 { // more than there are slots
		if text := fmt.Sprint("datagram ", i); string(d.datagram([]byte(text))) != text {
			t.Errorf("%s: another answer", text)
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestASlowPeerStopsNobody: while a peer does not come up, others do. One that asks again from the same
// queue pair takes the place of the first.
func TestASlowPeerStopsNobody(t *testing.T) {
	v := begin(t, start(t, "auto"))
	ctx, cancel := context.WithTimeout(t.Context(), vnictest.Limit)
	slow, began, ended := guestlib.QPAddress{QPN: 1}, make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- v.Connect(ctx, slow, func(ctx context.Context) error {
			close(began)
			if _, limited := ctx.Deadline(); !limited {
				t.Error("connecting has no time limit")
			}
			<-ctx.Done()
			return ctx.Err()
		})
	}()
	<-began
	for _, at := range []guestlib.QPAddress{{QPN: 2}, slow} {
		if err := v.Connect(ctx, at, func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the slow peer: %v", err)
	}
	cancel()
	v.Wait()
}

// TestNobodyElseDrivesAService: a function with a service is refused to guests.
func TestNobodyElseDrivesAService(t *testing.T) {
	dir := start(t, "auto")
	_, err := guestlib.Open(t.Context(), "unix://"+dir+"/g1?function=pf0.vf3", guestlib.Options{})
	if !errors.Is(err, guestlib.ErrDenied) {
		t.Errorf("%v", err)
	}
}
