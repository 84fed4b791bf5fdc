package ports

import (
	"errors"

	"github.com/falcon-vnic/vnic/device/shard"
	"github.com/falcon-vnic/vnic/falcon"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// Fit closes the devices of ports that functions' settings no longer name and opens those that they
// name now. It does so outside the shard's thread, since the kernel takes its time. do runs a
// function on the shard's thread; unfit is called for each function that could not get its port.
func (ps *Set) Fit(from Sources, do func(func(falcon.Time)) error, unfit func(pfvf.ID, error)) error {
	var gone []Device
	var come []*shard.Port
	err := do(func(falcon.Time) {
		come = ps.of.Change(func(p *shard.Port) {
			if dev := ps.Remove(p); dev != nil {
				gone = append(gone, dev)
			}
		})
	})
	for _, dev := range gone {
		err = errors.Join(err, dev.Remove())
	}
	for _, p := range come {
		dev, e := from.Open(ps.of, p.Config)
		if e == nil {
			stopped := do(func(now falcon.Time) {
				e = ps.of.Add(p, func() error { return ps.Add(p, dev) }, func() { ps.Remove(p) })
			})
			if e = errors.Join(stopped, e); e != nil {
				e = errors.Join(e, dev.Remove())
			} else {
				dev.Serve()
			}
		}
		if e != nil {
			unfit(p.ID, e)
		}
	}
	return err
}
