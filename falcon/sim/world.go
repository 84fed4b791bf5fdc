package sim

import (
	"encoding/binary"
	"hash/crc32"
	"math"

	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/wire"
)

// Handler is the ULP of a node. HandleEvent answers events and may call the engine.
type Handler interface {
	falcon.ULP
	HandleEvent(now falcon.Time, ev *falcon.Event)
}

// Verdict is a World Filter's decision about a packet.
type Verdict struct {
	Drop  bool
	Delay falcon.Time // how long it is held back before it enters the link
}

// World is two engines joined by two links.
type World struct {
	Now    falcon.Time
	Nodes  [2]*Node
	Links  [2]*Link // Links[i] carries what node i sends
	Filter func(from int, packet []byte) Verdict
	Trace  []Sent // every packet sent, if Tracing
	// Tracing records packets.
	Tracing bool
	// FlushAcks sends coalesced acknowledgements whenever a node has nothing else to do, as a NIC
	// does before it parks.
	FlushAcks bool

	held []heldPacket
	buf  []byte
}

type heldPacket struct {
	at   falcon.Time
	from int
	data []byte
}

// Node is one engine.
type Node struct {
	Engine *falcon.Engine
	ULP    Handler
	Bad    uint64 // packets whose checksum was wrong
}

// Sent is a packet in a trace.
type Sent struct {
	At     falcon.Time
	From   int
	Type   wire.PacketType
	Packet []byte
	Lost   bool // by the Filter or the link
}

const (
	trailer = 8 // send time in Falcon units, checksum
	longest = wire.MaxHeaderLen + 65536
)

// NewWorld joins two nodes whose engines were made with the given configurations.
func NewWorld(seed uint64, cfg [2]falcon.Config, ulp [2]Handler, imp Impairment) *World {
	w := &World{buf: make([]byte, longest+trailer)}
	for i := range w.Nodes {
		w.Nodes[i] = &Node{Engine: falcon.NewEngine(cfg[i], ulp[i]), ULP: ulp[i]}
		w.Links[i] = NewLink(Mix(seed+uint64(i)), imp)
	}
	return w
}

// Connect opens a connection between the nodes. cfg is node 0's view; node 1 gets the mirror image.
func (w *World) Connect(cfg falcon.ConnConfig) (a, b *falcon.Conn, err error) {
	if a, err = w.Nodes[0].Engine.Open(w.Now, cfg); err != nil {
		return nil, nil, err
	}
	m := Mirror(cfg)
	b, err = w.Nodes[1].Engine.Open(w.Now, m)
	return a, b, err
}

// Mirror returns the peer's view of a connection.
func Mirror(c falcon.ConnConfig) falcon.ConnConfig {
	m := c
	m.LocalCID, m.RemoteCID = c.RemoteCID, c.LocalCID
	m.LocalFunction, m.RemoteFunction = c.RemoteFunction, c.LocalFunction
	m.TxDataPSN, m.RxDataPSN = c.RxDataPSN, c.TxDataPSN
	m.TxReqPSN, m.RxReqPSN = c.RxReqPSN, c.TxReqPSN
	m.TxRSN, m.RxRSN = c.RxRSN, c.TxRSN
	return m
}

// Step lets both nodes do all work that is possible at the current time.
func (w *World) Step() {
	for busy := true; busy; {
		busy = false
		for i := range w.Nodes {
			busy = w.stepNode(i) || busy
		}
	}
}

func (w *World) stepNode(i int) (busy bool) {
	n := w.Nodes[i]
	n.Engine.Advance(w.Now)
	n.drain(w.Now)
	w.release()
	for {
		f, ok := w.Links[1-i].Receive(w.Now)
		if !ok {
			break
		}
		busy = true
		p, ok := open(f.Data)
		if !ok {
			n.Bad++
			continue
		}
		p.CE = f.CE
		n.Engine.Receive(w.Now, p)
		n.drain(w.Now)
	}
	for w.transmit(i) {
		busy = true
	}
	if w.FlushAcks {
		n.Engine.FlushAcks(w.Now)
		for w.transmit(i) {
			busy = true
		}
	}
	n.drain(w.Now)
	return busy
}

// drain passes all events to the ULP.
func (n *Node) drain(now falcon.Time) {
	var ev falcon.Event
	for n.Engine.Next(&ev) {
		n.ULP.HandleEvent(now, &ev)
	}
}

func (w *World) transmit(i int) bool {
	n, _ := w.Nodes[i].Engine.Transmit(w.Now, w.buf[:longest])
	if n == 0 {
		return false
	}
	if w.Tracing {
		t, _ := wire.Peek(w.buf[:n])
		w.Trace = append(w.Trace, Sent{At: w.Now, From: i, Type: t, Packet: append([]byte(nil), w.buf[:n]...)})
	}
	var v Verdict
	if w.Filter != nil {
		v = w.Filter(i, w.buf[:n])
	}
	if v.Drop {
		w.traceLoss()
		return true
	}
	sealed := seal(w.Now, w.buf[:n])
	if v.Delay > 0 {
		w.held = append(w.held, heldPacket{at: w.Now + v.Delay, from: i, data: append([]byte(nil), sealed...)})
		return true
	}
	before := w.Links[i].stats
	w.Links[i].Send(w.Now, sealed)
	if after := &w.Links[i].stats; after.Lost > before.Lost || after.Overflowed > before.Overflowed && after.Duplicated == before.Duplicated {
		w.traceLoss()
	}
	return true
}

// traceLoss marks the packet traced last as lost.
func (w *World) traceLoss() {
	if w.Tracing {
		w.Trace[len(w.Trace)-1].Lost = true
	}
}

// release sends held packets whose delay is over.
func (w *World) release() {
	kept := w.held[:0]
	for _, h := range w.held {
		if h.at <= w.Now {
			w.Links[h.from].Send(w.Now, h.data)
		} else {
			kept = append(kept, h)
		}
	}
	w.held = kept
}

// Deadline returns when the next event happens.
func (w *World) Deadline() falcon.Time {
	at := falcon.Time(math.MaxInt64)
	for i := range w.Nodes {
		at = min(at, w.Nodes[i].Engine.Deadline(), w.Links[i].Deadline())
	}
	for _, h := range w.held {
		at = min(at, h.at)
	}
	return at
}

// Run steps until no event is left, done returns true or the time is reached. It returns whether
// done returned true.
func (w *World) Run(until falcon.Time, done func() bool) bool {
	for {
		w.Step()
		if done != nil && done() {
			return true
		}
		at := w.Deadline()
		if at > until {
			w.Now = max(w.Now, until)
			return false
		}
		w.Now = max(w.Now, at)
	}
}

// seal appends the send time and a checksum over everything.
func seal(now falcon.Time, p []byte) []byte {
	p = binary.BigEndian.AppendUint32(p, falcon.FalconTime(now))
	return binary.BigEndian.AppendUint32(p, crc32.ChecksumIEEE(p))
}

func open(b []byte) (falcon.Packet, bool) {
	n := len(b) - trailer
	if n < 0 || crc32.ChecksumIEEE(b[:n+4]) != binary.BigEndian.Uint32(b[n+4:]) {
		return falcon.Packet{}, false
	}
	return falcon.Packet{T1: binary.BigEndian.Uint32(b[n:]), Data: b[:n:n]}, true
}
