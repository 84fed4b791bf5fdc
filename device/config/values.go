package config

import (
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
)

// MAC is an Ethernet address; the zero value means "derive it" (macs.go).
type MAC [6]byte

// IsZero reports whether no address was given.
func (m MAC) IsZero() bool { return m == MAC{} }

func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// UnmarshalText reads the form 02:56:4e:00:00:01. It refuses multicast addresses, which a port
// cannot have.
func (m *MAC) UnmarshalText(b []byte) error {
	hw, err := net.ParseMAC(string(b))
	if err != nil || len(hw) != 6 {
		return fmt.Errorf("%q is not a MAC address; write it as 02:56:4e:00:00:01", b)
	}
	if hw[0]&1 != 0 {
		return fmt.Errorf("%q is a multicast address; clear the lowest bit of its first byte", b)
	}
	copy(m[:], hw)
	if m.IsZero() {
		return fmt.Errorf("%q is the all-zero address; leave the key out to have one derived", b)
	}
	return nil
}

// Size is a number of bytes, written as a plain number or with the suffix
// K, M or G (powers of 1024).
type Size uint64

// UnmarshalText reads 65536, 64K, 512M or 2G.
func (s *Size) UnmarshalText(b []byte) error {
	text := strings.TrimSpace(string(b))
	shift := 0
	if n := len(text); n > 0 {
		switch text[n-1] {
		case 'K', 'k':
			shift = 10
		case 'M', 'm':
			shift = 20
		case 'G', 'g':
			shift = 30
		}
		if shift > 0 {
			text = text[:n-1]
		}
	}
	v, err := strconv.ParseUint(text, 0, 64)
	if err != nil || v > 1<<62>>shift {
		return fmt.Errorf("%q is not a size; write a number of bytes, or 64K, 512M, 2G", b)
	}
	*s = Size(v << shift)
	return nil
}

func (s Size) String() string {
	for _, u := range []struct {
		shift  int
		suffix string
	}{{30, "G"}, {20, "M"}, {10, "K"}} {
		if s > 0 && s&(1<<u.shift-1) == 0 {
			return strconv.FormatUint(uint64(s>>u.shift), 10) + u.suffix
		}
	}
	return strconv.FormatUint(uint64(s), 10)
}

// Rate is in bits per second, written with a decimal suffix: 100G.
type Rate int64

// UnmarshalText reads 100G, 400M or a plain number of bits per second.
func (r *Rate) UnmarshalText(b []byte) error {
	text, unit := strings.TrimSpace(string(b)), 1.0
	for suffix, v := range map[string]float64{"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12} {
		if t, ok := strings.CutSuffix(text, suffix); ok {
			text, unit = t, v
			break
		}
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v >= 0 && v*unit <= 1e15) {
		return fmt.Errorf("%q is not a rate; write bits per second as 100G or 400M", b)
	}
	*r = Rate(math.Round(v * unit)) // 1.001K is 1001, not a float below it
	return nil
}

// String writes the rate as UnmarshalText reads it.
func (r Rate) String() string {
	for _, u := range []struct {
		unit   Rate
		suffix string
	}{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "K"}} {
		if r >= u.unit && r%(u.unit/1000) == 0 {
			return strconv.FormatFloat(float64(r)/float64(u.unit), 'f', -1, 64) + u.suffix
		}
	}
	return strconv.FormatInt(int64(r), 10)
}

// Share is a probability from 0 to 1, written as 0.01 or 1%.
type Share float64

// UnmarshalText reads 0.01 or 1%.
func (s *Share) UnmarshalText(b []byte) error {
	text, percent := strings.CutSuffix(strings.TrimSpace(string(b)), "%")
	v, err := strconv.ParseFloat(text, 64)
	if percent {
		v /= 100
	}
	if err != nil || !(v >= 0 && v <= 1) {
		return fmt.Errorf("%q is not a share of packets; write 0%% to 100%%, or 0 to 1", b)
	}
	*s = Share(v)
	return nil
}

// String writes the share in percent.
func (s Share) String() string { return strconv.FormatFloat(float64(s)*100, 'g', 6, 64) + "%" }

// PCIID is a PCI vendor or device id, written as 0x1af4.
type PCIID uint16

// UnmarshalText reads 0x1af4, or a number in another base that Go accepts.
func (p *PCIID) UnmarshalText(b []byte) error {
	n, err := strconv.ParseUint(string(b), 0, 16)
	if err != nil {
		return fmt.Errorf("%q is not a PCI id; write it as 0x1af4", b)
	}
	*p = PCIID(n)
	return nil
}

// String writes the id as UnmarshalText reads it.
func (p PCIID) String() string { return fmt.Sprintf("0x%04x", uint16(p)) }

// set sets a value that was left out to its default.
func set[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

func ptr[T any](v T) *T { return &v }
