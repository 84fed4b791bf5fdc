package controller

import (
	"errors"
	"log/slog"
	"runtime/debug"

	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// errFault is the reason why a link ends when handling a message panicked.
var errFault = errors.New("a message on it triggered a bug in this program: see the log")

// peerNews handles news of a peer. No peer can end the NIC by what it sends: if the handling panics,
// the link to this peer, its keys and its connections end, because a handler that stopped halfway
// may have left them in any state. Both NICs then start over.
func (k *Core) peerNews(now vtime.Time, host cm.HostID, n *peerNews) {
	run := func() { k.Manager.Run(now) }
	if k.survives(now, host, n, func() { k.take(now, host, n) }) && k.survives(now, host, n, run) {
		return
	}
	k.survives(now, host, n, func() { k.Manager.ForgetPeer(now, host) })
	for !k.survives(now, host, n, run) { // each time takes at least one output
	}
	k.ends = append(k.ends, host)
}

// survives calls do. If do panics, survives counts and logs that, and reports false. It does not log
// the message, which may contain keys.
func (k *Core) survives(now vtime.Time, host cm.HostID, n *peerNews, do func()) (ok bool) {
	defer func() {
		if v := recover(); v != nil {
			k.faults++
			k.cfg.Log(now, slog.LevelError, "fault in the program: the link to a peer and its connections end; please report this line",
				"peer", host, "message", n.String(), "bytes", len(n.msg), "panic", v, "stack", string(debug.Stack()))
		}
	}()
	do()
	return true
}
