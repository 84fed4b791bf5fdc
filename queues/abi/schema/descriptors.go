package schema

import "slices"

// addressVector is where to, and how, at an offset of a structure, as ibv_ah_attr has it.
func addressVector(at int, gid string) []Field {
	fields := []Field{
		{Name: gid, Offset: at, Kind: Bytes, Len: 16, Doc: "address of the peer in this function's tenant, IPv4 in its mapped form: a function's GID or, over RoCEv2, any address."},
		{Name: "FlowLabel", Offset: at + 16, Kind: U32, Doc: "flow label, 20 bits: picks the path through the fabric, and is that of inner IPv6 headers; 0: the device picks."},
		{Name: "DMAC", Offset: at + 20, Kind: Bytes, Len: 6, Doc: "MAC address the driver resolved; what is sent travels without an Ethernet header of its own."},
		{Name: "VLAN", Offset: at + 26, Kind: U16, Doc: "0 or NoVLAN: there are none here, tenants keep functions apart."},
		{Name: "TrafficClass", Offset: at + 28, Kind: U8, Doc: "DSCP in the upper six bits, of the outer header too; the two bits of ECN are the device's (DEV-946)."},
		{Name: "HopLimit", Offset: at + 29, Kind: U8, Doc: "hop limit or TTL of the inner header; 0 is the device's own."},
		{Name: "SL", Offset: at + 30, Kind: U8, Doc: "service level, 0 to 15; not carried: there is no InfiniBand link."},
		{Name: "SGIDIndex", Offset: at + 31, Kind: U8, Doc: "an entry of the GID table."},
	}
	for i := range fields {
		fields[i].Group = "address"
	}
	return fields
}

var queueStructs = []Struct{
	{Name: "QueueHeader", Size: 128, OffsetsOnly: true, Doc: "QueueHeader starts a send, receive or admin submission queue area; entries follow at 128. Each side's words have a cache line of their own.", Fields: []Field{
		{Name: "Producer", Offset: 0, Kind: U32, Doc: "entries posted so far, modulo 2^32; written by the driver."},
		{Name: "Consumer", Offset: 64, Kind: U32, Doc: "entries the device has read, modulo 2^32; written by the device."},
		{Name: "EventIndex", Offset: 68, Kind: U32, Doc: "with FeatureEventIndex: the producer value whose passing needs a doorbell; written by the device."},
	}},
	{Name: "CQHeader", Size: 128, OffsetsOnly: true, Doc: "CQHeader starts a completion queue area, also that of admin completions; entries follow at 128.", Fields: []Field{
		{Name: "Consumer", Offset: 0, Kind: U32, Doc: "entries the driver has taken, modulo 2^32; written by the driver."},
		{Name: "Producer", Offset: 64, Kind: U32, Doc: "entries the device has written, modulo 2^32; written by the device, for information: the phase decides."},
		{Name: "Arm", Offset: 72, Kind: U64, Doc: "with FeatureArmWord: asks for one event; index in bits 31:0, CQArmSolicited, number of the arming from bit CQArmNumber on; written by the driver, by one 8-byte store."},
	}},
	{Name: "SendWQE", Size: 64, Doc: "SendWQE is the header of a send queue entry. NumSGE SGEs follow it, or InlineLen bytes of data when SendInline is set.", Fields: []Field{
		{Name: "WRID", Offset: 0, Kind: U64, Doc: "chosen by the driver, returned in the completion."},
		{Name: "Opcode", Offset: 8, Kind: U8, Enum: "Opcode", Doc: "operation."},
		{Name: "Flags", Offset: 9, Kind: U8, Flags: "SendFlag", Doc: "modifiers."},
		{Name: "NumSGE", Offset: 10, Kind: U8, Doc: "SGEs that follow; 0 when inline."},
		{Name: "Imm", Offset: 12, Kind: U32, Doc: "immediate data (…Imm) or the key to invalidate (…Inv)."},
		{Name: "RemoteAddr", Offset: 16, Kind: U64, Doc: "address at the peer (WRITE, READ, atomics)."},
		{Name: "RKey", Offset: 24, Kind: U32, Doc: "key of the peer's memory (WRITE, READ, atomics); new key of the window (BindMW)."},
		{Name: "RemoteSRQN", Offset: 28, Kind: U32, Doc: "shared receive queue of the peer (XRCSend only)."},
		{Name: "CompareAdd", Offset: 32, Kind: U64, Doc: "value to compare (CmpSwap) or to add (FetchAdd), masked or not."},
		{Name: "Swap", Offset: 40, Kind: U64, Doc: "value to store when the comparison holds (CmpSwap), masked or not; what AtomicWrite writes."},
		{Name: "InlineLen", Offset: 48, Kind: U32, Doc: "bytes of inline data; 0 when not inline."},
		{Name: "RemoteQPN", Offset: 52, Kind: U32, Doc: "queue pair of the peer (UD)."},
		{Name: "RemoteQKey", Offset: 56, Kind: U32, Doc: "Q_Key of the peer; with bit 31 set the QP's own is sent instead (UD)."},
		{Name: "AHN", Offset: 60, Kind: U32, Doc: "address handle (UD); 0: bytes 16 to 47 are the address vector, as in DatagramWQE."},
	}},
	{Name: "DatagramWQE", Size: 64, Doc: "DatagramWQE is SendWQE in a send queue of a UD queue pair, with the address vector in the entry.", Fields: slices.Concat([]Field{
		{Name: "WRID", Offset: 0, Kind: U64, Doc: "as in SendWQE."},
		{Name: "Opcode", Offset: 8, Kind: U8, Enum: "Opcode", Doc: "Send or SendImm."},
		{Name: "Flags", Offset: 9, Kind: U8, Flags: "SendFlag", Doc: "as in SendWQE."},
		{Name: "NumSGE", Offset: 10, Kind: U8, Doc: "as in SendWQE."},
		{Name: "Imm", Offset: 12, Kind: U32, Doc: "as in SendWQE."},
	}, addressVector(16, "DGID"), []Field{
		{Name: "InlineLen", Offset: 48, Kind: U32, Doc: "as in SendWQE."},
		{Name: "RemoteQPN", Offset: 52, Kind: U32, Doc: "as in SendWQE."},
		{Name: "RemoteQKey", Offset: 56, Kind: U32, Doc: "as in SendWQE."},
		{Name: "AHN", Offset: 60, Kind: U32, Doc: "0."},
	})},
	{Name: "AtomicMasks", Size: 16, Doc: "AtomicMasks follows the header of a masked atomic; the SGEs follow it.", Fields: []Field{
		{Name: "SwapAdd", Offset: 0, Kind: U64, Doc: "the bits to swap (MaskedCmpSwap), or the most significant bit of each field (MaskedFetchAdd)."},
		{Name: "Compare", Offset: 8, Kind: U64, Doc: "the bits to compare (MaskedCmpSwap)."},
	}},
	{Name: "BindMW", Size: 24, Doc: "BindMW follows the header of a BindMW request, whose RKey is the window's new key and which has no SGEs.", Fields: []Field{
		{Name: "Addr", Offset: 0, Kind: U64, Doc: "first byte of the window, as the region names it."},
		{Name: "Length", Offset: 8, Kind: U64, Doc: "bytes: at least 1, within the region; 0 frees a window of type 1."},
		{Name: "LKey", Offset: 16, Kind: U32, Doc: "key of the region, which has AccessMWBind."},
		{Name: "Access", Offset: 20, Kind: U32, Flags: "Access", Doc: "RemoteWrite and RemoteAtomic, if the region has LocalWrite; RemoteRead; ZeroBased (type 2): peers name the bytes from 0."},
	}},
	{Name: "FastReg", Size: 40, Doc: "FastReg follows the header of a RegMR request, whose RKey is the region's new key, of which the driver chooses the low 8 bits, and which has no SGEs.", Fields: []Field{
		{Name: "IOVA", Offset: 0, Kind: U64, Doc: "address of the first byte as work requests and peers name it."},
		{Name: "Length", Offset: 8, Kind: U64, Doc: "bytes: at least 1, in at most as many pages as AllocMR said."},
		{Name: "Pages", Offset: 16, Kind: U64, Doc: "page list root, of one level; read when the request is carried out."},
		{Name: "Access", Offset: 24, Kind: U32, Flags: "Access", Doc: "as in RegMR."},
		{Name: "Offset", Offset: 28, Kind: U32, Doc: "as in RegMR."},
		{Name: "PageShift", Offset: 32, Kind: U8, Doc: "as in RegMR."},
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
		{Name: "SL", Offset: 31, Kind: U8, Doc: "SLRoCEIPv4 or SLRoCEIPv6 in receives of datagrams, else 0."},
		{Name: "PKeyIndex", Offset: 32, Kind: U16, Doc: "0: there is one P_Key, DefaultPKey."},
		{Name: "SourceMAC", Offset: 34, Kind: Bytes, Len: 6, Doc: "with FeatureSourceMAC, in receives of datagrams: the L2 address that they come from on the function's link, which is its gateway's; else 0."},
		{Name: "SRQN", Offset: 40, Kind: U32, Doc: "shared receive queue the receive was taken from; 0: the QP's own."},
		{Name: "Timestamp", Offset: 48, Kind: U64, Doc: "nanoseconds of the device's monotonic clock."},
		{Name: "Tail", Offset: 56, Kind: U64, Doc: "bit 56 is the phase, the rest is 0; written last, by one 8-byte store."},
	}},
}
