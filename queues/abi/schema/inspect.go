package schema

// What a driver asks about its own function to find its way.

var inspectCommands = []Command{
	{Name: "QueryMemory", Code: 48, Group: "Query", Params: "QueryMemory", Result: "QueryMemoryResult", Doc: "returns a range of device addresses that the function reaches now.", Errors: "NotFound (no such range)"},
	{Name: "QueryViolation", Code: 49, Group: "Query", Params: "QueryViolation", Result: "Violation", Doc: "returns a rule of docs/abi that the driver broke; it is kept over resets and sessions.", Errors: "NotFound (no more)"},
	{Name: "QueryObjects", Code: 50, Group: "Query", Params: "QueryObjects", Result: "ObjectCounts", Doc: "returns how many objects of each kind the function may have, or has.", Errors: "InvalidArgument (part)"},
	{Name: "QueryCounters", Code: 51, Group: "Query", Params: "QueryCounters", Result: "Counters", Doc: "returns what the function counted since it was enabled.", Errors: "NotFound (no such counter)"},
}

var inspectEnums = []Enum{
	counterEnum,
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
		{Name: "Doorbell", Value: 9, Text: "doorbell", Doc: "a doorbell of a kind that there is not; Queue and Index are what it says."},
	}},
}

// counterEnum names the counters as drivers of other devices do (rxe, mlx5, efa), where they count
// the same.
var counterEnum = Enum{Name: "Counter", Prefix: "Counter", Base: U16, Doc: "Counter is what a function counts (QueryCounters).", Values: []Value{
	{Name: "TxPackets", Value: 0, Text: "tx_pkts", Doc: "packets of SENDs, WRITEs, READs and atomics sent."},
	{Name: "TxBytes", Value: 1, Text: "tx_bytes", Doc: "bytes of data sent."},
	{Name: "RxPackets", Value: 2, Text: "rx_pkts", Doc: "packets of SENDs, WRITEs, READs and atomics received."},
	{Name: "RxBytes", Value: 3, Text: "rx_bytes", Doc: "bytes of data placed in memory."},
	{Name: "TxReads", Value: 4, Text: "tx_read_requests", Doc: "packets of READs and atomics among those sent."},
	{Name: "RxReads", Value: 5, Text: "rx_read_requests", Doc: "packets of READs and atomics among those received."},
	{Name: "Posted", Value: 6, Text: "send_wrs", Doc: "send work requests read."},
	{Name: "Completions", Value: 7, Text: "completions", Doc: "completions written."},
	{Name: "CompletionErrors", Value: 8, Text: "cqe_error", Doc: "completions among them with an error, flushed ones apart."},
	{Name: "Flushed", Value: 9, Text: "cqe_flush_error", Doc: "completions among them of flushed requests."},
	{Name: "SentRNR", Value: 10, Text: "send_rnr_err", Doc: "receiver-not-ready answers sent: no receive was posted."},
	{Name: "ReceivedRNR", Value: 11, Text: "rcvd_rnr_err", Doc: "receiver-not-ready answers received."},
	{Name: "Refused", Value: 12, Text: "rx_refused_requests", Doc: "requests of peers that were answered with an error."},
	{Name: "DatagramsLost", Value: 13, Text: "datagrams_lost", Doc: "datagrams that could not be sent or delivered."},
	{Name: "QKeyViolations", Value: 14, Text: "qkey_violations", Doc: "datagrams with a wrong Q_Key."},
	{Name: "QPErrors", Value: 15, Text: "qp_errors", Doc: "queue pairs that moved to ERR by themselves."},
	{Name: "CQOverflows", Value: 16, Text: "cq_overflows", Doc: "completion queues that overflowed."},
	{Name: "Doorbells", Value: 17, Text: "doorbells", Doc: "doorbells taken."},
	{Name: "CreditWaits", Value: 18, Text: "credit_waits", Doc: "times a queue pair had to wait for credit."},
	{Name: "RateWaits", Value: 19, Text: "rate_waits", Doc: "times the function had to wait for its rate."},
	{Name: "Timeouts", Value: 20, Text: "local_ack_timeout_err", Doc: "RoCEv2: times that nothing was answered in time."},
	{Name: "Missing", Value: 21, Text: "packet_seq_err", Doc: "RoCEv2: times that a packet was found missing."},
	{Name: "Retransmits", Value: 22, Text: "roce_retransmits", Doc: "RoCEv2: requests sent again."},
	{Name: "Marked", Value: 23, Text: "np_ecn_marked_roce_packets", Doc: "RoCEv2: packets received with a mark of congestion."},
	{Name: "NotificationsSent", Value: 24, Text: "np_cnp_sent", Doc: "RoCEv2: congestion notifications sent."},
	{Name: "NotificationsHandled", Value: 25, Text: "rp_cnp_handled", Doc: "RoCEv2: congestion notifications received."},
}}

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
	{Name: "QueryCounters", Size: 8, Doc: "QueryCounters holds the parameters of the command of that name.", Fields: []Field{
		{Name: "First", Offset: 0, Kind: U16, Enum: "Counter", Doc: "first counter of the result."},
	}},
	{Name: "Counters", Size: 112, Doc: "Counters is the result of QueryCounters.", Fields: []Field{
		{Name: "Total", Offset: 0, Kind: U16, Doc: "how many counters the function has."},
		{Name: "Values", Offset: 8, Kind: Bytes, Len: 104, Doc: "thirteen u64, First and those after it; 0 behind the last."},
	}},
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
