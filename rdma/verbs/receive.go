package verbs

import "github.com/falcon-vnic/vnic/queues/abi"

// Receive is one receive work request, read once from the RQ or SRQ for the message that takes it.
type Receive struct {
	Taken    bool
	Done     bool // its message is complete but older ones are not (unordered mode)
	WRID     uint64
	SGEs     SGL // its capacity is the QP's MaxRecvSGE, or the maximum of any SRQ
	Capacity uint64
	Status   abi.WCStatus // result of its checks
	SRQ      *SRQ         // that it came from
}

// recvEntry returns how many bytes of a receive entry are read.
func recvEntry(sges uint8) uint32 { return abi.RecvWQEHeader + uint32(sges)*abi.SGESize }

// Fill sets v from the entry of u that was read last. Its SGEs must name memory of pd.
func (v *Receive) Fill(u *WorkQueue, r *Regions, pd *PD, entry []byte) {
	var x abi.RecvWQE
	x.Unmarshal(entry)
	if u.owner.strict && x.Reserved(entry) {
		u.Broke(abi.DRV102, entry)
	}
	*v = Receive{Taken: true, WRID: x.WRID, SGEs: v.SGEs[:0]}
	if int(x.NumSGE) > (len(entry)-abi.RecvWQEHeader)/abi.SGESize {
		u.Broke(abi.DRV608, entry)
		v.Status = abi.WCLocQPOpErr
		return
	}
	var ok bool
	if v.SGEs, v.Capacity, ok = r.SGEs(pd, u.privileged, v.SGEs, entry[abi.RecvWQEHeader:], int(x.NumSGE), abi.AccessLocalWrite); !ok {
		v.Status = abi.WCLocProtErr
		u.mistaken(u.Index()-1, v.Status, r.wrongSGE(pd, u.privileged, entry[abi.RecvWQEHeader:], int(x.NumSGE), abi.AccessLocalWrite))
	}
}

// Release frees v's slot.
func (v *Receive) Release() {
	if v.Taken && v.SRQ != nil {
		v.SRQ.taken--
	}
	v.Taken, v.SRQ = false, nil
}
