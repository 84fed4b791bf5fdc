package config

// NamedFunction is a function with its place in the tuple <host, PF, VF>.
type NamedFunction struct {
	PF uint8
	VF uint16 // 0: the PF itself
	*Function
}

// AllFunctions lists every function of the NIC, PFs before their VFs.
func (c *Config) AllFunctions() []NamedFunction {
	var all []NamedFunction
	for i := range c.Functions {
		pf := &c.Functions[i]
		all = append(all, NamedFunction{PF: pf.PF, Function: &pf.Function})
		for j := range pf.VFs {
			vf := &pf.VFs[j]
			all = append(all, NamedFunction{PF: pf.PF, VF: vf.VF, Function: &vf.Function})
		}
	}
	return all
}

// Extent returns the bytes of the file that the layout covers: the size of the
// guest's memory.
func (r *RAM) Extent() Size {
	var n Size
	for _, l := range r.Layout {
		n = max(n, l.Offset+l.Size)
	}
	return n
}
