package scenario

import (
	"fmt"
	"strconv"
	"strings"
)

// Bytes is an amount of buffer: a number of bytes, or a multiple of the bandwidth-delay product of
// a link.
type Bytes struct {
	n   int64
	bdp float64
}

// UnmarshalText reads 65536, 64K (1024 bytes), 2M or 6BDP.
func (s *Bytes) UnmarshalText(b []byte) error {
	text := string(b)
	if t, ok := strings.CutSuffix(text, "BDP"); ok {
		v, err := strconv.ParseFloat(strings.TrimSpace(t), 64)
		if err != nil || !(v >= 0 && v <= 1e6) {
			return fmt.Errorf("%q is not a buffer; write it as 64K, or as 6BDP for six bandwidth-delay products", b)
		}
		*s = Bytes{bdp: v}
		return nil
	}
	unit := int64(1)
	for suffix, v := range map[string]int64{"K": 1 << 10, "M": 1 << 20, "G": 1 << 30} {
		if t, ok := strings.CutSuffix(text, suffix); ok {
			text, unit = t, v
			break
		}
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil || v < 0 || v > 1<<40/unit {
		return fmt.Errorf("%q is not a buffer; write bytes as 65536 or 64K, or 6BDP for six bandwidth-delay products", b)
	}
	*s = Bytes{n: v * unit}
	return nil
}

func (s Bytes) of(bdp float64) int { return int(s.n) + int(s.bdp*bdp) }
