package schema

// groups are the admin commands by who carries them out.
var groups = []Group{
	{Name: "Query", Doc: "the function itself"},
	{Name: "Verbs", Doc: "the verbs' objects"},
	{Name: "Connection", Doc: "connection management"},
	{Name: "VF", Doc: "one VF of a PF", PFOnly: true, Of: "VF"},
}

// Command is one admin command.
type Command struct {
	Name   string // of the code, without the AdminOp prefix
	Code   uint64
	Group  string // name of its Group
	Params string // name of the parameter Struct, or ""
	Result string // name of the result Struct, or ""
	Doc    string
	Errors string // statuses beside the common ones

	Needs  []Need   // features that it, or a value of its parameters, is part of
	Areas  []Area   // queue areas whose page lists it reads before it completes
	Long   bool     // only begun by whoever carries it out: its result comes later
	Breaks []Breach // what a driver did that gets a status, beyond what holds for every command
}

// Group is a set of commands that one interface of package abi carries out.
type Group struct {
	Name   string
	Doc    string // what the commands are about
	PFOnly bool
	Of     string // a field of all parameters that says what the commands are for; "" is the function itself
}

// Need says when a command is of a feature: with Field always but 0, or only with Values of its
// Enum; without Field always.
type Need struct {
	Feature string
	Field   string
	Values  []string
	Lenient bool // without the feature the value is an invalid argument, not unsupported
}

// Area is a queue area by fields of the parameters.
type Area struct {
	Entries   string // field with the log2 of the entries
	Entry     string // field with the log2 of an entry's bytes, or ""
	Log2Entry uint8  // that log2 itself, or the most it can be
}

// Breach is a clause for drivers that a status of a command says was broken.
type Breach struct {
	Status string
	Clause int
}

// Group returns the group called name, or nil.
func (a *ABI) Group(name string) *Group {
	for i := range a.Groups {
		if a.Groups[i].Name == name {
			return &a.Groups[i]
		}
	}
	return nil
}

// Field returns the field called name, or nil.
func (s *Struct) Field(name string) *Field {
	for i := range s.Fields {
		if s.Fields[i].Name == name {
			return &s.Fields[i]
		}
	}
	return nil
}

// Value returns the value called name, or nil.
func (e *Enum) Value(name string) *Value {
	for i := range e.Values {
		if e.Values[i].Name == name {
			return &e.Values[i]
		}
	}
	return nil
}

// Reserved returns the reserved bits of the structure, byte by byte. A field that is reserved in
// some cases only counts as not reserved.
func (a *ABI) Reserved(s *Struct) []byte {
	mask := make([]byte, s.Size)
	for i := range mask {
		mask[i] = 0xff
	}
	for i := range s.Fields {
		f := &s.Fields[i]
		known := ^uint64(0)
		if set := a.FlagSet(f.Flags); set != nil && !set.Open {
			known = 0
			for _, v := range set.Values {
				known |= v.Value
			}
		}
		if f.Zero {
			known = 0
		}
		for j := range f.Size() {
			mask[f.Offset+j] = ^byte(known >> (8 * min(j, 7)))
		}
	}
	return mask
}
