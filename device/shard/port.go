package shard

import (
	"fmt"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/falcon/credit"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// Port is a function's port as the shard knows it. It belongs to the shard's thread.
type Port struct {
	*gateway.Endpoint
	ID     pfvf.ID
	Config *config.Port
	Rate   *credit.Bucket // of the function; nil: it is disabled
	shown  capture.Port   // in captures
}

// portOf is the port that the gateway knows as p.
func portOf(p *gateway.Endpoint) *Port {
	f, _ := p.Owner.(*Port)
	return f
}

// Describe names a port for logs.
func (p *Port) Describe() string {
	return fmt.Sprintf("%s (%s)", p.Name, p.ID)
}

// described names the port in a capture.
func (p *Port) described() capture.Port {
	return capture.Port{Name: p.Config.Name, Description: "port of " + p.ID.String() + ": Ethernet frames as its guest sends and gets them"}
}

// remark is what a capture says of one of its frames.
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
