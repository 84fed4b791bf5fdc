package pfvf

import (
	"fmt"
	"strconv"
	"strings"
)

// ID is the number of a function: host 8 | PF 4 | VF 12 bits. VF 0 is the PF
// itself.
type ID uint32

// Maximum values of the parts of an ID.
const (
	MaxHost = 1<<8 - 1
	MaxPF   = 1<<4 - 1
	MaxVF   = 1<<12 - 1
	MaxID   = 1<<24 - 1
)

// NewID returns the ID with these parts. A part out of range is an error.
func NewID(host, pf, vf uint32) (ID, error) {
	switch {
	case host > MaxHost:
		return 0, fmt.Errorf("host %d: use 0 to %d", host, MaxHost)
	case pf > MaxPF:
		return 0, fmt.Errorf("PF %d: use 0 to %d", pf, MaxPF)
	case vf > MaxVF:
		return 0, fmt.Errorf("VF %d: use 0 to %d", vf, MaxVF)
	}
	return ID(host<<16 | pf<<12 | vf), nil
}

// Host returns the host part.
func (id ID) Host() uint8 { return uint8(id >> 16) }

// PF returns the PF part, 4 bits.
func (id ID) PF() uint8 { return uint8(id>>12) & MaxPF }

// VF returns the VF part, 12 bits; 0 for the PF itself.
func (id ID) VF() uint16 { return uint16(id) & MaxVF }

// IsVF reports whether id names a VF.
func (id ID) IsVF() bool { return id.VF() != 0 }

// Parent returns the PF of a VF, and the ID itself for a PF.
func (id ID) Parent() ID { return id &^ MaxVF }

// String returns the form "h1.pf0.vf2", or "h1.pf0" for a PF.
func (id ID) String() string {
	if !id.IsVF() {
		return fmt.Sprintf("h%d.pf%d", id.Host(), id.PF())
	}
	return fmt.Sprintf("h%d.pf%d.vf%d", id.Host(), id.PF(), id.VF())
}

// ParseID reads the form that String writes; ".vf0" is accepted too.
func ParseID(s string) (ID, error) {
	parts := strings.Split(s, ".")
	if len(parts) < 2 || len(parts) > 3 {
		return 0, badID(s)
	}
	var n [3]uint32
	for i, prefix := range []string{"h", "pf", "vf"}[:len(parts)] {
		digits, ok := strings.CutPrefix(parts[i], prefix)
		if !ok {
			return 0, badID(s)
		}
		v, err := strconv.ParseUint(digits, 10, 16)
		if err != nil || strconv.FormatUint(v, 10) != digits {
			return 0, badID(s)
		}
		n[i] = uint32(v)
	}
	id, err := NewID(n[0], n[1], n[2])
	if err != nil {
		return 0, fmt.Errorf("function %q: %w", s, err)
	}
	return id, nil
}

func badID(s string) error {
	return fmt.Errorf("function %q: write it as h1.pf0 or h1.pf0.vf2", s)
}
