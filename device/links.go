package device

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/device/counters"
	"github.com/falcon-vnic/vnic/device/directory/etcd"
	"github.com/falcon-vnic/vnic/falcon/cm"
)

// links holds the links to the other NICs' connection managers: it sends messages of the core by
// link, and passes received ones to the core by mail. A NIC without peers listens to nobody.
type links struct {
	log  *slog.Logger
	cfg  *config.Config
	self *cmlink.Identity // nil: loaded when there is a peer

	mu   sync.Mutex
	link *cmlink.Link // nil: there were no peers so far
	up   map[cm.PeerID]*peerLink
}

// peerLink is the link to one peer.
type peerLink struct {
	name string
	mail *controller.PeerMail
}

var (
	_ cmlink.Handler   = (*links)(nil)
	_ controller.Links = (*links)(nil)
)

// Open implements controller.Links.
func (l *links) Open() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.link != nil {
		return nil
	}
	if err := l.identify(); err != nil {
		return err
	}
	link, err := cmlink.New(cmlink.Config{Listen: addressOf(l.cfg.CM.Listen), Identity: l.self, Farewell: cm.Encode(&cm.BYE{}), Log: l.log}, l)
	if err != nil {
		return listenError("cm.listen", l.cfg.CM.Listen, err)
	}
	l.link, l.up = link, map[cm.PeerID]*peerLink{}
	return nil
}

// Domain implements controller.Links.
func (l *links) Domain() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.self == nil {
		return ""
	}
	return l.self.Domain
}

// identify loads the NIC's identity.
func (l *links) identify() error {
	if l.self != nil {
		return nil
	}
	if l.cfg.CM.Identity == "" {
		return errors.New("cm.identity is not set, so this NIC can have no peers: set it and cm.listen in the configuration")
	}
	var err error
	if l.self, err = cmlink.Load(l.cfg.CM.Identity, l.cfg.CM.Name); err != nil {
		return fmt.Errorf("cm.identity: %w", err)
	}
	return nil
}

// newIdentity reads the NIC's identity again; nil: it is the same, or not needed.
func (l *links) newIdentity() (*cmlink.Identity, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.self == nil {
		return nil, nil
	}
	is, err := l.self.Again()
	switch {
	case err != nil:
		return nil, fmt.Errorf("cm.identity: %w", err)
	case is.URI() != l.self.URI():
		return nil, fmt.Errorf("cm.identity: the certificate is that of %s now, this NIC is %s: its peers would refuse it", is.URI(), l.self.URI())
	case is.Same(l.self):
		return nil, nil
	}
	return is, nil
}

// use makes links that come up from now on use another certificate.
func (l *links) use(is *cmlink.Identity) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.self = is
	if l.link != nil {
		l.link.Use(is)
	}
}

// addressOf returns an address as net.Dial has it; "": none.
func addressOf(a netip.AddrPort) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// identity returns the NIC's present identity.
func (l *links) identity() *cmlink.Identity {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.self
}

// clientTLS returns how to speak to etcd with the NIC's present certificate.
func (l *links) clientTLS() *tls.Config {
	is := l.identity()
	return etcd.TLS(is.TLSCertificate(), is.Roots())
}

// close closes all links.
func (l *links) close() {
	l.mu.Lock()
	link, all := l.link, l.up
	l.mu.Unlock()
	for _, p := range all {
		p.mail.Close()
	}
	if link != nil {
		_ = link.Close()
	}
}

// Set implements controller.Links.
func (l *links) Set(p *controller.Peer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.link == nil {
		return // it was a peer of the configuration, and removed before the NIC ran
	}
	l.up[p.ID] = &peerLink{p.Name, p.Mail}
	c := cmlink.Peer{ID: uint32(p.ID), Name: p.Name, Addr: addressOf(p.Is.CM), Identity: p.Is.Identity}
	if err := l.link.Set(c); err != nil { // the configuration's check knows the same rules
		l.log.Error("no link to a peer", "peer", p.Name, "err", err)
	}
}

// Remove implements controller.Links.
func (l *links) Remove(peer cm.PeerID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.link != nil {
		delete(l.up, peer)
		l.link.Remove(uint32(peer))
	}
}

// opened returns the link; nil: there were no peers so far.
func (l *links) opened() *cmlink.Link {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.link
}

// Note implements controller.Links.
func (l *links) Note(peer cm.PeerID) string {
	if link := l.opened(); link != nil {
		return link.Note(uint32(peer))
	}
	return ""
}

// Ahead implements controller.Links.
func (l *links) Ahead(peer cm.PeerID) time.Duration {
	if link := l.opened(); link != nil {
		return link.Ahead(uint32(peer))
	}
	return 0
}

// Send implements controller.Links. A message that cannot be sent is lost with the link, which the
// connection manager learns by PeerDown.
func (l *links) Send(peer cm.PeerID, msg []byte) {
	if link := l.opened(); link != nil {
		_ = link.Send(uint32(peer), msg)
	}
}

// End implements controller.Links.
func (l *links) End(peer cm.PeerID, reason error) {
	if link := l.opened(); link != nil {
		link.End(uint32(peer), reason)
	}
}

// count adds the counters of the links.
func (l *links) count(to control.Counters) {
	if link := l.opened(); link != nil {
		st := link.Stats()
		counters.OfLinks.Add(to, &st)
	}
}

// to returns the link to a peer. If the peer was removed, what is done with it has no effect.
func (l *links) to(peer uint32) *peerLink {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.up[cm.PeerID(peer)]
}

// PeerUp implements cmlink.Handler.
func (l *links) PeerUp(peer uint32) {
	if p := l.to(peer); p != nil {
		l.log.Info("peer up", "peer", p.name)
		p.mail.Up()
	}
}

// PeerDown implements cmlink.Handler.
func (l *links) PeerDown(peer uint32, reason error) {
	p := l.to(peer)
	if p == nil {
		return
	}
	l.log.Info("peer down", "peer", p.name, "reason", reason)
	if errors.Is(reason, cmlink.ErrRevoked) {
		p.mail.Revoked()
		return
	}
	p.mail.Down()
}

// PeerRevoked implements cmlink.Handler.
func (l *links) PeerRevoked(peer uint32) {
	if p := l.to(peer); p != nil {
		l.log.Info("peer revoked while it is down", "peer", p.name)
		p.mail.Revoked()
	}
}

// Message implements cmlink.Handler.
func (l *links) Message(peer uint32, msg []byte) {
	if p := l.to(peer); p != nil {
		p.mail.Message(msg)
	}
}
