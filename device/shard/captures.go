package shard

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/local"
)

// maxCaptures is the most captures at one time.
const maxCaptures = 4

// Ports implements controller.View.
func (v View) Ports() (list []capture.NamedPort) {
	for p := range v.s.plain.ports.all() {
		_, short, _ := strings.Cut(p.ID.String(), ".")
		list = append(list, capture.NamedPort{Port: p.shown, Names: []string{p.ID.String(), short}})
	}
	return list
}

// StartCapture implements controller.View.
func (v View) StartCapture(c *capture.Sink, offset int64) error {
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

// EndCapture implements controller.View.
func (v View) EndCapture(c *capture.Capture) {
	v.setSinks(slices.DeleteFunc(slices.Clone(v.s.capture.sinks), func(s capture.Sink) bool { return s.To == c }))
}

// setSinks replaces the captures of the shard. Packets of loopback connections are shown as they
// would look on the way to another NIC: inner IP, Falcon, RDMA. None is ever lost, so there are no
// acknowledgements, and the PSN is the RSN.
func (v View) setSinks(sinks []capture.Sink) {
	s := v.s
	s.capture.set(sinks)
	inside := rdma.Wire[*local.Engine](s.rdma)
	if !s.capture.wantClear {
		inside.SetTap(nil)
		return
	}
	var b []byte
	inside.SetTap(func(now falcon.Time, from *local.Conn, kind falcon.TxnKind, rsn uint32, asked int, packet []byte) {
		cfg := from.Config()
		c := s.table.Find(cfg.LocalCID)
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
		s.capture.inside(now, c, b, packet)
	})
}
