package psp

import "errors"

// Reasons for a Guard to refuse an authentic packet. A refused packet is dropped without ACK or
// NACK.
var (
	ErrReplay = errors.New("psp: older than the replay margin allows")
	ErrSPI    = errors.New("psp: SPI is not one of this connection")
	ErrPCID   = errors.New("psp: virtualization cookie is not the connection's PCID")
)

// GuardConfig is what the connection manager agreed for the receive side of a connection.
type GuardConfig struct {
	SPI        uint32
	Previous   uint32 // SPI before it that the peer may still use; 0 for none
	Generation uint32 // RxSADB.Generation().Current when SPI was issued
	PCID       uint64 // expected virtualization cookie
	AnyPCID    bool   // do not match the PCID (transport mode)
	Margin     int64  // replay margin, nanoseconds
	RemoteTime uint64 // estimate of the peer's clock, picoseconds
}

// Guard holds one connection's SPI, replay and PCID checks (Falcon §9.2.2.2, §9.2.2.3). Check comes
// after the packet was opened, so everything it looks at is authentic.
type Guard struct {
	current, previous uint32
	generation        uint32
	pcid              uint64
	anyPCID           bool
	margin            uint64 // picoseconds
	remote            uint64 // newest IV seen, picoseconds
}

// NewGuard returns the guard of a connection. The zero Guard refuses every packet.
func NewGuard(cfg GuardConfig) Guard {
	return Guard{
		current: cfg.SPI, previous: cfg.Previous, generation: cfg.Generation, pcid: cfg.PCID, anyPCID: cfg.AnyPCID,
		margin: uint64(cfg.Margin) * 1000, remote: cfg.RemoteTime,
	}
}

// Check accepts the packet with a nil error and then moves the remote time, or names the reason to
// drop it: ErrPCID, ErrSPI, ErrReplay.
func (g *Guard) Check(h *Header, gen Generation) error {
	switch {
	case !g.anyPCID && (!h.HasVC || h.VC != g.pcid):
		return ErrPCID
	case !g.spiMatches(h.SPI, gen):
		return ErrSPI
	case int64(h.IV-(g.remote-g.margin)) <= 0: // modulo arithmetic, as TCP PAWS
		return ErrReplay
	}
	g.AdvanceRemoteTime(h.IV)
	return nil
}

// spiMatches is PacketPassesSPICheck of Falcon §9.2.2.3.
func (g *Guard) spiMatches(spi uint32, gen Generation) bool {
	if g.current == 0 { // not configured
		return false
	}
	inGeneration := g.generation == gen.Current || gen.AllowPrevious && g.generation == gen.Current-1
	if spi == g.current {
		return inGeneration
	}
	if spi != g.previous || g.previous == 0 {
		return false
	}
	if (g.current^g.previous)&PhaseBit == 0 { // same phase: the previous SPI has the generation of the current one
		return inGeneration
	}
	return gen.AllowPrevious && g.generation == gen.Current
}

// Rekey makes spi, issued in the given generation, the current SPI; the one before stays valid as
// previous SPI (§9.2.2.3 step 2).
func (g *Guard) Rekey(spi, generation uint32) {
	g.previous, g.current, g.generation = g.current, spi, generation
}

// DropPrevious ends the previous SPI, once the peer uses the new one (§9.2.2.3 step 4).
func (g *Guard) DropPrevious() { g.previous = g.current }

// AdvanceRemoteTime moves the estimate of the peer's clock forward to ps picoseconds, as the
// connection manager must at a rekey (§9.2.2.2): else a connection idle for long would find its
// peer's clock wrapped round.
func (g *Guard) AdvanceRemoteTime(ps uint64) {
	if int64(ps-g.remote) > 0 {
		g.remote = ps
	}
}

// RemoteTime returns the newest IV accepted, picoseconds.
func (g *Guard) RemoteTime() uint64 { return g.remote }

// SPI returns the current and the previous SPI.
func (g *Guard) SPI() (current, previous uint32) { return g.current, g.previous }
