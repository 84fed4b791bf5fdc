package falcon

import (
	"time"

	"github.com/falcon-vnic/vnic/falcon/cc"
)

// longPath finds connections that congestion control holds at a packet per round trip for nothing:
// a delay above the target with so small a window is not their own queue. Either the path is longer
// than the target, or more flows share a port than its queue has room for.
type longPath struct {
	since Time // the delay is above the target and the window a packet or less; 0: it is not so
	told  bool // for longPathAfter, and EvLongPath said so
}

const longPathAfter = int64(time.Second)

func (c *Conn) watchDelay(now Time) {
	l, s := &c.longPath, &c.cc
	if s.BaseDelay == 0 || s.Delay < s.BaseDelay || s.Fcwnd > cc.One {
		*l = longPath{}
		return
	}
	if l.since == 0 {
		l.since = now
	}
	if !l.told && now-l.since >= longPathAfter {
		l.told = true
		c.e.emit(EvLongPath, c)
	}
}
