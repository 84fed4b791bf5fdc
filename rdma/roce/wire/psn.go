package wire

// PSN is a packet sequence number of 24 bits, which wraps to 0 (IBA §9.7.1).
type PSN uint32

// PSNMask keeps the 24 bits of a PSN.
const PSNMask = 1<<24 - 1

// Add returns p+n modulo 2^24; n may be negative.
func (p PSN) Add(n int) PSN { return (p + PSN(n)) & PSNMask }

// Sub returns p−from modulo 2^24, as a number from −2^23 to 2^23−1.
func (p PSN) Sub(from PSN) int { return int(int32(uint32(p-from)<<8) >> 8) }
