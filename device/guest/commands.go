package guest

import (
	"encoding/binary"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// commands carries out the admin commands of a function at one moment. Commands that concern only
// the engine are methods of the embedded rdma.Function.
type commands struct {
	*rdma.Function
	abi.ConnectionHandler
	f     *Device
	now   falcon.Time
	later func() abi.Ticket // makes the current command a pending one
}

var _ abi.Handler = (*commands)(nil)

// QueryDevice implements abi.QueryHandler.
func (c *commands) QueryDevice() (abi.QueryDeviceResult, abi.Status) {
	l := &c.f.is.Limits
	m := c.f.MAC
	return abi.QueryDeviceResult{
		MaxMRSize: abi.MaxMRSize,
		// EUI-64 of the MAC address.
		NodeGUID: uint64(m[0]^2)<<56 | uint64(m[1])<<48 | uint64(m[2])<<40 | 0xfffe<<24 | uint64(m[3])<<16 | uint64(m[4])<<8 | uint64(m[5]),
		MaxQP:    uint32(l.Objects[abi.ObjectQP]), MaxCQ: uint32(l.Objects[abi.ObjectCQ]), MaxMR: uint32(l.Objects[abi.ObjectMR]), MaxPD: uint32(l.Objects[abi.ObjectPD]),
		MaxQPEntries: uint32(l.QPEntries), MaxCQEntries: uint32(l.CQEntries),
		MaxSGE: uint16(l.SGEs), MaxInline: uint16(l.Inline), MaxReadAtomic: uint8(l.ReadAtomic),
		PathMTU: abi.PathMTUFor(c.f.set.cfg.MTU),
	}, abi.StatusOK
}

// QueryMemory implements abi.QueryHandler: it returns a range of memory that the function can reach
// now.
func (c *commands) QueryMemory(index uint32) (abi.QueryMemoryResult, abi.Status) {
	w, ranges := c.f.driver.Memory.Range(int(index))
	if w.Size == 0 {
		return abi.QueryMemoryResult{}, abi.StatusNotFound
	}
	return abi.QueryMemoryResult{Address: w.Addr, Length: w.Size, Ranges: uint32(ranges)}, abi.StatusOK
}

// QueryViolation implements abi.QueryHandler. Index 0 is the newest violation.
func (c *commands) QueryViolation(index uint32) (abi.Violation, abi.Status) {
	v, ok := c.f.violations.Newest(index)
	if !ok {
		return v, abi.StatusNotFound
	}
	return v, abi.StatusOK
}

// QueryObjects implements abi.QueryHandler.
func (c *commands) QueryObjects(part abi.CreditPart) (abi.ObjectCounts, abi.Status) {
	return c.f.owner.QueryObjects(part)
}

// RegMR implements abi.VerbsHandler. The admin queue continues the registration.
func (c *commands) RegMR(p *abi.RegMR) abi.Status { return c.f.admin.begin(c.StartRegMR(p)) }

// ReregMR implements abi.VerbsHandler. The admin queue continues the registration.
func (c *commands) ReregMR(p *abi.ReregMR) abi.Status { return c.f.admin.begin(c.StartReregMR(p)) }

// CreateCQ implements abi.VerbsHandler. The CQ's events go to an event queue if it names a vector.
func (c *commands) CreateCQ(p *abi.CreateCQ) (cqn uint32, st abi.Status) {
	q, st := Choose(c.f.driver.events, p.Vector)
	if st != abi.StatusOK {
		return 0, st
	}
	cqn, st = c.Function.CreateCQ(p)
	if st == abi.StatusOK && q != nil {
		c.f.byCQ.Add(cqn, q)
	}
	return cqn, st
}

// DestroyCQ implements abi.VerbsHandler.
func (c *commands) DestroyCQ(cqn uint32) abi.Status {
	st := c.Function.DestroyCQ(cqn)
	if st == abi.StatusOK {
		c.f.byCQ.Remove(cqn)
		c.f.gone(abi.ObjectCQ, cqn)
	}
	return st
}

// DestroySRQ implements abi.VerbsHandler.
func (c *commands) DestroySRQ(srqn uint32) abi.Status {
	st := c.Function.DestroySRQ(srqn)
	if st == abi.StatusOK {
		c.f.gone(abi.ObjectSRQ, srqn)
	}
	return st
}

// ModifyQP implements abi.VerbsHandler. A change of the queue pair's state may start or end a
// connection.
func (c *commands) ModifyQP(p *abi.ModifyQP) abi.Status {
	st := c.Function.ModifyQP(c.now, p)
	if st == abi.StatusOK && p.Mask&abi.QPAttrState != 0 {
		switch p.State {
		case abi.QPStateReset, abi.QPStateErr:
			c.f.conns.EndQP(c.now, p.QPN)
		case abi.QPStateRTR:
			c.f.conns.ConnectByNumber(c.now, p.QPN)
		}
	}
	return st
}

// DestroyQP implements abi.VerbsHandler.
func (c *commands) DestroyQP(qpn uint32) abi.Status {
	st := c.Function.DestroyQP(c.now, qpn)
	if st == abi.StatusOK {
		c.f.conns.EndQP(c.now, qpn)
		c.f.gone(abi.ObjectQP, qpn)
	}
	return st
}

// CreateAH implements abi.VerbsHandler.
func (c *commands) CreateAH(p *abi.CreateAH) (uint32, abi.Status) {
	return c.Function.CreateAH(c.now, p)
}

// DestroyAH implements abi.VerbsHandler.
func (c *commands) DestroyAH(ahn uint32) abi.Status { return c.Function.DestroyAH(c.now, ahn) }

// VF implements abi.Handler.
func (c *commands) VF(n uint16) (abi.VFHandler, abi.Status) { return c.f.owner.VF(c.now, n, c.later) }

// counted holds the counts of a function since it was enabled.
type counted struct {
	rdma rdma.Stats
	port transport.PortStats // zero without a port
}

// counters maps each counter that drivers can read to its value.
var counters = [...]func(c *counted) uint64{
	abi.CounterTxPackets:            func(c *counted) uint64 { return c.rdma.PushesTx + c.rdma.PullsTx },
	abi.CounterTxBytes:              func(c *counted) uint64 { return c.rdma.BytesTx },
	abi.CounterRxPackets:            func(c *counted) uint64 { return c.rdma.PushesRx + c.rdma.PullsRx },
	abi.CounterRxBytes:              func(c *counted) uint64 { return c.rdma.BytesRx },
	abi.CounterTxReads:              func(c *counted) uint64 { return c.rdma.PullsTx },
	abi.CounterRxReads:              func(c *counted) uint64 { return c.rdma.PullsRx },
	abi.CounterPosted:               func(c *counted) uint64 { return c.rdma.Posted },
	abi.CounterCompletions:          func(c *counted) uint64 { return c.rdma.Completed },
	abi.CounterCompletionErrors:     func(c *counted) uint64 { return c.rdma.Errors },
	abi.CounterFlushed:              func(c *counted) uint64 { return c.rdma.Flushed },
	abi.CounterSentRNR:              func(c *counted) uint64 { return c.rdma.RNRTx },
	abi.CounterReceivedRNR:          func(c *counted) uint64 { return c.rdma.RNRRx },
	abi.CounterRefused:              func(c *counted) uint64 { return c.rdma.Refused },
	abi.CounterDatagramsLost:        func(c *counted) uint64 { return c.rdma.DatagramsLost },
	abi.CounterQKeyViolations:       func(c *counted) uint64 { return c.rdma.BadQKeys },
	abi.CounterQPErrors:             func(c *counted) uint64 { return c.rdma.QPErrors },
	abi.CounterCQOverflows:          func(c *counted) uint64 { return c.rdma.CQOverflows },
	abi.CounterDoorbells:            func(c *counted) uint64 { return c.rdma.Doorbells },
	abi.CounterCreditWaits:          func(c *counted) uint64 { return c.rdma.CreditWaits },
	abi.CounterRateWaits:            func(c *counted) uint64 { return c.rdma.RateWaits },
	abi.CounterTimeouts:             func(c *counted) uint64 { return c.port.Timeouts },
	abi.CounterMissing:              func(c *counted) uint64 { return c.port.Missing },
	abi.CounterRetransmits:          func(c *counted) uint64 { return c.port.Again },
	abi.CounterMarked:               func(c *counted) uint64 { return c.port.Marked },
	abi.CounterNotificationsSent:    func(c *counted) uint64 { return c.port.CNPsSent },
	abi.CounterNotificationsHandled: func(c *counted) uint64 { return c.port.CNPs },
}

// QueryCounters implements abi.QueryHandler.
func (c *commands) QueryCounters(first abi.Counter) (abi.Counters, abi.Status) {
	r := abi.Counters{Total: uint16(len(counters))}
	if int(first) >= len(counters) {
		return abi.Counters{}, abi.StatusNotFound
	}
	now := counted{rdma: c.Stats(), port: c.PortStats()}
	for i, of := range counters[first:] {
		if 8*i == len(r.Values) {
			break
		}
		binary.LittleEndian.PutUint64(r.Values[8*i:], of(&now))
	}
	return r, abi.StatusOK
}
