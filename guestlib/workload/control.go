package workload

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/falcon-vnic/vnic/guestlib"
)

// Control messages.
const (
	msgBegin   = 1 // from the driver: prepare the round
	msgReady   = 2 // from the server: the round is prepared
	msgCheck   = 3 // from the driver: the round's operations are done
	msgVerdict = 4 // from the server: the result of the comparison
	msgBye     = 5 // from the driver: no further rounds
)

// controlSize is the size of every control message in bytes.
const controlSize = 128

const maxProblem = controlSize - 36

// control is a control message. All fields but problem describe a round.
type control struct {
	kind  uint8
	op    guestlib.Opcode
	size  uint32
	first uint32 // iteration
	count uint32 // iterations
	seed  uint64
	qpn   uint32 // special operations: of the sender's queue pair
	srqn  uint32 // and of its SRQ
	key   uint32 // and of its window
	// problem is the verdict: "" if everything is correct.
	problem string
}

func (c *control) marshal() []byte {
	b := make([]byte, controlSize)
	b[0], b[1] = c.kind, byte(c.op)
	binary.LittleEndian.PutUint32(b[4:], c.size)
	binary.LittleEndian.PutUint32(b[8:], c.first)
	binary.LittleEndian.PutUint32(b[12:], c.count)
	binary.LittleEndian.PutUint64(b[16:], c.seed)
	binary.LittleEndian.PutUint32(b[24:], c.qpn)
	binary.LittleEndian.PutUint32(b[28:], c.srqn)
	binary.LittleEndian.PutUint32(b[32:], c.key)
	copy(b[36:], c.problem)
	return b
}

func (c *control) unmarshal(b []byte) error {
	if len(b) != controlSize {
		return fmt.Errorf("control message of %d bytes, want %d", len(b), controlSize)
	}
	text, _, _ := strings.Cut(string(b[36:]), "\x00")
	*c = control{
		kind: b[0], op: guestlib.Opcode(b[1]), size: binary.LittleEndian.Uint32(b[4:]), first: binary.LittleEndian.Uint32(b[8:]),
		count: binary.LittleEndian.Uint32(b[12:]), seed: binary.LittleEndian.Uint64(b[16:]),
		qpn: binary.LittleEndian.Uint32(b[24:]), srqn: binary.LittleEndian.Uint32(b[28:]), key: binary.LittleEndian.Uint32(b[32:]), problem: text,
	}
	return nil
}

// welcome is the private data of an accepted connection: the server's memory.
type welcome struct {
	addr uint64
	rkey uint32
	data uint32 // bytes for slots
}

const (
	welcomeMagic = "vnicwork"
	welcomeSize  = 24
)

func (w *welcome) marshal() []byte {
	b := append(make([]byte, 0, welcomeSize), welcomeMagic...)
	b = binary.LittleEndian.AppendUint64(b, w.addr)
	b = binary.LittleEndian.AppendUint32(b, w.rkey)
	return binary.LittleEndian.AppendUint32(b, w.data)
}

func (w *welcome) unmarshal(b []byte) error {
	if len(b) < welcomeSize || string(b[:8]) != welcomeMagic {
		return fmt.Errorf("the peer at this service is not a workload: its private data is %q", b)
	}
	w.addr, w.rkey, w.data = binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint32(b[16:]), binary.LittleEndian.Uint32(b[20:])
	return nil
}
