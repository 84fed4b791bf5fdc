package cmlink

import (
	"log/slog"
	"time"
)

// Handler receives the events of the links. The package comment defines the order of the calls.
type Handler interface {
	PeerUp(peer uint32)
	PeerDown(peer uint32, reason error)
	// PeerRevoked tells that a peer which is down had a certificate that is revoked now. Of a peer that is up
	// PeerDown tells it, with ErrRevoked.
	PeerRevoked(peer uint32)
	// Message delivers msg, which the handler owns.
	Message(peer uint32, msg []byte)
}

// Peer is a NIC that the Link stays connected to.
type Peer struct {
	ID       uint32 // the caller's number for it
	Name     string // in its certificate
	Addr     string // "address:port" it listens on; "": it can only dial us
	Identity string // URI expected; "": URI(our domain, Name)
}

// Config is the configuration of a Link. Zero durations and sizes mean the default.
type Config struct {
	Listen   string // "address:port"; "": this NIC dials all peers, and none dials it
	Identity *Identity
	Peers    []Peer
	Farewell []byte       // last message to a peer that is removed, or whose certificate is revoked; nil: none
	Log      *slog.Logger // nil: none

	Keepalive  time.Duration    // a keepalive is sent after this much silence; three times as long without any frame ends the connection; default 2 s
	Handshake  time.Duration    // bound on TCP connect and TLS handshake; default 5 s
	Hello      time.Duration    // bound on the time until a dialing peer has sent its ClientHello; default 1 s
	Patience   time.Duration    // after this time without a connection from a peer whose name comes first, this NIC dials; default 10 s
	BackoffMin time.Duration    // wait before dialing again, doubled each time up to BackoffMax, ±50 %; default 100 ms
	BackoffMax time.Duration    // default 5 s
	Revoked    time.Duration    // time between two looks at the list of revoked certificates; default 500 ms
	Clock      func() time.Time // this NIC's clock, which peers are told; default time.Now
	Queue      int              // messages waiting to be sent to one peer; default 16384
}

func (c *Config) defaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&c.Keepalive, 2*time.Second)
	def(&c.Handshake, 5*time.Second)
	def(&c.Hello, time.Second)
	def(&c.Patience, 10*time.Second)
	def(&c.BackoffMin, 100*time.Millisecond)
	def(&c.BackoffMax, 5*time.Second)
	def(&c.Revoked, 500*time.Millisecond)
	if c.Queue <= 0 {
		c.Queue = 16384
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}
