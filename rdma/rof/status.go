package rof

import (
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// A syndrome says why a responder refused a request. It is sent as the ULP NACK code of a push and
// in the complete-in-error response of a pull. These values are not InfiniBand's.
const (
	synNone       ib.Syndrome = 0
	synNotServing ib.Syndrome = 0x6f // the QP is in ERR; InfiniBand sends nothing
)

// syndromeOf returns the syndrome that a refusal is sent as.
func syndromeOf(r transport.Refusal) ib.Syndrome {
	return [...]ib.Syndrome{
		transport.Accepted: synNone, transport.NotReady: ib.SynRNR, transport.Sequence: ib.SynSequence, transport.Invalid: ib.SynInvalid,
		transport.Access: ib.SynAccess, transport.UnknownKey: ib.SynAccess, transport.ForeignKey: ib.SynAccess, transport.OutOfBounds: ib.SynAccess,
		transport.Operation: ib.SynOperation, transport.NotServing: synNotServing,
	}[r]
}

// statusOf returns the completion status of a request that was refused with a syndrome.
func statusOf(s ib.Syndrome) abi.WCStatus {
	switch s {
	case ib.SynSequence, ib.SynInvalid:
		return abi.WCRemInvReqErr
	case ib.SynAccess:
		return abi.WCRemAccessErr
	case synNotServing:
		return abi.WCRetryExcErr
	}
	return abi.WCRemOpErr
}

// completionStatus returns the completion status for Falcon's completion code of a transaction
// (Falcon §11).
func completionStatus(code falcon.Completion, ulp ib.Syndrome) abi.WCStatus {
	switch code {
	case falcon.CmplAck:
		return abi.WCSuccess
	case falcon.CmplTargetNackCIE, falcon.CmplTargetNackNRE:
		return statusOf(ulp)
	case falcon.CmplTargetNackCID:
		return abi.WCRemInvReqErr
	case falcon.CmplLocalTO, falcon.CmplDeadConn:
		return abi.WCRetryExcErr
	case falcon.CmplOpErr:
		return abi.WCBadRespErr
	case falcon.CmplRemoteErr:
		return abi.WCRemOpErr
	}
	return abi.WCGeneralErr // resources; a packet that could not be filled has its own status
}

// vendorErr returns the detail for CQE.VendorErr: Falcon's completion code and the syndrome.
func vendorErr(code falcon.Completion, ulp ib.Syndrome) uint32 { return uint32(code)<<8 | uint32(ulp) }
