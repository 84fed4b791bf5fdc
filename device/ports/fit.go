package ports

import (
	"errors"

	"github.com/falcon-vnic/vnic/device/shard"
	"github.com/falcon-vnic/vnic/falcon"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// Fit closes the devices of ports that functions are not set to have any more and opens those they
// have now. Devices come and go outside the shard: the kernel takes its time. do runs what is the
// shard's to do on its thread; unfit hears what function could not have its port.
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
