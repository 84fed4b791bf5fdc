package psp

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/internal/table"
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

// ValidSPI reports whether spi may be the SPI of an SA: 0 and 0x80000000 are reserved.
func ValidSPI(spi uint32) bool { return spi&^PhaseBit != 0 }

// Master holds a receiver's two master keys; the SPI's most significant bit selects one.
type Master struct{ Keys [2][32]byte }

// Generation is the receiver's global SPI state of Falcon §9.2.2.3.
type Generation struct {
	Current       uint32 // Global.CurrentSPIGen
	AllowPrevious bool   // Global.AllowPreviousSPIGen
}

// RxSADB issues SPIs with their keys. One goroutine owns it; the Openers that it returns belong to
// others.
type RxSADB struct {
	master  Master
	phase   uint32 // 0 or 1: the master key under which SPIs are issued now
	next    [2]uint32
	limit   int
	shards  int
	sas     *table.Table[uint32, *rxSA]
	current atomic.Uint64 // Generation, as Generation.word
}

// rxSA is one issued SPI.
type rxSA struct {
	sealer
	spi    uint32
	class  Class
	owner  uint64
	ended  atomic.Bool
	replay ReplayWindow // class gateway only; belongs to the Opener that its packets come to
}

// word encodes the generation in one number.
func (g Generation) word() uint64 {
	w := uint64(g.Current) << 1
	if g.AllowPrevious {
		w |= 1
	}
	return w
}

// NewRxSADB returns an empty database that holds at most limit SPIs at a time. shards is at least 1.
// An SPI belongs to shard SPI modulo shards.
func NewRxSADB(m Master, limit, shards int) *RxSADB {
	return &RxSADB{master: m, next: [2]uint32{1, 1}, sas: table.New[uint32, *rxSA](), limit: limit, shards: shards}
}

// Issue issues a new SPI of the current phase and its key, for one peer to seal with. An SPI is
// never issued twice, not even after Forget or when its phase is used again under a new master key.
func (d *RxSADB) Issue(version uint8, class Class) (spi uint32, key []byte, err error) {
	return d.IssueTo(version, class, 0, 0)
}

// IssueTo issues an SPI of the given shard, with a number for its owner, which Open returns in the
// header of each packet. The Opener of the shard opens the packets if the class is gateway.
func (d *RxSADB) IssueTo(version uint8, class Class, owner uint64, shard int) (spi uint32, key []byte, err error) {
	if d.sas.Len() >= d.limit {
		return 0, nil, fmt.Errorf("%w: the limit is %d", ErrFull, d.limit)
	}
	number := d.next[d.phase]
	for d.shardOf(d.phase<<31|number) != shard {
		number++
	}
	if number&PhaseBit != 0 {
		return 0, nil, ErrExhausted
	}
	spi = d.phase<<31 | number
	key = DeriveKey(&d.master.Keys[d.phase], version, spi)
	s, err := newSealer(version, key)
	if err != nil {
		return 0, nil, err
	}
	d.next[d.phase] = number + 1
	d.sas.Set(spi, &rxSA{sealer: s, spi: spi, class: class, owner: owner})
	return spi, key, nil
}

func (d *RxSADB) shardOf(spi uint32) int { return int(spi) % d.shards }

// Forget removes an SPI: packets sealed with it are unknown from now on.
func (d *RxSADB) Forget(spi uint32) {
	if sa, ok := d.sas.Find(spi); ok {
		d.sas.Delete(spi)
		sa.ended.Store(true) // for Openers that hold it
	}
}

// Len returns the number of SPIs in use.
func (d *RxSADB) Len() int { return d.sas.Len() }

// Generation implements Generations.
func (d *RxSADB) Generation() Generation {
	w := d.current.Load()
	return Generation{Current: uint32(w >> 1), AllowPrevious: w&1 != 0}
}

// Rotate makes key the new master key and switches to the other phase (Falcon §9.2.2.3 step 1).
// SPIs of the old phase stay valid as the previous generation until Retire or the next Rotate.
// Those of the generation before end now.
func (d *RxSADB) Rotate(key *[32]byte) {
	d.Retire()
	d.phase ^= 1
	d.master.Keys[d.phase] = *key
	d.current.Store(Generation{Current: d.Generation().Current + 1, AllowPrevious: true}.word())
}

// Retire ends the previous generation (Falcon §9.2.2.3 step 5): its SPIs become unknown and its
// master key is erased.
func (d *RxSADB) Retire() {
	gen := d.Generation()
	if gen.Current == 0 {
		return // nothing was rotated yet
	}
	d.current.Store(Generation{Current: gen.Current}.word())
	old := d.phase ^ 1
	d.master.Keys[old] = [32]byte{}
	d.sas.Each(func(spi uint32, _ *rxSA) {
		if spi>>31 == old {
			d.Forget(spi)
		}
	})
}
