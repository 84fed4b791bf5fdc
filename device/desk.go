package device

import (
	"fmt"
	"log/slog"

	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// desk gives the drivers that say hello their functions. It implements guest.Desk.
type desk struct{ n *NIC }

var _ guest.Desk = desk{}

// Do implements guest.Desk.
func (d desk) Do(f func(now falcon.Time)) error { return d.n.shard.Do(f) }

// Post implements guest.Desk.
func (d desk) Post(m *guest.Mailbox) bool { return d.n.shard.Post(m) }

// MemoryIs implements guest.Desk.
func (d desk) MemoryIs(s *guest.Session, bytes uint64) {
	n := d.n
	if w := n.memory.Is(s, bytes); w != "" {
		n.limited.Line(n.clock(), slog.LevelWarn, "memory limit", "guest", s.Guest(), "memory", fmt.Sprintf("%d MiB", bytes>>20), "reason", w)
	}
}

// Set implements guest.Desk.
func (d desk) Set() *guest.Set { return d.n.shard.Guests() }

// Attach implements guest.Desk.
func (d desk) Attach(b *guest.Binding, number uint32) (*guest.Function, abi.Status, string) {
	return d.n.shard.Attach(b, number)
}
