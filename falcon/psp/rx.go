package psp

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// PhaseBit is the bit of an SPI that selects the master key.
const PhaseBit = 1 << 31

// Errors of Open and Issue.
var (
	ErrUnknownSPI = errors.New("psp: unknown SPI")
	ErrVersion    = errors.New("psp: version is not the one the SPI was issued for")
	ErrFull       = errors.New("psp: too many SPIs in use")
	ErrExhausted  = errors.New("psp: all SPIs of this master key were issued, rotate it")
)

// ValidSPI tells whether spi may name an SA: 0 and 0x80000000 are reserved.
func ValidSPI(spi uint32) bool { return spi&^PhaseBit != 0 }

// Master holds a receiver's two master keys; the SPI's most significant bit selects one.
type Master struct{ Keys [2][32]byte }

// Generation is the receiver's global SPI state of Falcon §9.2.2.3.
type Generation struct {
	Current       uint32 // Global.CurrentSPIGen
	AllowPrevious bool   // Global.AllowPreviousSPIGen
}

// RxSADB issues SPIs with their keys and opens what peers sealed with them. One goroutine owns it.
type RxSADB struct {
	master Master
	phase  uint32 // 0 or 1: the master key under which SPIs are issued now
	next   [2]uint32
	gen    Generation
	sas    map[uint32]*rxSA
	recent *rxSA // of the last packet, nil after an SPI has ended
	limit  int
}

// rxSA is one issued SPI.
type rxSA struct {
	sealer
	spi    uint32
	class  Class
	owner  uint64
	replay ReplayWindow // of class gateway
}

// NewRxSADB returns an empty database that holds at most limit SPIs at a time.
func NewRxSADB(m Master, limit int) *RxSADB {
	return &RxSADB{master: m, next: [2]uint32{1, 1}, sas: make(map[uint32]*rxSA), limit: limit}
}

// Issue hands out a new SPI of the current phase and its key, for one peer to seal with. An SPI is
// never issued twice, not even after Forget or when its phase comes round again under a new master
// key.
func (d *RxSADB) Issue(version uint8, class Class) (spi uint32, key []byte, err error) {
	return d.IssueTo(version, class, 0)
}

// IssueTo is Issue with a number for the owner of the SPI, which comes back in the header of each
// packet.
func (d *RxSADB) IssueTo(version uint8, class Class, owner uint64) (spi uint32, key []byte, err error) {
	if len(d.sas) >= d.limit {
		return 0, nil, fmt.Errorf("%w: the limit is %d", ErrFull, d.limit)
	}
	if d.next[d.phase]&PhaseBit != 0 {
		return 0, nil, ErrExhausted
	}
	spi = d.phase<<31 | d.next[d.phase]
	key = DeriveKey(&d.master.Keys[d.phase], version, spi)
	s, err := newSealer(version, key)
	if err != nil {
		return 0, nil, err
	}
	d.next[d.phase]++
	d.sas[spi] = &rxSA{sealer: s, spi: spi, class: class, owner: owner}
	return spi, key, nil
}

// Forget closes an SPI: packets sealed with it are unknown from now on.
func (d *RxSADB) Forget(spi uint32) {
	delete(d.sas, spi)
	d.recent = nil
}

// Len returns the number of SPIs in use.
func (d *RxSADB) Len() int { return len(d.sas) }

// Generation returns the global SPI generation for Guard.Check.
func (d *RxSADB) Generation() Generation { return d.gen }

// Rotate makes key the new master key and switches to the other phase (Falcon §9.2.2.3 step 1).
// SPIs of the phase that is left stay valid as the previous generation until Retire or the next
// Rotate; those of the generation before end here.
func (d *RxSADB) Rotate(key *[32]byte) {
	d.Retire()
	d.phase ^= 1
	d.master.Keys[d.phase] = *key
	d.gen.Current++
	d.gen.AllowPrevious = true
}

// Retire ends the previous generation (Falcon §9.2.2.3 step 5): its SPIs become unknown and its
// master key is wiped.
func (d *RxSADB) Retire() {
	if d.gen.Current == 0 {
		return // nothing was rotated yet
	}
	d.gen.AllowPrevious = false
	old := d.phase ^ 1
	d.master.Keys[old] = [32]byte{}
	for spi := range d.sas {
		if spi>>31 == old {
			delete(d.sas, spi)
		}
	}
	d.recent = nil
}

// Open verifies and decrypts a PSP packet in place; b reaches from the PSP header to the ICV and is
// lost when opening fails. It returns the header, the header's length, and what lies between header
// and ICV (a part of b). Errors: class ErrMalformed, ErrUnknownSPI, ErrVersion, ErrAuth, and
// ErrReplay in the gateway class.
func (d *RxSADB) Open(b []byte) (hdr Header, off int, clear []byte, err error) {
	hdr, off, err = ParseHeader(b)
	if err != nil {
		return Header{}, 0, nil, err
	}
	if len(b) < off+ICVLen {
		return Header{}, 0, nil, errShort
	}
	s := d.recent
	if s == nil || s.spi != hdr.SPI {
		if s = d.sas[hdr.SPI]; s == nil {
			return Header{}, 0, nil, ErrUnknownSPI
		}
		d.recent = s
	}
	if s.version != hdr.Version {
		return Header{}, 0, nil, ErrVersion
	}
	if err := s.open(&hdr, b); err != nil {
		return Header{}, 0, nil, err
	}
	if s.class == ClassGateway && !s.replay.Accept(hdr.IV) {
		return Header{}, 0, nil, ErrReplay
	}
	hdr.Class, hdr.Owner = s.class, s.owner
	if hdr.HasVC { // it may have been encrypted
		hdr.VC = binary.BigEndian.Uint64(b[BaseLen:])
	}
	return hdr, off, b[off : len(b)-ICVLen], nil
}
