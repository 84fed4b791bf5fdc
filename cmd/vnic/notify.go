package main

import (
	"fmt"
	"net"
	"os"
	"time"
)

// notify tells the service manager a change of state, as sd_notify(3) does:
// a datagram to the socket in NOTIFY_SOCKET. Without a service manager it does
// nothing.
func notify(state string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	// A leading @ means the abstract namespace to systemd and to package net alike.
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("NOTIFY_SOCKET: %w", err)
	}
	defer c.Close()
	_ = c.SetWriteDeadline(time.Now().Add(time.Second)) // a service manager that does not read
	if _, err := c.Write([]byte(state)); err != nil {
		return fmt.Errorf("NOTIFY_SOCKET %s: %w", path, err)
	}
	return nil
}
