package schema

// windowConsts are of the shared window that some attachments give a function.
var windowConsts = []Const{
	{"WindowSize", 1 << 18, true, "bytes of a function's window: BAR2 of its PCI device."},
	{"WindowBellsLog2", 8, false, "log2 of the records that the bell ring of a window holds."},
	{"WindowEventsLog2", 10, false, "log2 of the records that an event queue of a window holds."},
	{"WindowDoorbell", 0x0c, true, "offset in BAR0 of the doorbell register; 0 written to it makes the device look at the bell ring, WindowDoorbellControl at the control block."},
	{"WindowDoorbellControl", 1, false, "written to WindowDoorbell: the control block has something for the device."},
	{"WindowControlLog2", 6, false, "log2 of the messages that each ring of a control block holds."},
	{"WindowMessageSize", 256, false, "bytes of a slot of those rings: one message with its header."},
	{"WindowRequests", 0x80, true, "offset in a control block of the ring of the driver's messages."},
	{"WindowMessages", 0x4100, true, "offset in a control block of the ring of the device's messages."},
}

var windowEnums = []Enum{
	{Name: "CapType", Prefix: "Cap", Base: U16, Doc: "CapType says what a block of the window is.", Values: []Value{
		{Name: "Bells", Value: 1, Text: "bells", Doc: "a ring of Doorbell records, driver to device: QueueHeader, then 2^WindowBellsLog2 records."},
		{Name: "Events", Value: 2, Text: "events", Doc: "an event queue, device to driver: QueueHeader with the sides exchanged, then 2^WindowEventsLog2 WindowEvent records. The n-th of the chain, from 1, is CreateCQ.Vector n and interrupts by vector n."},
		{Name: "Control", Value: 3, Text: "control", Doc: "a control block: ControlHeader, at WindowRequests a ring of the driver's messages, at WindowMessages one of the device's with the sides exchanged, each QueueHeader and 2^WindowControlLog2 slots of WindowMessageSize bytes. It interrupts by vector 0."},
		{Name: "AdminSQ", Value: 4, Text: "admin SQ", Doc: "room for the area of an admin submission queue of MaxAdminEntries."},
		{Name: "AdminCQ", Value: 5, Text: "admin CQ", Doc: "room for the area of an admin completion queue of MaxAdminEntries."},
	}},
}

var windowStructs = []Struct{
	{Name: "WindowHeader", Size: 32, Doc: "WindowHeader is at offset 0 of a function's window. The device writes it before the driver can see the window, and never again.", Fields: []Field{
		{Name: "Magic", Offset: 0, Kind: U32, Doc: "Magic."},
		{Name: "Major", Offset: 4, Kind: U16, Doc: "major ABI version of the device."},
		{Name: "Minor", Offset: 6, Kind: U16, Doc: "minor ABI version of the device."},
		{Name: "Length", Offset: 8, Kind: U32, Doc: "bytes of the window."},
		{Name: "Function", Offset: 12, Kind: U32, Doc: "number of the function."},
		{Name: "FunctionType", Offset: 16, Kind: U32, Enum: "FunctionType", Doc: "PF or VF."},
		{Name: "FirstCap", Offset: 20, Kind: U32, Doc: "offset of the first Capability; 0: none."},
	}},
	{Name: "Capability", Size: 16, Doc: "Capability describes one block of the window; a driver skips those of types or versions it does not know.", Fields: []Field{
		{Name: "Type", Offset: 0, Kind: U16, Enum: "CapType", Doc: "what the block is."},
		{Name: "Version", Offset: 2, Kind: U16, Doc: "of the block's layout: 1."},
		{Name: "Offset", Offset: 4, Kind: U32, Doc: "of the block in the window, a multiple of 64."},
		{Name: "Length", Offset: 8, Kind: U32, Doc: "bytes of the block."},
		{Name: "Next", Offset: 12, Kind: U32, Doc: "offset of the next Capability, larger than this one's; 0: the last."},
	}},
	{Name: "ControlHeader", Size: 128, OffsetsOnly: true, Doc: "ControlHeader is at offset 0 of a control block. Each side writes its own words only.", Fields: []Field{
		{Name: "Open", Offset: 0, Kind: U32, Doc: "driver: number of the session it wants, another than that of the one before; 0: none."},
		{Name: "Opened", Offset: 64, Kind: U32, Doc: "device: number of the session that is open; 0: none."},
		{Name: "Full", Offset: 68, Kind: U32, Doc: "device: 1: messages wait for room, so that a driver which took some rings."},
	}},
	{Name: "WindowEvent", Size: 8, Doc: "WindowEvent is a record of an event queue: a CQ that was armed has news.", Fields: []Field{
		{Name: "CQN", Offset: 0, Kind: U32, Doc: "completion queue number."},
	}},
}
