package pfvf

import (
	"errors"
	"fmt"
)

// ErrTableFull says that a table holds all the functions it may.
var ErrTableFull = errors.New("function table full")

// Table finds the functions of one NIC. It is bounded, and belongs to one
// goroutine.
type Table struct {
	limit int
	byID  map[ID]*Function
	byGID map[endpoint]*Function
}

type endpoint struct {
	tenant uint32
	gid    [16]byte
}

// NewTable returns a table for at most limit functions.
func NewTable(limit int) *Table {
	return &Table{
		limit: limit,
		byID:  make(map[ID]*Function),
		byGID: make(map[endpoint]*Function),
	}
}

// Add takes f into the table. ID, Tenant and Addr must not change
// while it is there. An ID or an address that another function of the tenant
// has is refused, and so is a function above the limit.
func (t *Table) Add(f *Function) error {
	if f.ID > MaxID {
		return fmt.Errorf("function number %#x has more than 24 bits", uint32(f.ID))
	}
	if !f.Addr.IsValid() {
		return fmt.Errorf("function %s has no address", f.ID)
	}
	if _, dup := t.byID[f.ID]; dup {
		return fmt.Errorf("function %s is there twice", f.ID)
	}
	at := endpoint{f.Tenant, f.GID()}
	if other := t.byGID[at]; other != nil {
		return fmt.Errorf("function %s: address %s of tenant %d is taken by %s", f.ID, f.Addr, f.Tenant, other.ID)
	}
	if len(t.byID) >= t.limit {
		return fmt.Errorf("%w: function %s, limit %d", ErrTableFull, f.ID, t.limit)
	}
	t.byID[f.ID] = f
	t.byGID[at] = f
	return nil
}

// Remove takes the function out; false when it is not there.
func (t *Table) Remove(id ID) bool {
	f := t.byID[id]
	if f == nil {
		return false
	}
	delete(t.byID, id)
	delete(t.byGID, endpoint{f.Tenant, f.GID()})
	return true
}

// Len returns the number of functions.
func (t *Table) Len() int { return len(t.byID) }

// ByGID returns the function of the tenant with that GID, or nil.
func (t *Table) ByGID(tenant uint32, gid [16]byte) *Function {
	return t.byGID[endpoint{tenant, gid}]
}
