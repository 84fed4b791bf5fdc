package vfiouser

import (
	"encoding/binary"
	"fmt"
)

// Flags of an IRQSet: the kind of data, and the action.
const (
	IRQDataNone    uint32 = 1 << 0
	IRQDataBool    uint32 = 1 << 1
	IRQDataEventfd uint32 = 1 << 2 // eventfds come with the message; if there are none, the old ones are removed
	IRQMask        uint32 = 1 << 3
	IRQUnmask      uint32 = 1 << 4
	IRQTrigger     uint32 = 1 << 5
)

const irqSetSize = 20

// IRQSet is the body of DEVICE_SET_IRQS. Data of one byte for each vector may follow it.
type IRQSet struct{ Flags, Index, Start, Count uint32 }

// Append appends the message's body.
func (s *IRQSet) Append(b []byte) []byte {
	for _, v := range [5]uint32{irqSetSize, s.Flags, s.Index, s.Start, s.Count} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

// ParseIRQSet parses the body of DEVICE_SET_IRQS.
func ParseIRQSet(b []byte) (s IRQSet, err error) {
	if len(b) < irqSetSize {
		return s, short("DEVICE_SET_IRQS", b, irqSetSize)
	}
	le := binary.LittleEndian
	s = IRQSet{le.Uint32(b[4:]), le.Uint32(b[8:]), le.Uint32(b[12:]), le.Uint32(b[16:])}
	if s.Start > 1<<16 || s.Count > 1<<16 { // MSI-X has at most 2048 vectors; with this limit sums cannot wrap
		return s, fmt.Errorf("vfio-user DEVICE_SET_IRQS: %d vectors from %d on", s.Count, s.Start)
	}
	return s, nil
}
