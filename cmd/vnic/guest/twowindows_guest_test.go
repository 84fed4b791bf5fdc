package guest_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/examples/setup"
	"github.com/falcon-vnic/vnic/qemu/image"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestLongTwoWindows: one program in a guest uses two functions at once, each with a window and
// interrupts of its own, and sends messages from one to the other. The guest runs
// TestInsideTwoWindows.
func TestLongTwoWindows(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a virtual machine")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	kernel, initrd := vnictest.GuestOfTest(t, ctx, image.VFIOModules...)
	config := vnictest.WriteConfig(t, fmt.Sprintf(qemuGuestConfig, t.TempDir(), true))
	vnictest.Serve(t, config)
	said, err := vnictest.BootPrinted(t, ctx, config, vnictest.Guest{Kernel: kernel, Initrd: initrd, IOMMU: true}, 1001, "-test.v", "-test.run=^TestInsideTwoWindows$")
	if err != nil || !strings.Contains(string(said), "--- PASS: TestInsideTwoWindows") {
		t.Fatalf("%v\n%s", err, said)
	}
	t.Logf("%s", said)
}

// TestInsideTwoWindows runs in the guest of TestLongTwoWindows.
func TestInsideTwoWindows(t *testing.T) {
	if os.Getenv("VNIC_GUEST") == "" {
		t.Skip("runs in the guest of TestLongTwoWindows")
	}
	const rounds, service = 200, 5
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	open := func(function string) (*setup.Side, *guestlib.QP) {
		t.Helper()
		s, err := setup.Open(ctx, "vsock://2:7000?function="+function, 4096)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Dev.Close() })
		if path, why := s.Dev.Path(); path != "ivshmem-msix" {
			t.Fatalf("%s rings over %s: %v", function, path, why)
		}
		qp, err := s.QP(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return s, qp
	}
	a, qa := open("pf0.vf1")
	b, qb := open("pf0.vf2")
	l, err := b.Dev.Listen(ctx, service)
	if err != nil {
		t.Fatal(err)
	}
	echoed := make(chan error, 1)
	go func() { echoed <- echo(ctx, b, l, qb, rounds) }()
	if _, err := a.Connect(ctx, qa, b.Dev.GID(), service); err != nil {
		t.Fatal(err)
	}
	for i := range rounds {
		if err := ping(ctx, a, qa, byte(i)); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
	}
	if err := <-echoed; err != nil {
		t.Fatal(err)
	}
}

// ping sends a message and sleeps until the answer has come.
func ping(ctx context.Context, s *setup.Side, qp *guestlib.QP, n byte) error {
	if err := qp.PostRecv(&guestlib.RecvWR{SGL: []guestlib.SGE{s.MR.SGE(64, 64)}}); err != nil {
		return err
	}
	s.MR.Bytes()[0], s.MR.Bytes()[64] = n, ^n
	if err := qp.PostSend(&guestlib.SendWR{Opcode: guestlib.Send, Flags: guestlib.Signaled, SGL: []guestlib.SGE{s.MR.SGE(0, 64)}}); err != nil {
		return err
	}
	wc, err := nextRecv(ctx, s)
	if err == nil && (wc.ByteLen != 64 || s.MR.Bytes()[64] != n) {
		err = fmt.Errorf("%d came back of %d, in %d bytes", s.MR.Bytes()[64], n, wc.ByteLen)
	}
	return err
}

// echo accepts a connection and sends each message back.
func echo(ctx context.Context, s *setup.Side, l *guestlib.Listener, qp *guestlib.QP, rounds int) error {
	recv := &guestlib.RecvWR{SGL: []guestlib.SGE{s.MR.SGE(0, 64)}}
	if err := qp.PostRecv(recv); err != nil {
		return err
	}
	if err := s.Accept(ctx, l, qp); err != nil {
		return err
	}
	for range rounds {
		if _, err := nextRecv(ctx, s); err != nil {
			return err
		}
		copy(s.MR.Bytes()[64:], s.MR.Bytes()[:64])
		if err := qp.PostRecv(recv); err != nil {
			return err
		}
		if err := qp.PostSend(&guestlib.SendWR{Opcode: guestlib.Send, Flags: guestlib.Signaled, SGL: []guestlib.SGE{s.MR.SGE(64, 64)}}); err != nil {
			return err
		}
	}
	return nil
}

// nextRecv sleeps until a message has come. It ignores the completions of sends.
func nextRecv(ctx context.Context, s *setup.Side) (wc guestlib.WC, err error) {
	for wc, err = s.Next(ctx); err == nil && wc.Opcode&abi.WCOpRecv == 0; wc, err = s.Next(ctx) {
	}
	return wc, err
}
