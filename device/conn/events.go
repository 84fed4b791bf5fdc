package conn

import (
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// HandleEvent handles a transport event of a connection.
func (s *Functions) HandleEvent(now falcon.Time, ev *falcon.Event) {
	s.cfg.Table.HandleEvent(now, ev)
	if ev.Kind == falcon.EvClosed {
		s.Ended()
	}
}

// Ended tells the connection manager, and through it the peer, of connections that ended in this
// shard.
func (s *Functions) Ended() {
	for e, ok := s.cfg.Table.NextEnded(); ok; e, ok = s.cfg.Table.NextEnded() {
		if e.ID == 0 { // a queue pair connected with itself (wireSelf)
			s.cfg.Manager.Ask(Request{Kind: GiveCID, Function: e.Function, N: e.CID})
			continue
		}
		s.cfg.Manager.Ask(Request{Kind: Disconnect, Function: e.Function, ID: e.ID})
	}
}

// Deadline returns when the functions, or their table, next have something to do.
func (s *Functions) Deadline() falcon.Time {
	at := vtime.Never
	if len(s.rewire) > 0 {
		at = s.rewire[0].at
	}
	return min(at, s.cfg.Table.Deadline())
}
