package schema

var messages = []Message{
	{Name: "Hello", Code: 1, Body: "Hello", From: "driver", Answer: "HelloReply", Doc: "first message on a new stream; names the function and the version the driver speaks."},
	{Name: "HelloReply", Code: 2, Body: "HelloReply", From: "device", Doc: "accepts or refuses; after a refusal the device closes the stream."},
	{Name: "RegRead", Code: 3, Body: "RegRead", From: "driver", Answer: "RegReply", Doc: "reads one register."},
	{Name: "RegWrite", Code: 4, Body: "RegWrite", From: "driver", Answer: "RegReply", Doc: "writes one register; the reply follows the side effects."},
	{Name: "RegReply", Code: 5, Body: "RegReply", From: "device", Doc: "value read, or 0 after a write."},
	{Name: "Doorbell", Code: 6, Body: "Doorbell", List: true, From: "driver", Doc: "one or more doorbell records, executed in order; no reply."},
	{Name: "CQEvent", Code: 7, Repeat: U32, List: true, From: "device", Doc: "numbers of completion queues that have news; AdminCQ stands for the admin completion queue."},
	{Name: "AsyncEvent", Code: 8, Body: "AsyncEvent", From: "device", Doc: "one asynchronous event."},
	{Name: "Heartbeat", Code: 9, Body: "Heartbeat", From: "driver", Answer: "Heartbeat", Doc: "sent by the driver, echoed by the device with the same tag and token."},
	{Name: "Error", Code: 10, Body: "ErrorMsg", From: "device", Doc: "why the device closes the stream; the last message."},
	{Name: "Goodbye", Code: 11, From: "driver", Doc: "the driver leaves; the device resets the function and closes the stream."},
}

var controlStructs = []Struct{
	{Name: "MsgHeader", Size: 16, Doc: "MsgHeader starts every message of the control stream.", Fields: []Field{
		{Name: "Length", Offset: 0, Kind: U32, Doc: "bytes of the whole message, header included: 16 to MaxMessage."},
		{Name: "Type", Offset: 4, Kind: U16, Enum: "MsgType", Doc: "what the body is."},
		{Name: "Flags", Offset: 6, Kind: U16, Zero: true, Doc: "zero."},
		{Name: "Tag", Offset: 8, Kind: U64, Doc: "chosen by the driver and echoed in the reply; 0 in messages the device starts."},
	}},
	{Name: "Hello", Size: 48, Doc: "Hello is the body of MsgHello.", Fields: []Field{
		{Name: "Major", Offset: 0, Kind: U16, Doc: "major version the driver speaks; the device refuses any other than its own."},
		{Name: "Minor", Offset: 2, Kind: U16, Doc: "highest minor version the driver knows."},
		{Name: "Function", Offset: 4, Kind: U32, Doc: "function number (host 8 bits, PF 4, VF 12), or FunctionAssigned."},
		{Name: "Features", Offset: 8, Kind: U64, Flags: "Feature", Doc: "feature bits the driver can use."},
		{Name: "Driver", Offset: 16, Kind: Bytes, Len: 32, Doc: "name and version of the driver, UTF-8, zero padded; for logs only."},
	}},
	{Name: "HelloReply", Size: 24, Doc: "HelloReply is the body of MsgHelloReply.", Fields: []Field{
		{Name: "Status", Offset: 0, Kind: U32, Enum: "Status", Doc: "StatusOK, or why the function is refused."},
		{Name: "Major", Offset: 4, Kind: U16, Doc: "major version of the device."},
		{Name: "Minor", Offset: 6, Kind: U16, Doc: "lower of the two minor versions: the one in use."},
		{Name: "Function", Offset: 8, Kind: U32, Doc: "number of the attached function."},
		{Name: "Features", Offset: 16, Kind: U64, Flags: "Feature", Doc: "feature bits in use: both sides have them."},
	}},
	{Name: "RegRead", Size: 8, Doc: "RegRead is the body of MsgRegRead.", Fields: []Field{
		{Name: "Offset", Offset: 0, Kind: U32, Doc: "register offset."},
		{Name: "Width", Offset: 4, Kind: U32, Doc: "4 or 8: the register's own width."},
	}},
	{Name: "RegWrite", Size: 16, Doc: "RegWrite is the body of MsgRegWrite.", Fields: []Field{
		{Name: "Offset", Offset: 0, Kind: U32, Doc: "register offset."},
		{Name: "Width", Offset: 4, Kind: U32, Doc: "4 or 8: the register's own width."},
		{Name: "Value", Offset: 8, Kind: U64, Doc: "value to write; the upper half is 0 for 4-byte registers."},
	}},
	{Name: "RegReply", Size: 16, Doc: "RegReply is the body of MsgRegReply.", Fields: []Field{
		{Name: "Status", Offset: 0, Kind: U32, Enum: "Status", Doc: "StatusOK, StatusNotFound (no such register), StatusInvalidArgument (width or value), StatusDenied (access mode, or reset while DISABLED), StatusBadState, or StatusMemoryFault (enable)."},
		{Name: "Value", Offset: 8, Kind: U64, Doc: "value read; 0 after a write or an error."},
	}},
	{Name: "Doorbell", Size: 16, Doc: "Doorbell is one record of MsgDoorbell.", Fields: []Field{
		{Name: "Kind", Offset: 0, Kind: U8, Enum: "DoorbellKind", Doc: "which queue is meant."},
		{Name: "Flags", Offset: 1, Kind: U8, Flags: "Arm", Where: Where{"Kind", "CQArm"}, Doc: "Arm bits for DoorbellCQArm, else 0."},
		{Name: "Queue", Offset: 4, Kind: U32, Doc: "QP number (SQ, RQ), CQ number (CQArm), SRQ number (SRQ), 0 (Admin)."},
		{Name: "Index", Offset: 8, Kind: U32, Doc: "free-running index: new producer (Admin, SQ, RQ, SRQ) or consumer (CQArm)."},
	}},
	{Name: "AsyncEvent", Size: 128, Doc: "AsyncEvent is the body of MsgAsyncEvent.", Fields: []Field{
		{Name: "Type", Offset: 0, Kind: U16, Enum: "EventType", Doc: "what happened."},
		{Name: "Number", Offset: 4, Kind: U32, Doc: "connection id, QP, CQ or SRQ number, by type."},
		{Name: "Status", Offset: 8, Kind: U32, Doc: "reason: reject reason, Status or Fault, by type."},
		{Name: "PeerQPN", Offset: 12, Kind: U32, Doc: "QP number of the peer, where known."},
		{Name: "Service", Offset: 16, Kind: U64, Doc: "service of the listener (ConnectRequest)."},
		{Name: "SrcGID", Offset: 24, Kind: Bytes, Len: 16, Doc: "GID of the peer (ConnectRequest)."},
		{Name: "PrivLen", Offset: 40, Kind: U16, Doc: "bytes used in Priv."},
		{Name: "PeerPort", Offset: 42, Kind: U16, Doc: "over iWARP: TCP port of the peer (ConnectRequest, Established); else 0."},
		{Name: "IRD", Offset: 44, Kind: U8, Doc: "over iWARP: READs and atomics that the peer serves at a time (ConnectRequest, Established), 255 for more or where it does not say; else 0."},
		{Name: "ORD", Offset: 45, Kind: U8, Doc: "over iWARP: READs and atomics that the peer wants to have in flight (ConnectRequest, Established), as IRD; else 0."},
		{Name: "Priv", Offset: 48, Kind: Bytes, Len: 64, Doc: "private data of the peer, or the reason as text (QPFatal, CQError, FunctionFault)."},
		{Name: "QPN", Offset: 112, Kind: U32, Doc: "over iWARP: queue pair of a connection; 0: it has none, or has it no more."},
	}},
	{Name: "Heartbeat", Size: 8, Doc: "Heartbeat is the body of MsgHeartbeat.", Fields: []Field{
		{Name: "Token", Offset: 0, Kind: U64, Doc: "echoed."},
	}},
	{Name: "ErrorMsg", Size: 128, Doc: "ErrorMsg is the body of MsgError.", Fields: []Field{
		{Name: "Code", Offset: 0, Kind: U32, Enum: "Status", Doc: "class of the error."},
		{Name: "Reason", Offset: 4, Kind: Bytes, Len: 124, Doc: "reason as text, UTF-8, zero padded."},
	}},
}
