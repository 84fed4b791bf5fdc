package abi

import "strconv"

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
