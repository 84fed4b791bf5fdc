package schema

var queueStructs = []Struct{
	{Name: "QueueHeader", Size: 128, OffsetsOnly: true, Doc: "QueueHeader starts a send or receive queue area; entries follow at 128. Each side's words have a cache line of their own.", Fields: []Field{
		{Name: "Producer", Offset: 0, Kind: U32, Doc: "entries posted so far, modulo 2^32; written by the driver."},
		{Name: "Consumer", Offset: 64, Kind: U32, Doc: "entries the device has read, modulo 2^32; written by the device."},
		{Name: "EventIndex", Offset: 68, Kind: U32, Doc: "with FeatureEventIndex: the producer value whose passing needs a doorbell; written by the device."},
	}},
	{Name: "CQHeader", Size: 128, OffsetsOnly: true, Doc: "CQHeader starts a completion queue area; entries of 64 bytes follow at 128.", Fields: []Field{
		{Name: "Consumer", Offset: 0, Kind: U32, Doc: "entries the driver has taken, modulo 2^32; written by the driver."},
		{Name: "Producer", Offset: 64, Kind: U32, Doc: "entries the device has written, modulo 2^32; written by the device, for information: the phase decides."},
		{Name: "Arm", Offset: 72, Kind: U64, Doc: "with FeatureArmWord: asks for one event; index in bits 31:0, CQArmSolicited, number of the arming from bit CQArmNumber on; written by the driver, by one 8-byte store."},
	}},
	{Name: "SendWQE", Size: 64, Doc: "SendWQE is the header of a send queue entry. NumSGE SGEs follow it, or InlineLen bytes of data when SendInline is set.", Fields: []Field{
		{Name: "WRID", Offset: 0, Kind: U64, Doc: "chosen by the driver, returned in the completion."},
		{Name: "Opcode", Offset: 8, Kind: U8, Enum: "Opcode", Doc: "operation."},
		{Name: "Flags", Offset: 9, Kind: U8, Flags: "SendFlag", Doc: "modifiers."},
		{Name: "NumSGE", Offset: 10, Kind: U8, Doc: "SGEs that follow; 0 when inline."},
		{Name: "Imm", Offset: 12, Kind: U32, Doc: "immediate data (…Imm) or the key to invalidate (SendInv)."},
		{Name: "RemoteAddr", Offset: 16, Kind: U64, Doc: "address at the peer (WRITE, READ, atomics)."},
		{Name: "RKey", Offset: 24, Kind: U32, Doc: "key of the peer's memory (WRITE, READ, atomics)."},
		{Name: "InlineLen", Offset: 28, Kind: U32, Doc: "bytes of inline data; 0 when not inline."},
		{Name: "CompareAdd", Offset: 32, Kind: U64, Doc: "value to compare (CmpSwap) or to add (FetchAdd), masked or not."},
		{Name: "Swap", Offset: 40, Kind: U64, Doc: "value to store when the comparison holds (CmpSwap), masked or not."},
		{Name: "AHN", Offset: 48, Kind: U32, Doc: "address handle (UD only; 0 in this version)."},
		{Name: "RemoteQPN", Offset: 52, Kind: U32, Doc: "queue pair of the peer (UD only; 0 in this version)."},
		{Name: "RemoteQKey", Offset: 56, Kind: U32, Doc: "Q_Key (UD only; 0 in this version)."},
		{Name: "RemoteSRQN", Offset: 60, Kind: U32, Doc: "shared receive queue of the peer (XRCSend only) (1.2)."},
	}},
	{Name: "AtomicMasks", Size: 16, Doc: "AtomicMasks follows the header of a masked atomic (1.2); the SGEs follow it.", Fields: []Field{
		{Name: "SwapAdd", Offset: 0, Kind: U64, Doc: "the bits to swap (MaskedCmpSwap), or the most significant bit of each field (MaskedFetchAdd)."},
		{Name: "Compare", Offset: 8, Kind: U64, Doc: "the bits to compare (MaskedCmpSwap)."},
	}},
	{Name: "RecvWQE", Size: 16, Doc: "RecvWQE is the header of a receive queue entry. NumSGE SGEs follow it.", Fields: []Field{
		{Name: "WRID", Offset: 0, Kind: U64, Doc: "chosen by the driver, returned in the completion."},
		{Name: "NumSGE", Offset: 8, Kind: U8, Doc: "SGEs that follow."},
	}},
	{Name: "SGE", Size: 16, Doc: "SGE names a piece of registered memory.", Fields: []Field{
		{Name: "Addr", Offset: 0, Kind: U64, Doc: "address, in the IOVA range of the region."},
		{Name: "Length", Offset: 8, Kind: U32, Doc: "bytes."},
		{Name: "LKey", Offset: 12, Kind: U32, Doc: "local key of the region."},
	}},
	{Name: "CQE", Size: 64, Doc: "CQE is one entry of a completion queue; it holds all of ibv_wc.", Fields: []Field{
		{Name: "WRID", Offset: 0, Kind: U64, Doc: "WRID of the work request."},
		{Name: "ByteLen", Offset: 8, Kind: U32, Doc: "bytes received (receive, READ, atomics)."},
		{Name: "Imm", Offset: 12, Kind: U32, Doc: "immediate data, or the key invalidated by the peer."},
		{Name: "QPN", Offset: 16, Kind: U32, Doc: "local queue pair."},
		{Name: "SrcQP", Offset: 20, Kind: U32, Doc: "queue pair of the peer."},
		{Name: "VendorErr", Offset: 24, Kind: U32, Doc: "detail of an error; for logs only."},
		{Name: "Status", Offset: 28, Kind: U8, Enum: "WCStatus", Doc: "outcome; after an error only WRID, Status, VendorErr, QPN and bit 7 of Opcode are valid."},
		{Name: "Opcode", Offset: 29, Kind: U8, Enum: "WCOpcode", Doc: "operation that completed; bit 7 is set for receives."},
		{Name: "Flags", Offset: 30, Kind: U8, Flags: "WCFlag", Doc: "which fields are valid."},
		{Name: "SL", Offset: 31, Kind: U8, Doc: "service level (UD)."},
		{Name: "PKeyIndex", Offset: 32, Kind: U16, Doc: "P_Key index (UD)."},
		{Name: "SRQN", Offset: 40, Kind: U32, Doc: "shared receive queue the receive was taken from; 0: the QP's own."},
		{Name: "Timestamp", Offset: 48, Kind: U64, Doc: "nanoseconds of the device's monotonic clock."},
		{Name: "Tail", Offset: 56, Kind: U64, Doc: "bit 56 is the phase, the rest is 0; written last, by one 8-byte store."},
	}},
}
