package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// predecessorTime is how long to wait for the end of a worker whose supervisor was killed.
const predecessorTime = 10 * time.Second

// awaitPredecessor waits for the end of a worker whose supervisor was killed, if there is one. The
// kernel kills that worker too, but it takes a moment, during which the worker still holds sockets
// and TAPs.
func awaitPredecessor(sockets []string) {
	end := time.Now().Add(predecessorTime)
	for _, path := range sockets {
		for orphaned(path) && time.Now().Before(end) {
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// orphaned reports whether a socket listens although the process that created it is gone.
func orphaned(path string) bool {
	c, err := net.DialTimeout("unix", path, time.Second)
	if err != nil {
		return false
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return false
	}
	var cred *unix.Ucred
	err = raw.Control(func(fd uintptr) { cred, _ = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err != nil || cred == nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cred.Pid))
	return err != nil || bytes.Contains(stat, []byte(") Z ")) // a zombie: it has ended, but its parent has not waited for it
}
