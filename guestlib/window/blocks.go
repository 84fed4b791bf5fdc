package window

import (
	"errors"
	"fmt"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/control"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// ErrNone says that the guest has no window of that function.
var ErrNone = errors.New("no window of this function among the PCI devices")

// AnyFunction is a function number that matches any function.
const AnyFunction = abi.FunctionAssigned

// maxCaps is the largest number of capabilities. No device has as many. Offsets in the chain must
// ascend.
const maxCaps = 64

// block is the position of a structure in a window.
type block struct{ offset, length uint64 }

func (b block) of(m []byte) []byte { return m[b.offset:][:b.length] }

// blocks holds the positions of the structures that the driver uses.
type blocks struct {
	bells   block
	control block   // length 0: none
	events  []block // by vector, from 1
}

// inUse reports whether a driver is using the control block.
func (f *blocks) inUse(m []byte) bool {
	b := ring.Mem(f.control.of(m))
	open, _ := b.Load32(abi.ControlHeaderOpen)
	opened, _ := b.Load32(abi.ControlHeaderOpened)
	return open != 0 && open == opened
}

// means reports whether the function number asked for matches number. A host number of 0 means the
// NIC's own host.
func means(asked, number uint32) bool {
	const host = 0xff << 16
	return asked == AnyFunction || asked == number || asked&host == 0 && asked == number&^host
}

// findBlocks checks that a window belongs to function, and follows its capability chain.
func findBlocks(m []byte, function uint32) (found blocks, err error) {
	var h abi.WindowHeader
	h.Unmarshal(m)
	switch {
	case h.Magic != abi.Magic || !means(function, h.Function):
		return found, ErrNone
	case h.Major != abi.VersionMajor:
		return found, fmt.Errorf("it has ABI version %d, this driver %d", h.Major, abi.VersionMajor)
	case uint64(h.Length) > uint64(len(m)):
		return found, fmt.Errorf("it says it has %d bytes, and has %d", h.Length, len(m))
	}
	m = m[:h.Length]
	at := uint64(h.FirstCap)
	for range maxCaps {
		if at == 0 {
			if found.bells.length == 0 {
				return found, errors.New("it has no bell ring of a version known here")
			}
			return found, nil
		}
		if at+abi.CapabilitySize > uint64(len(m)) {
			return found, fmt.Errorf("a capability at %#x passes its end", at)
		}
		var c abi.Capability
		c.Unmarshal(m[at:])
		if err := found.take(m, &c); err != nil {
			return found, err
		}
		if c.Next != 0 && uint64(c.Next) <= at {
			break
		}
		at = uint64(c.Next)
	}
	return found, errors.New("its chain of capabilities does not end")
}

// take records a capability, if its kind is known here.
func (f *blocks) take(m []byte, c *abi.Capability) error {
	if c.Version != 1 {
		return nil
	}
	var size uint64
	switch c.Type {
	case abi.CapBells:
		size = ring.QueueLayout(abi.WindowBellsLog2, 4).Size()
	case abi.CapEvents:
		size = ring.QueueLayout(abi.WindowEventsLog2, 3).Size()
	case abi.CapControl:
		size = control.Size
	default:
		return nil
	}
	if c.Offset%64 != 0 || uint64(c.Length) < size || uint64(c.Offset)+uint64(c.Length) > uint64(len(m)) {
		return fmt.Errorf("a block of %s with %d bytes at %#x does not fit", c.Type, c.Length, c.Offset)
	}
	b := block{uint64(c.Offset), size}
	switch c.Type {
	case abi.CapEvents:
		f.events = append(f.events, b)
	case abi.CapControl:
		f.control = b
	default:
		f.bells = b
	}
	return nil
}
