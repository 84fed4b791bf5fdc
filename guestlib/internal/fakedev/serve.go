package fakedev

import (
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// Listen starts a NIC on a unix socket. setup, which may be nil, sees it before any client does.
func Listen(path string, setup func(*Server)) (*Server, error) {
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	s := &Server{ln: ln, conns: map[uint32]*conn{}, began: time.Now()}
	if setup != nil {
		setup(s)
	}
	s.wg.Go(s.accept)
	return s, nil
}

func (s *Server) accept() {
	for {
		c, err := s.ln.AcceptUnix()
		if err != nil {
			return
		}
		s.wg.Go(func() { s.serve(c) })
	}
}

// Close ends all sessions.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	for _, ss := range s.sessions {
		if ss != nil {
			ss.conn.Close()
		}
	}
	s.mu.Unlock()
	err := s.ln.Close()
	s.wg.Wait()
	return err
}

// Session returns the i-th client that came, nil if it left.
func (s *Server) Session(i int) *Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i >= len(s.sessions) {
		return nil
	}
	return s.sessions[i]
}

func (s *Server) serve(conn *net.UnixConn) {
	defer conn.Close()
	mem, err := receiveMemory(conn)
	defer func() {
		for _, r := range mem {
			unix.Munmap(r.mem)
		}
	}()
	if err != nil {
		return
	}
	ss := &Session{srv: s, conn: conn, memory: mem, Out: Outbox{conn: conn, wake: make(chan struct{}, 1), gone: make(chan struct{})}}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	ss.index = len(s.sessions)
	if free := slices.Index(s.sessions, nil); s.Reuse && free >= 0 {
		ss.index = free
		s.sessions[free] = ss
	} else {
		s.sessions = append(s.sessions, ss)
	}
	ss.reset()
	s.mu.Unlock()

	var writer sync.WaitGroup
	writer.Go(ss.Out.write)
	buf := make([]byte, abi.MaxMessage)
	for {
		h, body, err := abi.ReadMessage(conn, buf)
		if errors.Is(err, abi.ErrMessageTooLong) || errors.Is(err, abi.ErrMessageTooShort) {
			ss.Out.Fail(abi.StatusInvalidArgument, err.Error())
		}
		if err != nil {
			break
		}
		if s.Message != nil && !s.Message(ss, h, body) {
			continue
		}
		s.mu.Lock()
		err = ss.message(h, body)
		s.mu.Unlock()
		if err != nil {
			if !errors.Is(err, errGoodbye) && !errors.Is(err, errRefused) {
				ss.Out.Fail(abi.StatusInvalidArgument, err.Error())
			}
			break
		}
	}
	s.mu.Lock()
	ss.reset()
	s.sessions[ss.index] = nil
	s.mu.Unlock()
	close(ss.Out.gone)
	writer.Wait()
}
