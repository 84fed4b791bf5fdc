package main

import (
	"fmt"
	"net"
	"os"
	"time"
)

// notify reports a change of state to the service manager like sd_notify(3): by a datagram to the
// socket in NOTIFY_SOCKET. Without a service manager it does nothing.
func notify(state string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	// A leading @ means the abstract namespace, both to systemd and to package net.
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("NOTIFY_SOCKET: %w", err)
	}
	defer c.Close()
	_ = c.SetWriteDeadline(time.Now().Add(time.Second)) // in case the service manager does not read
	if _, err := c.Write([]byte(state)); err != nil {
		return fmt.Errorf("NOTIFY_SOCKET %s: %w", path, err)
	}
	return nil
}
