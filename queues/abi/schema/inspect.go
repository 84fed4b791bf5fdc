package schema

// What a driver asks about its own function to find its way.

var inspectCommands = []Command{
	{"QueryMemory", 48, "QueryMemory", "QueryMemoryResult", "returns a range of device addresses that the function reaches now (1.2).", "NotFound (no such range)"},
}

var inspectRegisters = []Register{
	{"DMAWindow", 0x88, 8, ReadOnly, "by function", "First device address of the function's DMA window (1.2).", ""},
	{"DMAWindowLength", 0x90, 8, ReadOnly, "by function", "Bytes of the DMA window; 0: all of the guest's memory (1.2).", ""},
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
}
