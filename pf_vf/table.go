package pfvf

import (
	"errors"
	"fmt"
	"slices"
)

// ErrTableFull says that a table holds all the functions it may.
var ErrTableFull = errors.New("pfvf: function table full")

// Table finds the functions of one NIC. It is bounded, and belongs to one
// goroutine.
type Table struct {
	limit  int
	byID   map[ID]*Function
	byGID  map[endpoint]*Function
	byCID  map[uint32][]*Function
	sorted []*Function
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
		byCID: make(map[uint32][]*Function),
	}
}

// Add takes f into the table. ID, Tenant, Addr and GuestCID must not change
// while it is there. An ID or an address that another function of the tenant
// has is refused, and so is a function above the limit.
func (t *Table) Add(f *Function) error {
	if f.ID > MaxID {
		return fmt.Errorf("pfvf: function number %#x has more than 24 bits", uint32(f.ID))
	}
	if !f.Addr.IsValid() {
		return fmt.Errorf("pfvf: function %s has no address", f.ID)
	}
	if _, dup := t.byID[f.ID]; dup {
		return fmt.Errorf("pfvf: function %s is there twice", f.ID)
	}
	at := endpoint{f.Tenant, f.GID()}
	if other := t.byGID[at]; other != nil {
		return fmt.Errorf("pfvf: function %s: address %s of tenant %d is taken by %s", f.ID, f.Addr, f.Tenant, other.ID)
	}
	if len(t.sorted) >= t.limit {
		return fmt.Errorf("%w: function %s, limit %d", ErrTableFull, f.ID, t.limit)
	}
	t.byID[f.ID] = f
	t.byGID[at] = f
	t.sorted = insert(t.sorted, f)
	if f.GuestCID != 0 {
		t.byCID[f.GuestCID] = insert(t.byCID[f.GuestCID], f)
	}
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
	t.sorted = without(t.sorted, f)
	if f.GuestCID != 0 {
		if rest := without(t.byCID[f.GuestCID], f); len(rest) > 0 {
			t.byCID[f.GuestCID] = rest
		} else {
			delete(t.byCID, f.GuestCID)
		}
	}
	return true
}

// Len returns the number of functions.
func (t *Table) Len() int { return len(t.sorted) }

// ByID returns the function, or nil.
func (t *Table) ByID(id ID) *Function { return t.byID[id] }

// ByGID returns the function of the tenant with that GID, or nil.
func (t *Table) ByGID(tenant uint32, gid [16]byte) *Function {
	return t.byGID[endpoint{tenant, gid}]
}

// ByGuestCID returns the functions assigned to the guest, in the order of
// IDs; nil for CID 0. The slice is the table's own.
func (t *Table) ByGuestCID(cid uint32) []*Function { return t.byCID[cid] }

// All returns every function in the order of IDs. The slice is the table's own.
func (t *Table) All() []*Function { return t.sorted }

func byNumber(f *Function, id ID) int {
	switch {
	case f.ID < id:
		return -1
	case f.ID > id:
		return 1
	}
	return 0
}

// insert returns a list with f at its place; lists handed out stay as they are.
func insert(list []*Function, f *Function) []*Function {
	i, _ := slices.BinarySearchFunc(list, f.ID, byNumber)
	return slices.Insert(slices.Clip(slices.Clone(list)), i, f)
}

// without returns a list that lacks f; lists handed out stay as they are.
func without(list []*Function, f *Function) []*Function {
	i, found := slices.BinarySearchFunc(list, f.ID, byNumber)
	if !found {
		return list
	}
	return slices.Delete(slices.Clone(list), i, i+1)
}
