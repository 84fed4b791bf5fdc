package iwarp

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/falcon-vnic/vnic/rdma/iwarp/wire"
)

// TestPayloadIsFoundInAStreamHoweverItIsCut: the data of WRITEs, SENDs and READ Responses is payload, and nothing
// else is but what covers it.
func TestPayloadIsFoundInAStreamHoweverItIsCut(t *testing.T) {
	const secret = 0xa5 // in no header
	var stream []byte
	f := wire.Frame{CRC: true, Revision: wire.Revision2, Private: []byte("private data")}
	stream = f.Append(stream)
	frame, payload := len(stream), 0
	fpdu := func(h wire.Header, n int, isPayload bool) {
		data := bytes.Repeat([]byte{secret}, n)
		u := append(h.Append(nil), data...)
		b := make([]byte, wire.FPDULen(len(u)))
		copy(b[wire.FPDUHeaderLen:], u)
		wire.PutFPDU(b, len(u), false)
		if stream = append(stream, b...); isPayload {
			payload += n
		}
	}
	kept := 0 // bytes of secret that are no payload
	for i := range 40 {
		fpdu(wire.Header{Opcode: wire.OpWrite, STag: 1, TO: 2}, i, true)
		fpdu(wire.Header{Opcode: wire.OpReadResponse, STag: 1, TO: 2}, i, true)
		fpdu(wire.Header{Opcode: wire.OpSendSEInv, MSN: 1}, i, true)
		fpdu(wire.Header{Opcode: wire.OpAtomicRequest, MSN: 1}, i, false)
		kept += i
	}
	for seed := range uint64(200) {
		dice, c, heads := rand.New(rand.NewPCG(seed, 0)), new(cutter), []byte(nil)
		for rest := stream; len(rest) > 0; {
			come := rest[:min(1+dice.IntN(1+dice.IntN(100)), len(rest))]
			rest = rest[len(come):]
			for len(come) > 0 {
				n, head := c.next(come)
				if n < 1 || n > len(come) || head > n {
					t.Fatalf("seed %d: a piece of %d bytes of %d, %d of them no payload", seed, n, len(come), head)
				}
				heads = append(heads, come[:head]...)
				come = come[n:]
			}
		}
		if !bytes.HasPrefix(heads, stream[:frame]) || bytes.Count(heads, []byte{secret}) != kept {
			t.Fatalf("seed %d: of %d bytes of payload and %d of others %d are kept", seed, payload, kept, bytes.Count(heads, []byte{secret}))
		}
	}
}
