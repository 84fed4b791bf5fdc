package abi

// command holds the properties of all admin commands of an opcode.
type command struct {
	pfOnly   bool
	needs    uint64 // features that it belongs to
	reserved string // bits of the parameters that are reserved
}

// of returns the properties of the command, zero if the opcode is not defined.
func (c *AdminCmd) of() command {
	if int(c.Opcode) >= len(commands) {
		return command{}
	}
	return commands[c.Opcode]
}

// Caller is the driver that sends admin commands.
type Caller struct {
	PF       bool
	Features uint64 // features that both sides have
}

// StatusPending is returned by a handler that has taken a Ticket for the command and completes it
// later. No completion contains it.
const StatusPending Status = 1<<32 - 1

// Ticket completes a command later.
type Ticket interface {
	// Complete completes the command. result counts only with StatusOK; nil means that the command
	// has none. It does nothing if the command is completed already, or its function was reset
	// since.
	Complete(st Status, result Result)
}

// Result is the result of a command, as in AdminCQE.Result.
type Result interface{ Marshal(b []byte) }

// Dispatch carries out an admin command that caller sent: it refuses the command, or calls the
// method of h for it with its parameters. The result is written to result and counts only with
// StatusOK.
func Dispatch(h Handler, caller Caller, c *AdminCmd, result []byte) Status {
	switch {
	case caller.lacks(c):
		return StatusUnsupported
	case c.of().pfOnly && !caller.PF:
		return StatusDenied
	}
	return c.call(h, result)
}

// lacks reports whether the command belongs to a feature that is not in use (DRV-103).
func (caller Caller) lacks(c *AdminCmd) bool {
	needs, _ := c.valueNeeds()
	return (needs|c.of().needs)&^caller.Features != 0
}

// Broken returns the rules that caller broke by a command that ended in st, as far as the command
// itself shows them. A strict check finds reserved bytes too.
func (caller Caller) Broken(c *AdminCmd, st Status, strict bool) (list []Clause) {
	if strict && (c.Flags != 0 || c.ReservedParams()) {
		list = append(list, DRV102)
	}
	_, lenient := c.valueNeeds()
	broken := c.brokenBy(st)
	switch {
	case caller.lacks(c), st == StatusInvalidArgument && lenient&^caller.Features != 0:
		broken = DRV103
	case st == StatusMemoryFault:
		broken = DRV401
	}
	if broken != 0 {
		list = append(list, broken)
	}
	return list
}

// ReservedParams reports whether reserved bytes or bits of the parameters are set. An undefined
// command has none.
func (c *AdminCmd) ReservedParams() bool { return anySet(c.Params[:], c.of().reserved) }

// anySet reports whether b has one of the bits of mask.
func anySet(b []byte, mask string) bool {
	var is byte
	for i := range len(mask) {
		is |= b[i] & mask[i]
	}
	return is != 0
}

// maxArea is the size of the largest queue area: entries have at most 2^12 bytes.
const maxArea = QueueHeaderSize + 1<<(MaxQueueLog2+12)

// areaPages returns how many pages a queue area takes, with its header. What is too large for an
// area is refused before anything is read.
func areaPages(log2Entries, log2Entry uint8) int {
	size := QueueHeaderSize + uint64(1)<<(min(log2Entries, 30)+min(log2Entry, 16))
	if size > maxArea {
		return 0
	}
	return int((size + PageSize - 1) / PageSize)
}
