package main

import "github.com/falcon-vnic/vnic/queues/abi/schema"

// goClauses renders the numbers of the rules that bind drivers.
func goClauses(a *schema.ABI) ([]byte, error) {
	p := new(printer)
	p.head("")
	p.f("// Rules that bind drivers.\nconst (\n")
	for _, c := range a.Clauses {
		p.f("\tDRV%d Clause = %d // %s.\n", c.Number, c.Number, c.Doc)
	}
	p.f(")\n\n// Clauses lists every rule that binds drivers, by number.\nvar Clauses = [...]ClauseInfo{\n")
	for _, c := range a.Clauses {
		p.f("\t{DRV%d, %q, %q},\n", c.Number, c.Doc, c.Unseen)
	}
	p.f("}\n")
	return p.goSource()
}
