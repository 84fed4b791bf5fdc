package schema

// What a driver asks about its own function to find its way.

var inspectCommands = []Command{
	{Name: "QueryMemory", Code: 48, Group: "Query", Params: "QueryMemory", Result: "QueryMemoryResult", Doc: "returns a range of device addresses that the function reaches now.", Errors: "NotFound (no such range)"},
	{Name: "QueryViolation", Code: 49, Group: "Query", Params: "QueryViolation", Result: "Violation", Doc: "returns a rule of docs/abi that the driver broke; it is kept over resets and sessions.", Errors: "NotFound (no more)"},
	{Name: "QueryObjects", Code: 50, Group: "Query", Params: "QueryObjects", Result: "ObjectCounts", Doc: "returns how many objects of each kind the function may have, or has.", Errors: "InvalidArgument (part)"},
}

var inspectEnums = []Enum{
	{Name: "Ring", Prefix: "Ring", Base: U8, Doc: "Ring says where a driver broke a rule.", Values: []Value{
		{Name: "Stream", Value: 0, Text: "stream", Doc: "messages of the control stream."},
		{Name: "Register", Value: 1, Text: "register", Doc: "registers; Index is the offset."},
		{Name: "Admin", Value: 2, Text: "admin", Doc: "the admin queues."},
		{Name: "SQ", Value: 3, Text: "SQ", Doc: "a send queue."},
		{Name: "RQ", Value: 4, Text: "RQ", Doc: "a receive queue."},
		{Name: "CQ", Value: 5, Text: "CQ", Doc: "a completion queue."},
		{Name: "SRQ", Value: 6, Text: "SRQ", Doc: "a shared receive queue."},
		{Name: "Bells", Value: 7, Text: "bells", Doc: "the bell ring of a window."},
		{Name: "Events", Value: 8, Text: "events", Doc: "an event queue of a window."},
	}},
}

var inspectRegisters = []Register{
	{"DMAWindow", 0x88, 8, ReadOnly, "by function", "First device address of the function's DMA window.", ""},
	{"DMAWindowLength", 0x90, 8, ReadOnly, "by function", "Bytes of the DMA window; 0: all of the guest's memory.", ""},
}

var inspectStructs = []Struct{
	{Name: "QueryMemory", Size: 8, Doc: "QueryMemory holds the parameters of the command of that name.", Fields: []Field{
		{Name: "Index", Offset: 0, Kind: U32, Doc: "range, from 0."},
	}},
	{Name: "QueryMemoryResult", Size: 24, Doc: "QueryMemoryResult is the result of QueryMemory.", Fields: []Field{
		{Name: "Address", Offset: 0, Kind: U64, Doc: "first device address."},
		{Name: "Length", Offset: 8, Kind: U64, Doc: "bytes."},
		{Name: "Ranges", Offset: 16, Kind: U32, Doc: "how many ranges there are."},
	}},
	{Name: "QueryObjects", Size: 8, Doc: "QueryObjects holds the parameters of the command of that name.", Fields: []Field{
		{Name: "Part", Offset: 0, Kind: U8, Enum: "CreditPart", Doc: "limit or in use."},
	}},
	objectCounts(),
	{Name: "QueryViolation", Size: 8, Doc: "QueryViolation holds the parameters of the command of that name.", Fields: []Field{
		{Name: "Index", Offset: 0, Kind: U32, Doc: "violation, 0 for the newest."},
	}},
	{Name: "Violation", Size: 48, Doc: "Violation is the result of QueryViolation.", Fields: []Field{
		{Name: "Clause", Offset: 0, Kind: U16, Doc: "number of the clause: 602 stands for DRV-602."},
		{Name: "Ring", Offset: 2, Kind: U8, Enum: "Ring", Doc: "where."},
		{Name: "Length", Offset: 3, Kind: U8, Doc: "bytes in Bytes."},
		{Name: "Queue", Offset: 4, Kind: U32, Doc: "number of the queue, or of the event queue; else 0."},
		{Name: "Index", Offset: 8, Kind: U32, Doc: "index of the entry, or the index that was written; of a register its offset."},
		{Name: "Count", Offset: 12, Kind: U32, Doc: "how often: the same clause at the same queue is kept once, with what the newest stream that broke it did first."},
		{Name: "Bytes", Offset: 16, Kind: Bytes, Len: 32, Doc: "the first bytes of what was wrong: entry, command, address in a command, doorbell, message or word."},
	}},
}
