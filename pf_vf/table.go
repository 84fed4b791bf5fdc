package pfvf

import (
	"errors"
	"fmt"
)

// ErrTableFull means that a table holds the maximum of functions.
var ErrTableFull = errors.New("function table full")

// Table finds the functions of one NIC. Its size is limited. It belongs to one goroutine.
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

// Add adds f to the table. ID, Tenant and Addr must not change while f is in it. It fails if
// another function has the same ID, or the same address in the tenant, or if the table is full.
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

// Remove removes the function with that ID. It returns false if there is none.
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
