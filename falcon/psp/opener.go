package psp

import "encoding/binary"

// Opener opens what peers sealed with the SPIs of a database. It belongs to one goroutine, and may
// be used while the database's goroutine changes that. The packets of an SA of class gateway must
// all come to the same Opener: that has their replay window.
type Opener struct {
	db     *RxSADB
	recent *rxSA // of the last packet
}

// Opener returns another one of the database.
func (d *RxSADB) Opener() *Opener { return &Opener{db: d} }

// Generation returns the global SPI generation for Guard.Check.
func (o *Opener) Generation() Generation { return o.db.Generation() }

// Open verifies and decrypts a PSP packet in place; b reaches from the PSP header to the ICV and is
// lost when opening fails. It returns the header, the header's length, and what lies between header
// and ICV (a part of b). Errors: class ErrMalformed, ErrUnknownSPI, ErrVersion, ErrAuth, and
// ErrReplay in the gateway class.
func (o *Opener) Open(b []byte) (hdr Header, off int, clear []byte, err error) {
	hdr, off, err = ParseHeader(b)
	if err != nil {
		return Header{}, 0, nil, err
	}
	if len(b) < off+ICVLen {
		return Header{}, 0, nil, errShort
	}
	s := o.recent
	if s == nil || s.spi != hdr.SPI || s.ended.Load() {
		if s = o.db.sas.find(hdr.SPI); s == nil {
			return Header{}, 0, nil, ErrUnknownSPI
		}
		o.recent = s
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
