package schema

// Clause is a rule of docs/abi/index.md that binds drivers. The full text is there; Doc says in
// short what breaks it.
type Clause struct {
	Number int    // of DRV-…
	Doc    string // what a driver did that broke it
	Unseen string // why no device can see it broken; "" where one can
}

var clauses = []Clause{
	{101, "integers that are not little-endian", "any bytes are some number"},
	{102, "reserved bytes or bits that are not zero", ""},
	{103, "a feature that is not in use on both sides", ""},
	{201, "a message whose length is impossible", ""},
	{202, "a hello that is late or repeated", ""},
	{204, "replies not matched by tag", "how replies are matched is the driver's own affair"},
	{205, "a stream that is not read", ""},
	{206, "a message that is not for a driver to send, or a part of a doorbell record", ""},
	{208, "memory taken back before the end of the stream", "memory given away early is no different from memory kept"},
	{210, "objects used of before the end of a stream", "what a driver does after its stream has ended no device sees"},
	{301, "admin registers written outside RESET, or admin pages that are not zero", ""},
	{304, "something else than a reset after a fault", ""},
	{306, "a register accessed at another offset, with another width or against its access mode", ""},
	{307, "waiting for completions of before a reset", "waiting leaves no trace"},
	{401, "a device address outside the memory of the function", ""},
	{402, "memory taken away from a queue or a region", ""},
	{403, "a page list with addresses that are not of pages, or too far apart", ""},
	{501, "more admin commands than the queue has entries", ""},
	{502, "an admin submission queue whose producer is impossible, or behind its doorbell", ""},
	{504, "completions not matched by ID", "how completions are matched is the driver's own affair"},
	{601, "a queue area that is not zero, or work posted in RESET", ""},
	{602, "a producer that moved back or overfills its queue", ""},
	{603, "a doorbell ahead of the producer in memory", ""},
	{604, "a doorbell that is missing", "a doorbell on its way looks like one not sent"},
	{608, "an entry with more than its queue was created for", ""},
	{611, "a masked atomic without its masks and one SGE", ""},
	{701, "a completion queue area that is not zero", ""},
	{703, "completions read without the phase", "reads leave no trace"},
	{704, "a consumer that moved back or past the entries written", ""},
	{705, "a completion queue that overflowed", ""},
	{708, "a completion queue armed by a doorbell ahead of the entries written", ""},
	{709, "a completion queue armed by its word ahead of the entries written", ""},
	{710, "an event that was not expected", "what a driver does with an event leaves no trace"},
	{720, "a resized completion queue that is not armed again", "a doorbell sent meanwhile looks like one sent before"},
	{801, "a doorbell for a queue that does not exist", ""},
	{803, "doorbells that are not coalesced", "a SHOULD"},
	{902, "a queue pair connected in another state than INIT", ""},
	{911, "a service number that is the NICs' own", ""},
	{922, "work posted to the old area of a shared receive queue", "work posted to the old area is not looked at any more"},
	{923, "a queue pair destroyed before its last receive came", "a SHOULD"},
	{924, "an XRC queue pair with parts that it does not have", ""},
	{950, "two ends with different orderings or error modes", "which of the two ends is wrong cannot be told; the connection is not made (DEV-950)"},
	{1001, "a window used without a look at its header", "reads leave no trace"},
	{1002, "a window used before the reply to the hello", "the ring is zeroed when the stream begins; what was in it before cannot be told from an earlier user's"},
	{1003, "a bell ring whose producer is impossible", ""},
	{1004, "doorbell messages, or a change of state, beside a bell ring in use", ""},
	{1007, "bells rung for nothing", ""},
	{1009, "sleep without the event index of an event queue", "reads leave no trace"},
	{1010, "an event queue whose consumer is impossible, or that is not taken", ""},
	{1012, "a control block used before its session was open", "the rings are zeroed when a session begins; what was in them before cannot be told from an earlier user's"},
	{1015, "messages taken without a ring while others wait for room", "a ring that is missing looks like one on its way"},
}
