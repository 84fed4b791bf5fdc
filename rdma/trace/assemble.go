package trace

import "slices"

// Bounds of what an Assembler keeps.
const (
	maxOpen  = 8192 // operations that are not whole
	maxBells = 64   // doorbells of a queue whose entries are still to be read
)

// key names an operation.
type key struct {
	responder    bool
	owner, index uint32 // QP and WQE, or connection and RSN
}

func (o *Operation) key() key {
	if o.Responder {
		return key{true, o.Conn, o.Index}
	}
	return key{false, o.QPN, o.Index}
}

// bell says when entries up to index were there.
type bell struct {
	index uint32
	at    int64
	found bool
}

// Assembler puts operations together from events. Requests that were under way before the first
// event are left out.
type Assembler struct {
	out   func(*Operation)
	open  map[key]*Operation
	order []key                   // as they began; some are not open any more
	bells map[uint32][]bell       // by QP, oldest first
	conns map[uint32][]*Operation // delivered and not acknowledged
	cqs   map[uint32][]*Operation // completed, before the event of their CQ
}

// NewAssembler makes one that passes each operation to out when it is whole.
func NewAssembler(out func(*Operation)) *Assembler {
	return &Assembler{
		out: out, open: map[key]*Operation{}, bells: map[uint32][]bell{}, conns: map[uint32][]*Operation{}, cqs: map[uint32][]*Operation{},
	}
}

// Take takes the next event.
func (a *Assembler) Take(e *Event) {
	switch e.Kind {
	case Doorbell, Found:
		list := a.bells[e.Work]
		if len(list) == maxBells {
			list = list[:copy(list, list[1:])]
		}
		a.bells[e.Work] = append(list, bell{e.Index, e.At, e.Kind == Found})
	case Read:
		a.read(e)
	case Received:
		a.received(e)
	case Delivered:
		a.delivered(e)
	case Answered:
		a.answered(e)
	case Signalled:
		a.signalled(e)
	default:
		k := key{false, e.Work, e.Index}
		if e.Flags&Responder != 0 || e.Kind == Opened || e.Kind == Concluded {
			k = key{true, e.Conn, e.Index}
		}
		if o := a.open[k]; o != nil {
			a.step(k, o, e)
		}
	}
}

// step is Take for what happens to an operation that is known.
func (a *Assembler) step(k key, o *Operation, e *Event) {
	switch e.Kind {
	case Issued:
		o.mark(StepIssued, e.At)
		o.owed, o.Wire = e.Flags&Owed != 0, e.Wire
	case Gone:
		o.gone = true
	case Opened:
		o.mark(StepOpened, e.At)
	case Scheduled:
		o.scheduled(e)
	case Sealed:
		if o.At[StepSealed] != 0 && o.Packets+o.Again > 1 {
			o.At[StepLastSealed] = e.At
		}
		o.mark(StepSealed, e.At)
	case Acked:
		o.At[StepAcked] = e.At
	case Concluded:
		o.mark(StepAcked, e.At)
	case Completed:
		o.over, o.Status = true, e.Status
		if e.Flags&Silent == 0 {
			o.mark(StepCompleted, e.At)
		}
		if e.Flags&Wanted != 0 {
			o.wantEvt = true
			a.cqs[e.Extra] = append(a.cqs[e.Extra], o)
		}
	}
	a.settle(k, o)
}

// scheduled takes a packet of the operation, for the first time if its number is new.
func (o *Operation) scheduled(e *Event) {
	if e.Flags&Loopback != 0 {
		o.Loopback = true
	}
	if e.Wire != 0 {
		o.Wire = e.Wire
	}
	if o.At[StepScheduled] == 0 {
		o.At[StepScheduled], o.next = e.At, e.Extra
	}
	if int32(e.Extra-o.next) < 0 {
		o.Again++
		return
	}
	o.next = e.Extra + 1
	if !o.Responder {
		o.Packets++
	}
}

func (a *Assembler) read(e *Event) {
	o := a.begin(key{false, e.Work, e.Index})
	o.QPN, o.Index, o.WRID, o.Op, o.Length = e.Work, e.Index, e.Arg, e.Op, e.Extra
	list := a.bells[e.Work]
	for len(list) > 0 && int32(list[0].index-e.Index) <= 0 {
		list = list[:copy(list, list[1:])]
	}
	a.bells[e.Work] = list
	if len(list) > 0 {
		o.At[StepDoorbell], o.Found = list[0].at, list[0].found
	}
	o.At[StepRead] = e.At
}

func (a *Assembler) received(e *Event) {
	k := key{true, e.Conn, e.Index}
	if o := a.open[k]; o != nil {
		o.Again++
		return
	}
	o := a.begin(k)
	o.psn, o.data, o.At[StepReceived] = e.Extra, e.Flags&Data != 0, e.At
}

func (a *Assembler) delivered(e *Event) {
	k := key{true, e.Conn, e.Index}
	o := a.open[k]
	if o == nil {
		if e.Flags&Loopback == 0 {
			return // it came before the trace began
		}
		o = a.begin(k)
	}
	o.QPN, o.Op, o.Length, o.Packets = uint32(e.Arg), e.Op, e.Extra, 1
	o.Loopback, o.pull, o.wantCQE = e.Flags&Loopback != 0, e.Flags&Answering != 0, e.Flags&Wanted != 0
	o.Wire = e.Wire
	o.mark(StepDelivered, e.At)
	if !o.pull && !o.Loopback {
		a.conns[e.Conn] = append(a.conns[e.Conn], o)
	}
}

// answered marks the packets of a connection that an acknowledgement covers.
func (a *Assembler) answered(e *Event) {
	left := a.conns[e.Conn][:0]
	for _, o := range a.conns[e.Conn] {
		base := e.Index
		if o.data {
			base = e.Extra
		}
		if int32(o.psn-base) >= 0 {
			left = append(left, o)
			continue
		}
		o.mark(StepAcked, e.At)
		a.settle(o.key(), o)
	}
	if len(left) > 0 {
		a.conns[e.Conn] = left
	} else {
		delete(a.conns, e.Conn)
	}
}

func (a *Assembler) signalled(e *Event) {
	list := a.cqs[e.Extra]
	delete(a.cqs, e.Extra)
	for _, o := range list {
		o.wantEvt = false
		o.mark(StepEvent, e.At)
		a.settle(o.key(), o)
	}
}

// begin makes an operation, and room for it.
func (a *Assembler) begin(k key) *Operation {
	if old := a.open[k]; old != nil { // its queue began anew
		a.end(k, old)
	}
	if len(a.order) >= 2*maxOpen {
		a.sweep()
	}
	o := &Operation{Responder: k.responder}
	if k.responder {
		o.Conn, o.Index = k.owner, k.index
	}
	a.open[k] = o
	a.order = append(a.order, k)
	return o
}

// sweep forgets what is not open any more. If too many operations are open, it ends the older half
// of them.
func (a *Assembler) sweep() {
	a.order = slices.DeleteFunc(a.order, func(k key) bool { return a.open[k] == nil })
	if len(a.order) > maxOpen {
		for _, k := range a.order[:maxOpen/2] {
			if o := a.open[k]; o != nil {
				a.end(k, o)
			}
		}
		a.order = a.order[:copy(a.order, a.order[maxOpen/2:])]
	}
	gone := func(o *Operation) bool { return a.open[o.key()] != o }
	for _, lists := range []map[uint32][]*Operation{a.conns, a.cqs} {
		for owner, list := range lists {
			if lists[owner] = slices.DeleteFunc(list, gone); len(lists[owner]) == 0 {
				delete(lists, owner)
			}
		}
	}
}

// settle ends an operation if it is whole.
func (a *Assembler) settle(k key, o *Operation) {
	if o.Whole() && a.open[k] == o {
		a.end(k, o)
	}
}

// end passes an operation on, and forgets it. A packet of the peer that was never delivered was
// a copy of an earlier one, and is only forgotten.
func (a *Assembler) end(k key, o *Operation) {
	delete(a.open, k)
	if !o.Responder || o.At[StepDelivered] != 0 {
		a.out(o)
	}
}

// Finish ends the operations that are not whole, in the order in which they began.
func (a *Assembler) Finish() {
	for _, k := range a.order {
		if o := a.open[k]; o != nil {
			a.end(k, o)
		}
	}
	a.order = nil
	clear(a.conns)
	clear(a.cqs)
}
