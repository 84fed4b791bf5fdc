package conn

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestServicesUpToTheReservedOnesAreADrivers: a driver can use services up to the first one
// reserved for the NICs. Private data may be as long as a message can hold.
func TestServicesUpToTheReservedOnesAreADrivers(t *testing.T) {
	_, a, f := newFunction(t, true)
	c := f.Commands(1, a.later)
	l, u := c.CMListen(firstReserved-1), c.CMUnlisten(firstReserved-1)
	if l != abi.StatusPending || u != abi.StatusPending {
		t.Errorf("the last of drivers: %s, %s", l, u)
	}
	for n, want := range map[uint16]abi.Status{
		abi.PrivateMax: abi.StatusMemoryFault, abi.PrivateMax + 1: abi.StatusTooLarge,
	} {
		if st := c.CMReject(&abi.CMReject{CMID: 5, PrivLen: n}); st != want { // there is no memory
			t.Errorf("%d bytes: %s, want %s", n, st, want)
		}
	}
}

// TestCommandsAboutMissingObjectsAreRefused: commands that name objects that do not exist, or that
// belong to the NICs, are refused before the connection manager is asked.
func TestCommandsAboutMissingObjectsAreRefused(t *testing.T) {
	_, a, f := newFunction(t, true)
	f.conns[8] = &connection{wired: true}
	c := f.Commands(1, a.later)
	_, noQP := c.CMConnect(&abi.CMConnect{QPN: 3, Service: 100})
	for what, got := range map[string][2]abi.Status{
		"listen":              {c.CMListen(firstReserved), abi.StatusDenied},
		"unlisten":            {c.CMUnlisten(firstReserved), abi.StatusNotFound},
		"connect":             {noQP, abi.StatusNotFound},
		"accept":              {c.CMAccept(&abi.CMAccept{CMID: 8, QPN: 3}), abi.StatusNotFound},
		"reject":              {c.CMReject(&abi.CMReject{CMID: 8}), abi.StatusNotFound},
		"reject, much to say": {c.CMReject(&abi.CMReject{CMID: 5, PrivLen: abi.PrivateMax + 1}), abi.StatusTooLarge},
		"disconnect":          {c.CMDisconnect(8), abi.StatusNotFound},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: %s, want %s", what, got[0], got[1])
		}
	}
	if got := a.take(); len(got) != 0 {
		t.Errorf("asked: %v", got)
	}
	if c.CMListen(100) != abi.StatusPending || c.CMDisconnect(5) != abi.StatusPending || len(a.done) != 0 {
		t.Errorf("answered before the connection manager did: %v", a.done)
	}
	a.answer(f, 0, bytes.ErrTooLarge) // an error without a name
	a.answer(f, 0, errors.Join(cm.ErrNotFound))
	if !slices.Equal(a.done, []abi.Status{abi.StatusNoResources, abi.StatusNotFound}) {
		t.Error(a.done)
	}
}
