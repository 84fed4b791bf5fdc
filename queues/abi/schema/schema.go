package schema

import "slices"

// Current is the ABI of this tree.
var Current = ABI{
	Major:     2,
	Minor:     2,
	Consts:    append(consts, windowConsts...),
	Enums:     withCodes(slices.Concat(enums, windowEnums, vfEnums, inspectEnums)),
	Flags:     append(flagSets, vfFlags),
	Registers: slices.Concat(registers, inspectRegisters, functionRegisters()),
	Messages:  messages,
	Groups:    groups,
	Commands:  allCommands,
	Control:   controlStructs,
	Admin:     slices.Concat(adminStructs, inspectStructs, objectStructs, vfStructs),
	Queues:    append(queueStructs, windowStructs...),
	Clauses:   clauses,
	Objects:   objectKinds,
}

var consts = []Const{
	{"Port", 7000, false, "vsock port on which the device listens (CID 2)."},
	{"MaxMessage", 8192, false, "largest control message in bytes, header included."},
	{"Magic", 0x43494e56, true, "RegMagic: the bytes \"VNIC\" read as a little-endian word."},
	{"FunctionAssigned", 0xffffffff, true, "Hello.Function: the one function assigned to the caller."},
	{"AdminCQ", 0xffffffff, true, "CQ number that stands for the admin completion queue in MsgCQEvent."},
	{"PageSize", 4096, false, "bytes of a page of a page list, and of pages where no other size is said."},
	{"PageListEntries", 512, false, "entries of one page of a page list."},
	{"MaxPageLevels", 3, false, "deepest page list."},
	{"MinPageShift", 12, false, "log2 of the bytes of the smallest page of a region, and of the pages of queue areas and page lists."},
	{"MaxPageShift", 30, false, "log2 of the bytes of the largest page of a region."},
	{"MaxMRSize", 1 << 40, true, "largest memory region in bytes."},
	{"ReservedLKey", 0xffffffff, true, "local key that names device addresses, in queues made with QPPrivileged."},
	{"MaxFastPages", 512, false, "most pages of a region of AllocMR."},
	{"MaxAdminEntries", 256, false, "largest admin queue in entries; smallest is 2."},
	{"MaxQueueLog2", 18, false, "largest log2 of the entries of a send, receive or completion queue."},
	{"QueueHeaderSize", 128, false, "bytes before the first entry of a queue's area."},
	{"SendWQEHeader", 64, false, "bytes of a send entry before its SGEs or inline data."},
	{"RecvWQEHeader", 16, false, "bytes of a receive entry before its SGEs."},
	{"CQETailOffset", 56, false, "offset of the word that holds the phase in a CQE."},
	{"AdminCQETailOffset", 120, false, "offset of the word that holds the phase in an AdminCQE."},
	{"Phase", 1 << 56, true, "phase bit in the tail word of CQE and AdminCQE."},
	{"CQArmSolicited", 1 << 32, true, "bit of CQHeader.Arm: only completions of solicited receives and errors count."},
	{"CQArmNumber", 33, false, "lowest bit of the arming's number in CQHeader.Arm."},
	{"FirstReservedService", 0xffffffffffffff00, true, "service numbers from here on are the NICs' own."},
	{"GRHSize", 40, false, "bytes before the data of a received datagram: an IPv6 header, or 20 bytes of zero and an IPv4 header."},
	{"DefaultPKey", 0xffff, true, "the one entry of the P_Key table."},
	{"GroupQPN", 0xffffff, true, "SendWQE.RemoteQPN of a datagram to a multicast group."},
	{"GSIQKey", 0x80010000, true, "Q_Key of queue pairs of type GSI."},
	{"QKeyControlled", 0x80000000, true, "SendWQE.RemoteQKey: the QP's own Q_Key is sent."},
	{"SLRoCEIPv4", 0xa, true, "CQE.SL of a datagram received from an IPv4 address: RoCE packet type IPv4 over UDP."},
	{"SLRoCEIPv6", 0x9, true, "CQE.SL of a datagram received from an IPv6 address."},
	{"GIDEntries", 64, false, "entries of the GID table; entry 0 is the function's own address at first."},
	{"NoVLAN", 0xffff, true, "VLAN of an address handle or a path: none, as 0."},
	{"PrivateMax", 64, false, "largest private data of a connection request, reply or rejection in bytes."},
}

var allCommands = slices.Concat(commands, inspectCommands, objectCommands, vfCommands)

// withCodes appends the enums whose values are defined by other tables.
func withCodes(list []Enum) []Enum {
	msg := Enum{Name: "MsgType", Prefix: "Msg", Base: U16, Doc: "MsgType is the type of a control message."}
	for _, m := range messages {
		msg.Values = append(msg.Values, Value{Name: m.Name, Value: m.Code, Text: m.Name, Doc: m.Doc})
	}
	op := Enum{Name: "AdminOp", Prefix: "AdminOp", Base: U16, Doc: "AdminOp is the opcode of an admin command."}
	for _, c := range allCommands {
		op.Values = append(op.Values, Value{Name: c.Name, Value: c.Code, Text: c.Name, Doc: c.Doc})
	}
	return append(append([]Enum{}, list...), msg, op)
}
