package qemu

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Bounds on what programs of the host do to a guest's vsock by a socket of Forward.
const (
	maxForwarded = 64
	askTime      = 5 * time.Second // until a program has said which port, and until the guest answers
	maxAsk       = 32              // bytes of the line that says so
)

// Forward lets programs of the host reach ports on which the guest listens, by a unix socket in the
// manner of Firecracker: a program writes "CONNECT PORT\n", reads "OK PORT\n", and is connected. If
// the guest refuses, the connection ends. Close removes the socket.
func (v *VhostUser) Forward(path string) error {
	l, err := listenUnixSocket(path)
	if err != nil {
		return fmt.Errorf("vsock socket: %w", err)
	}
	f := &forward{v: v, l: l, room: make(chan struct{}, maxForwarded)}
	v.mu.Lock()
	v.forward = f
	v.mu.Unlock()
	f.serving.Go(f.serve)
	return nil
}

type forward struct {
	v       *VhostUser
	l       *unixSocket
	room    chan struct{}
	serving sync.WaitGroup
	open    sync.Map // programs' connections
}

func (f *forward) serve() {
	for {
		c, err := f.l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(askTime / 50) // out of descriptors, most likely
			continue
		}
		select {
		case f.room <- struct{}{}:
		default:
			c.Close()
			continue
		}
		f.open.Store(c, nil)
		f.serving.Go(func() {
			f.carry(c)
			f.open.Delete(c)
			<-f.room
		})
	}
}

// carry connects a program to the port that it names, until either end closes.
func (f *forward) carry(c *net.UnixConn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(askTime))
	in := bufio.NewReaderSize(io.LimitReader(c, maxAsk), maxAsk)
	line, err := in.ReadString('\n')
	if err != nil {
		return
	}
	text, ok := strings.CutPrefix(strings.TrimSpace(line), "CONNECT ")
	port, err := strconv.ParseUint(text, 10, 32)
	if !ok || err != nil {
		return
	}
	guest, err := f.v.Dial(uint32(port), askTime)
	if err != nil {
		return
	}
	defer guest.Close()
	if _, err := fmt.Fprintf(c, "OK %d\n", port); err != nil {
		return
	}
	_ = c.SetDeadline(time.Time{})
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(guest, io.MultiReader(io.LimitReader(in, int64(in.Buffered())), c))
		if w, ok := guest.(interface{ CloseWrite() error }); ok {
			_ = w.CloseWrite()
		}
	})
	_, _ = io.Copy(c, guest)
	_ = c.CloseWrite()
	_ = c.CloseRead() // the guest has closed: what the program still writes is for nobody
	both.Wait()
}

// close ends all connections and removes the socket.
func (f *forward) close() error {
	err := f.l.Close()
	f.open.Range(func(c, _ any) bool {
		c.(net.Conn).Close()
		return true
	})
	f.serving.Wait()
	return err
}
