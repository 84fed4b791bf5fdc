package falcon

import "github.com/falcon-vnic/vnic/internal/timer"

// Kinds of timers, with the reason each is due.
const (
	timerFlight    timer.Kind = iota // of a conn: the packet sent longest ago is not acknowledged
	timerRNR                         // of a txn: the delay of an RNR NACK is over
	timerRedeliver                   // of an rxTxn: a pull is delivered again after RNR or DeferPull
	timerPace                        // of a conn: the next packet is allowed
	timerTxn                         // of a conn: oldest transaction times out
	timerAck                         // of a conn: its coalesced acknowledgement is due
	timerRUE                         // of rateUpdate: a result of the Rate Update Engine comes into force
	timerReclaim                     // of a conn: something held for the peer may be too old
)

// timerOwner is called when its timer is due. The timer is no longer armed then.
type timerOwner interface {
	expired(now Time, kind timer.Kind)
}
