package verbs

import (
	"errors"
	"fmt"

	"github.com/falcon-vnic/vnic/internal/vtime"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
	"github.com/falcon-vnic/vnic/rdma/trace"
)

// WorkQueue is the device's side of a send or receive queue. If the driver breaks the rules, or the
// memory goes away, the queue is broken: it yields no entries, and its QP or SRQ fails. A QP
// without a queue of its own has one that was never opened and yields no entries.
type WorkQueue struct {
	owner  *Owner
	kind   abi.Ring // kind of the ring
	number uint32   // of the QP or SRQ
	area   *queues.Area
	layout ring.Layout
	ring   *ring.Consumer
	read   uint32 // bytes of an entry that are read
	told   uint32 // consumer index last written to memory
	broken string // reason, "" if it is not broken

	flags      uint8 // abi.QP…
	privileged bool  // its entries may name all of the function's memory
}

// queueNames names the kinds of work queues.
var queueNames = map[abi.Ring]string{abi.RingSQ: "SQ of QP", abi.RingRQ: "RQ of QP", abi.RingSRQ: "SRQ"}

// queueParams says where the driver put a queue.
type queueParams struct {
	Log2Entries, Log2Stride uint8
	Read                    uint32 // bytes of an entry that are read
	Levels                  uint8
	Pages                   uint64
	Flags                   uint8 // abi.QP…
}

// Check returns the status of a command that makes a queue of at most limit entries.
func (p *queueParams) Check(limit int, leastStride uint8) abi.Status {
	switch {
	case p.Log2Entries > abi.MaxQueueLog2 || 1<<p.Log2Entries > limit:
		return abi.StatusTooLarge
	case p.Log2Entries < 1, p.Log2Stride < leastStride || p.Log2Stride > 12, p.Read > 1<<p.Log2Stride:
		return abi.StatusInvalidArgument
	}
	return abi.StatusOK
}

// checkNone returns the status of a command that must not describe this queue.
func (p *queueParams) checkNone() abi.Status {
	if p.Log2Entries|p.Log2Stride|p.Levels != 0 || p.Pages != 0 {
		return abi.StatusInvalidArgument
	}
	return abi.StatusOK
}

// openQueue reads the page list of a queue whose parameters were checked.
func (o *Owner) openQueue(kind abi.Ring, p queueParams) (WorkQueue, abi.Status) {
	u := WorkQueue{owner: o, kind: kind, flags: p.Flags, privileged: p.Flags&abi.QPPrivileged != 0, layout: ring.QueueLayout(p.Log2Entries, p.Log2Stride), read: p.Read}
	area, st := o.area(p.Pages, p.Levels, u.layout.Size())
	if st != abi.StatusOK {
		return u, st
	}
	// One allocation for both: 10 000 queues fit no cache, and each poll of a ring needs both
	// parts.
	at := &struct {
		area queues.Area
		ring ring.Consumer
	}{area: *area}
	if kind == abi.RingSQ {
		at.area.Head = sendHead
	}
	u.area, u.ring = &at.area, &at.ring
	u.Reset()
	return u, abi.StatusOK
}

// sendHead returns how many bytes of an entry of a send queue are no payload: inline data is.
func sendHead(entry []byte) int {
	var x abi.SendWQE
	if len(entry) < abi.SendWQEHeader {
		return len(entry)
	}
	if x.Unmarshal(entry); x.Flags&abi.SendInline != 0 {
		return abi.SendWQEHeader
	}
	return len(entry)
}

// Name sets the number of the queue pair that owns the queue. The queue is new, so all its bytes
// must be zero.
func (u *WorkQueue) Name(number uint32) {
	u.number = number
	u.clean(u.layout.Size())
}

// clean checks that the first bytes of the area are zero, as the driver must make them.
func (u *WorkQueue) clean(bytes uint64) {
	if u.Open() {
		u.owner.zero(abi.DRV601, u.kind, u.number, u.area, bytes)
	}
}

// Open reports whether the queue exists.
func (u *WorkQueue) Open() bool { return u.ring != nil }

// Entries returns the number of entries of the queue.
func (u *WorkQueue) Entries() uint32 { return u.layout.Entries() }

// Producer returns the driver's producer index as last read from memory.
func (u *WorkQueue) Producer() uint32 { return u.ring.Producer() }

// Index returns the index of the entry that is read next.
func (u *WorkQueue) Index() uint32 { return u.ring.Next() }

// Ready returns how many entries were seen in memory and not read yet, 0 if there is no queue.
func (u *WorkQueue) Ready() uint32 {
	if !u.Open() || u.broken != "" {
		return 0
	}
	return u.ring.Ready()
}

// Reset drops everything posted. The driver itself clears the header before it uses the queue
// again.
func (u *WorkQueue) Reset() {
	if u.Open() {
		*u.ring = *ring.NewConsumer(u.area, u.layout)
	}
	u.told, u.broken = 0, ""
}

// fault breaks the queue because of an error of the ring. Its QP or SRQ fails when Settle runs.
func (u *WorkQueue) fault(err error) {
	o, name := u.owner, queueNames[u.kind]
	if errors.Is(err, ring.ErrIndex) {
		clause := abi.DRV602
		if errors.Is(err, ring.ErrAhead) {
			clause = abi.DRV603
		}
		producer, _ := u.area.Load32(abi.QueueHeaderProducer)
		o.Broke(clause, u.kind, u.number, producer, word(producer))
		u.broken = fmt.Sprintf("%s %#x: impossible producer or doorbell (last %d, %d read, %d entries)", name, u.number, u.ring.Producer(), u.ring.Next(), u.layout.Entries())
	} else {
		o.Broke(abi.DRV402, u.kind, u.number, u.ring.Next(), nil)
		u.broken = fmt.Sprintf("%s %#x: %v", name, u.number, err)
	}
	o.dirty = true
}

// Broken returns why the queue is broken, "" if it is not.
func (u *WorkQueue) Broken() string { return u.broken }

// Poll reads the producer index from memory and returns the number of entries that are not read
// yet.
func (u *WorkQueue) Poll() (n uint32, ok bool) {
	if u.broken != "" {
		return 0, false
	}
	n, err := u.ring.Poll()
	if err != nil {
		u.fault(err)
	}
	return n, err == nil
}

// Doorbell checks a doorbell record against the producer index in memory.
func (u *WorkQueue) Doorbell(index uint32) bool {
	if !u.Open() || u.broken != "" {
		return false
	}
	_, err := u.ring.Doorbell(index)
	if err != nil {
		u.fault(err)
	}
	return err == nil
}

// Next copies the next entry into buf and consumes it. ok is false if there is none.
func (u *WorkQueue) Next(buf []byte) (entry []byte, ok bool) {
	if !u.Open() || u.broken != "" {
		return nil, false
	}
	if u.ring.Ready() == 0 {
		if n, _ := u.Poll(); n == 0 {
			return nil, false
		}
	}
	entry = buf[:u.read]
	if err := u.ring.Read(entry); err != nil {
		u.fault(err)
		return nil, false
	}
	u.ring.Take()
	return entry, true
}

// Broke reports that the entry read last breaks a clause.
func (u *WorkQueue) Broke(clause abi.Clause, entry []byte) {
	u.owner.Broke(clause, u.kind, u.number, u.Index()-1, entry)
}

// Commit writes to memory how far entries were read.
func (u *WorkQueue) Commit() {
	if !u.Open() || u.broken != "" || u.told == u.ring.Next() {
		return
	}
	if err := u.ring.Commit(); err != nil {
		u.fault(err)
		return
	}
	u.told = u.ring.Next()
}

// Sleep commits, requests a doorbell at the next entry and checks once more. It reports whether
// there is an entry.
func (u *WorkQueue) Sleep() (more bool) {
	u.Commit()
	if !u.Open() || u.broken != "" || !u.owner.Working() {
		return false
	}
	n, err := u.ring.Arm()
	if err != nil {
		u.fault(err)
	}
	return n > 0 // n is 0 after an error
}

// Doorbell handles one doorbell of the driver. Its index is checked against the queue in memory. A
// doorbell that names no queue is only counted (DEV-801): it may have crossed the command that
// destroyed the queue.
func (o *Objects) Doorbell(now vtime.Time, d *abi.Doorbell) {
	if !o.Working() {
		return
	}
	o.Stats.Doorbells++
	if !o.ring(d) {
		o.Stats.BadDoorbells++
		o.brokeDoorbell(abi.DRV801, d)
	}
	o.Settle(now)
}

// ring passes a doorbell to the queue that it names. It returns false if there is no such queue.
func (o *Objects) ring(d *abi.Doorbell) bool {
	switch d.Kind {
	case abi.DoorbellSQ, abi.DoorbellRQ:
		q := o.QP(d.Queue)
		switch {
		case q == nil:
			return false
		case d.Kind == abi.DoorbellRQ:
			q.recvDoorbell(d.Index)
		default:
			if o.Trace != nil {
				q.send.noteEntries(trace.Doorbell, d.Index)
			}
			q.sendDoorbell(d.Index)
		}
	case abi.DoorbellSRQ:
		s := o.SRQ(d.Queue)
		if s == nil {
			return false
		}
		s.Doorbell(d.Index)
	case abi.DoorbellCQArm:
		c := o.CQ(d.Queue)
		if c == nil {
			return false
		}
		c.Arm(d.Index, d.Flags&abi.ArmSolicitedOnly != 0)
	default:
		return false
	}
	return true
}

// sendDoorbell handles a doorbell of the send queue.
func (q *QP) sendDoorbell(index uint32) {
	if q.state == abi.QPStateReset {
		q.owner.rangInReset(abi.RingSQ, q.number, index)
		return // the driver may be clearing the queue
	}
	if q.send.queue.Doorbell(index) {
		q.wake()
	}
}

// recvDoorbell handles a doorbell of the receive queue. Receives are read only when a message needs
// one.
func (q *QP) recvDoorbell(index uint32) {
	if q.state == abi.QPStateReset {
		q.owner.rangInReset(abi.RingRQ, q.number, index)
		return
	}
	if q.recv.queue.Doorbell(index) && q.state == abi.QPStateErr {
		q.wake()
	}
}

// brokeDoorbell reports a doorbell record that breaks a clause.
func (o *Owner) brokeDoorbell(clause abi.Clause, d *abi.Doorbell) {
	var b [abi.DoorbellSize]byte
	d.Marshal(b[:])
	where := abi.RingDoorbell
	switch d.Kind {
	case abi.DoorbellAdmin:
		where = abi.RingAdmin
	case abi.DoorbellSQ:
		where = abi.RingSQ
	case abi.DoorbellRQ:
		where = abi.RingRQ
	case abi.DoorbellCQArm:
		where = abi.RingCQ
	case abi.DoorbellSRQ:
		where = abi.RingSRQ
	}
	o.Broke(clause, where, d.Queue, d.Index, b[:])
}

// rangInReset reports a doorbell for a queue of a QP in RESET.
func (o *Owner) rangInReset(kind abi.Ring, qpn, index uint32) {
	if index != 0 {
		o.Broke(abi.DRV601, kind, qpn, index, word(index))
	}
}
