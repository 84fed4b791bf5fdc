package rue

// EntryLen is the size of an event and of a result, in bytes.
const EntryLen = 64

// codec traverses the fields of an entry and either writes or reads them, so that each format is
// described once.
type codec struct {
	b    []byte
	bit  uint
	read bool
}

// field processes the next width bits, at most 32. A value that is too large is cut.
func field[T ~uint8 | ~uint16 | ~uint32](c *codec, v *T, width uint) {
	var got uint32
	for done := uint(0); done < width; {
		i, at := c.bit>>3, c.bit&7
		n := min(8-at, width-done)
		mask := byte(1<<n - 1)
		if c.read {
			got |= uint32(c.b[i]>>at&mask) << done
		} else {
			c.b[i] |= (byte(uint32(*v)>>done) & mask) << at
		}
		c.bit += n
		done += n
	}
	if c.read {
		*v = T(got)
	}
}

// flag processes the next bit.
func flag(c *codec, v *bool) {
	var n uint8
	if *v {
		n = 1
	}
	field(c, &n, 1)
	*v = n != 0
}

// reserved skips width bits, which stay 0.
func (c *codec) reserved(width uint) { c.bit += width }
