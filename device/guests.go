package device

import (
	"fmt"
	"log/slog"

	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/internal/loglimit"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// guestNIC gives the drivers that say hello their functions. It implements guest.NIC.
type guestNIC struct {
	units   units
	shardOf func(function uint32) int // the index of the unit that has a function
	memory  *controller.GuestMemory
	limited *loglimit.Log
	clock   func() int64
}

var _ guest.NIC = guestNIC{}

// Find implements guest.NIC. If several shards have a free function for the guest, it chooses the
// function with the lowest number.
func (d guestNIC) Find(number uint32, attachment string, p queues.Identity) (guest.Shard, uint32) {
	if number != abi.FunctionAssigned {
		return d.units[d.shardOf(number)].Shard, number
	}
	best, lowest := d.units[0], pfvf.ID(0)
	for _, u := range d.units {
		var id pfvf.ID
		if len(d.units) == 1 || u.Do(func(falcon.Time) { id = u.Assigned(attachment, p) }) != nil {
			continue
		}
		if id != 0 && (lowest == 0 || id < lowest) {
			best, lowest = u, id
		}
	}
	if lowest != 0 {
		number = uint32(lowest)
	}
	return best.Shard, number
}

// SetMemory implements guest.NIC.
func (d guestNIC) SetMemory(s *guest.Session, bytes uint64) {
	if w := d.memory.Is(s, bytes); w != "" {
		d.limited.Line(d.clock(), slog.LevelWarn, "memory limit", "guest", s.Guest(), "memory", fmt.Sprintf("%d MiB", bytes>>20), "reason", w)
	}
}
