package device

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/ports"
	"github.com/falcon-vnic/vnic/device/shard"
	"github.com/falcon-vnic/vnic/device/steering"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/device/udp"
)

// unit is a shard with what serves it: its thread, its part of the uplink, the devices of its
// ports.
type unit struct {
	*shard.Shard
	thread *thread.Thread
	uplink tap.Uplink
	ports  *ports.Set

	impair [thread.Directions]config.Impairment // impairment of the whole uplink; owned by the thread
	among  [thread.Directions]int               // number of units that share each direction
}

// units holds all units of a NIC, by shard.
type units []*unit

// functions returns the number of existing functions.
func (us units) functions() (count int) {
	for _, u := range us {
		count += u.Count()
	}
	return count
}

// listen opens a socket for each unit.
func (us units) listen(cfg *config.Config) error {
	u := &cfg.Uplink
	if err := udp.Check(u.Listen.Addr(), u.MTU); err != nil {
		return err
	}
	parts, err := udp.Open(udp.Config{
		Listen: u.Listen, MTU: u.MTU, Shards: len(us), Superframes: u.Superframes == config.SuperframesAuto,
		OnePort: u.Keepalive > 0, Steer: steering.Sockets(cfg.PSP.Mode == config.PSPTransport, len(us)),
	})
	if err != nil {
		return err
	}
	for i := range us {
		us[i].uplink, us[i].among = parts[i], [thread.Directions]int{thread.RX: len(us), thread.TX: len(us)}
	}
	return nil
}

// share gives each unit its part of the uplink, which the units own from then on.
func (us units) share(cfg *config.Config, whole tap.Uplink, log *slog.Logger) error {
	if got := whole.MTU(); got < cfg.Uplink.MTU {
		return fmt.Errorf("uplink %s has an MTU of %d bytes, uplink.mtu asks for %d", whole.Name(), got, cfg.Uplink.MTU)
	}
	parts, err := tap.Split(whole, len(us))
	if err != nil {
		return err
	}
	readers := 0
	for _, p := range parts {
		if tap.Reads(p) {
			readers++
		}
	}
	for i, u := range us {
		u.uplink, u.among = parts[i], [thread.Directions]int{thread.RX: readers, thread.TX: len(us)}
	}
	if len(us) > 1 {
		err := tap.Steer(parts[0], steering.Program(cfg.PSP.Mode == config.PSPTransport, len(us)))
		log.Debug("uplink of several shards", "queues", whole.Capabilities().Queues, "steered_by_the_kernel", err == nil, "err", err)
	}
	return nil
}

func openTAP(c *config.Config, keeper tap.Keeper) (tap.Uplink, error) {
	u := &c.Uplink
	if u.Backend == config.BackendMemory {
		return nil, errors.New("uplink.backend memory works only inside one process, as in vnic demo --no-vm; use native or water")
	}
	t := tap.Config{Name: u.Name, MTU: u.MTU, Bridge: u.Bridge, Backend: u.Backend, Superframes: u.Superframes == config.SuperframesAuto, Queues: u.Queues, Keeper: keeper}
	if u.Backend == config.BackendNative {
		t.Queues = max(t.Queues, c.NIC.Shards)
	}
	return tap.Open(t)
}

// newThread creates the thread of the i-th unit of a NIC. It completes c with the unit's own parts.
func (u *unit) newThread(c thread.Config, impair config.Impair, i int) error {
	u.impair = [thread.Directions]config.Impairment{thread.RX: impair.RX, thread.TX: impair.TX}
	c.Shard, c.Uplink, c.Queue, c.Ports = u.Shard, u.uplink, u.Queue(), u.ports
	c.Impair = config.Impair{RX: u.imposed(thread.RX, i), TX: u.imposed(thread.TX, i)}
	t, err := thread.New(c)
	if err != nil {
		return fmt.Errorf("shard %d: %w", i, err)
	}
	u.Inbox().WakeBy(t.Wake)
	u.Guests().Bells.Wait = t.Listen
	u.thread = t
	return nil
}

// imposed returns the impairment of the i-th unit's part of the uplink.
func (u *unit) imposed(direction, i int) config.Impairment {
	return shareOf(u.impair[direction], i, u.among[direction])
}

// shareOf returns the impairment of one shard's part of an uplink: each part has its share of the
// rate and the queue, and its own seed.
func shareOf(whole config.Impairment, i, shards int) config.Impairment {
	part := whole
	part.Rate /= config.Rate(shards)
	part.Queue = max(part.Queue/shards, 1)
	part.Seed += uint64(i)
	return part
}

// close closes what serves the unit's shard. Its thread must not run.
func (u *unit) close() {
	if u.thread != nil {
		u.thread.Close()
	}
	u.Shard.Close()
	if u.ports != nil {
		u.ports.Close()
	}
	if u.uplink != nil {
		_ = u.uplink.Close()
	}
}
