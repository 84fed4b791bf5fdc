package schema

// What a PF does to its VFs, and what a function reads of its own share of the NIC.

var vfCommands = []Command{
	{Name: "VFEnable", Code: 64, Group: "VF", Params: "VFNumber", Doc: "PF only: makes a VF, or allows it again. A VF without a guest of its own is the PF's guest's.", Errors: "Denied (not a PF), NotFound (above RegTotalVF), InvalidArgument (no tenant or address), AddressInUse"},
	{Name: "VFDisable", Code: 65, Group: "VF", Params: "VFNumber", Doc: "PF only: resets a VF and switches it off; its driver gets EventFunctionState.", Errors: "Denied, NotFound"},
	{Name: "VFReset", Code: 66, Group: "VF", Params: "VFNumber", Doc: "PF only: function-level reset of a VF; its driver gets EventFunctionState.", Errors: "Denied, NotFound, BadState (disabled)"},
	{Name: "SetVF", Code: 67, Group: "VF", Params: "SetVF", Doc: "PF only: changes what Mask names. A new MAC, tenant or GID resets an enabled VF.", Errors: "Denied (also: another tenant than the PF's, or trust, by a PF that is not trusted itself), NotFound, InvalidArgument (also: a tenant for a VF that has no GID and is not given one, or the reverse), AddressInUse, TooLarge (a quota above the PF's own)"},
	{Name: "SetVFWindow", Code: 68, Group: "VF", Params: "SetVFWindow", Doc: "PF only: sets the DMA window of a VF; an enabled VF is reset.", Errors: "Denied, NotFound, InvalidArgument"},
	{Name: "SetVFCredits", Code: 69, Group: "VF", Params: "SetVFCredits", Doc: "PF only: sets the credit limits of a VF, or what is set aside for it alone. Limits below what is in use take nothing away: new work waits.", Errors: "Denied (also: a guarantee, by a PF that is not trusted), NotFound, InvalidArgument (a guarantee above the limit), TooLarge (above the PF's own limit), NoResources (the guarantee does not fit)"},
	{Name: "QueryVF", Code: 70, Group: "VF", Params: "VFNumber", Result: "QueryVFResult", Doc: "PF only: returns what a VF is set to and its state.", Errors: "Denied, NotFound"},
	{Name: "QueryVFCredits", Code: 71, Group: "VF", Params: "QueryVFCredits", Result: "CreditCounts", Doc: "PF only: returns credit counts of a VF.", Errors: "Denied, NotFound, InvalidArgument"},
	{Name: "SetVFObjects", Code: 72, Group: "VF", Params: "SetVFObjects", Doc: "PF only: sets how many objects a VF may have; those above a lowered quota stay.", Errors: "Denied, NotFound, InvalidArgument (a quota of 0), TooLarge (a quota above the PF's own)"},
	{Name: "QueryVFObjects", Code: 73, Group: "VF", Params: "QueryVFObjects", Result: "ObjectCounts", Doc: "PF only: returns how many objects a VF may have, or has.", Errors: "Denied, NotFound, InvalidArgument (part)"},
}

var vfFlags = FlagSet{Name: "VFAttr", Prefix: "VFAttr", Doc: "SetVF.Mask.", Values: []Value{
	{Name: "MAC", Value: 1 << 0, Doc: "MAC."},
	{Name: "Tenant", Value: 1 << 1, Doc: "Tenant."},
	{Name: "GID", Value: 1 << 2, Doc: "GID."},
	{Name: "MaxTxRate", Value: 1 << 3, Doc: "MaxTxRate."},
	{Name: "Link", Value: 1 << 4, Doc: "Link."},
	{Name: "Trust", Value: 1 << 5, Doc: "Trust."},
	{Name: "SpoofCheck", Value: 1 << 6, Doc: "SpoofCheck."},
	{Name: "MaxQP", Value: 1 << 7, Doc: "MaxQP."},
	{Name: "MaxCQ", Value: 1 << 8, Doc: "MaxCQ."},
	{Name: "MaxMR", Value: 1 << 9, Doc: "MaxMR."},
	{Name: "MaxPD", Value: 1 << 10, Doc: "MaxPD."},
}}

var vfEnums = []Enum{
	{Name: "Link", Prefix: "Link", Base: U8, Doc: "Link is what decides the state of a function's link.", Values: []Value{
		{Name: "Auto", Value: 0, Text: "auto", Doc: "a VF's follows its PF's, a PF's is up."},
		{Name: "Enable", Value: 1, Text: "enable", Doc: "up."},
		{Name: "Disable", Value: 2, Text: "disable", Doc: "down: nothing of the function reaches the fabric, nothing reaches it."},
	}},
	{Name: "CreditPart", Prefix: "Credit", Base: U8, Doc: "CreditPart says which of a function's counts of credits or objects are meant.", Values: []Value{
		{Name: "Limit", Value: 0, Text: "limit", Doc: "most that it may hold."},
		{Name: "Guarantee", Value: 1, Text: "guarantee", Doc: "set aside for it alone, of the limit; credits only."},
		{Name: "InUse", Value: 2, Text: "in use", Doc: "held now."},
	}},
}

var vfStructs = []Struct{
	{Name: "VFNumber", Size: 8, Doc: "VFNumber holds the parameters of commands that name a VF.", Fields: []Field{
		{Name: "VF", Offset: 0, Kind: U16, Doc: "VF of this PF: 1 to RegTotalVF."},
	}},
	{Name: "SetVF", Size: 56, Doc: "SetVF holds the parameters of the command of that name. Only what Mask names is used.", Fields: []Field{
		{Name: "VF", Offset: 0, Kind: U16, Doc: "VF of this PF: 1 to RegTotalVF."},
		{Name: "Link", Offset: 2, Kind: U8, Enum: "Link", Doc: "what decides the link."},
		{Name: "Trust", Offset: 3, Kind: U8, Doc: "1: trusted, 0: not."},
		{Name: "Mask", Offset: 4, Kind: U32, Flags: "VFAttr", Doc: "what is set."},
		{Name: "MAC", Offset: 8, Kind: Bytes, Len: 6, Doc: "MAC address."},
		{Name: "SpoofCheck", Offset: 14, Kind: U8, Doc: "1: the port sends from its own addresses only, 0: from any."},
		{Name: "Tenant", Offset: 16, Kind: U32, Doc: "tenant number."},
		{Name: "MaxTxRate", Offset: 20, Kind: U32, Doc: "most it may send, Mbit/s; 0: no limit."},
		{Name: "GID", Offset: 24, Kind: Bytes, Len: 16, Doc: "address in the tenant; IPv4 in its mapped form."},
		{Name: "MaxQP", Offset: 40, Kind: U32, Doc: "limit of QPs."},
		{Name: "MaxCQ", Offset: 44, Kind: U32, Doc: "limit of CQs."},
		{Name: "MaxMR", Offset: 48, Kind: U32, Doc: "limit of memory regions."},
		{Name: "MaxPD", Offset: 52, Kind: U32, Doc: "limit of protection domains."},
	}},
	{Name: "SetVFWindow", Size: 24, Doc: "SetVFWindow holds the parameters of the command of that name.", Fields: []Field{
		{Name: "VF", Offset: 0, Kind: U16, Doc: "VF of this PF: 1 to RegTotalVF."},
		{Name: "Address", Offset: 8, Kind: U64, Doc: "first device address, 4 KiB aligned."},
		{Name: "Length", Offset: 16, Kind: U64, Doc: "bytes, whole pages; 0: all of the guest's memory."},
	}},
	{Name: "SetVFCredits", Size: 40, Doc: "SetVFCredits holds the parameters of the command of that name.", Fields: []Field{
		{Name: "VF", Offset: 0, Kind: U16, Doc: "VF of this PF: 1 to RegTotalVF."},
		{Name: "Part", Offset: 2, Kind: U8, Enum: "CreditPart", Doc: "limit or guarantee."},
		{Name: "Mask", Offset: 4, Kind: U32, Doc: "bit n: Counts n is set."},
		{Name: "Counts", Offset: 8, Kind: Bytes, Len: 32, Doc: "eight u32 in the order of CreditCounts."},
	}},
	{Name: "SetVFObjects", Size: 48, Doc: "SetVFObjects holds the parameters of the command of that name.", Fields: []Field{
		{Name: "VF", Offset: 0, Kind: U16, Doc: "VF of this PF: 1 to RegTotalVF."},
		{Name: "Mask", Offset: 4, Kind: U32, Doc: "bit n: Counts n is set."},
		{Name: "Counts", Offset: 8, Kind: Bytes, Len: objectCounts().Size, Doc: "ObjectCounts: a u32 for each kind of object; what is behind them is reserved."},
	}},
	{Name: "QueryVFObjects", Size: 8, Doc: "QueryVFObjects holds the parameters of the command of that name.", Fields: []Field{
		{Name: "VF", Offset: 0, Kind: U16, Doc: "VF of this PF: 1 to RegTotalVF."},
		{Name: "Part", Offset: 2, Kind: U8, Enum: "CreditPart", Doc: "limit or in use."},
	}},
	{Name: "QueryVFCredits", Size: 8, Doc: "QueryVFCredits holds the parameters of the command of that name.", Fields: []Field{
		{Name: "VF", Offset: 0, Kind: U16, Doc: "VF of this PF: 1 to RegTotalVF."},
		{Name: "Part", Offset: 2, Kind: U8, Enum: "CreditPart", Doc: "which counts."},
	}},
	{Name: "QueryVFResult", Size: 48, Doc: "QueryVFResult is the result of QueryVF.", Fields: []Field{
		{Name: "State", Offset: 0, Kind: U32, Enum: "State", Doc: "lifecycle state; DISABLED for a VF that is not enabled."},
		{Name: "Link", Offset: 4, Kind: U8, Enum: "Link", Doc: "what decides the link."},
		{Name: "LinkUp", Offset: 5, Kind: U8, Doc: "1: the link is up."},
		{Name: "Trust", Offset: 6, Kind: U8, Doc: "1: trusted."},
		{Name: "SpoofCheck", Offset: 7, Kind: U8, Doc: "1: the port sends from its own addresses only."},
		{Name: "MAC", Offset: 8, Kind: Bytes, Len: 6, Doc: "MAC address."},
		{Name: "Attached", Offset: 14, Kind: U8, Doc: "1: a driver is attached."},
		{Name: "Tenant", Offset: 16, Kind: U32, Doc: "tenant number; 0: none."},
		{Name: "MaxTxRate", Offset: 20, Kind: U32, Doc: "most it may send, Mbit/s; 0: no limit."},
		{Name: "GID", Offset: 24, Kind: Bytes, Len: 16, Doc: "address in the tenant."},
		{Name: "QPs", Offset: 40, Kind: U32, Doc: "QPs there are."},
		{Name: "MRs", Offset: 44, Kind: U32, Doc: "memory regions there are."},
	}},
	{Name: "CreditCounts", Size: 32, Doc: "CreditCounts are the six counters of Falcon §8.2.3 and the two pools for requests from the network.", Fields: []Field{
		{Name: "ReqPktTx", Offset: 0, Kind: U32, Doc: "requests sent."},
		{Name: "ReqBufTx", Offset: 4, Kind: U32, Doc: "their data, in 128-byte cells."},
		{Name: "ReqPktRx", Offset: 8, Kind: U32, Doc: "answers expected."},
		{Name: "ReqBufRx", Offset: 12, Kind: U32, Doc: "READ data expected, in 128-byte cells."},
		{Name: "DataPktTx", Offset: 16, Kind: U32, Doc: "READ responses sent."},
		{Name: "DataBufTx", Offset: 20, Kind: U32, Doc: "their data, in 128-byte cells."},
		{Name: "NetPktRx", Offset: 24, Kind: U32, Doc: "requests received and not answered."},
		{Name: "NetBufRx", Offset: 28, Kind: U32, Doc: "payloads among them that wait for their turn."},
	}},
}

// functionRegisters are what a function reads of its share of the NIC.
func functionRegisters() []Register {
	list := []Register{
		{"LinkUp", 0x100, 4, ReadOnly, "by function", "1: the link of the function's port is up, 0: down.", ""},
		{"MaxTxRate", 0x104, 4, ReadOnly, "by function", "Most the function may send, Mbit/s; 0: no limit.", ""},
		{"TotalVF", 0x108, 4, ReadOnly, "by function", "Highest VF number a PF may enable; 0 for a VF.", ""},
		{"NumVF", 0x10c, 4, ReadOnly, "by function", "VFs of a PF that are enabled; 0 for a VF.", ""},
		{"Speed", 0x110, 4, ReadOnly, "by function", "Speed of the function's port, Mbit/s: that of the NIC's uplink, or RegMaxTxRate where that is less.", ""},
	}
	counts := vfStructs[len(vfStructs)-1].Fields
	for part, doc := range []struct{ name, text string }{{"Limit", "most it may hold"}, {"Guarantee", "set aside for it alone"}, {"InUse", "held now"}} {
		for i, c := range counts {
			list = append(list, Register{
				"Credit" + doc.name + c.Name, 0x120 + part*0x20 + 4*i, 4, ReadOnly, "by function",
				"Credits, " + doc.text + ": " + c.Doc, "",
			})
		}
	}
	return append(list, Register{"Clock", 0x180, 8, ReadOnly, "–", "The device's clock, by which CQE.Timestamp is taken: nanoseconds, monotonic.", ""})
}
