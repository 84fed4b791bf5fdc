package lab_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/agent"
	"github.com/falcon-vnic/vnic/cmd/vnic/lab"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

// vsock is a listener behind a NIC, which connects each client with the agent of a guest.
type vsock struct{ net.Listener }

func (l vsock) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	var port int
	if _, err := fmt.Fscanf(c, "CONNECT %d\n", &port); err != nil || port != agent.Port {
		return nil, fmt.Errorf("a client asks for port %d: %w", port, err)
	}
	_, err = fmt.Fprintf(c, "OK %d\n", port)
	return c, err
}

// TestAGuestIsUpWhenItHasItsAddress checks that the lab finds the address that a guest has, and does not find
// another. The guest is this machine, which has the address of its loopback interface.
func TestAGuestIsUpWhenItHasItsAddress(t *testing.T) {
	vnictest.RequireRoot(t) // of labs' folder
	name := fmt.Sprintf("address-%d", os.Getpid())
	folder := lab.Folder(name)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	l, err := net.Listen("unix", filepath.Join(folder, "m1.vsock"))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- agent.Serve(vsock{l}) }()
	t.Cleanup(func() {
		l.Close()
		<-ended
	})
	if !lab.WaitForAddress(t.Context(), name, "m1", netip.MustParseAddr("127.0.0.1")) {
		t.Error("the guest's address was not found")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if lab.WaitForAddress(ctx, name, "m1", netip.MustParseAddr("192.0.2.1")) {
		t.Error("an address was found that the guest does not have")
	}
}
