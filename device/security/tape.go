package security

import (
	"hash/crc32"

	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/psp"
	"github.com/falcon-vnic/vnic/internal/tape"
)

// No key is on a tape. What a packet held when it was opened is written, with its PSP header, and not
// how it came; a shard that plays opens nothing. It seals with keys of zeros, which takes the same
// bytes and the same IVs.

// UseTape makes a tape record what the opener opens. head returns how many bytes at the start of the
// plaintext are no payload.
func (o *Opener) UseTape(t *tape.Tape, head func(o *Opened) int) { o.tape, o.head = t, head }

// UseTape makes a tape record what connections accept.
func (t *TxSAs) UseTape(tape *tape.Tape) { t.tape = tape }

// PlayedOpener returns an opener that has no keys: it opens what a tape says.
func PlayedOpener(transport bool, t *tape.Tape) *Opener {
	return &Opener{psp: psp.NewRxSADB(psp.Master{}, 1, 1).Opener(0), encap: EncapOf(transport), tape: t}
}

// PlayedReceive returns what a connection that is played accepts: what its tape says.
func PlayedReceive(u Use) *Receive { return &Receive{rx: &rxSA{use: u}} }

// WithoutKey returns an SA with a key of zeros.
func WithoutKey(sa cm.SA) cm.SA {
	sa.Key = make([]byte, len(sa.Key))
	return sa
}

// openTaped passes what Open opens through the tape.
func (o *Opener) openTaped(sealed []byte) (*Opened, Refusal) {
	t := o.tape
	if t.Plays() {
		return o.play(sealed)
	}
	p, why := o.open(sealed)
	t.Ask(tape.Opened)
	t.PutUint(uint64(why))
	if p == nil {
		t.PutUint(0)
		return nil, why
	}
	h := &p.hdr
	t.PutUint(1)
	t.PutUint(h.Owner)
	t.PutUint(uint64(h.Class))
	t.PutUint(uint64(h.NextHeader) | uint64(h.Version)<<8 | uint64(h.CryptOffset)<<16 | flags(h)<<24)
	t.PutUint(uint64(h.SPI))
	t.PutUint(h.IV)
	t.PutUint(h.VC)
	t.PutPart(p.clear, o.head(p))
	return p, why
}

func flags(h *psp.Header) (f uint64) {
	for i, b := range [...]bool{h.Sample, h.Drop, h.HasVC} {
		if b {
			f |= 1 << i
		}
	}
	return f
}

// readOpened reads what openTaped wrote. clear is nil if nothing was opened.
func readOpened(t *tape.Tape) (h psp.Header, clear []byte, why Refusal) {
	why = min(Refusal(t.Uint()), Refusals-1)
	if t.Uint() == 0 {
		return h, nil, why
	}
	h = psp.Header{Owner: t.Uint(), Class: psp.Class(t.Uint())}
	v := t.Uint()
	h.NextHeader, h.Version, h.CryptOffset = uint8(v), uint8(v>>8), uint8(v>>16)
	h.Sample, h.Drop, h.HasVC = v>>24&1 != 0, v>>25&1 != 0, v>>26&1 != 0
	h.SPI, h.IV, h.VC = uint32(t.Uint()), t.Uint(), t.Uint()
	return h, t.GetPart(), why
}

// ListOpened reads from a tape the use and the content of a packet that was opened; nil: it was not.
func ListOpened(t *tape.Tape) (u Use, clear []byte, why Refusal) {
	h, clear, why := readOpened(t)
	return useOf(h.Owner, cm.Class(h.Class)), clear, why
}

func (o *Opener) play(sealed []byte) (*Opened, Refusal) {
	t := o.tape
	t.Place(0, uint64(crc32.ChecksumIEEE(sealed)), uint64(len(sealed))) // its head has an IV of its own
	t.Ask(tape.Opened)
	h, clear, why := readOpened(t)
	if clear == nil {
		return nil, why
	}
	at := len(sealed) - psp.ICVLen - len(clear)
	if at < 0 {
		t.Differs("the recording has a packet that does not fit into its frame")
	}
	in := sealed[at : len(sealed)-psp.ICVLen]
	copy(in, clear)
	p := &o.opened
	*p = Opened{Use: useOf(h.Owner, cm.Class(h.Class)), hdr: h, sealed: sealed, clear: in, by: o.psp}
	if p.Use.Class == cm.ClassFalcon {
		o.encap.unwrap(p)
	}
	return p, why
}

// checkTaped passes through the tape whether a connection accepts a packet.
func (x *Session) checkTaped(t *tape.Tape, o *Opened) (newest bool, why Refusal) {
	v := uint64(0)
	if !t.Plays() {
		newest, why = x.check(o)
		v = uint64(why) << 1
		if newest {
			v |= 1
		}
	}
	v = t.Number(tape.Checked, v)
	return v&1 != 0, min(Refusal(v>>1), Refusals-1)
}
