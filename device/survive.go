package device

import (
	"encoding/hex"
	"log/slog"
	"runtime/debug"

	"github.com/falcon-vnic/vnic/falcon"
)

// survive is deferred around the reading of one frame or message. One that finds a fault in the
// code that reads it is counted and told, and the NIC goes on: nobody ends it with what he sends.
// Only what keeps nothing between frames is read under it; an engine that failed halfway could not
// be trusted.
func (s *Shard) survive(now falcon.Time, what string, frame []byte) {
	if v := recover(); v != nil {
		s.drops.count(dropPanic)
		s.log.panicked(now, what, v, frame)
	}
}

func (l *logLimit) panicked(now falcon.Time, what string, v any, frame []byte) {
	const shown = 256
	l.line(now, slog.LevelError, "fault in the program: "+what+" was dropped; please report this line",
		"panic", v, "bytes", len(frame), "begin", hex.EncodeToString(frame[:min(len(frame), shown)]), "stack", string(debug.Stack()))
}
