package guestlib

import "github.com/falcon-vnic/vnic/queues/abi"

// WC is a work completion, as ibv_wc. After a failure only ID, QPN, Status and VendorErr are valid.
type WC struct {
	ID        uint64 // of the work request
	Timestamp uint64 // nanoseconds of the device's monotonic clock
	QPN       uint32 // local QP
	SrcQP     uint32 // peer's QP
	ByteLen   uint32 // bytes received (receive, READ, atomics)
	Imm       uint32 // valid with WCWithImm; the invalidated key with WCWithInv
	VendorErr uint32 // detail of a failure, for logs
	Status    WCStatus
	Opcode    WCOpcode
	Flags     uint8
	SL        uint8   // of a datagram: the RoCE packet type, 0xa from IPv4, 0x9 from IPv6
	SourceMAC [6]byte // of a datagram: its source MAC address, that of the gateway
}

// Flags of WC.
const (
	WCWithGRH = abi.WCFlagGRH // GRHSize bytes precede the data, and count in ByteLen
	WCWithImm = abi.WCFlagImm
	WCWithInv = abi.WCFlagInv
)

// WCSuccess is the Status of successful work.
const WCSuccess = abi.WCSuccess

// Err returns nil for successful work, otherwise a *WCError.
func (w *WC) Err() error {
	if w.Status == WCSuccess {
		return nil
	}
	return &WCError{ID: w.ID, QPN: w.QPN, Status: w.Status, VendorErr: w.VendorErr}
}

func (w *WC) fill(e *abi.CQE) {
	*w = WC{
		ID: e.WRID, Timestamp: e.Timestamp, QPN: e.QPN, SrcQP: e.SrcQP, ByteLen: e.ByteLen, Imm: e.Imm,
		VendorErr: e.VendorErr, Status: e.Status, Opcode: e.Opcode, Flags: e.Flags &^ abi.WCFlagSolicited, SL: e.SL,
		SourceMAC: e.SourceMAC,
	}
}

// receives reports whether e completes a receive: bit 7 of the opcode is set, also after failures.
func receives(e *abi.CQE) bool { return e.Opcode&abi.WCOpRecv != 0 }
