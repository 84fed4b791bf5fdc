package device

import (
	"math/rand/v2"
	"testing"

	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// TestACommandIsChargedItsPageListEntries checks that the number of page list entries charged for a command matches the
// entries that its queue areas take, for any sizes.
func TestACommandIsChargedItsPageListEntries(t *testing.T) {
	area := func(l ring.Layout) int {
		span := queues.Span{Length: l.Size()}
		if span.Length > abi.QueueHeaderSize+1<<(abi.MaxQueueLog2+12) { // refused before it is read
			return 0
		}
		return span.Pages()
	}
	rng := rand.New(rand.NewPCG(5, 6))
	for range 10_000 {
		entries, stride, more := uint8(rng.Uint32()), uint8(rng.Uint32()), uint8(rng.Uint32())
		if rng.IntN(2) == 0 { // plausible sizes
			entries, stride, more = entries%20, stride%14, more%20
		}
		for _, c := range []struct {
			op     abi.AdminOp
			params interface{ Marshal([]byte) }
			want   int
		}{
			{abi.AdminOpCreateCQ, &abi.CreateCQ{Log2Entries: entries}, area(ring.CQLayout(entries))},
			{abi.AdminOpResizeCQ, &abi.ResizeCQ{Log2Entries: entries}, area(ring.CQLayout(entries))},
			{
				abi.AdminOpCreateQP, &abi.CreateQP{SQLog2Entries: entries, SQLog2Stride: stride, RQLog2Entries: more, RQLog2Stride: stride},
				area(ring.QueueLayout(entries, stride)) + area(ring.QueueLayout(more, stride)),
			},
			{abi.AdminOpCreateSRQ, &abi.CreateSRQ{Log2Entries: entries, Log2Stride: stride}, area(ring.QueueLayout(entries, stride))},
			{abi.AdminOpModifySRQ, &abi.ModifySRQ{Log2Entries: entries}, area(ring.QueueLayout(entries, 12))},
			{abi.AdminOpRegMR, &abi.RegMR{Length: 1 << 30}, 1}, // read in pieces
			{abi.AdminOpQueryQP, &abi.QueryQP{QPN: 1 << 31}, 1},
		} {
			cmd := abi.AdminCmd{Opcode: c.op}
			c.params.Marshal(cmd.Params[:])
			if got := cmd.Pages(); got != c.want {
				t.Fatalf("%s %+v: %d pages, want %d", c.op, c.params, got, c.want)
			}
		}
	}
}
