package schema

// Kind is the type of a field. All integers are unsigned and little-endian.
type Kind uint8

// Field kinds. Bytes needs Field.Len.
const (
	U8 Kind = iota
	U16
	U32
	U64
	Bytes
)

// Size returns the bytes an integer kind takes, and 0 for Bytes.
func (k Kind) Size() int {
	switch k {
	case U8:
		return 1
	case U16:
		return 2
	case U32:
		return 4
	case U64:
		return 8
	}
	return 0
}

// String returns the name used in the reference.
func (k Kind) String() string {
	return [...]string{"u8", "u16", "u32", "u64", "bytes"}[k]
}

// Field is one named part of a structure.
type Field struct {
	Name   string
	Offset int // bytes from the start of the structure
	Kind   Kind
	Len    int    // bytes; only for Kind Bytes
	Enum   string // name of the Enum that types it, or ""
	Flags  string // name of the FlagSet that it holds, or ""
	Zero   bool   // always 0: it has a name and is reserved
	Where  Where  // the only case in which it is not reserved
	Group  string // name in C of the structure that neighbours with the same Group form together, or ""
	Doc    string
}

// Where is a case: another field of the structure has that value of its Enum.
type Where struct{ Field, Value string }

// Size returns the bytes the field takes.
func (f *Field) Size() int {
	if f.Kind == Bytes {
		return f.Len
	}
	return f.Kind.Size()
}

// Struct is one fixed layout: a message body, a command, a descriptor.
type Struct struct {
	Name   string
	Size   int // bytes
	Doc    string
	Fields []Field
	// OffsetsOnly marks memory that is never copied as a whole: the generator
	// emits offsets, not a type.
	OffsetsOnly bool
}

// Value is one code of an Enum or one bit of a FlagSet.
type Value struct {
	Name   string
	Value  uint64
	Text   string // what String returns
	Doc    string // meaning; for error codes: the cause
	Action string // error codes: what the driver does about it
	Errno  string // status codes: nearest errno
}

// Enum is a set of codes with its own Go type.
type Enum struct {
	Name   string // Go type
	Prefix string // of every constant
	Base   Kind
	Doc    string
	Values []Value
}

// FlagSet is a set of bits. Its constants are untyped. Bits without a value are reserved, except
// in an open set: whoever does not know a bit of an open set leaves it alone.
type FlagSet struct {
	Name   string
	Prefix string
	Open   bool
	Doc    string
	Values []Value
}

// Const is a single number of the ABI.
type Const struct {
	Name  string
	Value uint64
	Hex   bool
	Doc   string
}

// Access says who may read or write a register.
type Access string

// Register access modes.
const (
	ReadOnly  Access = "RO"
	WriteOnly Access = "WO"
	ReadWrite Access = "RW"
)

// Register is one register of a function's register space.
type Register struct {
	Name   string // without the Reg prefix
	Offset int
	Width  int // bytes: 4 or 8; the only width it may be accessed with
	Access Access
	Reset  string // value after reset, in words or hexadecimal
	Doc    string
	Effect string // side effects of a write; "" when there are none
}

// Message is one message of the control stream.
type Message struct {
	Name   string // of the code, without the Msg prefix
	Code   uint64
	Body   string // name of the body's Struct, or ""
	Repeat Kind   // element kind when the body is a list of integers
	List   bool   // the body is a list of Body structs or Repeat integers
	From   string // "driver", "device" or "both"
	Answer string // name of the reply message, or ""
	Doc    string
}

// ABI is the whole schema.
type ABI struct {
	Major, Minor int
	Consts       []Const
	Enums        []Enum
	Flags        []FlagSet
	Registers    []Register
	Messages     []Message
	Groups       []Group
	Commands     []Command
	Control      []Struct // message header and bodies
	Admin        []Struct // admin queue entries, parameters and results
	Queues       []Struct // queue headers and descriptors
	Clauses      []Clause // rules for drivers, by number
	Objects      []ObjectKind
}

// Structs returns every structure in the order of the reference.
func (a *ABI) Structs() []*Struct {
	var all []*Struct
	for _, group := range [][]Struct{a.Control, a.Admin, a.Queues} {
		for i := range group {
			all = append(all, &group[i])
		}
	}
	return all
}

// Struct returns the structure called name, or nil.
func (a *ABI) Struct(name string) *Struct {
	for _, s := range a.Structs() {
		if s.Name == name {
			return s
		}
	}
	return nil
}

// Enum returns the enum called name, or nil.
func (a *ABI) Enum(name string) *Enum {
	for i := range a.Enums {
		if a.Enums[i].Name == name {
			return &a.Enums[i]
		}
	}
	return nil
}

// FlagSet returns the set of bits called name, or nil.
func (a *ABI) FlagSet(name string) *FlagSet {
	for i := range a.Flags {
		if a.Flags[i].Name == name {
			return &a.Flags[i]
		}
	}
	return nil
}
