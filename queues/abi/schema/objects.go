package schema

// objectCommands are the admin commands for the verbs objects about shared receive queues and all
// that plain reliable connections need not.
var objectCommands = []Command{
	{
		Name: "CreateSRQ", Code: 32, Group: "Verbs", Params: "CreateSRQ", Result: "CreateSRQResult", Doc: "creates a shared receive queue.", Errors: "NotFound (PD, CQ, XRC domain), NoResources, MemoryFault, TooLarge",
		Needs: []Need{{Feature: "ExtendedVerbs"}},
		Areas: []Area{{Entries: "Log2Entries", Entry: "Log2Stride"}},
	},
	{
		Name: "ModifySRQ", Code: 33, Group: "Verbs", Params: "ModifySRQ", Result: "ModifySRQResult", Doc: "sets the limit of a shared receive queue or moves it to another area.", Errors: "NotFound, MemoryFault, TooLarge",
		Needs: []Need{{Feature: "ExtendedVerbs"}},
		Areas: []Area{{Entries: "Log2Entries", Log2Entry: 12}},
	},
	{
		Name: "QuerySRQ", Code: 34, Group: "Verbs", Params: "QuerySRQ", Result: "QuerySRQResult", Doc: "returns the attributes of a shared receive queue.", Errors: "NotFound",
		Needs: []Need{{Feature: "ExtendedVerbs"}},
	},
	{
		Name: "DestroySRQ", Code: 35, Group: "Verbs", Params: "DestroySRQ", Doc: "destroys a shared receive queue.", Errors: "NotFound, Busy (QPs use it, or messages in progress)",
		Needs: []Need{{Feature: "ExtendedVerbs"}},
	},
	{
		Name: "OpenXRCD", Code: 36, Group: "Verbs", Result: "OpenXRCDResult", Doc: "creates an XRC domain.", Errors: "NoResources",
		Needs: []Need{{Feature: "ExtendedVerbs"}},
	},
	{
		Name: "CloseXRCD", Code: 37, Group: "Verbs", Params: "CloseXRCD", Doc: "destroys an XRC domain.", Errors: "NotFound, Busy (has QPs or SRQs)",
		Needs: []Need{{Feature: "ExtendedVerbs"}},
	},
	{
		Name: "AllocMW", Code: 38, Group: "Verbs", Params: "AllocMW", Result: "AllocMWResult", Doc: "creates a memory window, which is not bound.", Errors: "NotFound (PD), NoResources, Unsupported (type)",
		Needs: []Need{{Feature: "ExtendedVerbs"}},
	},
	{
		Name: "DeallocMW", Code: 39, Group: "Verbs", Params: "DeallocMW", Doc: "destroys a memory window.", Errors: "NotFound",
		Needs: []Need{{Feature: "ExtendedVerbs"}},
	},
	{
		Name: "AttachMcast", Code: 43, Group: "Verbs", Params: "Mcast", Doc: "has a queue pair of type UD receive the datagrams to a multicast group; again does nothing.", Errors: "NotFound, NoResources, Unsupported (the function is in no network that carries them)",
		Needs: []Need{{Feature: "Datagrams"}},
	},
	{
		Name: "DetachMcast", Code: 44, Group: "Verbs", Params: "Mcast", Doc: "ends what AttachMcast began.", Errors: "NotFound (also: it is not attached)",
		Needs: []Need{{Feature: "Datagrams"}},
	},
	{
		Name: "ReregMR", Code: 40, Group: "Verbs", Params: "ReregMR", Result: "RegMRResult", Doc: "changes a region, and gives it new keys when its memory changes; after an error it is as it was.", Errors: "NotFound (region, PD), Busy (windows are bound to it, or another ReregMR is not done), NoResources, MemoryFault, TooLarge",
		Needs: []Need{{Feature: "ExtendedVerbs"}},
		Long:  true,
	},
	{
		Name: "ResizeCQ", Code: 41, Group: "Verbs", Params: "ResizeCQ", Doc: "moves a completion queue to another area; entries written before stay in the old one.", Errors: "NotFound, BadState (it overflowed), InvalidArgument (more entries wait than it is to have), MemoryFault, TooLarge",
		Needs: []Need{{Feature: "ExtendedVerbs"}},
		Areas: []Area{{Entries: "Log2Entries", Log2Entry: 6}},
	},
	{
		Name: "ModifyCQ", Code: 42, Group: "Verbs", Params: "ModifyCQ", Doc: "sets how many completions share an event.", Errors: "NotFound",
		Needs: []Need{{Feature: "ExtendedVerbs"}},
	},
}

var objectStructs = []Struct{
	{Name: "ResizeCQ", Size: 16, Doc: "ResizeCQ holds the parameters of the command of that name. The area is made as for CreateCQ.", Fields: []Field{
		{Name: "CQN", Offset: 0, Kind: U32, Doc: "completion queue number."},
		{Name: "Log2Entries", Offset: 4, Kind: U8, Doc: "log2 of the entries: 1 to MaxQueueLog2."},
		{Name: "Levels", Offset: 5, Kind: U8, Doc: "levels of the page list: 1 to 3."},
		{Name: "Pages", Offset: 8, Kind: U64, Doc: "page list root of the new area."},
	}},
	{Name: "ModifyCQ", Size: 8, Doc: "ModifyCQ holds the parameters of the command of that name.", Fields: []Field{
		{Name: "CQN", Offset: 0, Kind: U32, Doc: "completion queue number."},
		{Name: "Count", Offset: 4, Kind: U16, Doc: "an event waits for that many completions; 0 and 1: for none."},
		{Name: "Period", Offset: 6, Kind: U16, Doc: "longest wait in microseconds; 0: no moderation."},
	}},
	{Name: "AllocMW", Size: 8, Doc: "AllocMW holds the parameters of the command of that name.", Fields: []Field{
		{Name: "PDN", Offset: 0, Kind: U32, Doc: "protection domain number."},
		{Name: "Type", Offset: 4, Kind: U8, Enum: "MWType", Doc: "kind of window."},
	}},
	{Name: "AllocMWResult", Size: 8, Doc: "AllocMWResult is the result of AllocMW.", Fields: []Field{
		{Name: "RKey", Offset: 0, Kind: U32, Doc: "key of the window; each binding chooses the low 8 bits."},
	}},
	{Name: "DeallocMW", Size: 8, Doc: "DeallocMW holds the parameters of the command of that name.", Fields: []Field{
		{Name: "RKey", Offset: 0, Kind: U32, Doc: "key of the window, with any low 8 bits."},
	}},
	{Name: "ReregMR", Size: 48, Doc: "ReregMR holds the parameters of the command of that name. Only what Mask names is used.", Fields: []Field{
		{Name: "LKey", Offset: 0, Kind: U32, Doc: "key of the region."},
		{Name: "Mask", Offset: 4, Kind: U32, Flags: "Rereg", Doc: "what is changed."},
		{Name: "PDN", Offset: 8, Kind: U32, Doc: "as in RegMR."},
		{Name: "Access", Offset: 12, Kind: U32, Flags: "Access", Doc: "as in RegMR."},
		{Name: "IOVA", Offset: 16, Kind: U64, Doc: "as in RegMR."},
		{Name: "Length", Offset: 24, Kind: U64, Doc: "as in RegMR."},
		{Name: "Pages", Offset: 32, Kind: U64, Doc: "as in RegMR."},
		{Name: "Levels", Offset: 40, Kind: U8, Doc: "as in RegMR."},
		{Name: "PageShift", Offset: 41, Kind: U8, Doc: "as in RegMR."},
		{Name: "Offset", Offset: 44, Kind: U32, Doc: "as in RegMR."},
	}},
	{Name: "CreateSRQ", Size: 32, Doc: "CreateSRQ holds the parameters of the command of that name. The area takes QueueHeaderSize + stride × entries bytes.", Fields: []Field{
		{Name: "PDN", Offset: 0, Kind: U32, Doc: "protection domain number."},
		{Name: "CQN", Offset: 4, Kind: U32, Doc: "CQ for its completions (XRC only, else 0)."},
		{Name: "XRCDN", Offset: 8, Kind: U32, Doc: "XRC domain (XRC only, else 0)."},
		{Name: "Limit", Offset: 12, Kind: U32, Doc: "as in ModifySRQ."},
		{Name: "Type", Offset: 16, Kind: U8, Enum: "SRQType", Doc: "kind of queue."},
		{Name: "Log2Entries", Offset: 17, Kind: U8, Doc: "log2 of the entries: 1 to MaxQueueLog2."},
		{Name: "Log2Stride", Offset: 18, Kind: U8, Doc: "log2 of the bytes of an entry: 5 to 12; holds the header and MaxSGE SGEs."},
		{Name: "MaxSGE", Offset: 19, Kind: U8, Doc: "most SGEs of a receive work request."},
		{Name: "Levels", Offset: 20, Kind: U8, Doc: "levels of the page list: 1 to 3."},
		{Name: "Flags", Offset: 21, Kind: U8, Flags: "QPFlag", Doc: "what the queue may be used for."},
		{Name: "Pages", Offset: 24, Kind: U64, Doc: "page list root of the area."},
	}},
	{Name: "CreateSRQResult", Size: 8, Doc: "CreateSRQResult is the result of CreateSRQ.", Fields: []Field{
		{Name: "SRQN", Offset: 0, Kind: U32, Doc: "shared receive queue number, 24 bits, not 0."},
	}},
	{Name: "ModifySRQ", Size: 24, Doc: "ModifySRQ holds the parameters of the command of that name. Only attributes named in Mask are used.", Fields: []Field{
		{Name: "SRQN", Offset: 0, Kind: U32, Doc: "shared receive queue number."},
		{Name: "Mask", Offset: 4, Kind: U32, Flags: "SRQAttr", Doc: "what is changed."},
		{Name: "Limit", Offset: 8, Kind: U32, Doc: "EventSRQLimit is sent once when fewer entries than this are left; 0: never."},
		{Name: "Log2Entries", Offset: 12, Kind: U8, Doc: "log2 of the entries of the new area, with the stride of the old."},
		{Name: "Levels", Offset: 13, Kind: U8, Doc: "levels of the page list of the new area: 1 to 3."},
		{Name: "Pages", Offset: 16, Kind: U64, Doc: "page list root of the new area."},
	}},
	{Name: "ModifySRQResult", Size: 8, Doc: "ModifySRQResult is the result of ModifySRQ.", Fields: []Field{
		{Name: "Consumer", Offset: 0, Kind: U32, Doc: "entries of the old area that were read; those behind it are the driver's to post again."},
	}},
	{Name: "QuerySRQ", Size: 8, Doc: "QuerySRQ holds the parameters of the command of that name.", Fields: []Field{
		{Name: "SRQN", Offset: 0, Kind: U32, Doc: "shared receive queue number."},
	}},
	{Name: "QuerySRQResult", Size: 16, Doc: "QuerySRQResult is the result of QuerySRQ.", Fields: []Field{
		{Name: "SRQN", Offset: 0, Kind: U32, Doc: "shared receive queue number."},
		{Name: "Limit", Offset: 4, Kind: U32, Doc: "limit in force; 0 when none is set or the event was sent."},
		{Name: "Entries", Offset: 8, Kind: U32, Doc: "entries of the area."},
		{Name: "MaxSGE", Offset: 12, Kind: U32, Doc: "most SGEs of a receive work request."},
	}},
	{Name: "DestroySRQ", Size: 8, Doc: "DestroySRQ holds the parameters of the command of that name.", Fields: []Field{
		{Name: "SRQN", Offset: 0, Kind: U32, Doc: "shared receive queue number."},
	}},
	{Name: "Mcast", Size: 24, Doc: "Mcast holds the parameters of AttachMcast and DetachMcast.", Fields: []Field{
		{Name: "QPN", Offset: 0, Kind: U32, Doc: "queue pair number."},
		{Name: "GID", Offset: 8, Kind: Bytes, Len: 16, Doc: "group; IPv4 in its mapped form."},
	}},
	{Name: "OpenXRCDResult", Size: 8, Doc: "OpenXRCDResult is the result of OpenXRCD.", Fields: []Field{
		{Name: "XRCDN", Offset: 0, Kind: U32, Doc: "XRC domain number, not 0."},
	}},
	{Name: "CloseXRCD", Size: 8, Doc: "CloseXRCD holds the parameters of the command of that name.", Fields: []Field{
		{Name: "XRCDN", Offset: 0, Kind: U32, Doc: "XRC domain number."},
	}},
}
