package guestlib

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/guestlib/internal/fakedev"
	"github.com/falcon-vnic/vnic/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// testTime bounds every test that waits for something.
const testTime = 2 * time.Minute

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTime)
	t.Cleanup(cancel)
	return ctx
}

// startNIC returns a fake NIC and its URL. setup, which may be nil, sees it before any client.
func startNIC(t testing.TB, setup func(*fakedev.Server)) (*fakedev.Server, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	nic, err := fakedev.Listen(path, setup)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nic.Close() })
	return nic, "unix://" + path
}

func openDevice(t testing.TB, url string) *Device {
	t.Helper()
	d, err := Open(testContext(t), url, Options{Memory: 32 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// endpoint is an end of a connection with everything a test needs.
type endpoint struct {
	dev *Device
	pd  *PD
	cq  *CQ
	qp  *QP
	mr  *MR
}

const allAccess = LocalWrite | RemoteWrite | RemoteRead | RemoteAtomic

func newEndpoint(t testing.TB, d *Device, cfg QPConfig) *endpoint {
	t.Helper()
	ctx := testContext(t)
	e := &endpoint{dev: d}
	var err error
	if e.pd, err = d.AllocPD(ctx); err != nil {
		t.Fatal(err)
	}
	if e.cq, err = d.CreateCQ(ctx, 256); err != nil {
		t.Fatal(err)
	}
	cfg.SendCQ, cfg.Access = e.cq, allAccess
	if e.qp, err = e.pd.CreateQP(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	buf, err := d.Alloc(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	if e.mr, err = e.pd.RegMR(ctx, buf, allAccess); err != nil {
		t.Fatal(err)
	}
	return e
}

// connectPair connects a to b and returns the private data that each received.
func connectPair(t testing.TB, a, b *endpoint, service uint64, hello, answer string) (heard string, request *ConnectRequest) {
	t.Helper()
	ctx := testContext(t)
	l, err := b.dev.Listen(ctx, service)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(ctx)
	done := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			request = r
			err = r.Accept(ctx, b.qp, []byte(answer))
		}
		done <- err
	}()
	priv, err := a.dev.Connect(ctx, a.qp, b.dev.GID(), service, []byte(hello))
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return string(priv), request
}

// newPair returns two connected endpoints of two functions.
func newPair(t testing.TB, cfg QPConfig) (a, b *endpoint) {
	t.Helper()
	_, url := startNIC(t, nil)
	a = newEndpoint(t, openDevice(t, url), cfg)
	b = newEndpoint(t, openDevice(t, url), cfg)
	connectPair(t, a, b, 1, "", "")
	return a, b
}

// next returns the next completion of a CQ.
func next(t testing.TB, cq *CQ) WC {
	t.Helper()
	ctx := testContext(t)
	var wc [1]WC
	for {
		n, err := cq.Poll(wc[:])
		if err != nil {
			t.Fatal(err)
		}
		if n == 1 {
			return wc[0]
		}
		if err := cq.Wait(ctx); err != nil {
			t.Fatal(err)
		}
	}
}
