package config

import (
	"fmt"
	"runtime"
)

// MaxShards bounds nic.shards: a connection identifier has 4 bits for the shard (docs/wire.md).
const MaxShards = 16

// defaultShards is one for each two processors, at least one: guests and the kernel need some, too.
func defaultShards() int { return min(max(runtime.NumCPU()/2, 1), MaxShards) }

// ShardOf is the shard of a function: the one it is pinned to, else they are dealt out in turn.
func (c *Config) ShardOf(pf uint8, vf uint16) int {
	for i := range c.Functions {
		p := &c.Functions[i]
		if p.PF != pf {
			continue
		}
		if vf == 0 && p.Shard != nil {
			return *p.Shard
		}
		for j := range p.VFs {
			if v := &p.VFs[j]; vf != 0 && v.VF == vf && v.Shard != nil {
				return *v.Shard
			}
		}
	}
	return (int(pf) + int(vf)) % max(c.NIC.Shards, 1)
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
		r.add("nic.cpu", fmt.Sprintf("%d processors for %d threads", len(c.NIC.CPU), n), "name one for each of nic.shards at most")
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
		r.add(path+".shard", fmt.Sprintf("%d is none of the NIC's", *s), fmt.Sprintf("use 0 to %d, or raise nic.shards", c.NIC.Shards-1))
	}
}
