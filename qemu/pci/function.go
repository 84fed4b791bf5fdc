package pci

import "fmt"

// IDs are the numbers by which a driver recognizes the function.
type IDs struct {
	Vendor, Device       uint16
	SubVendor, SubDevice uint16
	Revision             uint8
}

// BAR is a memory window of the function.
type BAR struct {
	Size     uint64 // in bytes, a power of two from 16 on; 0: no BAR
	Wide     bool   // 64-bit: also occupies the next BAR
	Prefetch bool
}

// Interrupts describes the interrupts of a function.
type Interrupts struct {
	Vectors int  // 1 to 128 with MSI-X, 1 to 32 with MSI
	MSI     bool // use MSI instead of MSI-X
	BAR     int  // of the MSI-X tables
}

// Offsets of the MSI-X tables in their BAR, which has TablesSize bytes for up to 128 vectors.
const (
	tableOffset   = 0
	PendingOffset = 0x800
	TablesSize    = 0x1000
)

// Function describes a function for its configuration space.
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
