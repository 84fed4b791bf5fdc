package shard

import (
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/handover"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/internal/tape"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// A shard with a tape writes down all that it takes from outside (package tape): its Steps with
// their frames, the orders of the core and what the core knows, what operators change, its ports.
// Drivers, guest memory and keys are on the tape by device/guest, queues and device/security. play.go
// makes a shard do the same again.

// keptHead is how much of a frame of the uplink is on the tape: all headers in front of what is
// sealed, and all of a frame that is not sealed and not dropped (ARP, neighbour discovery). What was
// sealed is there as it was opened.
const keptHead = 160

// tapeStep begins a Step or a Flush on the tape.
func (s *Shard) tapeStep(k tape.Kind, now falcon.Time, in *thread.Input) {
	t := s.tape
	if !t.Records() {
		return
	}
	s.tapeRoutes()
	t.Begin(k, now)
	t.PutUint(uint64(len(s.uplink.tx.Pending())))
	if in == nil {
		return
	}
	t.PutUint(uint64(len(in.Frames)))
	for i, f := range in.Frames {
		segment := 0
		if in.Segments != nil {
			segment = max(in.Segments[i], 0)
		}
		t.PutUint(uint64(segment))
		t.PutUint(uint64(len(f)))
		t.PutBytes(f[:min(len(f), keptHead)])
	}
	t.PutUint(uint64(len(in.Rung)))
	for _, fd := range in.Rung {
		t.PutUint(uint64(fd))
	}
	t.PutUint(uint64(len(s.fromPorts)))
	for i := range s.fromPorts {
		f := &s.fromPorts[i]
		f.Whole() // if not, the rest is lost, and the gateway drops the frame
		t.PutUint(uint64(f.From.Function))
		var o [offloadLen]byte
		putOffload(o[:], f.Offload)
		t.PutBytes(o[:])
		lost := 0
		if f.Rest != nil {
			lost = f.Rest.Len()
		}
		t.PutUint(uint64(lost))
		t.PutPart(f.Frame, offeredHead(f.Frame, len(f.Frame)+lost, f.Offload))
	}
}

// tapeFrame adds a frame for the uplink to the sums of what goes out: what is in front of its sealed
// part, and its length. What is sealed was added before.
func (u *uplink) tapeFrame(frame []byte) {
	if u.tape.Active() {
		u.tape.OutUint(tape.Frames, uint64(len(frame)))
		u.tape.Out(tape.Frames, frame[:min(len(frame), u.underlay.Headroom())])
	}
}

// change is a change by an operator on the tape. One field besides ID is set.
type change struct {
	ID              pfvf.ID              // of the function; 0 with ClearFaults
	Fault           *control.FaultChange // of function ID
	ClearFaults     bool                 // of all functions
	ClearViolations bool                 // of function ID
}

// String says what it is, for people.
func (c *change) String() string {
	switch {
	case c.ClearFaults:
		return "an operator clears all injected faults"
	case c.Fault != nil:
		return "an operator changes faults of " + c.ID.String()
	}
	return "an operator clears violations of " + c.ID.String()
}

// operated writes an operator's change down.
func (fs *functionSet) operated(c change) {
	if fs.tape.Event(tape.View) {
		fs.tape.PutValue(c)
	}
}

// tapedRings is a shard's end of the handover with a tape. Without rings below it, the tape plays.
type tapedRings struct {
	rings
	t      *tape.Tape
	shards int
	kind   handover.Kind // of the frame of the last Put
	open   []byte
}

func (r *tapedRings) Shards() int { return r.shards }

// Put passes through the tape whether the other shard has room.
func (r *tapedRings) Put(to int, h *handover.Header, n int) (b []byte) {
	r.t.OutUint(tape.Shards, uint64(to)|uint64(h.Kind)<<8|uint64(h.Flow)<<16)
	r.t.OutUint(tape.Shards, uint64(h.A)|uint64(h.B)<<32)
	r.t.Out(tape.Shards, h.Aux[:])
	r.t.OutUint(tape.Shards, uint64(n))
	if r.rings != nil {
		b = r.rings.Put(to, h, n)
	}
	room := r.t.Bool(tape.Given, b != nil)
	if r.rings == nil && room {
		b = make([]byte, n)
	}
	r.kind, r.open = h.Kind, b
	return b
}

// Commit adds the frame to the sums of what goes out. A frame of the uplink is on the tape in
// part only.
func (r *tapedRings) Commit() {
	if r.t.Active() && r.kind != handover.Uplink {
		n, checksumAt := handedHead(r.kind, r.open)
		at := min(unwritten(r.kind), n) // what was there before is not the same again
		r.t.OutPart(tape.Shards, r.open[at:], n-at, max(checksumAt-at, 0))
	}
	if r.rings != nil {
		r.rings.Commit()
	}
}

func (r *tapedRings) Given() uint32 {
	if r.rings == nil {
		return 0
	}
	return r.rings.Given()
}

// Take passes through the tape what other shards have handed over.
func (r *tapedRings) Take(f *handover.Frame) (from int, ok bool) {
	if r.rings != nil {
		from, ok = r.rings.Take(f)
	}
	t := r.t
	if !t.Active() {
		return from, ok
	}
	if !t.Ask(tape.Taken) {
		return r.playTaken(f)
	}
	if !ok {
		t.PutUint(0)
		return from, ok
	}
	t.PutUint(uint64(f.Kind))
	t.PutUint(uint64(from))
	t.PutUint(uint64(f.Flow))
	t.PutUint(uint64(f.A))
	t.PutUint(uint64(f.B))
	t.PutBytes(f.Aux[:])
	if f.Kind == handover.Uplink {
		t.PutUint(uint64(len(f.Data)))
		t.PutBytes(f.Data[:min(len(f.Data), keptHead)])
		return from, ok
	}
	n, _ := handedHead(f.Kind, f.Data)
	if f.Kind == handover.Plain {
		n = offeredHead(f.Data, len(f.Data), offloadOf(f.Aux[:]))
	}
	t.PutPart(f.Data, n)
	return from, ok
}

func (r *tapedRings) playTaken(f *handover.Frame) (from int, ok bool) {
	t := r.t
	if f.Kind = handover.Kind(t.Uint()); f.Kind == 0 {
		return 0, false
	}
	from = int(t.Uint())
	f.Flow, f.A, f.B = uint32(t.Uint()), uint32(t.Uint()), uint32(t.Uint())
	copy(f.Aux[:], t.Bytes())
	if f.Kind == handover.Uplink {
		f.Data = playFrame(t)
	} else {
		f.Data = t.GetPart()
	}
	return from, true
}

func (r *tapedRings) Done() {
	if r.rings != nil {
		r.rings.Done()
	}
}

func (r *tapedRings) Empty() bool { return r.rings == nil || r.rings.Empty() }

// playFrame reads a frame of which the tape has the beginning; the rest is zeros.
func playFrame(t *tape.Tape) []byte {
	size, head := t.Uint(), t.Bytes()
	if size > maxFrame || uint64(len(head)) > size {
		t.Differs("the recording has a frame of %d bytes, %d of them kept", size, len(head))
	}
	f := make([]byte, size)
	copy(f, head)
	return f
}

// tapedPort is a port's device with a tape. Without a device below it, the tape plays.
type tapedPort struct {
	gateway.Device
	t *tape.Tape
}

// tapeAdded records that a port was added, or could not be.
func (s *Shard) tapeAdded(p *Port, err error) {
	if s.tape.Event(tape.PortAdd) {
		s.tape.PutUint(uint64(p.ID))
		added := uint64(0)
		if err == nil {
			added = 1
		}
		s.tape.PutUint(added)
	}
	if err == nil {
		s.tapePort(p)
	}
}

// tapePorts puts the tape in front of the devices of all ports.
func (s *Shard) tapePorts() {
	for p := range s.plain.ports.all() {
		s.tapePort(p)
	}
}

func (s *Shard) tapePort(p *Port) {
	if _, is := p.Device.(tapedPort); !is && s.tape != nil && !p.Lost {
		p.Device = tapedPort{p.Device, s.tape}
	}
}

func (p tapedPort) Write(parts [][]byte, off gateway.Offload) bool {
	var o [offloadLen]byte
	putOffload(o[:], off)
	p.t.Out(tape.Ports, o[:])
	if p.t.Active() {
		total := 0
		for _, b := range parts {
			total += len(b)
		}
		n, checksumAt := frameHead(parts[0], total)
		p.t.OutPart(tape.Ports, parts[0], n, checksumAt)
		for _, b := range parts[1:] {
			p.t.OutPart(tape.Ports, b, 0, 0)
		}
	}
	return p.t.Bool(tape.PortWrote, p.Device != nil && p.Device.Write(parts, off))
}

func (p tapedPort) USO() bool { return p.t.Bool(tape.PortUSO, p.Device != nil && p.Device.USO()) }

func (p tapedPort) Takes(off gateway.Offload) bool {
	return p.t.Bool(tape.PortTakes, p.Device != nil && p.Device.Takes(off))
}

func (p tapedPort) SetLink(up bool) error {
	if p.Device == nil {
		return nil
	}
	return p.Device.SetLink(up)
}

func (p tapedPort) Fault() string {
	if p.Device == nil {
		return ""
	}
	return p.Device.Fault()
}

func (p tapedPort) Stats() (st gateway.PortStats) {
	if p.Device != nil {
		st = p.Device.Stats()
	}
	return st
}
