package device

import (
	"errors"
	"fmt"
	"time"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/ports"
	"github.com/falcon-vnic/vnic/device/shard"
	"github.com/falcon-vnic/vnic/device/steering"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/device/thread"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// unit is a shard with what serves it: its thread, its part of the uplink, the devices of its ports.
type unit struct {
	*shard.Shard
	thread *thread.Thread
	uplink tap.Port
	ports  *ports.Set

	impair [thread.Directions]config.Impairment // what the whole uplink is asked to do; the thread's
}

// unitOf is the one with a function.
func (n *NIC) unitOf(id pfvf.ID) *unit {
	return n.units[n.home(uint32(id))]
}

// home is the shard that a function belongs to.
func (n *NIC) home(fn uint32) int { return n.cfg.ShardOf(pfvf.ID(fn).PF(), pfvf.ID(fn).VF()) }

// functions counts those that there are.
func (n *NIC) functions() (count int) {
	for _, u := range n.units {
		count += u.Count()
	}
	return count
}

// openUplink opens the uplink and gives each shard its part.
func (n *NIC) openUplink() error {
	if n.deps.Uplink == nil {
		var err error
		if n.deps.Uplink, err = openTAP(n.cfg, n.deps.TAPs); err != nil {
			return err
		}
	}
	whole, shards := n.deps.Uplink, len(n.units)
	if got := whole.MTU(); got < n.cfg.Uplink.MTU {
		return fmt.Errorf("uplink %s has an MTU of %d bytes, uplink.mtu asks for %d", whole.Name(), got, n.cfg.Uplink.MTU)
	}
	parts, err := tap.Split(whole, shards)
	if err != nil {
		return err
	}
	n.deps.Uplink = nil // the units'
	for i, u := range n.units {
		u.uplink = parts[i]
	}
	if shards > 1 {
		err := tap.Steer(parts[0], steering.Program(n.cfg.PSP.Mode == config.PSPTransport, shards))
		n.log.Debug("uplink of several shards", "queues", whole.Capabilities().Queues, "steered_by_the_kernel", err == nil, "err", err)
	}
	return nil
}

func openTAP(c *config.Config, keeper tap.Keeper) (tap.Port, error) {
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

// newThread makes the thread of a unit.
func (n *NIC) newThread(i int, u *unit) error {
	u.impair = [thread.Directions]config.Impairment{thread.RX: n.cfg.Uplink.Impair.RX, thread.TX: n.cfg.Uplink.Impair.TX}
	c := thread.Config{
		Shard: u.Shard, Door: u.Shard, Uplink: u.uplink, Queue: u.Queue(), Ports: u.ports, Impair: config.Impair{RX: n.shareOf(u.impair[thread.RX], i), TX: n.shareOf(u.impair[thread.TX], i)},
		Clock: n.clock, Spin: int64(*n.cfg.NIC.Spin), Log: n.log,
	}
	if i < len(n.cfg.NIC.CPU) {
		c.CPU = &n.cfg.NIC.CPU[i]
	}
	if i < len(n.deps.Pulses) {
		c.Pulse = n.deps.Pulses[i]
	}
	t, err := thread.New(c)
	if err != nil {
		return fmt.Errorf("shard %d: %w", i, err)
	}
	u.Inbox().WakeBy(t.Wake)
	u.Guests().Bells.Wait = t.Listen
	u.thread = t
	return nil
}

// shareOf is what an uplink's impairment is for one of its shards: each has its share of the rate
// and of the queue, and luck of its own.
func (n *NIC) shareOf(whole config.Impairment, i int) config.Impairment {
	shards := len(n.units)
	part := whole
	part.Rate /= config.Rate(shards)
	part.Queue = max(part.Queue/shards, 1)
	part.Seed += uint64(i)
	return part
}

// close gives up what the unit's shard is served by; its thread does not run.
func (u *unit) close() {
	if u.thread != nil {
		u.thread.Close()
	}
	if u.ports != nil {
		u.ports.Close()
	}
	if u.uplink != nil {
		_ = u.uplink.Close()
	}
}

// wallOffset is the wall clock less the shards', in nanoseconds.
func (n *NIC) wallOffset() int64 { return time.Now().UnixNano() - n.clock() }
