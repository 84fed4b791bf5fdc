package device

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/rdma"
)

const (
	captureIn  = capture.In
	captureOut = capture.Out
)

// maxCaptures bounds how many captures run at one time.
const maxCaptures = 4

// sink is one capture and what it takes.
type sink struct {
	to            *capture.Capture
	sealed, clear bool
}

func newSink(to *capture.Capture, mode string) sink {
	return sink{
		to:     to,
		sealed: mode == config.CaptureSealed || mode == config.CaptureBoth,
		clear:  mode == config.CaptureClear || mode == config.CaptureBoth,
	}
}

// tapPoint feeds captures with copies of what passes. The zero value captures
// nothing.
type tapPoint struct {
	sinks      []sink
	wantSealed bool // one of the sinks does
	wantClear  bool
	wallOffset int64 // wall clock less the shard's clock, ns
}

// set replaces the sinks.
func (t *tapPoint) set(sinks []sink) {
	t.sinks, t.wantSealed, t.wantClear = sinks, false, false
	for _, s := range sinks {
		t.wantSealed = t.wantSealed || s.sealed
		t.wantClear = t.wantClear || s.clear
	}
}

func (t *tapPoint) put(iface int, dir capture.Direction, now falcon.Time, packet []byte, comment string) {
	for _, s := range t.sinks {
		if iface == capture.Sealed && s.sealed || iface == capture.Clear && s.clear {
			s.to.Packet(iface, dir, now+t.wallOffset, packet, comment)
		}
	}
}

// sealed takes an Ethernet frame as on the uplink.
func (t *tapPoint) sealed(dir capture.Direction, now falcon.Time, frame []byte) {
	if t.wantSealed {
		t.put(capture.Sealed, dir, now, frame, "")
	}
}

// received takes what came from the uplink, superframes with a remark: what
// decodes the capture sees only the first of their packets.
func (t *tapPoint) received(now falcon.Time, frame []byte, segment int) {
	switch {
	case !t.wantSealed:
	case segment <= 0:
		t.sealed(captureIn, now, frame)
	default:
		t.put(capture.Sealed, captureIn, now, frame, fmt.Sprintf("superframe: UDP datagrams of %d bytes one after the other", segment))
	}
}

// clear takes an inner IP packet of a port outside its seal.
func (t *tapPoint) clear(dir capture.Direction, now falcon.Time, packet []byte) {
	if t.wantClear {
		t.put(capture.Clear, dir, now, packet, "")
	}
}

// captureInside takes a packet of a connection inside the NIC, which is never sealed.
func (s *Shard) captureInside(now falcon.Time, c *slot, packet, rdmaPacket []byte) {
	s.capture.put(capture.Clear, captureOut, now, packet, c.explain(rdmaPacket, true)+"; loopback: inside the NIC, not sealed")
}

// captureFalcon takes an inner IP packet with a Falcon packet of c, or of nobody
// known, with a remark whose it is.
func (s *Shard) captureFalcon(dir capture.Direction, now falcon.Time, c *slot, packet, falconPacket []byte) {
	if !s.capture.wantClear {
		return
	}
	comment := "no connection of this NIC"
	if c != nil {
		comment = c.explain(ulpPacket(falconPacket), dir == captureOut)
	}
	s.capture.put(capture.Clear, dir, now, packet, comment)
}

// captureBare is captureFalcon for a packet of c that came without an inner
// header: it gets the one that tunnel mode would have given it.
func (s *Shard) captureBare(dir capture.Direction, now falcon.Time, c *slot, inner underlay.Inner, falconPacket []byte) {
	if s.capture.wantClear {
		b := inner.Append(nil, len(falconPacket))
		s.captureFalcon(dir, now, c, append(b, falconPacket...), falconPacket)
	}
}

// explain says which function, queue pair and work request a packet belongs to.
func (c *slot) explain(rdmaPacket []byte, out bool) string {
	text := c.fn.ID.String()
	var user any
	switch {
	case c.conn != nil:
		user = c.conn.User()
	case c.loop != nil:
		user = c.loop.Config().User
	}
	if whose := rdma.Explain(user, rdmaPacket, out); whose != "" {
		text += " " + whose
	}
	return text
}

// ulpPacket is what a Falcon packet carries, nil for one that carries nothing.
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

// Capture writes what passes to w until ctx ends. It implements
// control.Provider.
func (n *NIC) Capture(ctx context.Context, mode string, w io.Writer) error {
	switch mode {
	case config.CaptureSealed, config.CaptureClear, config.CaptureBoth:
	default:
		return control.BadRequest{Err: fmt.Errorf("mode %q: write sealed, clear or both", mode)}
	}
	c, err := capture.New(w)
	if err != nil {
		return err
	}
	full := false
	stopped := n.shard.do(func(falcon.Time) {
		t := &n.shard.capture
		if full = len(t.sinks) >= maxCaptures; !full {
			t.wallOffset = n.wallOffset()
			n.shard.setSinks(append(slices.Clone(t.sinks), newSink(c, mode)))
		}
	})
	if stopped != nil || full {
		if full {
			stopped = control.BadRequest{Err: fmt.Errorf("%d captures run already; end one of them", maxCaptures)}
		}
		return errors.Join(stopped, c.Close())
	}
	select {
	case <-ctx.Done():
	case <-c.Failed(): // the reader went away
	}
	_ = n.shard.do(func(falcon.Time) { // nothing to do when the shard has ended
		n.shard.setSinks(slices.DeleteFunc(slices.Clone(n.shard.capture.sinks), func(s sink) bool { return s.to == c }))
	})
	return c.Close()
}

// setSinks replaces the captures of the shard.
func (s *Shard) setSinks(sinks []sink) {
	s.capture.set(sinks)
	s.captureLoopbacks()
}
