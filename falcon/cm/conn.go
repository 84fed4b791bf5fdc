package cm

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/falcon-vnic/vnic/internal/list"
	"github.com/falcon-vnic/vnic/internal/timer"
)

// conn is one entry of the connection table.
type conn struct {
	id       uint32 // our ID
	remoteID uint32 // the peer's ID; 0 until REP
	state    State
	peer     *peer
	passive  bool
	par      Params
	opened   bool // OutOpen was emitted, OutClose not yet
	hasCID   bool
	msg      []byte // REQ, REP or DREQ to repeat
	tries    int
	created  Time

	timer   timer.Handle
	waiting list.Node[conn] // in its function's usage, in StateTimeWait
}

// txUse returns the use under which this side of c seals.
func (c *conn) txUse() Use { return Use{Peer: c.peer.ID, Shard: c.par.Shard, Tenant: c.par.Tenant} }

// source identifies who requests connections: a function and its NIC.
type source struct {
	peer     PeerID
	function uint32
}

func (c *conn) source() source { return source{c.peer.ID, c.par.PeerFunction} }

// State is the state of a connection.
type State uint8

// States. A function owns a connection until it leaves StateEstablished. In StateDreqSent and
// StateTimeWait only its CID and its IDs remain.
const (
	StateClosed      State = iota // not in the table
	StateReqSent                  // active: waiting for REP
	StateReqReceived              // passive: waiting for Accept
	StateRepSent                  // passive: waiting for RTU
	StateEstablished
	StateDreqSent // waiting for DREP
	StateTimeWait // waiting until no packet is in flight any more
	numStates
)

func (s State) String() string {
	names := [...]string{"CLOSED", "REQ-SENT", "REQ-RECEIVED", "REP-SENT", "ESTABLISHED", "DREQ-SENT", "TIME-WAIT"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// owned reports whether the function still owns the connection.
func (s State) owned() bool { return s >= StateReqSent && s <= StateEstablished }

type event uint8

const (
	evREP          event = iota // a valid REP for this connection
	evBadREP                    // a REP with values that this side cannot use
	evREJ                       //
	evRTU                       //
	evDREQ                      //
	evDREP                      //
	evDuplicateREQ              //
	evAccept                    // by the function
	evReject                    // by the function
	evDisconnect                // by the function
	evFunctionGone              //
	evRetry                     // a timer expired, tries are left
	evGiveUp                    // a timer expired, no tries are left
	evPeerDown                  //
	evPeerRestart               //
	evPeerRemoved               //
	numEvents
)

func (e event) String() string {
	names := [...]string{
		"REP", "bad REP", "REJ", "RTU", "DREQ", "DREP", "duplicate REQ", "accept", "reject",
		"disconnect", "function gone", "retry", "give up", "peer down", "peer restart", "peer removed",
	}
	if int(e) < len(names) {
		return names[e]
	}
	return fmt.Sprintf("event(%d)", uint8(e))
}

// transition is the effect of an event on a connection in some state. An event without an entry is
// illegal in that state: it is counted and changes nothing.
type transition struct {
	next State
	do   func(h *handshake, now Time, c *conn, a *args)
}

// transitions is the whole state machine. A line means: in this state, on this event, execute do
// and change to next.
var transitions = [numStates][numEvents]transition{
	StateReqSent: {
		evREP:          {StateEstablished, (*handshake).establishActive},
		evBadREP:       {StateTimeWait, (*handshake).cancel},
		evREJ:          {StateClosed, (*handshake).rejected},
		evDisconnect:   {StateTimeWait, (*handshake).cancel},
		evFunctionGone: {StateTimeWait, (*handshake).cancelSilently},
		evRetry:        {StateReqSent, (*handshake).resend},
		evGiveUp:       {StateTimeWait, (*handshake).cancel},
		evPeerDown:     {StateTimeWait, (*handshake).fail},
		evPeerRemoved:  {StateClosed, (*handshake).fail},
	},
	StateReqReceived: {
		evREJ:          {StateClosed, (*handshake).fail},
		evDuplicateREQ: {StateReqReceived, (*handshake).ignore},
		evAccept:       {StateRepSent, (*handshake).openPassive},
		evReject:       {StateClosed, (*handshake).cancelSilently},
		evDisconnect:   {StateClosed, (*handshake).cancel},
		evFunctionGone: {StateClosed, (*handshake).cancelSilently},
		evGiveUp:       {StateClosed, (*handshake).cancel},
		evPeerDown:     {StateClosed, (*handshake).fail},
		evPeerRemoved:  {StateClosed, (*handshake).fail},
	},
	StateRepSent: {
		evREJ:          {StateTimeWait, (*handshake).fail},
		evRTU:          {StateEstablished, (*handshake).establishPassive},
		evDREQ:         {StateTimeWait, (*handshake).disconnected},
		evDuplicateREQ: {StateRepSent, (*handshake).resend},
		evDisconnect:   {StateDreqSent, (*handshake).disconnect},
		evFunctionGone: {StateDreqSent, (*handshake).disconnectSilently},
		evRetry:        {StateRepSent, (*handshake).resend},
		evGiveUp:       {StateTimeWait, (*handshake).cancel},
		evPeerDown:     {StateTimeWait, (*handshake).fail},
		evPeerRemoved:  {StateClosed, (*handshake).partPending},
	},
	StateEstablished: {
		evREP:          {StateEstablished, (*handshake).confirm},
		evBadREP:       {StateEstablished, (*handshake).ignore},
		evREJ:          {StateTimeWait, (*handshake).lost},
		evRTU:          {StateEstablished, (*handshake).ignore},
		evDREQ:         {StateTimeWait, (*handshake).disconnected},
		evDuplicateREQ: {StateEstablished, (*handshake).ignore},
		evDisconnect:   {StateDreqSent, (*handshake).disconnect},
		evFunctionGone: {StateDreqSent, (*handshake).disconnectSilently},
		evPeerDown:     {StateEstablished, (*handshake).ignore},
		evPeerRestart:  {StateTimeWait, (*handshake).lost},
		evPeerRemoved:  {StateClosed, (*handshake).part},
	},
	StateDreqSent: {
		evREP:          {StateDreqSent, (*handshake).ignore}, // the peer will get our DREQ
		evBadREP:       {StateDreqSent, (*handshake).ignore},
		evREJ:          {StateTimeWait, (*handshake).ignore},
		evRTU:          {StateDreqSent, (*handshake).ignore},
		evDREQ:         {StateTimeWait, (*handshake).answerDREQ}, // both sides ended it at the same time
		evDREP:         {StateTimeWait, (*handshake).ignore},
		evDuplicateREQ: {StateDreqSent, (*handshake).ignore},
		evFunctionGone: {StateDreqSent, (*handshake).ignore},
		evRetry:        {StateDreqSent, (*handshake).resend},
		evGiveUp:       {StateTimeWait, (*handshake).ignore},
		evPeerDown:     {StateTimeWait, (*handshake).ignore},
		evPeerRemoved:  {StateClosed, (*handshake).ignore},
	},
	StateTimeWait: {
		evREP:          {StateTimeWait, (*handshake).answerStale},
		evBadREP:       {StateTimeWait, (*handshake).answerStale},
		evREJ:          {StateTimeWait, (*handshake).ignore},
		evRTU:          {StateTimeWait, (*handshake).answerStale}, // the peer missed the end
		evDREQ:         {StateTimeWait, (*handshake).answerDREQ},
		evDREP:         {StateTimeWait, (*handshake).ignore},
		evDuplicateREQ: {StateTimeWait, (*handshake).ignore},
		evFunctionGone: {StateTimeWait, (*handshake).ignore},
		evGiveUp:       {StateClosed, (*handshake).ignore},
		evPeerDown:     {StateTimeWait, (*handshake).ignore},
		evPeerRestart:  {StateTimeWait, (*handshake).ignore},
		evPeerRemoved:  {StateClosed, (*handshake).ignore},
	},
}

// fire applies an event to a connection.
func (h *handshake) fire(now Time, c *conn, ev event, a args) error {
	t := transitions[c.state][ev]
	if t.do == nil {
		h.out.stats.IllegalEvents++
		return ErrState
	}
	t.do(h, now, c, &a)
	if ev == evRetry {
		c.tries++
		h.out.stats.Retries++
		h.arm(now, c)
	}
	if t.next != c.state {
		h.enter(now, c, t.next)
	}
	return nil
}

// enter changes the state, updates the counts and sets the timer.
func (h *handshake) enter(now Time, c *conn, next State) {
	switch u := h.conns.usage(c.par.Function); c.state {
	case StateReqReceived:
		u.backlog.Give(c.source())
	case StateTimeWait:
		c.waiting.Remove()
	}
	c.state, c.tries = next, 0
	switch next {
	case StateClosed:
		h.conns.remove(c)
		return
	case StateReqReceived:
		h.conns.usage(c.par.Function).backlog.Take(c.source())
	case StateEstablished:
		c.msg = nil
	case StateTimeWait:
		c.msg = nil
		h.conns.usage(c.par.Function).waiting.PushBack(&c.waiting, c)
	}
	h.arm(now, c)
}

// arm sets the timer of the connection's state.
func (h *handshake) arm(now Time, c *conn) {
	switch c.state {
	case StateReqSent:
		h.conns.timers.Arm(&c.timer, c, 0, now+h.cfg.ReqTimeout)
	case StateReqReceived:
		h.conns.timers.Arm(&c.timer, c, 0, now+h.cfg.AcceptTimeout)
	case StateRepSent:
		h.conns.timers.Arm(&c.timer, c, 0, now+h.cfg.RepTimeout)
	case StateDreqSent:
		h.conns.timers.Arm(&c.timer, c, 0, now+h.cfg.DreqTimeout)
	case StateTimeWait:
		h.conns.timers.Arm(&c.timer, c, 0, now+h.cfg.TimeWait)
	default:
		h.conns.timers.Stop(&c.timer)
	}
}

// expired returns the event that the expired timer of c causes.
func (h *handshake) expired(c *conn) event {
	retries := 0
	switch c.state {
	case StateReqSent:
		retries = h.cfg.ReqRetries
	case StateRepSent:
		retries = h.cfg.RepRetries
	case StateDreqSent:
		retries = h.cfg.DreqRetries
	}
	if c.tries < retries {
		return evRetry
	}
	return evGiveUp
}

// args holds an event's details; which fields are set depends on the event.
type args struct {
	rep      *REP
	reason   Reason // reported to our function
	tell     Reason // sent to the peer; ReasonNone: nothing is sent
	consumer uint32
	private  []byte
}

func (h *handshake) ignore(Time, *conn, *args) {}

func (h *handshake) resend(_ Time, c *conn, _ *args) { h.out.send(c.peer, c.msg) }

// finish emits the one output that ends a connection for its function.
func (h *handshake) finish(kind OutputKind, c *conn, a *args) {
	h.close(c, a.reason)
	h.out.emit(Output{Kind: kind, ID: c.id, Function: c.par.Function, Peer: c.peer.ID, Reason: a.reason, Consumer: a.consumer, Private: a.private})
}

// open emits OutOpen with the parameters; close emits the matching OutClose. The key is the newest
// one that the peer gave, which need not be that of its offer.
func (h *handshake) open(c *conn) {
	c.opened = true
	sa := c.peer.keys[c.txUse()]
	c.par.TxVersion, c.par.TxSPI = sa.Version, sa.SPI
	par := c.par
	par.TxKey = sa.Key
	h.out.emit(Output{Kind: OutOpen, ID: c.id, Function: par.Function, Peer: c.peer.ID, Params: &par})
}

func (h *handshake) close(c *conn, reason Reason) {
	if c.opened {
		c.opened = false
		h.out.emit(Output{Kind: OutClose, ID: c.id, Function: c.par.Function, Peer: c.peer.ID, Reason: reason})
	}
}

func (h *handshake) establishActive(_ Time, c *conn, a *args) {
	c.remoteID = a.rep.SenderID
	c.par.PeerQPN = a.rep.QPN
	h.takeOffer(c, &a.rep.Offer)
	c.par.MTU = int(a.rep.Offer.MTU)
	h.out.stats.Established++
	h.open(c)
	h.out.emit(Output{Kind: OutEstablished, ID: c.id, Function: c.par.Function, Peer: c.peer.ID, Private: a.rep.Private})
	h.confirm(0, c, a)
}

// openPassive sends REP. It opens the connection first, since the peer may use it as soon as it has
// the REP.
func (h *handshake) openPassive(_ Time, c *conn, _ *args) {
	h.open(c)
	h.out.send(c.peer, c.msg)
}

func (h *handshake) establishPassive(_ Time, c *conn, _ *args) {
	h.out.stats.Established++
	h.out.emit(Output{Kind: OutEstablished, ID: c.id, Function: c.par.Function, Peer: c.peer.ID})
}

// confirm tells the peer that this side considers the connection established.
func (h *handshake) confirm(_ Time, c *conn, _ *args) {
	rtu := RTU{c.id, c.remoteID}
	h.out.send(c.peer, Encode(&rtu))
}

// rejected ends a request that the peer refused.
func (h *handshake) rejected(_ Time, c *conn, a *args) { h.finish(OutRejected, c, a) }

// fail ends a pending connection without telling the peer.
func (h *handshake) fail(_ Time, c *conn, a *args) { h.finish(OutUnreachable, c, a) }

// lost ends an established connection that the peer no longer has.
func (h *handshake) lost(_ Time, c *conn, a *args) {
	h.out.stats.Disconnected++
	h.finish(OutDisconnected, c, a)
}

// cancel ends a pending connection on behalf of this side and tells the peer.
func (h *handshake) cancel(now Time, c *conn, a *args) {
	h.cancelSilently(now, c, a)
	kind := OutUnreachable
	if a.reason == ReasonLocal {
		kind = OutDisconnected
	}
	h.finish(kind, c, a)
}

// cancelSilently is cancel without an output to the function.
func (h *handshake) cancelSilently(_ Time, c *conn, a *args) {
	h.close(c, a.reason)
	rej := REJ{SenderID: c.id, ReceiverID: c.remoteID, Reason: a.tell, Consumer: a.consumer, Private: a.private}
	h.out.send(c.peer, Encode(&rej))
	a.private = nil
}

// disconnect ends an established connection on behalf of this side.
func (h *handshake) disconnect(now Time, c *conn, a *args) {
	h.disconnectSilently(now, c, a)
	h.finish(OutDisconnected, c, a)
}

func (h *handshake) disconnectSilently(_ Time, c *conn, a *args) {
	h.out.stats.Disconnected++
	h.close(c, a.reason)
	dreq := DREQ{c.id, c.remoteID, a.tell}
	c.msg = Encode(&dreq)
	h.out.send(c.peer, c.msg)
}

// part ends an established connection with a peer that is removed. The peer is told once: nobody is
// left to take its answer.
func (h *handshake) part(_ Time, c *conn, a *args) {
	h.out.stats.Disconnected++
	h.farewell(c)
	h.finish(OutDisconnected, c, a)
}

// partPending is part before the peer's RTU: for the peer it may be established.
func (h *handshake) partPending(_ Time, c *conn, a *args) {
	h.farewell(c)
	h.finish(OutUnreachable, c, a)
}

func (h *handshake) farewell(c *conn) {
	dreq := DREQ{c.id, c.remoteID, ReasonDisconnect}
	h.out.send(c.peer, Encode(&dreq))
}

// disconnected ends a connection that the peer has ended.
func (h *handshake) disconnected(now Time, c *conn, a *args) {
	h.out.stats.Disconnected++
	h.answerDREQ(now, c, a)
	h.finish(OutDisconnected, c, a)
}

func (h *handshake) answerDREQ(_ Time, c *conn, _ *args) {
	drep := DREP{c.id, c.remoteID}
	h.out.send(c.peer, Encode(&drep))
}

func (h *handshake) answerStale(_ Time, c *conn, a *args) {
	rej := REJ{SenderID: c.id, ReceiverID: c.remoteID, Reason: ReasonStale}
	if a.rep != nil { // withdrawn before the peer's ID was known
		rej.ReceiverID = a.rep.SenderID
	}
	h.out.send(c.peer, Encode(&rej))
}

// handshake executes the steps of connections: it makes offers, answers and gives up. transitions
// defines which step follows which event.
type handshake struct {
	cfg   *Config
	res   Resources
	rand  io.Reader
	out   *outbox
	peers *peers
	keys  *rekeying
	conns *table
}

func random(from io.Reader, b []byte) error {
	if _, err := io.ReadFull(from, b); err != nil {
		return fmt.Errorf("cm: reading random bytes: %w", err)
	}
	return nil
}

// takeOffer stores the values that the peer decides.
func (h *handshake) takeOffer(c *conn, o *Offer) {
	if c.peer != h.peers.self {
		h.keys.learn(c.peer, c.txUse(), o.SA)
	}
	c.par.RemoteCID, c.par.PeerIRD = o.CID, o.IRD
	c.par.RxDataPSN, c.par.RxReqPSN, c.par.RxRSN = o.DataPSN, o.ReqPSN, o.RSN
	c.par.RemoteTime = o.Time
}

// offer allocates a CID and collects the values that this side decides. On error nothing is kept.
func (h *handshake) offer(now Time, c *conn) (Offer, error) {
	var r [12]byte
	if err := random(h.rand, r[:]); err != nil {
		return Offer{}, err
	}
	sa, err := h.rxSA(c)
	if err != nil {
		return Offer{}, fmt.Errorf("cm: receive SA for NIC %s, tenant %d: %w", c.peer.Name, c.par.Tenant, err)
	}
	cid, err := h.res.AllocCID(c.par.Function)
	for err != nil && h.endOldest(now, c.par.Function) {
		cid, err = h.res.AllocCID(c.par.Function)
	}
	if err != nil {
		return Offer{}, fmt.Errorf("cm: CID for function %#06x: %w", c.par.Function, err)
	}
	c.hasCID = true
	c.par.LocalCID = cid
	if c.peer != h.peers.self {
		c.par.RxSPI = sa.SPI
	}
	c.par.TxDataPSN = binary.BigEndian.Uint32(r[0:])
	c.par.TxReqPSN = binary.BigEndian.Uint32(r[4:])
	c.par.TxRSN = binary.BigEndian.Uint32(r[8:])
	return Offer{
		Shard: c.par.PeerShard, CID: cid, DataPSN: c.par.TxDataPSN, ReqPSN: c.par.TxReqPSN, RSN: c.par.TxRSN,
		MTU: uint16(c.par.MTU), Ordered: c.par.Ordered, IRD: c.par.IRD, SA: sa, Time: pspTime(now),
		CompleteInError: c.par.CompleteInError,
	}, nil
}

// unsealed is the SA in offers of local connections, which have no keys.
var unsealed = SA{SPI: 1, Key: make([]byte, keyLen(0))}

// rxSA returns the SA with which the other end of c must seal.
func (h *handshake) rxSA(c *conn) (SA, error) {
	if c.peer == h.peers.self {
		return unsealed, nil
	}
	sa, err := h.res.RxSA(Use{Peer: c.peer.ID, Shard: c.par.PeerShard, Tenant: c.par.Tenant})
	if err == nil {
		err = sa.check()
	}
	return sa, err
}
