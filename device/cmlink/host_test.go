package cmlink

import (
	"net"
	"testing"
)

// addressed is a connection with a given remote address.
type addressed struct {
	net.Conn
	at net.Addr
}

func (a addressed) RemoteAddr() net.Addr { return a.at }

// TestHostOfTheOtherEnd: two NICs with one host number are distinguished by their addresses,
// without the ports. An address without a port is used unchanged.
func TestHostOfTheOtherEnd(t *testing.T) {
	for _, x := range []struct {
		at   net.Addr
		want string
	}{
		{&net.TCPAddr{IP: net.IPv4(10, 99, 0, 2), Port: 4711}, "10.99.0.2"},
		{&net.TCPAddr{IP: net.ParseIP("fd00::2"), Port: 1}, "fd00::2"},
		{&net.UnixAddr{Name: "nic2", Net: "unix"}, "nic2"},
	} {
		if got := host(addressed{at: x.at}); got != x.want {
			t.Errorf("%v: %q, want %q", x.at, got, x.want)
		}
	}
}
