package control

import (
	"errors"
	"fmt"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// Size is the size of a control block in bytes.
const Size = abi.WindowMessages + ringSize

const ringSize = ring.HeaderSize + abi.WindowMessageSize<<abi.WindowControlLog2

var layout = ring.QueueLayout(abi.WindowControlLog2, 8) // slots of 256 bytes

// block is a view of a control block.
type block struct{ mem ring.Mem }

func newBlock(b []byte) (block, error) {
	if len(b) < Size {
		return block{}, fmt.Errorf("control block of %d bytes, want %d", len(b), Size)
	}
	return block{ring.Mem(b[:Size])}, nil
}

func (b block) requests() ring.Mem { return b.mem[abi.WindowRequests:][:ringSize] }

func (b block) messages() ring.Mem { return b.mem[abi.WindowMessages:][:ringSize] }

// word and set access a word of the header, which is inside the block and aligned.
func (b block) word(off uint64) uint32 {
	v, _ := b.mem.Load32(off)
	return v
}

func (b block) set(off uint64, v uint32) { _ = b.mem.Store32(off, v) }

// errEnded means that the other side has ended the session.
var errEnded = errors.New("the session has ended")
