package rof

import (
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// syndrome says why a responder refused a request. It is sent as the ULP NACK code of a push and in
// the complete-in-error response of a pull. The values are InfiniBand's AETH syndromes where there
// is one.
type syndrome uint8

const (
	synNone       syndrome = 0
	synRNR        syndrome = 0x20 // | RNR timer
	synSequence   syndrome = 0x60 // sequence number out of order
	synInvalid    syndrome = 0x61 // invalid request
	synAccess     syndrome = 0x62 // remote access error
	synOperation  syndrome = 0x63 // remote operational error
	synNotServing syndrome = 0x6f // the QP is in ERR; our own value, InfiniBand sends nothing
)

// syndromeOf returns the syndrome that a refusal is sent as.
func syndromeOf(r transport.Refusal) syndrome {
	return [...]syndrome{
		transport.Accepted: synNone, transport.NotReady: synRNR, transport.Sequence: synSequence, transport.Invalid: synInvalid,
		transport.Access: synAccess, transport.Operation: synOperation, transport.NotServing: synNotServing,
	}[r]
}

// status returns the completion status of a request that was refused with this syndrome.
func (s syndrome) status() abi.WCStatus {
	switch s {
	case synSequence, synInvalid:
		return abi.WCRemInvReqErr
	case synAccess:
		return abi.WCRemAccessErr
	case synNotServing:
		return abi.WCRetryExcErr
	}
	return abi.WCRemOpErr
}

// completionStatus returns the completion status for Falcon's completion code of a transaction
// (Falcon §11).
func completionStatus(code falcon.Completion, ulp syndrome) abi.WCStatus {
	switch code {
	case falcon.CmplAck:
		return abi.WCSuccess
	case falcon.CmplTargetNackCIE, falcon.CmplTargetNackNRE:
		return ulp.status()
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
func vendorErr(code falcon.Completion, ulp syndrome) uint32 { return uint32(code)<<8 | uint32(ulp) }
