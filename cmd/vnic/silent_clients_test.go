package main

import (
	"context"
	"net"
	"testing"
	"time"
)

// TestSilentClients: while hundreds of clients hold connections to a NIC's cm.listen and say
// nothing, its peer joins at once.
func TestSilentClients(t *testing.T) {
	inLab(t, false, func(l *lab) {
		l.start(1)
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9)}, Timeout: 10 * time.Second}
		for range 400 {
			c, err := d.Dial("tcp", l.hosts[1].CM)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
		}
		l.start(0)
		l.joined()
		c, err := l.control(1).Counters(context.Background())
		if err != nil || c["cmlink.ousted"] < 300 {
			t.Errorf("%d of 400 connections made room for others: %v", c["cmlink.ousted"], err)
		}
	})
}
