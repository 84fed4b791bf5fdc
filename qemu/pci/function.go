package pci

import "fmt"

// IDs are what a driver binds by.
type IDs struct {
	Vendor, Device       uint16
	SubVendor, SubDevice uint16
	Revision             uint8
}

// BAR is a memory window of the function.
type BAR struct {
	Size     uint64 // bytes, a power of two from 16 on; 0: there is none
	Wide     bool   // 64-bit: takes the next BAR's place too
	Prefetch bool
}

// Interrupts say how a function interrupts.
type Interrupts struct {
	Vectors int  // of MSI-X: 1 to 2048
	MSI     bool // by MSI instead, which has at most 32
	BAR     int  // with the tables of MSI-X
}

// Where the tables of MSI-X are in their BAR, which has TablesSize bytes for up to 128 vectors.
const (
	tableOffset   = 0
	PendingOffset = 0x800
	TablesSize    = 0x1000
)

// Function says what a configuration space is to show.
type Function struct {
	IDs        IDs
	BARs       [6]BAR
	Interrupts Interrupts
	Serial     uint64 // device serial number
}

func (f *Function) check() error {
	for i, b := range f.BARs {
		switch {
		case b.Size == 0:
		case b.Size < 16 || b.Size&(b.Size-1) != 0:
			return fmt.Errorf("pci BAR%d: %d bytes, want a power of two from 16 on", i, b.Size)
		case b.Wide && (i == 5 || f.BARs[i+1].Size != 0):
			return fmt.Errorf("pci BAR%d is 64-bit, and BAR%d is not free", i, i+1)
		case !b.Wide && b.Size > 1<<31:
			return fmt.Errorf("pci BAR%d: %d bytes need a 64-bit BAR", i, b.Size)
		}
	}
	limit := 128
	if f.Interrupts.MSI {
		limit = 32
	}
	if v := f.Interrupts.Vectors; v < 1 || v > limit {
		return fmt.Errorf("pci: %d interrupt vectors, want 1 to %d", v, limit)
	}
	return nil
}
