package rdma

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	rocewire "github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/verbs"
	"github.com/falcon-vnic/vnic/rdma/wire"
)

// The tests of this file check limits at their edge: what is exactly allowed passes, one more does
// not.

// TestEntryLimits: an entry with all the SGEs or inline bytes that CreateQP announced is valid and
// breaks no clause; one more does. (DRV-608)
func TestEntryLimits(t *testing.T) {
	for name, c := range map[string]struct {
		sges, inline int
		broken       bool
	}{
		"all SGEs":         {sges: 4},
		"one SGE more":     {sges: 5, broken: true},
		"all inline bytes": {inline: 64},
		"one byte more":    {inline: 65, broken: true},
	} {
		p := newPair(t, true, 4096, worldConfig{}, qpConfig{sge: 4, inline: 64})
		x := p.remote(abi.OpWrite, 0)
		if c.inline > 0 {
			p.a.postInline(x, make([]byte, c.inline))
		} else {
			var sges []abi.SGE
			for range c.sges {
				sges = append(sges, p.ma.sge(0, 10))
			}
			p.a.post(x, sges...)
		}
		ok := p.a.send.wait(1)[0].Status == abi.WCSuccess
		if v := p.hosts[0].violations; ok == c.broken || (len(v) == 1 && v[0].Clause == 608) != c.broken {
			t.Errorf("%s: success %t, violations %+v", name, ok, v)
		}
	}
}

// TestReservedBytes: nonzero reserved bytes of an entry have no effect, but a strict function
// reports them to the driver. (DRV-102)
func TestReservedBytes(t *testing.T) {
	const ofSend, ofReceive = 11, 9 // bytes of the entries that have to be zero
	for _, strict := range []bool{false, true} {
		for _, dirty := range []bool{false, true} {
			p := newPair(t, true, 4096, worldConfig{}, qpConfig{})
			p.hosts[0].fn.UseStrict(strict)
			p.hosts[1].fn.UseStrict(strict)
			p.b.receive(1, p.mb.sge(0, 100))
			p.a.postRaw(abi.SendWQE{Opcode: abi.OpSend, Flags: abi.SendSignaled}, nil, p.ma.sge(0, 10))
			if dirty {
				p.a.sqMem[abi.QueueHeaderSize+ofSend] = 1
				p.b.rqMem[abi.QueueHeaderSize+ofReceive] = 1
			}
			p.a.ring()
			success(t, p.a.send.wait(1))
			success(t, p.b.recv.wait(1))
			for i, where := range []abi.Ring{abi.RingSQ, abi.RingRQ} {
				v := p.hosts[i].violations
				if told := len(v) == 1 && v[0].Clause == 102 && v[0].Ring == where; told != (strict && dirty) || !told && len(v) > 0 {
					t.Errorf("strict %t, reserved bytes used %t: host %d reports %+v", strict, dirty, i, v)
				}
			}
		}
	}
}

// TestDatagramLimit: the longest datagram that a link carries arrives, one byte more is lost.
func TestDatagramLimit(t *testing.T) {
	udAll(t, func(t *testing.T) {
		p := newUDPair(t, worldConfig{}, qpConfig{})
		p.step()
		a, b := p.qps[0], p.qps[1]
		most := pathMTU + 56 - wire.UDSendOnlyImm.HeaderLen()
		if overRoCE {
			most = 1500 - 28 - rocewire.MaxDataHeaderLen - rocewire.ICRCLen // whatever a packet may have around data
		}
		for _, n := range []int{most, most + 1} {
			before := p.hosts[0].fn.Stats().DatagramsLost
			b.receive(1, p.mem[1].sge(0, 4096))
			a.post(p.to(0, abi.OpSendImm), p.mem[0].sge(0, n))
			success(t, a.send.wait(1))
			p.settle(1e9)
			r, arrived := b.recv.poll()
			if lost := p.hosts[0].fn.Stats().DatagramsLost - before; arrived != (n == most) || arrived && int(r.ByteLen) != n+verbs.GRHSize || lost != uint64(n-most) {
				t.Errorf("%d bytes: arrived %t, %d lost", n, arrived, lost)
			}
		}
	})
}

// TestReceivePostedInError: a receive that is posted to a QP in ERR is flushed when its doorbell
// comes. (DEV-610)
func TestReceivePostedInError(t *testing.T) {
	p := newPair(t, true, 4096, worldConfig{}, qpConfig{})
	p.a.modify(abi.ModifyQP{Mask: abi.QPAttrState, State: abi.QPStateErr})
	p.settle(1e9) // it sleeps
	for i := range 3 {
		p.a.receive(uint64(i), p.ma.sge(0, 100))
		if c := p.a.recv.wait(1)[0]; c.WRID != uint64(i) || c.Status != abi.WCWRFlushErr {
			t.Fatalf("%+v", c)
		}
	}
}
