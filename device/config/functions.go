package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	"github.com/falcon-vnic/vnic/rdma/rof/wire"
)

// NamedFunction is a function with its place in the tuple <host, PF, VF>.
type NamedFunction struct {
	PF uint8
	VF uint16 // 0: the PF itself
	*Function
}

// AllFunctions lists every function that is described, PFs before their VFs.
func (c *Config) AllFunctions() []NamedFunction {
	var all []NamedFunction
	for i := range c.Functions {
		pf := &c.Functions[i]
		all = append(all, NamedFunction{PF: pf.PF, Function: &pf.Function})
		for j := range pf.VFs {
			vf := &pf.VFs[j]
			all = append(all, NamedFunction{PF: pf.PF, VF: vf.VF, Function: &vf.Function})
		}
	}
	return all
}

// String returns the function's name on its NIC: pf0 or pf0.vf1.
func (f NamedFunction) String() string {
	if f.VF == 0 {
		return fmt.Sprintf("pf%d", f.PF)
	}
	return fmt.Sprintf("pf%d.vf%d", f.PF, f.VF)
}

// Addresses lists all addresses of the function in its tenant, its GID first.
func (f *Function) Addresses() []netip.Addr {
	if !f.Address.IsValid() {
		return nil
	}
	all := []netip.Addr{f.Address}
	if f.Port != nil {
		all = append(all, f.Port.Addresses...)
	}
	return all
}

// FunctionsOf lists the functions of the guest with a context id.
func (c *Config) FunctionsOf(cid uint32) (own []NamedFunction) {
	for _, f := range c.AllFunctions() {
		if cid != 0 && f.Guest != nil && f.Guest.CID == cid {
			own = append(own, f)
		}
	}
	return own
}

// WindowSocket returns the path of the socket on which QEMU gets the window of one of the guest's
// functions, or with vfio-user the function itself. It is next to the guest's socket.
func (a *Attach) WindowSocket(f NamedFunction) string {
	return strings.TrimSuffix(a.Socket, ".sock") + "." + f.String()
}

// Extent returns the number of bytes of the file that the layout covers, which is the size of the
// guest's memory.
func (r *RAM) Extent() Size {
	var n Size
	for _, l := range r.Layout {
		n = max(n, l.Offset+l.Size)
	}
	return n
}

// namedCount is one number of Credits.
type namedCount struct {
	key   string
	value *uint32
}

// each lists the numbers in the order of credit.Counter.
func (c *Credits) each() [credit.NumCounters]namedCount {
	return [credit.NumCounters]namedCount{
		{"request_packet_tx", &c.RequestPacketTx},
		{"request_buffer_tx", &c.RequestBufferTx},
		{"request_packet_rx", &c.RequestPacketRx},
		{"request_buffer_rx", &c.RequestBufferRx},
		{"data_packet_tx", &c.DataPacketTx},
		{"data_buffer_tx", &c.DataBufferTx},
		{"network_packet_rx", &c.NetworkPacketRx},
		{"network_buffer_rx", &c.NetworkBufferRx},
	}
}

// Cost returns the numbers in the order of credit.Counter.
func (c *Credits) Cost() (cost credit.Cost) {
	for i, n := range c.each() {
		cost[i] = *n.value
	}
	return cost
}

// leastCredits returns the cost of one packet of the largest size for each counter: with less, work
// waits for ever (Falcon §8.2.3).
func (c *Config) leastCredits() (least Credits) {
	packet := c.RDMA.MTU + wire.MaxDataHeaderLen
	cells := credit.Cells(packet, credit.DefaultCell)
	return Credits{
		RequestPacketTx: 1, RequestBufferTx: cells, RequestPacketRx: 1, RequestBufferRx: cells,
		DataPacketTx: 1, DataBufferTx: cells, NetworkPacketRx: 1, NetworkBufferRx: credit.Cells(packet, falcon.DefaultCellBytes),
	}
}

// SetCost sets the numbers, in the order of credit.Counter.
func (c *Credits) SetCost(cost credit.Cost) {
	for i, n := range c.each() {
		*n.value = cost[i]
	}
}

// Complete fills in the name of a peer that is given by its identity or its host alone.
func (p *Peer) Complete() {
	if p.Name != "" {
		return
	}
	if _, name, err := cmlink.ParseURI(p.Identity); err == nil {
		p.Name = name
	} else if p.Host != 0 {
		p.Name = strconv.Itoa(int(p.Host))
	}
}

// lists reports whether the peer's functions in a tenant are listed.
func (p *Peer) lists(tenant uint32) bool {
	return p.All || slices.ContainsFunc(p.Functions, func(f PeerFunction) bool { return f.Tenant == tenant })
}
