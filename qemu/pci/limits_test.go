package pci

import "testing"

// TestTaken are functions at the limits of what a bus can have.
func TestTaken(t *testing.T) {
	for name, change := range map[string]func(f *Function){
		"smallest BAR":            func(f *Function) { f.BARs[0].Size = 16 },
		"largest BAR of 32 bits":  func(f *Function) { f.BARs[0].Size = 1 << 31 },
		"BAR of 4 GiB":            func(f *Function) { f.BARs[2].Size = 1 << 32 },
		"64-bit BAR at the end":   func(f *Function) { f.BARs[4] = BAR{Size: 4096, Wide: true} },
		"32-bit BAR at the end":   func(f *Function) { f.BARs[5] = BAR{Size: 4096} },
		"no BARs":                 func(f *Function) { f.BARs = [6]BAR{} },
		"one vector":              func(f *Function) { f.Interrupts.Vectors = 1 },
		"128 vectors":             func(f *Function) { f.Interrupts.Vectors = 128 },
		"one vector of MSI":       func(f *Function) { f.Interrupts = Interrupts{Vectors: 1, MSI: true} },
		"32 vectors of MSI":       func(f *Function) { f.Interrupts = Interrupts{Vectors: 32, MSI: true} },
		"wide BAR that is absent": func(f *Function) { f.BARs[5] = BAR{Wide: true} },
	} {
		f := nic
		change(&f)
		if _, err := New(&f); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
