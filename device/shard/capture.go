package shard

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/wire"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/local"
)

const (
	captureIn  = capture.In
	captureOut = capture.Out
)

// captures holds the captures of a shard, to each of which traffic is copied. The zero value
// captures nothing.
type captures struct {
	sinks      []capture.Sink
	wantSealed bool // at least one sink wants these
	wantClear  bool
	wantPorts  bool
	wallOffset int64 // wall clock minus the shard's clock, ns

	watch func(dir capture.Direction, packet []byte, comment string) // gets what a sink that wants clear packets gets; nil: nobody does
}

// set replaces the sinks.
func (t *captures) set(sinks []capture.Sink) {
	t.sinks, t.wantSealed, t.wantClear, t.wantPorts = sinks, false, t.watch != nil, false
	for _, s := range sinks {
		t.wantSealed = t.wantSealed || s.Sealed
		t.wantClear = t.wantClear || s.Clear
		t.wantPorts = t.wantPorts || len(s.Ports) > 0 || s.AnyPort
	}
}

func (t *captures) put(iface int, dir capture.Direction, now falcon.Time, packet []byte, comment string) {
	if iface == capture.Clear && t.watch != nil {
		t.watch(dir, packet, comment)
	}
	for _, s := range t.sinks {
		if iface == capture.Sealed && s.Sealed || iface == capture.Clear && s.Clear {
			s.To.Packet(iface, dir, now+t.wallOffset, packet, comment)
		}
	}
}

// sealed captures an Ethernet frame of the uplink.
func (t *captures) sealed(dir capture.Direction, now falcon.Time, frame []byte) {
	if t.wantSealed {
		t.put(capture.Sealed, dir, now, frame, "")
	}
}

// received captures a frame from the uplink. A superframe gets a comment, since a decoder of the
// capture sees only the first of its packets.
func (t *captures) received(now falcon.Time, frame []byte, segment int) {
	switch {
	case !t.wantSealed:
	case segment <= 0:
		t.sealed(captureIn, now, frame)
	default:
		t.put(capture.Sealed, captureIn, now, frame, fmt.Sprintf("superframe: UDP datagrams of %d bytes one after the other", segment))
	}
}

// port captures a frame that a function's guest sent (in) or gets (out), unchanged. A GSO frame or
// one without a checksum gets a comment, since cutting it or completing its checksum is left to
// the receiver.
func (t *captures) port(dir capture.Direction, now falcon.Time, p *Port, o *gateway.Offload, parts ...[]byte) {
	comment := ""
	for i := range t.sinks {
		s := &t.sinks[i]
		iface, ok := s.Ports[p.shown]
		if !ok && !s.AnyPort {
			continue
		}
		if !ok {
			iface = s.To.AddPort(p.shown)
			s.Ports[p.shown] = iface
		}
		if comment == "" {
			comment = p.remark(o)
		}
		s.To.Parts(iface, dir, now+t.wallOffset, comment, parts...)
	}
}

// plain captures an inner IP packet of a port, without its seal. A comment names the port's
// function.
func (t *captures) plain(gw *gateway.Gateway, dir capture.Direction, now falcon.Time, of *gateway.Tunnel, packet []byte) {
	if !t.wantClear {
		return
	}
	way := "from"
	if dir == captureOut {
		way = "to"
	}
	whose := "no function of this NIC"
	if id, ok := gw.Routes().FunctionOf(of.Tenant, packet, dir == captureOut); ok {
		whose = pfvf.ID(id).String()
		if p := gw.Endpoint(id); p != nil {
			whose += ", port " + p.Name
		}
	}
	t.put(capture.Clear, dir, now, packet, fmt.Sprintf("plain IP of %s; tenant %d; %s NIC %s", whose, of.Tenant, way, of.Name))
}

// fromPorts captures frames that guests sent.
func (t *captures) fromPorts(now falcon.Time, in []gateway.PortInput) {
	if !t.wantPorts {
		return
	}
	for i := range in {
		if p := portOf(in[i].From); p != nil {
			in[i].Whole() // if not, the gateway drops it
			t.port(captureIn, now, p, &in[i].Offload, in[i].Frame)
		}
	}
}

// toPort captures a frame that a guest gets.
func (t *captures) toPort(now falcon.Time, f *gateway.PortFrame) {
	if !t.wantPorts || !f.Whole() { // a frame sent before the capture began may be gone
		return
	}
	if p := portOf(f.To); p != nil {
		t.port(captureOut, now, p, &f.Offload, f.Parts...)
	}
}

// local captures a packet of a connection inside the NIC, which is never sealed.
func (t *captures) local(now falcon.Time, c *conn.Slot, packet, rdmaPacket []byte) {
	t.put(capture.Clear, captureOut, now, packet, explain(c, rdmaPacket, true)+"; loopback: inside the NIC, not sealed")
}

// falcon captures an inner IP packet with a Falcon packet of c, or of no known connection (nil). A
// comment says to what it belongs.
func (t *captures) falcon(dir capture.Direction, now falcon.Time, c *conn.Slot, packet, falconPacket []byte) {
	if !t.wantClear {
		return
	}
	comment := "no connection of this NIC"
	if c != nil {
		comment = explain(c, wire.Payload(falconPacket), dir == captureOut)
	}
	t.put(capture.Clear, dir, now, packet, comment)
}

// opened captures a packet that was opened. In transport mode it came without an inner header; if
// it is addressed to the connection c, it gets the one that tunnel mode would have given it.
func (t *captures) opened(now falcon.Time, c *conn.Slot, addressed bool, p *security.Packet) {
	whole := p.Whole
	switch {
	case !t.wantClear:
		return
	case whole == nil && !addressed:
		return
	case whole == nil:
		inner := underlay.Inner{Src: c.Inner.Dst, Dst: c.Inner.Src}
		whole = append(inner.Append(nil, len(p.Falcon)), p.Falcon...)
	}
	t.falcon(captureIn, now, c, whole, p.Falcon)
}

// explain names the function, queue pair and work request that a packet belongs to.
func explain(c *conn.Slot, rdmaPacket []byte, out bool) string {
	text := c.Owner.ID.String()
	if whose := c.Explain(rdmaPacket, out); whose != "" {
		text += " " + whose
	}
	return text
}

// maxCaptures is the most captures at one time.
const maxCaptures = 4

// CaptureView begins and ends captures. It implements controller.CaptureView.
type CaptureView struct{ s *Shard }

// Ports implements controller.CaptureView.
func (v CaptureView) Ports() (list []capture.NamedPort) {
	for p := range v.s.plain.ports.all() {
		_, short, _ := strings.Cut(p.ID.String(), ".")
		list = append(list, capture.NamedPort{Port: p.shown, Names: []string{p.ID.String(), short}})
	}
	return list
}

// Start implements controller.CaptureView.
func (v CaptureView) Start(c *capture.Sink, offset int64) error {
	t := &v.s.capture
	if len(t.sinks) >= maxCaptures {
		return fmt.Errorf("%d captures run already; end one of them", maxCaptures)
	}
	own := *c
	own.Ports = maps.Clone(c.Ports)
	t.wallOffset = offset
	v.setSinks(append(slices.Clone(t.sinks), own))
	return nil
}

// End implements controller.CaptureView.
func (v CaptureView) End(c *capture.Capture) {
	v.setSinks(slices.DeleteFunc(slices.Clone(v.s.capture.sinks), func(s capture.Sink) bool { return s.To == c }))
}

// setSinks replaces the captures of the shard. Packets of loopback connections are shown as they
// would look on the way to another NIC: inner IP, Falcon, RDMA. None is ever lost, so there are no
// acknowledgements, and the PSN is the RSN.
func (v CaptureView) setSinks(sinks []capture.Sink) {
	s := v.s
	s.capture.set(sinks)
	loopbacks := rdma.Wire[*local.Engine](s.rdma)
	if !s.capture.wantClear {
		loopbacks.SetTap(nil)
		return
	}
	var b []byte
	loopbacks.SetTap(func(now falcon.Time, from *local.Conn, kind falcon.TxnKind, rsn uint32, asked int, packet []byte) {
		cfg := from.Config()
		c := s.falcon.table.Find(cfg.LocalCID)
		if c == nil {
			return
		}
		h := wire.Header{CID: cfg.RemoteCID, Function: cfg.RemoteFunction, Protocol: cfg.Protocol, PSN: rsn, RSN: rsn}
		switch kind {
		case falcon.TxnPush:
			h.Type = wire.TypePushData
			b = c.Inner.Append(b[:0], wire.PushDataLen+len(packet))
			b = (&wire.PushData{Header: h, RequestLength: uint16(len(packet))}).Append(b)
		case falcon.TxnPull:
			h.Type = wire.TypePullRequest
			b = c.Inner.Append(b[:0], wire.PullRequestLen+len(packet))
			b = (&wire.PullRequest{Header: h, RequestLength: uint16(asked)}).Append(b)
		default:
			h.Type = wire.TypePullData
			b = c.Inner.Append(b[:0], wire.PullDataLen+len(packet))
			b = h.Append(b)
		}
		b = append(b, packet...)
		s.capture.local(now, c, b, packet)
	})
}
