package wire

// PSN is a packet sequence number: 24 bits, the next after the last being 0 (IBA §9.7.1).
type PSN uint32

// PSNMask keeps the 24 bits of a PSN.
const PSNMask = 1<<24 - 1

// Add is the number n behind p; n may be negative.
func (p PSN) Add(n int) PSN { return (p + PSN(n)) & PSNMask }

// Sub is how far p is behind from, between -2^23 and 2^23-1.
func (p PSN) Sub(from PSN) int { return int(int32(uint32(p-from)<<8) >> 8) }
