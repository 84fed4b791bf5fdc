package falcon

import "github.com/falcon-vnic/vnic/falcon/wire"

// Stats holds counters of one engine since it was made. All are monotonic except those of the last
// group.
type Stats struct {
	PacketsReceived      uint64
	Drops                [wire.DropCount]uint64 // by reason; Drops[DropNone] counts accepted packets
	IgnoredAcks          uint64                 // stale or impossible acknowledgements carried by other packets
	ECNMarked            uint64
	PacketsSent          uint64 // of every kind
	DataSent             uint64 // first transmissions of requests and data
	AcksSent             uint64 // BACK and EACK
	ExtendedAcksSent     uint64 // EACK alone
	OWNSent              uint64 // EACKs with an out-of-window notification
	AcksReceived         uint64 // BACK and EACK
	ExtendedAcksReceived uint64 // EACK alone
	OWNReceived          uint64 // EACKs with an out-of-window notification
	NacksSent            uint64
	NacksReceived        uint64
	NackCodesSent        [wire.NackCodes]uint64 // by code; reserved ones are 0
	NackCodesReceived    [wire.NackCodes]uint64 // by code; reserved ones are 0
	ResyncsSent          uint64
	ResyncsReceived      uint64
	Completions          [CompletionCodes]uint64 // transactions of the initiator, by code of Falcon §11
	TimeoutRetransmits   uint64
	SpuriousTimeouts     uint64 // of TimeoutRetransmits: the acknowledgement was already on its way
	SpuriousEarly        uint64 // of EarlyRetransmits: the packet had only been overtaken
	AnswerTimeouts       uint64 // pushes sent again because the peer's ULP did not answer
	Probes               uint64 // tail loss probes
	EarlyRetransmits     uint64
	FillErrors           uint64
	Xoffs                uint64 // Push or Pull refused with ErrXoff
	Rejected             uint64 // Push or Pull completed at once for lack of room, without flow control
	RedZone              uint64 // requests of peers refused for lack of contexts or cells; heads of line are accepted without
	TxnTimeouts          uint64
	Evicted              uint64 // pushes of peers that lost their cell to a connection that holds less
	Reclaimed            uint64 // requests of peers, and responses to them, given up because the peer left them waiting
	ConnsClosed          [CloseReasons]uint64
	CreditErrors         uint64 // credits returned twice: a bug of this package
	Repaths              uint64
	RUEEvents            uint64 // events given to the Rate Update Engine
	RUEBusy              uint64 // events not raised because one of the connection was still at the RUE
	RUESkipped           uint64 // events not raised because of the policy or a full queue

	Conns      int // open now
	TxContexts int // transactions held
	RxContexts int // requests of peers held
	RxCells    int // payload cells held
}

// ConnInfo is a snapshot of a connection for display.
type ConnInfo struct {
	Fcwnd             float64 // packets
	Ncwnd             uint32  // packets
	RTT, RTO          Time    // ns
	Delay             Time    // ns, congestion control's smoothed delay signal
	DelayTarget       Time    // ns, congestion control's target for a path without congestion; 0: the algorithm has none
	LongPath          bool    // the delay stays above DelayTarget although the window is a packet or less
	Outstanding       int     // transactions of the initiator
	RequestsInFlight  uint32  // packets between base and next of the request window
	DataInFlight      uint32  // the same of the data window
	WaitingForOrder   int     // cells held
	TargetTransaction int     // requests of the peer that are not answered, and responses not acknowledged
	Retransmits       uint64  // packets sent again
	Xoff              bool    // refused a Push or Pull since the last EvCredit
}

// Stats returns the counters. They change with the next call of the engine.
func (e *Engine) Stats() *Stats {
	s := &e.stats
	s.Conns, s.TxContexts, s.RxContexts, s.RxCells = e.conns.n, e.contexts.txns, e.contexts.requests, e.contexts.cells.inUse
	return s
}

// Info returns a snapshot of the connection.
func (c *Conn) Info() ConnInfo {
	return ConnInfo{
		Fcwnd: float64(c.flight.cc.state.Fcwnd) / 1024, Ncwnd: c.flight.cc.state.Ncwnd, RTT: fromFU(c.flight.cc.state.RTT), RTO: fromFU(c.flight.cc.state.RTO), Delay: fromFU(c.flight.cc.state.Delay),
		Outstanding:      int(c.initiator.next - c.initiator.base),
		RequestsInFlight: c.flight.requests.next - c.flight.requests.base, DataInFlight: c.flight.data.next - c.flight.data.base,
		DelayTarget: fromFU(c.flight.cc.state.BaseDelay), LongPath: c.flight.cc.longPath,
		Retransmits: c.tx.retransmits, WaitingForOrder: int(c.cells), TargetTransaction: int(c.target.unanswered + c.target.responses), Xoff: c.initiator.waiting,
	}
}
