package psp

import (
	"errors"
	"sync/atomic"
)

// Reasons why a Guard refuses an authentic packet. A refused packet is dropped without ACK or NACK.
var (
	ErrReplay = errors.New("psp: older than the replay margin allows")
	ErrSPI    = errors.New("psp: SPI is not one of this connection")
	ErrPCID   = errors.New("psp: virtualization cookie is not the connection's PCID")
)

// AssociationConfig holds what the connections of an Association have in common.
type AssociationConfig struct {
	SPI        uint32
	Generation uint32 // RxSADB.Generation().Current when SPI was issued
	PCID       uint64 // expected virtualization cookie
	AnyPCID    bool   // do not match the PCID (transport mode)
	Margin     int64  // replay margin, nanoseconds
}

// Association is the receive side of all connections that one key protects: the SPIs that it
// accepts and what is known of the peer's clock (Falcon §9.2.2.2, §9.2.2.3). One goroutine changes
// it. The guards of its connections, on any goroutine, see each change at their next packet, so a
// rekey costs the same for one connection as for many.
type Association struct {
	pcid    uint64
	anyPCID bool
	margin  uint64 // picoseconds
	terms   atomic.Pointer[terms]

	heard  uint64 // the peer's clock when it was last reported, picoseconds
	passed uint64 // how far it has moved since the first report, in passedUnit; it does not wrap
	told   bool   // heard is known
}

// terms holds what an association accepts. Terms are replaced, never changed.
type terms struct {
	current, previous uint32
	generation        uint32
	times             uint32 // how often AdvanceRemoteTime was called
	remote            uint64 // the peer's clock as reported by the last call
	passed            uint64
}

const (
	passedUnit = 1 << 32              // picoseconds, 4 ms
	turnedAt   = 1 << 62 / passedUnit // 53 days: IVs farther apart cannot be ordered
)

// NewAssociation returns an association that accepts the SPI that was just issued.
func NewAssociation(cfg AssociationConfig) *Association {
	a := &Association{pcid: cfg.PCID, anyPCID: cfg.AnyPCID, margin: uint64(cfg.Margin) * 1000}
	a.terms.Store(&terms{current: cfg.SPI, generation: cfg.Generation})
	return a
}

// Rekey makes spi, issued in the given generation, the current SPI. The one before stays valid as
// the previous SPI (§9.2.2.3 step 2).
func (a *Association) Rekey(spi, generation uint32) {
	t := *a.terms.Load()
	t.previous, t.current, t.generation = t.current, spi, generation
	a.terms.Store(&t)
}

// DropPrevious ends the previous SPI. It is called when the peer uses the new one (§9.2.2.3 step
// 4).
func (a *Association) DropPrevious() {
	t := *a.terms.Load()
	t.previous = t.current
	a.terms.Store(&t)
}

// AdvanceRemoteTime moves the estimate of the peer's clock forward to ps picoseconds. The
// connection manager must call it at a rekey (§9.2.2.2). Otherwise the peer's clock could wrap
// while a connection is idle for long.
func (a *Association) AdvanceRemoteTime(ps uint64) {
	a.hear(ps)
	t := *a.terms.Load()
	t.remote, t.passed = ps, a.passed
	t.times++
	a.terms.Store(&t)
}

// hear records a report of the peer's clock.
func (a *Association) hear(ps uint64) {
	if d := ps - a.heard; a.told && int64(d) > 0 {
		a.passed += d / passedUnit
	} else if a.told {
		return
	}
	a.heard, a.told = ps, true
}

// SPI returns the current and the previous SPI.
func (a *Association) SPI() (current, previous uint32) {
	t := a.terms.Load()
	return t.current, t.previous
}

// Guard returns the guard of a new connection, whose peer's clock was remoteTime picoseconds a
// moment ago.
func (a *Association) Guard(remoteTime uint64) Guard {
	a.hear(remoteTime)
	return Guard{of: a, seen: a.terms.Load(), remote: remoteTime, passed: a.passed}
}

// Guard performs the SPI, replay and PCID checks of one connection (Falcon §9.2.2.2, §9.2.2.3).
// Call Check after the packet was opened, so that everything it reads is authentic. A Guard belongs
// to the goroutine of its connection. The zero Guard refuses every packet.
type Guard struct {
	of     *Association
	seen   *terms
	remote uint64 // newest IV seen, picoseconds
	passed uint64 // Association.passed at a time when remote was right
}

// Generations returns the receiver's current global SPI state.
type Generations interface{ Generation() Generation }

// Check returns nil if it accepts the packet, and then advances the remote time. Otherwise it
// returns the reason to drop the packet: ErrPCID, ErrSPI or ErrReplay.
func (g *Guard) Check(h *Header, global Generations) error {
	if g.of == nil {
		return ErrSPI
	}
	t := g.follow()
	gen := global.Generation() // read after the terms, because a rotation changes it before them
	switch {
	case !g.of.anyPCID && (!h.HasVC || h.VC != g.of.pcid):
		return ErrPCID
	case !t.accept(h.SPI, gen):
		return ErrSPI
	case int64(h.IV-(g.remote-g.of.margin)) <= 0: // modulo arithmetic, as TCP PAWS
		return ErrReplay
	}
	g.remote = later(h.IV, g.remote)
	return nil
}

// later returns the later of two times that are less than half of the IV's range apart.
func later(a, b uint64) uint64 {
	if int64(a-b) > 0 {
		return a
	}
	return b
}

// follow applies what the peer has reported of its clock since the last packet. If that packet was
// months ago, the clock may have moved by more than half of its range, and modulo arithmetic would
// see it go back.
func (g *Guard) follow() *terms {
	t := g.of.terms.Load()
	if t == g.seen {
		return t
	}
	if t.times != g.seen.times {
		if int64(t.remote-g.remote) > 0 || t.passed-g.passed >= turnedAt {
			g.remote = t.remote
		}
		g.passed = t.passed
	}
	g.seen = t
	return t
}

// accept implements PacketPassesSPICheck of Falcon §9.2.2.3.
func (t *terms) accept(spi uint32, gen Generation) bool {
	if t.current == 0 { // not configured
		return false
	}
	inGeneration := t.generation == gen.Current || gen.AllowPrevious && t.generation == gen.Current-1
	if spi == t.current {
		return inGeneration
	}
	if spi != t.previous || t.previous == 0 {
		return false
	}
	if (t.current^t.previous)&PhaseBit == 0 { // same phase: the previous SPI has the generation of the current one
		return inGeneration
	}
	return gen.AllowPrevious && t.generation == gen.Current
}

// RemoteTime returns, in picoseconds, the newest IV accepted or what the peer has reported of its
// clock since.
func (g *Guard) RemoteTime() uint64 {
	if g.of != nil {
		g.follow()
	}
	return g.remote
}

// SPI returns the current and the previous SPI.
func (g *Guard) SPI() (current, previous uint32) {
	if g.of == nil {
		return 0, 0
	}
	return g.of.SPI()
}
