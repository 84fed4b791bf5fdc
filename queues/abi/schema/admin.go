package schema

import "slices"

var commands = []Command{
	{Name: "QueryDevice", Code: 1, Group: "Query", Result: "QueryDeviceResult", Doc: "returns the limits of the function."},
	{Name: "AllocPD", Code: 2, Group: "Verbs", Result: "AllocPDResult", Doc: "creates a protection domain.", Errors: "NoResources"},
	{Name: "DeallocPD", Code: 3, Group: "Verbs", Params: "DeallocPD", Doc: "destroys a protection domain.", Errors: "NotFound, Busy (has MRs or QPs)"},
	{
		Name: "RegMR", Code: 4, Group: "Verbs", Params: "RegMR", Result: "RegMRResult", Doc: "registers memory; the page list is copied before the command completes.", Errors: "NotFound (PD), NoResources (also: the page list is too long), MemoryFault, TooLarge",
		Long: true,
	},
	{Name: "AllocMR", Code: 45, Group: "Verbs", Params: "AllocMR", Result: "RegMRResult", Doc: "creates a region without memory, which RegMR work requests give it.", Errors: "NotFound (PD), NoResources, TooLarge"},
	{Name: "DeregMR", Code: 5, Group: "Verbs", Params: "DeregMR", Doc: "ends a registration; later use of its keys fails.", Errors: "NotFound, Busy (memory windows are bound to it, or ReregMR is not done)"},
	{
		Name: "CreateCQ", Code: 6, Group: "Verbs", Params: "CreateCQ", Result: "CreateCQResult", Doc: "creates a completion queue over a page list.", Errors: "NoResources, MemoryFault, TooLarge",
		Areas: []Area{{Entries: "Log2Entries", Log2Entry: 6}},
		Needs: []Need{{Feature: "Vectors", Field: "Vector", Lenient: true}},
	},
	{Name: "DestroyCQ", Code: 7, Group: "Verbs", Params: "DestroyCQ", Doc: "destroys a completion queue.", Errors: "NotFound, Busy (used by a QP)"},
	{
		Name: "CreateQP", Code: 8, Group: "Verbs", Params: "CreateQP", Result: "CreateQPResult", Doc: "creates a queue pair in state RESET.", Errors: "NotFound (PD, CQ), NoResources, MemoryFault, TooLarge, Unsupported (type)",
		Areas: []Area{{Entries: "SQLog2Entries", Entry: "SQLog2Stride"}, {Entries: "RQLog2Entries", Entry: "RQLog2Stride"}},
		Needs: []Need{
			{Feature: "Datagrams", Field: "Type", Values: []string{"UD", "GSI"}},
			{Feature: "ExtendedVerbs", Field: "Type", Values: []string{"UC", "XRCSend", "XRCRecv"}},
			{Feature: "ExtendedVerbs", Field: "Ordering"},
			{Feature: "ExtendedVerbs", Field: "ErrorMode"},
		},
	},
	{Name: "ModifyQP", Code: 9, Group: "Verbs", Params: "ModifyQP", Doc: "changes state and attributes of a QP, as the table of section 9 allows.", Errors: "NotFound, BadState, Unsupported"},
	{Name: "QueryQP", Code: 10, Group: "Verbs", Params: "QueryQP", Result: "QueryQPResult", Doc: "returns state and attributes of a QP.", Errors: "NotFound"},
	{Name: "DestroyQP", Code: 11, Group: "Verbs", Params: "DestroyQP", Doc: "disconnects and destroys a QP; outstanding work gets no completion.", Errors: "NotFound"},
	{
		Name: "CMListen", Code: 12, Group: "Connection", Params: "CMListen", Doc: "asks for connection requests to a service of this function.", Errors: "AddressInUse, NoResources",
		Breaks: []Breach{{"Denied", 911}},
	},
	{Name: "CMUnlisten", Code: 13, Group: "Connection", Params: "CMUnlisten", Doc: "stops listening; requests that the driver was told of stay, for CMAccept or CMReject.", Errors: "NotFound"},
	{
		Name: "CMConnect", Code: 14, Group: "Connection", Params: "CMConnect", Result: "CMConnectResult", Doc: "connects a QP in state INIT; an Established event follows, or a Rejected, Unreachable or Disconnected one.", Errors: "NotFound (QP), BadState, Busy (256 events wait to be taken), AddressInUse (SrcPort), NoResources, Unreachable (no route to the GID), MemoryFault",
		Needs:  []Need{{Feature: "IWARP", Field: "SrcPort"}},
		Breaks: []Breach{{"Denied", 911}, {"BadState", 902}},
	},
	{
		Name: "CMAccept", Code: 15, Group: "Connection", Params: "CMAccept", Doc: "accepts a connection request with a QP in state INIT; an Established event follows, or an Unreachable or Disconnected one.", Errors: "NotFound, BadState, MemoryFault",
		Breaks: []Breach{{"BadState", 902}},
	},
	{Name: "CMReject", Code: 16, Group: "Connection", Params: "CMReject", Doc: "rejects a connection request.", Errors: "NotFound, MemoryFault"},
	{
		Name: "CreateAH", Code: 56, Group: "Verbs", Params: "CreateAH", Result: "CreateAHResult", Doc: "creates an address handle; it never waits.", Errors: "NotFound (PD), NoResources, Unsupported (VLAN; multicast where AttachMcast is)",
		Needs: []Need{{Feature: "Datagrams"}},
	},
	{
		Name: "DestroyAH", Code: 57, Group: "Verbs", Params: "DestroyAH", Doc: "destroys an address handle; sends that use it go on.", Errors: "NotFound",
		Needs: []Need{{Feature: "Datagrams"}},
	},
	{Name: "AddGID", Code: 58, Group: "Query", Params: "GIDEntry", Doc: "sets an entry of the GID table, which a driver names its addresses by, and announces the address.", Errors: "Denied (an address that is not the function's, without trust), AddressInUse (another function of the tenant has it), Unsupported (VLAN, type), Busy (a command for the entry, or for another with an address of its, is in progress), NoResources (peers cannot be told of more)"},
	{Name: "DelGID", Code: 59, Group: "Query", Params: "GIDIndex", Doc: "empties an entry of the GID table, and takes the address back.", Errors: "NotFound (it is empty), Busy (a command for the entry is in progress)"},
	{Name: "QueryGID", Code: 60, Group: "Query", Params: "GIDIndex", Result: "GIDEntry", Doc: "returns an entry of the GID table.", Errors: "NotFound (it is empty)"},
	{Name: "CMDisconnect", Code: 17, Group: "Connection", Params: "CMDisconnect", Doc: "disconnects: what is on its way completes, then the QP moves to ERR and flushes. A second one does not wait. Ends in a Disconnected event.", Errors: "NotFound"},
}

// Bytes of the entries of both admin queues, and what they leave for parameters and results.
const (
	adminEntry = 128
	maxParams  = adminEntry - 8
	maxResult  = adminEntry - 16
)

var adminStructs = []Struct{
	{Name: "AdminCmd", Size: adminEntry, Doc: "AdminCmd is one entry of the admin submission queue.", Fields: []Field{
		{Name: "Opcode", Offset: 0, Kind: U16, Enum: "AdminOp", Doc: "command."},
		{Name: "Flags", Offset: 2, Kind: U16, Zero: true, Doc: "zero."},
		{Name: "ID", Offset: 4, Kind: U32, Doc: "chosen by the driver, returned in the completion."},
		{Name: "Params", Offset: 8, Kind: Bytes, Len: maxParams, Doc: "parameters, by command."},
	}},
	{Name: "AdminCQE", Size: adminEntry, Doc: "AdminCQE is one entry of the admin completion queue.", Fields: []Field{
		{Name: "ID", Offset: 0, Kind: U32, Doc: "ID of the command."},
		{Name: "Status", Offset: 4, Kind: U32, Enum: "Status", Doc: "outcome."},
		{Name: "Result", Offset: 8, Kind: Bytes, Len: maxResult, Doc: "result, by command; zero after an error."},
		{Name: "Tail", Offset: 8 + maxResult, Kind: U64, Doc: "bit 56 is the phase, the rest is 0; written last, by one 8-byte store."},
	}},
	{Name: "QueryDeviceResult", Size: 48, Doc: "QueryDeviceResult is the result of QueryDevice.", Fields: []Field{
		{Name: "MaxMRSize", Offset: 0, Kind: U64, Doc: "largest memory region in bytes."},
		{Name: "NodeGUID", Offset: 8, Kind: U64, Doc: "EUI-64 of the function, unique and not zero."},
		{Name: "MaxQP", Offset: 16, Kind: U32, Doc: "limit of QPs."},
		{Name: "MaxCQ", Offset: 20, Kind: U32, Doc: "limit of CQs."},
		{Name: "MaxMR", Offset: 24, Kind: U32, Doc: "limit of memory regions."},
		{Name: "MaxPD", Offset: 28, Kind: U32, Doc: "limit of protection domains."},
		{Name: "MaxQPEntries", Offset: 32, Kind: U32, Doc: "most entries of a send, receive or shared receive queue."},
		{Name: "MaxCQEntries", Offset: 36, Kind: U32, Doc: "most entries of a CQ."},
		{Name: "MaxSGE", Offset: 40, Kind: U16, Doc: "most SGEs of one work request."},
		{Name: "MaxInline", Offset: 42, Kind: U16, Doc: "most inline bytes of one work request."},
		{Name: "MaxReadAtomic", Offset: 44, Kind: U8, Doc: "most READs and atomics in flight per QP."},
		{Name: "PathMTU", Offset: 45, Kind: U8, Enum: "PathMTU", Doc: "largest path MTU."},
	}},
	{Name: "AllocPDResult", Size: 8, Doc: "AllocPDResult is the result of AllocPD.", Fields: []Field{
		{Name: "PDN", Offset: 0, Kind: U32, Doc: "protection domain number."},
	}},
	{Name: "DeallocPD", Size: 8, Doc: "DeallocPD holds the parameters of the command of that name.", Fields: []Field{
		{Name: "PDN", Offset: 0, Kind: U32, Doc: "protection domain number."},
	}},
	{Name: "RegMR", Size: 40, Doc: "RegMR holds the parameters of the command of that name.", Fields: []Field{
		{Name: "PDN", Offset: 0, Kind: U32, Doc: "protection domain number."},
		{Name: "Access", Offset: 4, Kind: U32, Flags: "Access", Doc: "access rights."},
		{Name: "IOVA", Offset: 8, Kind: U64, Doc: "address of the first byte as work requests and peers name it."},
		{Name: "Length", Offset: 16, Kind: U64, Doc: "bytes: 1 to MaxMRSize; IOVA+Length does not pass 2^64."},
		{Name: "Pages", Offset: 24, Kind: U64, Doc: "page list root."},
		{Name: "Levels", Offset: 32, Kind: U8, Doc: "levels of the page list: 1 to 3."},
		{Name: "PageShift", Offset: 33, Kind: U8, Doc: "log2 of the bytes of each page that the list names: MinPageShift to MaxPageShift; 0 is MinPageShift."},
		{Name: "Offset", Offset: 36, Kind: U32, Doc: "offset of the first byte in the first page, less than a page."},
	}},
	{Name: "RegMRResult", Size: 8, Doc: "RegMRResult is the result of RegMR.", Fields: []Field{
		{Name: "LKey", Offset: 0, Kind: U32, Doc: "local key."},
		{Name: "RKey", Offset: 4, Kind: U32, Doc: "remote key."},
	}},
	{Name: "AllocMR", Size: 8, Doc: "AllocMR holds the parameters of the command of that name.", Fields: []Field{
		{Name: "PDN", Offset: 0, Kind: U32, Doc: "protection domain number."},
		{Name: "MaxPages", Offset: 4, Kind: U32, Doc: "most pages that the region will have: 1 to MaxFastPages."},
	}},
	{Name: "DeregMR", Size: 8, Doc: "DeregMR holds the parameters of the command of that name.", Fields: []Field{
		{Name: "LKey", Offset: 0, Kind: U32, Doc: "local key of the region."},
	}},
	{Name: "CreateCQ", Size: 16, Doc: "CreateCQ holds the parameters of the command of that name. The area takes QueueHeaderSize + 64 × entries bytes.", Fields: []Field{
		{Name: "Log2Entries", Offset: 0, Kind: U8, Doc: "log2 of the entries: 1 to MaxQueueLog2."},
		{Name: "Levels", Offset: 1, Kind: U8, Doc: "levels of the page list: 1 to 3."},
		{Name: "Vector", Offset: 2, Kind: U16, Doc: "with FeatureVectors: the event queue of the window, from 1, that takes the CQ's events; 0: they are MsgCQEvent."},
		{Name: "Pages", Offset: 8, Kind: U64, Doc: "page list root of the area."},
	}},
	{Name: "CreateCQResult", Size: 8, Doc: "CreateCQResult is the result of CreateCQ.", Fields: []Field{
		{Name: "CQN", Offset: 0, Kind: U32, Doc: "completion queue number."},
	}},
	{Name: "DestroyCQ", Size: 8, Doc: "DestroyCQ holds the parameters of the command of that name.", Fields: []Field{
		{Name: "CQN", Offset: 0, Kind: U32, Doc: "completion queue number."},
	}},
	{Name: "CreateQP", Size: 56, Doc: "CreateQP holds the parameters of the command of that name. An area takes QueueHeaderSize + stride × entries bytes.", Fields: []Field{
		{Name: "PDN", Offset: 0, Kind: U32, Doc: "protection domain number."},
		{Name: "SendCQ", Offset: 4, Kind: U32, Doc: "CQ for send completions."},
		{Name: "RecvCQ", Offset: 8, Kind: U32, Doc: "CQ for receive completions; may equal SendCQ."},
		{Name: "Type", Offset: 12, Kind: U8, Enum: "QPType", Doc: "transport type."},
		{Name: "SigAll", Offset: 13, Kind: U8, Doc: "1: every send work request completes with a CQE, as if SendSignaled were set."},
		{Name: "SQLog2Entries", Offset: 14, Kind: U8, Doc: "log2 of the send entries: 1 to MaxQueueLog2."},
		{Name: "RQLog2Entries", Offset: 15, Kind: U8, Doc: "log2 of the receive entries: 1 to MaxQueueLog2."},
		{Name: "SQLog2Stride", Offset: 16, Kind: U8, Doc: "log2 of the bytes of a send entry: 6 to 12; holds the header and MaxSendSGE SGEs or MaxInline bytes."},
		{Name: "RQLog2Stride", Offset: 17, Kind: U8, Doc: "log2 of the bytes of a receive entry: 5 to 12; holds the header and MaxRecvSGE SGEs."},
		{Name: "MaxSendSGE", Offset: 18, Kind: U8, Doc: "most SGEs of a send work request."},
		{Name: "MaxRecvSGE", Offset: 19, Kind: U8, Doc: "most SGEs of a receive work request."},
		{Name: "MaxInline", Offset: 20, Kind: U16, Doc: "most inline bytes of a send work request."},
		{Name: "SQLevels", Offset: 22, Kind: U8, Doc: "levels of the send area's page list: 1 to 3."},
		{Name: "RQLevels", Offset: 23, Kind: U8, Doc: "levels of the receive area's page list: 1 to 3."},
		{Name: "SQPages", Offset: 24, Kind: U64, Doc: "page list root of the send area."},
		{Name: "RQPages", Offset: 32, Kind: U64, Doc: "page list root of the receive area."},
		{Name: "SRQN", Offset: 40, Kind: U32, Doc: "shared receive queue to receive from instead of a receive area, whose fields are 0 then; 0: none."},
		{Name: "XRCDN", Offset: 44, Kind: U32, Doc: "XRC domain (XRCRecv only, which has no PD, CQs or areas)."},
		{Name: "Ordering", Offset: 48, Kind: U8, Enum: "Ordering", Doc: "order of data and completions; the same at both ends of a connection."},
		{Name: "ErrorMode", Offset: 49, Kind: U8, Enum: "ErrorMode", Doc: "what an error costs; the same at both ends of a connection."},
		{Name: "Flags", Offset: 50, Kind: U8, Flags: "QPFlag", Doc: "what the queues may be used for."},
	}},
	{Name: "CreateQPResult", Size: 8, Doc: "CreateQPResult is the result of CreateQP.", Fields: []Field{
		{Name: "QPN", Offset: 0, Kind: U32, Doc: "queue pair number, 24 bits, not 0; 1 is that of type GSI."},
	}},
	{Name: "ModifyQP", Size: 72, Doc: "ModifyQP holds the parameters of the command of that name. Only attributes named in Mask are used.", Fields: slices.Concat([]Field{
		{Name: "QPN", Offset: 0, Kind: U32, Doc: "queue pair number."},
		{Name: "Mask", Offset: 4, Kind: U32, Flags: "QPAttr", Doc: "attributes that are set."},
		{Name: "Access", Offset: 8, Kind: U32, Flags: "Access", Doc: "remote access the QP allows."},
		{Name: "State", Offset: 12, Kind: U8, Enum: "QPState", Doc: "new state."},
		{Name: "PathMTU", Offset: 13, Kind: U8, Enum: "PathMTU", Doc: "largest path MTU to agree on with the peer."},
		{Name: "MinRNRTimer", Offset: 14, Kind: U8, Doc: "delay asked of the peer when no receive is posted, as ibv_qp_attr.min_rnr_timer: 0 to 31."},
		{Name: "RetryCnt", Offset: 15, Kind: U8, Doc: "timeouts before the QP fails: 0 to 7."},
		{Name: "RNRRetry", Offset: 16, Kind: U8, Doc: "receiver-not-ready answers before the QP fails: 0 to 7, 7 means for ever."},
		{Name: "Timeout", Offset: 17, Kind: U8, Doc: "4.096 µs × 2^n: 0 to 31; 0: no limit, a request waits for its answer for ever."},
		{Name: "MaxRdAtomic", Offset: 18, Kind: U8, Doc: "READs and atomics in flight as initiator."},
		{Name: "MaxDestRdAtomic", Offset: 19, Kind: U8, Doc: "READs and atomics in flight as target."},
		{Name: "PKeyIndex", Offset: 20, Kind: U16, Doc: "index of the P_Key."},
		{Name: "CurState", Offset: 22, Kind: U8, Enum: "QPState", Doc: "state the driver believes the QP to be in; the command fails if it is not."},
		{Name: "SQDNotify", Offset: 23, Kind: U8, Doc: "1: send EventSQDrained when the send queue is drained, with State = SQD."},
		{Name: "DestQPN", Offset: 24, Kind: U32, Doc: "QP number of the peer."},
		{Name: "QKey", Offset: 28, Kind: U32, Doc: "Q_Key of a UD queue pair."},
		{Name: "RQPSN", Offset: 32, Kind: U32, Doc: "first PSN of the peer, 24 bits; Falcon has its own."},
		{Name: "SQPSN", Offset: 36, Kind: U32, Doc: "first PSN sent, 24 bits; Falcon has its own."},
	}, addressVector(40, "DGID"))},
	{Name: "QueryQP", Size: 8, Doc: "QueryQP holds the parameters of the command of that name.", Fields: []Field{
		{Name: "QPN", Offset: 0, Kind: U32, Doc: "queue pair number."},
	}},
	{Name: "QueryQPResult", Size: 72, Doc: "QueryQPResult is the result of QueryQP.", Fields: slices.Concat([]Field{
		{Name: "QPN", Offset: 0, Kind: U32, Doc: "queue pair number."},
		{Name: "PeerQPN", Offset: 4, Kind: U32, Doc: "QP number of the peer; 0 while not connected."},
		{Name: "Access", Offset: 8, Kind: U32, Flags: "Access", Doc: "remote access the QP allows."},
		{Name: "State", Offset: 12, Kind: U8, Enum: "QPState", Doc: "state."},
		{Name: "PathMTU", Offset: 13, Kind: U8, Enum: "PathMTU", Doc: "path MTU in use, or asked for while not connected."},
		{Name: "MinRNRTimer", Offset: 14, Kind: U8, Doc: "as in ModifyQP."},
		{Name: "RetryCnt", Offset: 15, Kind: U8, Doc: "as in ModifyQP."},
		{Name: "RNRRetry", Offset: 16, Kind: U8, Doc: "as in ModifyQP."},
		{Name: "Timeout", Offset: 17, Kind: U8, Doc: "as in ModifyQP."},
		{Name: "MaxRdAtomic", Offset: 18, Kind: U8, Doc: "as in ModifyQP."},
		{Name: "MaxDestRdAtomic", Offset: 19, Kind: U8, Doc: "as in ModifyQP."},
		{Name: "PKeyIndex", Offset: 20, Kind: U16, Doc: "as in ModifyQP."},
		{Name: "Draining", Offset: 22, Kind: U8, Doc: "1: in SQD with sends still outstanding."},
		{Name: "QKey", Offset: 24, Kind: U32, Doc: "as in ModifyQP."},
		{Name: "RQPSN", Offset: 28, Kind: U32, Doc: "as in ModifyQP."},
		{Name: "SQPSN", Offset: 32, Kind: U32, Doc: "as in ModifyQP."},
	}, addressVector(40, "PeerGID"))},
	{Name: "DestroyQP", Size: 8, Doc: "DestroyQP holds the parameters of the command of that name.", Fields: []Field{
		{Name: "QPN", Offset: 0, Kind: U32, Doc: "queue pair number."},
	}},
	{Name: "CreateAH", Size: 40, Doc: "CreateAH holds the parameters of the command of that name.", Fields: append([]Field{
		{Name: "PDN", Offset: 0, Kind: U32, Doc: "protection domain number."},
	}, addressVector(8, "DGID")...)},
	{Name: "CreateAHResult", Size: 8, Doc: "CreateAHResult is the result of CreateAH.", Fields: []Field{
		{Name: "AHN", Offset: 0, Kind: U32, Doc: "address handle number."},
	}},
	{Name: "DestroyAH", Size: 8, Doc: "DestroyAH holds the parameters of the command of that name.", Fields: []Field{
		{Name: "AHN", Offset: 0, Kind: U32, Doc: "address handle number."},
	}},
	{Name: "GIDEntry", Size: 32, Doc: "GIDEntry is an entry of the GID table.", Fields: []Field{
		{Name: "Index", Offset: 0, Kind: U16, Doc: "of the entry: 0 to GIDEntries - 1."},
		{Name: "Type", Offset: 2, Kind: U8, Doc: "0: an IP address."},
		{Name: "VLAN", Offset: 4, Kind: U16, Doc: "0 or NoVLAN."},
		{Name: "MAC", Offset: 8, Kind: Bytes, Len: 6, Doc: "MAC address of the interface that has the address; not used."},
		{Name: "GID", Offset: 16, Kind: Bytes, Len: 16, Doc: "the address; IPv4 in its mapped form."},
	}},
	{Name: "GIDIndex", Size: 8, Doc: "GIDIndex holds the parameters of DelGID and QueryGID.", Fields: []Field{
		{Name: "Index", Offset: 0, Kind: U16, Doc: "of the entry."},
	}},
	{Name: "CMListen", Size: 8, Doc: "CMListen holds the parameters of the command of that name.", Fields: []Field{
		{Name: "Service", Offset: 0, Kind: U64, Doc: "service number."},
	}},
	{Name: "CMUnlisten", Size: 8, Doc: "CMUnlisten holds the parameters of the command of that name.", Fields: []Field{
		{Name: "Service", Offset: 0, Kind: U64, Doc: "service number."},
	}},
	{Name: "CMConnect", Size: 40, Doc: "CMConnect holds the parameters of the command of that name.", Fields: []Field{
		{Name: "QPN", Offset: 0, Kind: U32, Doc: "queue pair to connect, in state INIT."},
		{Name: "PrivLen", Offset: 4, Kind: U16, Doc: "bytes of private data: 0 to PrivateMax."},
		{Name: "SrcPort", Offset: 6, Kind: U16, Doc: "with FeatureIWARP: TCP port to call from; 0: the device picks one."},
		{Name: "Service", Offset: 8, Kind: U64, Doc: "service number of the listener."},
		{Name: "DGID", Offset: 16, Kind: Bytes, Len: 16, Doc: "GID of the listener's function."},
		{Name: "Priv", Offset: 32, Kind: U64, Doc: "device address of the private data; read before the command completes."},
	}},
	{Name: "CMConnectResult", Size: 8, Doc: "CMConnectResult is the result of CMConnect.", Fields: []Field{
		{Name: "CMID", Offset: 0, Kind: U32, Doc: "connection id: Number of the events that follow."},
	}},
	{Name: "CMAccept", Size: 24, Doc: "CMAccept holds the parameters of the command of that name.", Fields: []Field{
		{Name: "CMID", Offset: 0, Kind: U32, Doc: "Number of the ConnectRequest event."},
		{Name: "QPN", Offset: 4, Kind: U32, Doc: "queue pair to connect, in state INIT."},
		{Name: "Priv", Offset: 8, Kind: U64, Doc: "device address of the private data; read before the command completes."},
		{Name: "PrivLen", Offset: 16, Kind: U16, Doc: "bytes of private data: 0 to PrivateMax."},
	}},
	{Name: "CMReject", Size: 24, Doc: "CMReject holds the parameters of the command of that name.", Fields: []Field{
		{Name: "CMID", Offset: 0, Kind: U32, Doc: "Number of the ConnectRequest event."},
		{Name: "Reason", Offset: 4, Kind: U32, Doc: "chosen by the driver; Status of the peer's Rejected event."},
		{Name: "Priv", Offset: 8, Kind: U64, Doc: "device address of the private data; read before the command completes."},
		{Name: "PrivLen", Offset: 16, Kind: U16, Doc: "bytes of private data: 0 to PrivateMax."},
	}},
	{Name: "CMDisconnect", Size: 8, Doc: "CMDisconnect holds the parameters of the command of that name.", Fields: []Field{
		{Name: "CMID", Offset: 0, Kind: U32, Doc: "connection id."},
	}},
}
