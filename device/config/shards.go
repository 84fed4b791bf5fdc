package config

import (
	"fmt"
	"runtime"
)

// MaxShards bounds nic.shards: a connection identifier has 4 bits for the shard (docs/wire.md).
const MaxShards = 16

// maxCPUs is the size of the kernel's fixed set, CPU_SETSIZE.
const maxCPUs = 1024

// defaultShards returns one shard for each two processors, at least one: guests and the kernel need
// processors too.
func defaultShards() int { return min(max(runtime.NumCPU()/2, 1), MaxShards) }

// ShardOf returns a function that returns the shard of each function: the shard to which it is
// pinned now, else one by (PF + VF) modulo the number of shards.
func (c *Config) ShardOf() func(pf uint8, vf uint16) int {
	pinned := map[[2]uint16]int{}
	for _, f := range c.AllFunctions() {
		if f.Shard != nil {
			pinned[[2]uint16{uint16(f.PF), f.VF}] = *f.Shard
		}
	}
	shards := max(c.NIC.Shards, 1)
	return func(pf uint8, vf uint16) int {
		if to, ok := pinned[[2]uint16{uint16(pf), vf}]; ok {
			return to
		}
		return (int(pf) + int(vf)) % shards
	}
}

func (c *Config) checkShards(r *report) {
	n := c.NIC.Shards
	if n < 1 || n > MaxShards {
		r.add("nic.shards", fmt.Sprintf("%d is out of range", n), fmt.Sprintf("use 1 to %d, or leave it out", MaxShards))
		return
	}
	for i, cpu := range c.NIC.CPU {
		if cpu < 0 || cpu >= maxCPUs {
			r.add(fmt.Sprintf("nic.cpu[%d]", i), fmt.Sprintf("%d is out of range", cpu), fmt.Sprintf("use 0 to %d, or leave it out", maxCPUs-1))
		}
	}
	if len(c.NIC.CPU) > n {
		r.add("nic.cpu", fmt.Sprintf("%d processors are listed, but the NIC has %d threads", len(c.NIC.CPU), n), fmt.Sprintf("list at most %d, or raise nic.shards", n))
	}
	for i := range c.Functions {
		pf := &c.Functions[i]
		path := fmt.Sprintf("functions[%d]", i)
		c.checkShard(r, path, &pf.Function)
		for j := range pf.VFs {
			c.checkShard(r, fmt.Sprintf("%s.vfs[%d]", path, j), &pf.VFs[j].Function)
		}
	}
}

func (c *Config) checkShard(r *report, path string, f *Function) {
	if s := f.Shard; s != nil && (*s < 0 || *s >= c.NIC.Shards) {
		r.add(path+".shard", fmt.Sprintf("%d is not a shard of the NIC", *s), fmt.Sprintf("use 0 to %d, or raise nic.shards", c.NIC.Shards-1))
	}
}
