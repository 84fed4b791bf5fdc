package falcon

import "github.com/falcon-vnic/vnic/internal/timer"

// The timers of the engine, by what their owner does when they are due.
const (
	timerFlight    timer.Kind = iota // of a conn: the packet sent longest ago is not acknowledged
	timerRNR                         // of a txn: the delay of an RNR NACK
	timerRedeliver                   // of an rxTxn: pull under RNR
	timerPace                        // of a conn: next packet allowed
	timerTxn                         // of a conn: oldest transaction times out
	timerAck                         // of a conn: its coalesced acknowledgement goes
	timerRUE                         // of rateUpdate: a result of the Rate Update Engine comes into force
	timerReclaim                     // of a conn: something held for the peer may be too old
)

// timerOwner is told when its timer is due; it is not armed any more then.
type timerOwner interface {
	expired(now Time, kind timer.Kind)
}
