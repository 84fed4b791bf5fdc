package web

import (
	"cmp"
	"slices"

	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/counters"
)

const (
	maxRows  = 256 // of queue pairs and connections of one function
	maxWaits = 64  // queue pairs that wait, of all functions
	maxDrops = 16  // reasons
)

// state is the event of that name: what the page draws of the NIC as a whole. Rates are per second.
type state struct {
	At        int64                `json:"at_ms"`
	Seconds   float64              `json:"seconds"` // that rates are measured over; 0: there are none yet
	NIC       control.NIC          `json:"nic"`     // without its peers
	Rates     rates                `json:"rates"`
	Drops     []drop               `json:"drops"`
	Peers     []peer               `json:"peers"`
	Functions []function           `json:"functions"`
	Credits   []control.CreditNode `json:"credits"` // of the NIC and the host
	QPs       int                  `json:"qps"`
	Waits     map[string]int       `json:"waits"`   // number of queue pairs by what they wait for
	Waiting   []control.QP         `json:"waiting"` // the first of them
}

type rates struct {
	UplinkIn    float64 `json:"uplink_in"` // bits
	UplinkOut   float64 `json:"uplink_out"`
	PacketsIn   float64 `json:"packets_in"` // of RDMA, from other NICs
	PacketsOut  float64 `json:"packets_out"`
	DataIn      float64 `json:"data_in"` // bits of RDMA's data
	DataOut     float64 `json:"data_out"`
	PortsIn     float64 `json:"ports_in"` // bits of frames to functions' ports
	PortsOut    float64 `json:"ports_out"`
	Again       float64 `json:"again"` // packets sent again
	Dropped     float64 `json:"dropped"`
	Lost        float64 `json:"lost"` // by an impairment of the uplink
	CreditWaits float64 `json:"credit_waits"`
}

type drop struct {
	Counter string  `json:"counter"`
	Rate    float64 `json:"rate"`
}

type peer struct {
	control.Peer
	Sent  float64 `json:"sent"`  // packets sealed for it
	Again float64 `json:"again"` // of them sent again
}

// function is a row of the table of functions.
type function struct {
	ID       string  `json:"id"`
	State    string  `json:"state"`
	Fault    string  `json:"fault,omitempty"`
	Tenant   uint32  `json:"tenant"`
	Addr     string  `json:"addr"`
	Guest    string  `json:"guest,omitempty"`
	Attached string  `json:"attached,omitempty"`
	LinkUp   bool    `json:"link_up"`
	Port     string  `json:"port,omitempty"`
	PortUp   bool    `json:"port_up,omitempty"`
	QPs      int     `json:"qps"`
	Waiting  int     `json:"waiting,omitempty"` // queue pairs
	Out      float64 `json:"out"`               // bits: data of RDMA, and frames of the port
	In       float64 `json:"in"`
	Credit   float64 `json:"credit"`  // part of its limit that it holds, of the counter that is used most
	Refused  float64 `json:"refused"` // times it had no credit
}

// since returns the state at v, with rates since an earlier sample; nil: no rates.
func (v *sample) since(before *sample) *state {
	d := difference{v, before}
	s := &state{
		At: v.at.UnixMilli(), Seconds: d.seconds(), NIC: v.nic, Rates: d.rates(), Drops: d.drops(), Peers: d.peers(),
		Credits: []control.CreditNode{}, QPs: len(v.qps), Waits: map[string]int{}, Waiting: []control.QP{},
	}
	s.NIC.Peers = []control.Peer{}
	for _, n := range v.credits {
		if n.Level == "nic" || n.Level == "host" {
			s.Credits = append(s.Credits, n)
		}
	}
	waiting := map[string]int{}
	for _, q := range v.qps {
		if q.Waits == "" {
			continue
		}
		waiting[q.Function]++
		s.Waits[q.Waits]++
		if len(s.Waiting) < maxWaits {
			s.Waiting = append(s.Waiting, q)
		}
	}
	s.Functions = d.functions(waiting)
	return s
}

// difference is what happened between two samples.
type difference struct{ is, was *sample }

func (d difference) seconds() float64 {
	if d.was == nil {
		return 0
	}
	return d.is.at.Sub(d.was.at).Seconds()
}

// per returns the rate of something that was counted; 0 if it was counted anew.
func (d difference) per(was, is uint64) float64 {
	if d.was == nil || is < was {
		return 0
	}
	return float64(is-was) / d.seconds()
}

// of returns the rate of the counters with these names.
func (d difference) of(names ...string) (sum float64) {
	if d.was == nil {
		return 0
	}
	for _, n := range names {
		sum += d.per(d.was.counters[n], d.is.counters[n])
	}
	return sum
}

func (d difference) rates() rates {
	r := rates{
		UplinkIn: 8 * d.of("uplink.rx_bytes"), UplinkOut: 8 * d.of("uplink.tx_bytes"),
		PacketsIn: d.of("shard.rx_packets"), PacketsOut: d.of("shard.tx_packets"),
		DataIn: 8 * d.of("rdma.bytes_rx"), DataOut: 8 * d.of("rdma.bytes_tx"),
		PortsIn: 8 * d.of("gateway.to_port_bytes"), PortsOut: 8 * d.of("gateway.from_port_bytes"),
		Again:       d.of("falcon.timeout_retransmits", "falcon.early_retransmits", "roce.again"),
		Lost:        d.of("impair.rx_lost", "impair.tx_lost"),
		CreditWaits: d.of("rdma.credit_waits"),
	}
	for name := range d.is.counters {
		if counters.IsDrop(name) {
			r.Dropped += d.of(name)
		}
	}
	return r
}

// drops lists why packets are dropped now, the most frequent reason first.
func (d difference) drops() []drop {
	list := []drop{}
	for name := range d.is.counters {
		if counters.IsDrop(name) && d.of(name) > 0 {
			list = append(list, drop{name, d.of(name)})
		}
	}
	slices.SortFunc(list, func(a, b drop) int { return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(a.Counter, b.Counter)) })
	return list[:min(len(list), maxDrops)]
}

// peers returns the peers with what is sent to them: packets by the keys that they gave, and packets
// sent again by connections.
func (d difference) peers() []peer {
	type key struct {
		direction string
		spi       uint32
		peer      string
	}
	sealed, again := map[key]uint64{}, map[uint32]uint64{}
	sent, resent := map[string]float64{}, map[string]float64{}
	if d.was != nil {
		for _, k := range d.was.keys {
			sealed[key{k.Direction, k.SPI, k.PeerName}] += k.Packets
		}
		for _, c := range d.was.connections {
			again[c.LocalCID] = c.Retransmits
		}
		now := map[key]uint64{} // each shard has its own count of a key
		for _, k := range d.is.keys {
			now[key{k.Direction, k.SPI, k.PeerName}] += k.Packets
		}
		for k, n := range now {
			if k.direction == "tx" {
				sent[k.peer] += d.per(sealed[k], n)
			}
		}
		for _, c := range d.is.connections {
			if c.LocalCID != 0 { // over other wires a connection has no peer
				resent[c.PeerName] += d.per(again[c.LocalCID], c.Retransmits)
			}
		}
	}
	list := []peer{}
	for _, p := range d.is.nic.Peers {
		list = append(list, peer{p, sent[p.Name], resent[p.Name]})
	}
	return list
}

// functions returns the rows of the table of functions. waiting has the number of queue pairs that
// wait for each.
func (d difference) functions(waiting map[string]int) []function {
	was, wasRefused := map[string]*control.Function{}, map[string]uint64{}
	if d.was != nil {
		for i := range d.was.functions {
			was[d.was.functions[i].ID] = &d.was.functions[i]
		}
		for i := range d.was.credits {
			if n := &d.was.credits[i]; n.Level == "function" {
				wasRefused[n.Name] = n.Refused
			}
		}
	}
	nodes := map[string]*control.CreditNode{}
	for i := range d.is.credits {
		if n := &d.is.credits[i]; n.Level == "function" {
			nodes[n.Name] = n
		}
	}
	list := make([]function, 0, len(d.is.functions))
	for i := range d.is.functions {
		f := &d.is.functions[i]
		row := function{
			ID: f.ID, State: f.State, Fault: f.Fault, Tenant: f.Tenant, Addr: f.Addr, Guest: f.Guest, Attached: f.Attached,
			LinkUp: f.LinkUp, QPs: f.QPs, Waiting: waiting[f.ID],
		}
		if b := was[f.ID]; b != nil {
			row.Out, row.In = 8*d.per(b.TxBytes, f.TxBytes), 8*d.per(b.RxBytes, f.RxBytes)
		}
		if f.Port != nil { // its device is named by what the NIC receives
			row.Port, row.PortUp = f.Port.Name, f.Port.Up
			row.Out += 8 * d.of("port."+f.Port.Name+".rx_bytes")
			row.In += 8 * d.of("port."+f.Port.Name+".tx_bytes")
		}
		if n := nodes[f.ID]; n != nil {
			row.Credit, row.Refused = used(n), d.per(wasRefused[f.ID], n.Refused)
		}
		list = append(list, row)
	}
	return list
}

// used returns how much of its limits a node of the credit tree holds: the largest part of one
// counter.
func used(n *control.CreditNode) (part float64) {
	for name, limit := range n.Limit {
		if limit > 0 {
			part = max(part, float64(n.InUse[name])/float64(limit))
		}
	}
	return part
}

// focus is the event "function": one function with its objects.
type focus struct {
	Function    *control.Function    `json:"function"` // null: there is none of that name
	Credits     *control.CreditNode  `json:"credits"`
	QPs         []control.QP         `json:"qps"`
	Connections []control.Connection `json:"connections"`
	Omitted     int                  `json:"omitted,omitempty"` // queue pairs and connections that are not listed
}

func (v *sample) focus(name string) focus {
	f := focus{QPs: []control.QP{}, Connections: []control.Connection{}}
	for i := range v.functions {
		if v.functions[i].ID == name {
			f.Function = &v.functions[i]
		}
	}
	for i := range v.credits {
		if n := &v.credits[i]; n.Level == "function" && n.Name == name {
			f.Credits = n
		}
	}
	for _, q := range v.qps {
		if q.Function == name {
			f.QPs = append(f.QPs, q)
		}
	}
	for _, c := range v.connections {
		if c.Function == name {
			f.Connections = append(f.Connections, c)
		}
	}
	f.Omitted = max(len(f.QPs)-maxRows, 0) + max(len(f.Connections)-maxRows, 0)
	f.QPs, f.Connections = f.QPs[:min(len(f.QPs), maxRows)], f.Connections[:min(len(f.Connections), maxRows)]
	return f
}
