package shard

import (
	"fmt"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/falcon/credit"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// Port is a function's port in the shard. It belongs to the shard's thread.
type Port struct {
	*gateway.Endpoint
	ID     pfvf.ID
	Config *config.Port
	Rate   *credit.Bucket // the function's; nil: it is disabled
	shown  capture.Port   // its name in captures
}

// portOf returns the Port of a gateway endpoint.
func portOf(p *gateway.Endpoint) *Port {
	f, _ := p.Owner.(*Port)
	return f
}

// Describe names the port for logs.
func (p *Port) Describe() string {
	return fmt.Sprintf("%s (%s)", p.Name, p.ID)
}

// described returns the name and description of the port in a capture.
func (p *Port) described() capture.Port {
	return capture.Port{Name: p.Config.Name, Description: "port of " + p.ID.String() + ": Ethernet frames as its guest sends and gets them"}
}

// remark returns a capture's comment on one of the port's frames.
func (p *Port) remark(o *gateway.Offload) string {
	text := p.ID.String()
	if o.GSO != 0 {
		text += fmt.Sprintf(", stands for packets of %d bytes each", o.Size)
	}
	if o.NeedsCsum {
		text += ", checksum not filled in"
	}
	return text
}
