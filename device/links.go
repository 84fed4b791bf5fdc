package device

import (
	"errors"
	"log/slog"

	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/device/counters"
)

// links holds the links to the other NICs' connection managers: it sends messages of the core by
// link, and passes received ones to the core by mail. It implements cmlink.Handler and
// controller.Links.
type links struct {
	log  *slog.Logger
	link *cmlink.Link // nil: there are no peers
	mail map[uint8]*controller.PeerMail
}

var (
	_ cmlink.Handler   = (*links)(nil)
	_ controller.Links = (*links)(nil)
)

// start starts the links to the peers.
func (l *links) start(cfg *config.Config, self *cmlink.Identity, core *controller.Core) error {
	if len(cfg.Peers) == 0 {
		return nil
	}
	c := cmlink.Config{Listen: cfg.CM.Listen.String(), Identity: self, Log: l.log}
	l.mail = map[uint8]*controller.PeerMail{}
	for _, p := range cfg.Peers {
		l.mail[p.Host] = core.PeerMail(p.Host)
		c.Peers = append(c.Peers, cmlink.Peer{Host: p.Host, Addr: p.CM.String(), Identity: p.Identity})
	}
	var err error
	if l.link, err = cmlink.New(c, l); err != nil {
		return listenError("cm.listen", cfg.CM.Listen, err)
	}
	return nil
}

// close closes all links.
func (l *links) close() {
	for _, m := range l.mail {
		m.Close()
	}
	if l.link != nil {
		_ = l.link.Close()
	}
}

// Note implements controller.Links.
func (l *links) Note(host uint8) string {
	if l.link == nil {
		return ""
	}
	return l.link.Note(host)
}

// send sends a message of the core to a peer. It is called by the core's goroutine.
func (l *links) send(host uint8, msg []byte) {
	if l.link == nil {
		return
	}
	// A message that cannot be sent is lost with the link, which the connection manager learns by
	// PeerDown.
	_ = l.link.Send(host, msg)
}

// end is called by the core's goroutine.
func (l *links) end(host uint8, reason error) {
	if l.link != nil {
		l.link.End(host, reason)
	}
}

// count adds the counters of the links.
func (l *links) count(to control.Counters) {
	if l.link != nil {
		st := l.link.Stats()
		counters.OfLinks.Add(to, &st)
	}
}

// PeerUp implements cmlink.Handler.
func (l *links) PeerUp(host uint8) {
	l.log.Info("peer up", "host", host)
	l.mail[host].Up()
}

// PeerDown implements cmlink.Handler.
func (l *links) PeerDown(host uint8, reason error) {
	l.log.Info("peer down", "host", host, "reason", reason)
	if errors.Is(reason, cmlink.ErrRevoked) {
		l.mail[host].Revoked()
		return
	}
	l.mail[host].Down()
}

// Message implements cmlink.Handler.
func (l *links) Message(host uint8, msg []byte) { l.mail[host].Message(msg) }
