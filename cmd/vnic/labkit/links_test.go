package labkit

import (
	"fmt"
	"net"
	"testing"
)

// TestFreePortsAreNotThoseOfClients: no client of another process has a port before it is used.
func TestFreePortsAreNotThoseOfClients(t *testing.T) {
	for range 100 {
		ports, err := FreePorts()
		if err != nil {
			t.Fatal(err)
		}
		if ports[1] != ports[0]+1 || ports[2] != ports[0]+2 || ports[2] >= 32768 { // where Linux begins by default
			t.Fatal(ports)
		}
		for _, port := range ports {
			l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
			if err != nil {
				t.Fatal(err)
			}
			l.Close()
		}
	}
}
