package functions

import (
	"testing"

	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestGIDsArePartOfWhatPeersCanBeTold checks that addresses that drivers add count like functions.
// Replacing another added address of the same function is always allowed.
func TestGIDsArePartOfWhatPeersCanBeTold(t *testing.T) {
	r := newRegistry(t)
	for n := 3; n < 3+cm.MaxEndpoints-2; n++ { // VF 1 is one of them
		if err := r.make(id(0, n), put(7, address4(n))); err != nil {
			t.Fatal(err)
		}
	}
	gid := func(n int) [16]byte { return address4(10_000 + n).As16() }
	wantStatus(t, "the last", r.AddGID(id(0, 1), gid(1), [16]byte{}), abi.StatusOK, "")
	wantStatus(t, "one more", r.AddGID(id(0, 3), gid(2), [16]byte{}), abi.StatusNoResources, "NIC 2")
	wantStatus(t, "instead of another's", r.AddGID(id(0, 3), gid(2), gid(1)), abi.StatusNoResources, "NIC 2")
	wantStatus(t, "in a tenant that the peer has no part in", r.AddGID(id(0, 2), gid(3), [16]byte{}), abi.StatusOK, "")
	wantStatus(t, "instead of its own", r.AddGID(id(0, 1), gid(4), gid(1)), abi.StatusOK, "")
	wantStatus(t, "a function in its place", r.make(id(0, 4000), put(7, address4(4000))), abi.StatusNoResources, "1 GIDs")
	wantStatus(t, "another's address", r.AddGID(id(0, 3), address4(4).As16(), [16]byte{}), abi.StatusAddressInUse, "h1.pf0.vf4")
	wantStatus(t, "another's GID", r.AddGID(id(0, 3), gid(4), [16]byte{}), abi.StatusAddressInUse, "h1.pf0.vf1")
	r.DelGID(id(0, 3), gid(4)) // not an address of this function
	wantStatus(t, "still another's", r.AddGID(id(0, 3), gid(4), [16]byte{}), abi.StatusAddressInUse, "h1.pf0.vf1")
	r.DelGID(id(0, 1), gid(4))
	wantStatus(t, "given up", r.AddGID(id(0, 3), gid(4), [16]byte{}), abi.StatusOK, "")
}

// TestAGIDOfAnotherFunctionIsTaken checks that no function can be set to an address that another
// function's driver added. One that its own driver added is allowed.
func TestAGIDOfAnotherFunctionIsTaken(t *testing.T) {
	r := newRegistry(t)
	if err := r.AddGID(id(0, 1), address4(5).As16(), [16]byte{}); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, "another", r.make(id(0, 3), put(7, address4(5))), abi.StatusAddressInUse, "driver of h1.pf0.vf1")
	wantStatus(t, "in another tenant", r.make(id(0, 3), put(8, address4(5))), abi.StatusOK, "")
	wantStatus(t, "itself", r.make(id(0, 1), put(7, address4(5))), abi.StatusOK, "")
}
