package shard

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"slices"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/conn"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/internal/tape"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Player runs a shard from its tape: it reads the events on it and makes the calls that were made.
// What the shard asks for meanwhile, the tape answers; what the shard does is compared with the sums
// on the tape after each Step.
type Player struct {
	Shard *Shard
	tape  *tape.Tape
	in    thread.Input
	out   thread.Output
	come  []*Port // ports that have no device yet
	notes []Note  // the latest, in turn
	noted int
}

// Note is something that happened in a Step, for people: a packet, as it was before it was sealed or when
// it was opened, or what a driver, the core or an operator did.
type Note struct {
	Step uint64
	Now  falcon.Time
	What string
}

// maxNotes is how many notes are kept.
const maxNotes = 64

// Notes returns the latest notes, oldest first.
func (p *Player) Notes() (list []Note) {
	for i := max(0, p.noted-maxNotes); i < p.noted; i++ {
		list = append(list, p.notes[i%maxNotes])
	}
	return list
}

func (p *Player) note(what string) {
	n := Note{p.tape.Steps(), p.tape.Now(), what}
	if p.noted < maxNotes {
		p.notes = append(p.notes, n)
	} else {
		p.notes[p.noted%maxNotes] = n
	}
	p.noted++
}

// notePacket notes a packet.
func (p *Player) notePacket(dir capture.Direction, packet []byte, comment string) {
	way := "in "
	if dir == captureOut {
		way = "out"
	}
	what := fmt.Sprintf("%d bytes", len(packet))
	if b := falconIn(packet); b != nil {
		what = describeFalcon(b)
	}
	p.note(fmt.Sprintf("%s %s: %s", way, what, comment))
}

// describeFalcon describes a Falcon packet.
func describeFalcon(b []byte) string {
	if cid, ok := wire.PeekCID(b); ok {
		return fmt.Sprintf("%s, CID %#x", sim.Describe(b), cid)
	}
	return sim.Describe(b)
}

// falconIn returns the Falcon packet in an IP packet, nil if there is none.
func falconIn(packet []byte) []byte {
	switch {
	case len(packet) > 20 && packet[0]>>4 == 4 && packet[9] == underlay.ProtoFalcon:
		return packet[20:]
	case len(packet) > 40 && packet[0]>>4 == 6 && packet[6] == underlay.ProtoFalcon:
		return packet[40:]
	}
	return nil
}

// NewPlayer returns a player of a shard with the NIC's configuration.
func NewPlayer(index int, cfg *config.Config, t *tape.Tape, log *slog.Logger) (p *Player, err error) {
	defer recoverAsError(t, &err)
	p = &Player{tape: t}
	if p.Shard, err = New(index, cfg, nil, t, log); err != nil {
		return nil, err
	}
	if cfg.NIC.Shards > 1 {
		p.Shard.join(nil)
	}
	p.Shard.capture.watch = p.notePacket
	p.Shard.View().Captures.setSinks(nil)
	return p, nil
}

// Connections describes the connections over Falcon as far as the shard knows them: those that are
// open. The core of a NIC knows them all.
func (p *Player) Connections() (list []control.Connection) {
	p.Shard.falcon.table.Each(func(c *conn.Slot) {
		cfg, state := c.Config(), cm.StateEstablished
		if c.Ends() {
			state = cm.StateDreqSent
		}
		v := control.Connection{
			ID: c.ID, Wire: "falcon", Function: c.Owner.ID.String(), PeerName: c.PeerName, Tenant: c.Owner.Tenant, State: state.String(),
			LocalCID: c.CID, RemoteCID: cfg.RemoteCID, MTU: cfg.MTU,
		}
		v.QPN, v.PeerQPN = c.Pair()
		if cfg.RemoteFunction != 0 {
			v.PeerFunction = pfvf.ID(cfg.RemoteFunction).String()
		}
		list = append(list, v)
	})
	slices.SortFunc(list, func(a, b control.Connection) int { return cmp.Compare(a.ID, b.ID) })
	p.Shard.View().Peers.Paths(list)
	return list
}

// recoverAsError turns a panic that ends playing into an error. A recording can come from anybody, so
// whatever the shard does with it is the recording's fault.
func recoverAsError(t *tape.Tape, err *error) {
	switch v := recover().(type) {
	case nil:
	case *tape.Difference:
		if *err = v; v.Torn {
			*err = io.EOF
		}
	default:
		*err = fmt.Errorf("Step %d: the recording is damaged, or there is a fault in the program: %v", t.Steps(), v)
	}
}

// Next plays the next event, and returns what it was; io.EOF after the last, and a *tape.Difference
// where the shard does not do what it did when it was recorded. After an error there is no next
// event.
func (p *Player) Next() (k tape.Kind, err error) {
	defer recoverAsError(p.tape, &err)
	if k, err = p.tape.Next(); err != nil {
		return k, err
	}
	switch k {
	case tape.Step:
		p.playStep()
	case tape.Flush:
		now := p.tape.Begun(k)
		p.drainUplink()
		p.Shard.Flush(now, &p.out)
		p.endStep()
	default:
		p.playEvent(p.tape.Now(), k)
	}
	return k, nil
}

// playStep plays a Step.
func (p *Player) playStep() {
	s, t := p.Shard, p.tape
	now := t.Begun(tape.Step)
	p.drainUplink()
	p.readFrames()
	p.in.Rung = p.in.Rung[:0]
	for range p.readCount() {
		p.in.Rung = append(p.in.Rung, int(t.Uint()))
	}
	p.readPortFrames()
	s.inbox.Post(played{p})
	s.Step(now, &p.in, &p.out)
	p.endStep()
}

// readCount reads how many values follow, of at least a byte each.
func (p *Player) readCount() int {
	n := p.tape.Uint()
	if n > uint64(p.tape.Left()) {
		p.tape.Differs("the recording has %d values in what is left of a chunk", n)
	}
	return int(n)
}

// drainUplink takes from the queue of the uplink what the thread took.
func (p *Player) drainUplink() {
	tx := p.Shard.uplink.tx
	has := len(tx.Pending())
	kept, ok := p.tape.AtMost(uint64(has))
	if !ok {
		p.tape.Differs("%d frames wait for the uplink, %d did in the recording", has, kept)
	}
	tx.Taken(has - int(kept))
}

// maxFrame bounds the length that a tape may say a frame of the uplink has.
const maxFrame = 1 << 17

// readFrames reads the frames of the uplink. What was sealed in them is not there.
func (p *Player) readFrames() {
	t := p.tape
	p.in.Frames, p.in.Segments = p.in.Frames[:0], p.in.Segments[:0]
	for range p.readCount() {
		segment := min(t.Uint(), maxFrame)
		p.in.Frames, p.in.Segments = append(p.in.Frames, playFrame(t)), append(p.in.Segments, int(segment))
	}
}

// readPortFrames reads the frames of ports.
func (p *Player) readPortFrames() {
	n := p.readCount()
	if n == 0 {
		p.Shard.fromPorts = nil
		return
	}
	var list []gateway.PortInput
	for range n {
		t := p.tape
		from := p.Shard.plain.gw.Endpoint(uint32(t.Uint()))
		if from == nil {
			from = &gateway.Endpoint{} // removed since: it is down
		}
		in := gateway.PortInput{From: from, Offload: unpackOffload(t)}
		if lost := t.Uint(); lost != 0 {
			in.Rest = lostRest(min(lost, maxFrame))
		}
		in.Frame = t.GetPart()
		list = append(list, in)
	}
	p.Shard.fromPorts = list
}

func unpackOffload(t *tape.Tape) gateway.Offload {
	b := t.Bytes()
	if len(b) != offloadLen {
		t.Differs("the recording has an offload of %d bytes", len(b))
	}
	return offloadOf(b)
}

// lostRest is the end of a frame that its guest took away.
type lostRest int

func (r lostRest) Len() int  { return int(r) }
func (lostRest) Fetch() bool { return false }

// endStep ends a Step. Of its effects only lines of the log come out: nobody waits for the others. What the
// Step has for the uplink and the ports is taken when the tape says so.
func (p *Player) endStep() { p.out.Do() }

// played is the inbox of a shard that plays.
type played struct{ p *Player }

// Drain plays what the inbox held in this Step.
func (d played) Drain(now falcon.Time) {
	for {
		k, err := d.p.tape.Next()
		if err != nil {
			d.p.tape.Differs("the recording ends in a Step")
		}
		if k == tape.InboxEnd {
			return
		}
		d.p.playEvent(now, k)
	}
}

// playEvent plays an event other than a Step.
func (p *Player) playEvent(now falcon.Time, k tape.Kind) {
	s, t := p.Shard, p.tape
	switch k {
	case tape.Attach, tape.Leave, tape.Listen, tape.Window, tape.Request:
		s.guests.Play(now, k, func(id uint32) *guest.Device {
			if f := s.funcs.members.get(pfvf.ID(id)); f != nil {
				return f.Device
			}
			return nil
		}, p.note)
	case tape.Order:
		var o order
		t.Value(&o)
		p.note("order of the core: " + o.String())
		s.obey(now, &o)
	case tape.Answer:
		p.playAnswer()
	case tape.VFAnswer:
		p.playVFAnswer()
	case tape.Routes:
		var c gateway.RouteChange
		t.Value(&c)
		s.core.Routes().Apply(&c)
	case tape.View:
		var c change
		t.Value(&c)
		p.note(c.String())
		s.playChange(now, &c)
	case tape.Secret:
		s.UseSecret([32]byte{})
	default:
		p.playPort(now, k)
	}
}

// playAnswer plays an answer of the core.
func (p *Player) playAnswer() {
	c, n := p.Shard.core.(*tapedCore), p.tape.Uint()
	var e *tapedError
	p.tape.Value(&e)
	then := c.thens[n]
	if then == nil && p.tape.Skip() {
		return
	}
	if then == nil {
		p.tape.Differs("an answer to a question that was not asked")
	}
	delete(c.thens, n)
	then(e.err())
}

// playVFAnswer plays the answer of a VF's shard to its PF.
func (p *Player) playVFAnswer() {
	c, n := p.Shard.core.(*tapedCore), p.tape.Uint()
	st, raw := abi.Status(p.tape.Uint()), p.tape.Bytes()
	then := c.visits[n]
	if then == nil && p.tape.Skip() {
		return
	}
	if then == nil || len(raw) != len(rawResult{}) {
		p.tape.Differs("an answer about a VF that no PF asked about")
	}
	delete(c.visits, n)
	then(st, rawResult(raw))
}

// coreAnswer returns what an answer of the core was.
func (o *answerOrder) coreAnswer() *conn.Answer {
	return &conn.Answer{Question: o.Question, ID: o.ID, Err: o.Err.err()}
}

// String says which order it is, for people.
func (o *order) String() string {
	for v, i := reflect.ValueOf(o).Elem(), 0; i < v.NumField(); i++ {
		if !v.Field(i).IsNil() {
			return v.Type().Field(i).Name
		}
	}
	return "none"
}

// obey carries out an order from the tape.
func (s *Shard) obey(now falcon.Time, o *order) {
	to := s.Orders()
	switch {
	case o.Answer != nil:
		to.Answer(now, o.Answer.coreAnswer())
	case o.Decide != nil:
		to.Decide(now, o.Decide.decision())
	case o.TakeKey != nil:
		to.TakeKey(now, o.TakeKey.Use, o.TakeKey.SA)
	case o.ForgetKeys != nil:
		to.ForgetKeys(*o.ForgetKeys)
	case o.SetPeer != nil:
		to.SetPeer(o.SetPeer.Peer, o.SetPeer.Name, o.SetPeer.Underlay, o.SetPeer.Anywhere)
	case o.RemovePeer != nil:
		to.RemovePeer(*o.RemovePeer)
	case o.LimitPath != nil:
		to.LimitPath(o.LimitPath.Peer, o.LimitPath.Data)
	case o.PeerPorts != nil:
		to.PeerPorts(now, *o.PeerPorts)
	case o.Resolve != nil:
		to.Resolve(now, *o.Resolve)
	case o.Probe != nil:
		to.ProbePath(now, o.Probe.Peer, o.Probe.At, o.Probe.Tenant, o.Probe.Probe)
	case o.Set != nil:
		_ = to.Set(now, o.Set.ID, &o.Set.Is) // the core got the error
	case o.Reset != nil:
		to.Reset(now, *o.Reset)
	case o.ResetVF != nil:
		to.VF(now, *o.ResetVF).VFReset() // the PF got the status
	case o.ResetVFs != nil:
		to.ResetVFs(now, *o.ResetVFs)
	case o.VFsEnabled != nil:
		to.VFsEnabled(o.VFsEnabled.PF, o.VFsEnabled.N)
	case o.PFLink != nil:
		to.PFLink(now, o.PFLink.PF, o.PFLink.Is)
	}
}

// playChange makes an operator's change.
func (s *Shard) playChange(now falcon.Time, c *change) {
	v := s.View()
	switch {
	case c.ClearFaults:
		v.Faults.Clear(now)
	case s.funcs.members.get(c.ID) == nil && s.tape.Skip():
	case s.funcs.members.get(c.ID) == nil:
		s.tape.Differs("a change of a function that is not there")
	case c.Fault != nil:
		_, _ = v.Faults.Inject(now, c.ID, c.Fault) // the operator got the error
	case c.ClearViolations:
		v.Objects.ClearViolations(c.ID)
	}
}

// errNotAdded stands for the reason why a port could not be added.
var errNotAdded = errors.New("not added")

// playPort plays what was done with ports.
func (p *Player) playPort(now falcon.Time, k tape.Kind) {
	s, t := p.Shard, p.tape
	switch k {
	case tape.Deliver:
		s.plain.gw.Deliver(s.delivered)
	case tape.PortSync:
		s.Ports().Sync()
	case tape.PortChange:
		p.come = s.Ports().Change(func(gone *Port) { gone.Lost, gone.Device = true, nil })
	case tape.PortAdd:
		id, added := pfvf.ID(t.Uint()), t.Uint() != 0
		for _, port := range p.come {
			if port.ID == id {
				_ = s.Ports().Add(port, func() error {
					if !added {
						return errNotAdded
					}
					return nil
				}, func() {})
				return
			}
		}
		t.Differs("a port is added that no function has")
	case tape.PortLost:
		port := s.plain.ports.get(pfvf.ID(t.Uint()))
		if port == nil {
			t.Differs("a port is lost that is not there")
		}
		s.Ports().Lost(now, port)
	default:
		t.Differs("the recording has %q where an event is expected", k)
	}
}
