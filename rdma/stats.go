package rdma

import "github.com/falcon-vnic/vnic/rdma/verbs"

// Stats counts what happened since the function (or, summed, the engine) was made.
type Stats struct {
	verbs.Stats
	PushesTx      uint64 // SEND and WRITE packets issued
	PullsTx       uint64 // READ and atomic packets issued
	BytesTx       uint64 // data bytes of those pushes
	PushesRx      uint64 // SEND and WRITE packets taken
	PullsRx       uint64 // READ and atomic requests taken
	BytesRx       uint64 // data bytes of pushes and pull responses placed in memory
	RNRTx         uint64 // receiver-not-ready answers given
	RNRRx         uint64 // receiver-not-ready answers received
	PullsDeferred uint64 // times a READ or atomic request was put off: no slot, no rate, or before its turn
	Refused       uint64 // requests refused with a syndrome
	DatagramsLost uint64 // that could not be sent or delivered
	BadQKeys      uint64 // datagrams with the wrong Q_Key
	CIDMismatches uint64 // packets for a QP that does not own the connection (RDMA over Falcon §6.9)
	CreditWaits   uint64 // times a QP had to wait for Falcon credit
	RateWaits     uint64 // times the function, or a READ of it, had to wait for its rate
	QPErrors      uint64 // QPs that moved to ERR by themselves
	Doorbells     uint64 // doorbells taken
}

// add adds o to s.
func (s *Stats) add(o *Stats) {
	s.Stats.Add(&o.Stats)
	s.PushesTx += o.PushesTx
	s.PullsTx += o.PullsTx
	s.BytesTx += o.BytesTx
	s.PushesRx += o.PushesRx
	s.PullsRx += o.PullsRx
	s.BytesRx += o.BytesRx
	s.RNRTx += o.RNRTx
	s.RNRRx += o.RNRRx
	s.PullsDeferred += o.PullsDeferred
	s.Refused += o.Refused
	s.DatagramsLost += o.DatagramsLost
	s.BadQKeys += o.BadQKeys
	s.CIDMismatches += o.CIDMismatches
	s.CreditWaits += o.CreditWaits
	s.RateWaits += o.RateWaits
	s.QPErrors += o.QPErrors
	s.Doorbells += o.Doorbells
}
