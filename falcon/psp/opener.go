package psp

import "encoding/binary"

// Opener opens packets that peers sealed with the SPIs of a database. It belongs to one goroutine,
// and may be used while the database's goroutine changes the database. All packets of an SA of
// class gateway must come to one Opener, that of the SPI's shard, which has their replay window.
// Other Openers do not know the SPI.
type Opener struct {
	db     *RxSADB
	shard  int
	recent *rxSA  // SA of the last packet
	header Header // of the last packet
}

// Opener returns the opener of a shard.
func (d *RxSADB) Opener(shard int) *Opener { return &Opener{db: d, shard: shard} }

// Shard returns the shard whose Opener a packet must come to. ok is false if it may come to any,
// because it is not of class gateway or of no SA.
func (o *Opener) Shard(b []byte) (shard int, ok bool) {
	if len(b) < BaseLen {
		return 0, false
	}
	s := o.find(binary.BigEndian.Uint32(b[4:]))
	if s == nil || s.class != ClassGateway {
		return 0, false
	}
	return o.db.shardOf(s.spi), true
}

// find returns the SA of an SPI; if there is none, nil.
func (o *Opener) find(spi uint32) *rxSA {
	if s := o.recent; s != nil && s.spi == spi && !s.ended.Load() {
		return s
	}
	s, ok := o.db.sas.Find(spi)
	if ok {
		o.recent = s
	}
	return s
}

// Generation returns the global SPI generation.
func (o *Opener) Generation() Generation { return o.db.Generation() }

// Open verifies and decrypts a PSP packet in place. b reaches from the PSP header to the ICV and is
// lost if opening fails. It returns the header, which is valid until the next call, the header's
// length, and the part of b between header and ICV. Errors: class ErrMalformed, ErrUnknownSPI,
// ErrVersion, ErrAuth, and ErrReplay in the gateway class.
func (o *Opener) Open(b []byte) (hdr *Header, off int, clear []byte, err error) {
	hdr = &o.header
	off, err = hdr.parse(b)
	if err != nil {
		return nil, 0, nil, err
	}
	if len(b) < off+ICVLen {
		return nil, 0, nil, errShort
	}
	s := o.find(hdr.SPI)
	if s == nil || s.class == ClassGateway && o.db.shardOf(s.spi) != o.shard {
		return nil, 0, nil, ErrUnknownSPI
	}
	if s.version != hdr.Version {
		return nil, 0, nil, ErrVersion
	}
	if err := s.open(hdr, b); err != nil {
		return nil, 0, nil, err
	}
	if s.class == ClassGateway && !s.replay.Accept(hdr.IV) {
		return nil, 0, nil, ErrReplay
	}
	hdr.Class, hdr.Owner = s.class, s.owner
	if hdr.HasVC { // it may have been encrypted
		hdr.VC = binary.BigEndian.Uint64(b[BaseLen:])
	}
	return hdr, off, b[off : len(b)-ICVLen], nil
}
