package shard

import (
	"fmt"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/wire"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

const (
	captureIn  = capture.In
	captureOut = capture.Out
)

// tapPoint copies traffic to captures. The zero value captures nothing.
type tapPoint struct {
	sinks      []capture.Sink
	wantSealed bool // at least one sink wants these
	wantClear  bool
	wantPorts  bool
	wallOffset int64 // wall clock minus the shard's clock, ns
}

// set replaces the sinks.
func (t *tapPoint) set(sinks []capture.Sink) {
	t.sinks, t.wantSealed, t.wantClear, t.wantPorts = sinks, false, false, false
	for _, s := range sinks {
		t.wantSealed = t.wantSealed || s.Sealed
		t.wantClear = t.wantClear || s.Clear
		t.wantPorts = t.wantPorts || len(s.Ports) > 0 || s.AnyPort
	}
}

func (t *tapPoint) put(iface int, dir capture.Direction, now falcon.Time, packet []byte, comment string) {
	for _, s := range t.sinks {
		if iface == capture.Sealed && s.Sealed || iface == capture.Clear && s.Clear {
			s.To.Packet(iface, dir, now+t.wallOffset, packet, comment)
		}
	}
}

// sealed captures an Ethernet frame of the uplink.
func (t *tapPoint) sealed(dir capture.Direction, now falcon.Time, frame []byte) {
	if t.wantSealed {
		t.put(capture.Sealed, dir, now, frame, "")
	}
}

// received captures a frame from the uplink. A superframe gets a comment, since a decoder of the
// capture sees only the first of its packets.
func (t *tapPoint) received(now falcon.Time, frame []byte, segment int) {
	switch {
	case !t.wantSealed:
	case segment <= 0:
		t.sealed(captureIn, now, frame)
	default:
		t.put(capture.Sealed, captureIn, now, frame, fmt.Sprintf("superframe: UDP datagrams of %d bytes one after the other", segment))
	}
}

// port captures a frame that a function's guest sent (in) or gets (out), unchanged. A GSO frame or
// one without a checksum gets a comment: the receiver has to do what is left.
func (t *tapPoint) port(dir capture.Direction, now falcon.Time, p *Port, o *gateway.Offload, parts ...[]byte) {
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
func (t *tapPoint) plain(gw *gateway.Gateway, dir capture.Direction, now falcon.Time, of *gateway.Tunnel, packet []byte) {
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
	t.put(capture.Clear, dir, now, packet, fmt.Sprintf("plain IP of %s; tenant %d; %s host %d", whose, of.Tenant, way, of.Peer))
}

// fromPorts captures frames that guests sent.
func (t *tapPoint) fromPorts(now falcon.Time, in []gateway.PortInput) {
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
func (t *tapPoint) toPort(now falcon.Time, f *gateway.PortFrame) {
	if !t.wantPorts || !f.Whole() { // a frame sent before the capture began may be gone
		return
	}
	if p := portOf(f.To); p != nil {
		t.port(captureOut, now, p, &f.Offload, f.Parts...)
	}
}

// inside captures a packet of a connection inside the NIC, which is never sealed.
func (t *tapPoint) inside(now falcon.Time, c *conn.Slot, packet, rdmaPacket []byte) {
	t.put(capture.Clear, captureOut, now, packet, explain(c, rdmaPacket, true)+"; loopback: inside the NIC, not sealed")
}

// falcon captures an inner IP packet with a Falcon packet of c, or of no known connection (nil). A
// comment says to what it belongs.
func (t *tapPoint) falcon(dir capture.Direction, now falcon.Time, c *conn.Slot, packet, falconPacket []byte) {
	if !t.wantClear {
		return
	}
	comment := "no connection of this NIC"
	if c != nil {
		comment = explain(c, ulpPacket(falconPacket), dir == captureOut)
	}
	t.put(capture.Clear, dir, now, packet, comment)
}

// opened captures a packet that was opened. In transport mode it came without an inner header; if
// it is addressed to the connection c, it gets the one that tunnel mode would have given it.
func (t *tapPoint) opened(now falcon.Time, c *conn.Slot, addressed bool, p *security.Packet) {
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

// ulpPacket returns the payload of a Falcon packet, nil if it has none.
func ulpPacket(b []byte) (payload []byte) {
	kind, _ := wire.Peek(b)
	switch kind {
	case wire.TypePushData:
		_, payload, _ = wire.ParsePushData(b)
	case wire.TypePullRequest:
		_, payload, _ = wire.ParsePullRequest(b)
	case wire.TypePullData:
		_, payload, _ = wire.ParsePullData(b)
	}
	return payload
}
