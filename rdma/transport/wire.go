package transport

import "github.com/falcon-vnic/vnic/internal/tape"

// Kind describes a kind of wire: what a wire brings with it. Package rdma lists all kinds.
type Kind struct {
	Name string // for the configuration and operators
	New  func(Host, Options) Wire

	// Of a Network only:
	Takes     Claim
	Groups    bool               // ports take packets to multicast groups too
	MaxPacket int                // bytes of the longest IP packet
	Head      func(b []byte) int // length of the headers behind UDP's, which begin b
	// Cut returns what follows a stream of the peer to tell headers from payload: it returns the length of the first
	// piece of what comes next, and how many bytes at its beginning are no payload. Of Streams only.
	Cut      func() func(b []byte) (n, head int)
	Counters []Counter

	// Of a wire that can be the only one of a function (rdma.transport), by package abi's features:
	Features uint64 // what its drivers are offered beside what all are
	Without  uint64 // what they are not offered
	RCOnly   bool   // queue pairs are RC: the wire has no others
}

// IsNetwork reports whether the wires of this kind are Networks.
func (k *Kind) IsNetwork() bool { return k.Takes != Claim{} }

// Claim names the IP packets for a function's address that belong to a wire and not to the guest
// behind the function's port.
type Claim struct {
	Protocol uint8  // of IP
	Port     uint16 // destination
}

// Counter is one of the counters of a Network's ports.
type Counter struct {
	Name, Help string
	Of         func(*PortStats) uint64
}

// Options holds what the configuration sets of wires. Each wire takes what concerns it; zero values
// mean its defaults.
type Options struct {
	Congestion string     // name of an algorithm of congestion control, which was checked
	Tape       *tape.Tape // passes whether checksums of payload are right; may be nil
}

// Wire is one kind of transport in an engine, with what the engine needs for all its connections
// together. Each wire has its own way to open connections; the code that opens them assigns them to
// queue pairs.
type Wire interface {
	// CreditsChanged reports that a queue pair does not need credit that it was offered, or that
	// credit was returned elsewhere. Connections that wait for credit may try again.
	CreditsChanged()
}

// Driven is a wire that the engine itself drives.
type Driven interface {
	Wire
	// Run does the work that is possible now. It reports whether there is work left for Run at
	// once.
	Run(now Time) (more bool)
	// Ready reports whether Run has work now. Deadline returns when it has work next.
	Ready() bool
	Deadline() Time
}

// Host is the engine that a wire is part of.
type Host interface {
	// CreditsChanged tells all wires that credit was returned.
	CreditsChanged()
}
