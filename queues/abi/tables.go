package abi

import "strconv"

// Rows of the generated tables, and how they are read.

// Register describes one register of a function's register space. It may be
// accessed only at its own offset and with its own width.
type Register struct {
	Name     string
	Offset   uint32
	Width    uint32 // bytes: 4 or 8
	Readable bool
	Writable bool
}

// LookupRegister returns the register at offset, or nil.
func LookupRegister(offset uint32) *Register {
	for i := range Registers {
		if Registers[i].Offset == offset {
			return &Registers[i]
		}
	}
	return nil
}

// Object is a kind of verbs objects.
type Object uint8

// ObjectInfo describes a kind.
type ObjectInfo struct {
	Name    string // singular, as in verbs
	Key     string // name in the configuration
	Doc     string // plural, as a phrase
	Initial uint32 // default limit of a function
	Most    uint32 // maximum that the configuration allows
}

// Info returns the description of the kind.
func (k Object) Info() *ObjectInfo { return &objects[k] }

// String returns the kind's name.
func (k Object) String() string { return objects[k].Name }

// Clause is the number of a rule of docs/abi that binds drivers: DRV602 is DRV-602.
type Clause uint16

// String returns the name of the rule in docs/abi.
func (c Clause) String() string { return "DRV-" + strconv.Itoa(int(c)) }

// Doc returns what a driver does that breaks the rule, "" if there is no such rule.
func (c Clause) Doc() string {
	for _, i := range Clauses {
		if i.Clause == c {
			return i.Doc
		}
	}
	return ""
}

// ClauseInfo describes a rule.
type ClauseInfo struct {
	Clause Clause
	Doc    string // what a driver does that breaks it
	Unseen string // why no device can see it broken; "" where one can
}

// Bytes returns the size in bytes, or 0 when m is not a path MTU.
func (m PathMTU) Bytes() int {
	if m < MTU256 || m > MTU4096 {
		return 0
	}
	return 128 << m
}

// PathMTUFor returns the largest path MTU of at most n bytes, or 0 when there
// is none.
func PathMTUFor(n int) PathMTU {
	m := PathMTU(0)
	for m < MTU4096 && (m+1).Bytes() <= n {
		m++
	}
	return m
}
