package roce_test

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// immediates keeps what SENDs bring.
type immediates struct {
	target
	imm []uint32
}

func (e *immediates) Complete(_ transport.Time, p *transport.Packet, _ uint64, _ abi.WCStatus) {
	e.imm = append(e.imm, p.Imm)
}

// TestImmediate: the four bytes of immediate data are on the wire as they are in the work request,
// and come to the peer so. The key of a SEND with invalidate is a number.
func TestImmediate(t *testing.T) {
	w := newWorld(1, false, 1500, sim.Impairment{Delay: 1000})
	a, b := w.connect(0), w.connect(1)
	to := &immediates{target: target{serving: true}}
	attach(t, a, &target{serving: true}, 17, 18)
	attach(t, b, to, 18, 17)
	var request abi.SendWQE
	var wqe [64]byte
	request.Marshal(wqe[:])
	copy(wqe[12:], []byte{1, 2, 3, 4})
	request.Unmarshal(wqe[:])
	var seen [][4]byte
	w.sees = func(from int, packet []byte) {
		if from == 0 {
			seen = append(seen, [4]byte(packet[20+8+wire.BTHLen:]))
		}
	}
	now := transport.Time(1e9)
	for _, op := range []abi.Opcode{abi.OpSendImm, abi.OpSendInv} {
		r := transport.Request{WQE: abi.SendWQE{Opcode: op, Imm: request.Imm}}
		if _, err := a.Issue(now, &r); err != nil {
			t.Fatal(err)
		}
		for r.Pending > 0 {
			now = max(now, w.step(now))
		}
	}
	if len(seen) != 2 || seen[0] != [4]byte{1, 2, 3, 4} || seen[1] != [4]byte{4, 3, 2, 1} {
		t.Errorf("on the wire: %v", seen)
	}
	if len(to.imm) != 2 || to.imm[0] != request.Imm || to.imm[1] != request.Imm {
		t.Errorf("the peer got %#x of %#x", to.imm, request.Imm)
	}
}
