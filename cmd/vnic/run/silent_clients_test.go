package run_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

// TestSilentClients: a peer can connect at once while hundreds of clients hold silent connections
// to cm.listen.
func TestSilentClients(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		l.Start(1)
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}, Timeout: 10 * time.Second}
		for range 400 {
			c, err := d.Dial("tcp", l.Hosts[1].CM)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
		}
		l.Start(0)
		l.Joined()
		c, err := l.Control(1).Counters(context.Background())
		if err != nil || c["cmlink.ousted"] < 300 {
			t.Errorf("%d of 400 connections made room for others: %v", c["cmlink.ousted"], err)
		}
	})
}
