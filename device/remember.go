package device

import (
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/falcon"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// recall sets functions as they were set in the NIC before. It is called before
// there are shards. What does not fit the configuration any more is left out.
func (n *NIC) recall() {
	refused, err := n.settings.Recall(func(id pfvf.ID, c *control.FunctionChange) error {
		return n.core.Functions.Recall(id, c)
	})
	if err != nil {
		n.log.Warn("what was set of functions is lost", "err", err)
	}
	for id, err := range refused {
		n.log.Warn("function not set again as it was", "function", id.String(), "err", err)
	}
}

// recallPorts makes the devices of ports that were set. Unlike one of the
// configuration, one that cannot be made does not keep the NIC from starting.
func (n *NIC) recallPorts() {
	m := misfits{}
	_ = n.fitPorts(m, func(_ *unit, f func(falcon.Time)) error { f(n.clock()); return nil })
	for id, err := range m {
		n.log.Warn("port not made again", "function", id.String(), "err", err)
	}
}
