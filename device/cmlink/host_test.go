package cmlink

import (
	"net"
	"testing"
)

// addressed is a connection whose other end has an address.
type addressed struct {
	net.Conn
	at net.Addr
}

func (a addressed) RemoteAddr() net.Addr { return a.at }

// TestHostOfTheOtherEnd: two NICs with one host number are told apart by where they are, whatever
// port each dials from; what has no port is named as it is.
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
