package abi

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
