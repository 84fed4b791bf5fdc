package fakedev

import (
	"net"
	"sync"
	"time"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// Server is the NIC. Set the hooks before the first client comes.
type Server struct {
	// Message, if set, sees every message of a client first. If it returns false, the message
	// is not handled further. It runs in the session's goroutine without the server's lock.
	Message func(s *Session, h abi.MsgHeader, body []byte) bool
	// Tamper, if set, may change the data of a SEND, WRITE or READ on its way. It runs under the
	// server's lock.
	Tamper func(op abi.Opcode, data []byte)
	// Break, if set, is asked whether the device has the named habit: a way in which it departs
	// from docs/abi.
	Break func(habit string) bool
	// MTU is the largest path MTU; 0 means 4096.
	MTU int
	// Plain takes FeatureExtendedVerbs away.
	Plain bool
	// Reuse gives the function of a client that left to the next that comes, as a NIC does.
	Reuse bool

	ln *net.UnixListener
	wg sync.WaitGroup

	began time.Time

	mu       sync.Mutex
	sessions []*Session // by order of arrival; nil when gone
	conns    map[uint32]*conn
	cmid     uint32
	closed   bool
}

func (srv *Server) features() uint64 {
	if srv.Plain {
		return 0
	}
	return abi.FeatureExtendedVerbs
}

// taken reports whether a function is another client's.
func (srv *Server) taken(function uint32) bool {
	for _, s := range srv.sessions {
		if s != nil && s.function() == function {
			return true
		}
	}
	return false
}

// clock is the device's, in nanoseconds.
func (srv *Server) clock() uint64 { return uint64(time.Since(srv.began)) }

// has reports whether the device has a habit.
func (srv *Server) has(habit string) bool { return srv.Break != nil && srv.Break(habit) }
