package rof

import (
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// syndrome says why a responder refused a request. It travels as the ULP NACK code of a push and in
// the complete-in-error response of a pull; the values are InfiniBand's AETH syndromes where it has
// one.
type syndrome uint8

const (
	synNone       syndrome = 0
	synRNR        syndrome = 0x20 // | RNR timer
	synSequence   syndrome = 0x60 // sequence number out of order
	synInvalid    syndrome = 0x61 // invalid request
	synAccess     syndrome = 0x62 // remote access error
	synOperation  syndrome = 0x63 // remote operational error
	synNotServing syndrome = 0x6f // the QP is in ERR; own choice, InfiniBand sends nothing
)

// syndromeOf is how a refusal travels.
func syndromeOf(r transport.Refusal) syndrome {
	return [...]syndrome{
		transport.Accepted: synNone, transport.NotReady: synRNR, transport.Sequence: synSequence, transport.Invalid: synInvalid,
		transport.Access: synAccess, transport.Operation: synOperation, transport.NotServing: synNotServing,
	}[r]
}

// status maps the syndrome of a refused request to the requester's completion.
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

// completionStatus maps how Falcon ended a transaction (Falcon §11) to a completion status.
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
	return abi.WCGeneralErr // resources; a packet that could not be filled has a status of its own
}

// vendorErr is the detail put into CQE.VendorErr: Falcon's completion code and the syndrome.
func vendorErr(code falcon.Completion, ulp syndrome) uint32 { return uint32(code)<<8 | uint32(ulp) }
