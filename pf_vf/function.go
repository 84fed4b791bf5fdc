package pfvf

import (
	"fmt"
	"net/netip"

	"github.com/falcon-vnic/vnic/falcon/credit"
)

// Function is one PF or VF.
type Function struct {
	ID      ID
	Tenant  uint32     // virtual network, 24 bits or fewer by configuration
	Addr    netip.Addr // address in the tenant's network; its 16-byte form is the GID
	MAC     [6]byte
	Gateway [6]byte // MAC address of the gateway on its link
	// GuestCID is the vsock context id of the guest that the function is assigned to. It is 0 if
	// there is none, or the function is assigned by other means.
	GuestCID uint32
	// Credits is the function's node of the credit tree; nil means unlimited.
	Credits *credit.Node

	// Settings of the PF or the operator, as with `ip link set … vf`.
	Rate       credit.Bucket // limits what the function sends, by RDMA and by its port together
	Trust      bool          // the function may do what otherwise only the host may
	SpoofCheck bool          // its port may send only from its own MAC and addresses
	Link       Link
	LinkUp     bool // result of Link and its PF's link

	Lifecycle Lifecycle
}

// GID returns the function's GID: its address, IPv4 in its mapped form.
func (f *Function) GID() [16]byte { return f.Addr.As16() }

// LinkLocal returns the address that a machine derives from its MAC address (RFC 4291 §2.5.6).
func LinkLocal(m [6]byte) [16]byte {
	return [16]byte{0xfe, 0x80, 8: m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]}
}

// Link is a setting that determines the state of a function's link, as with `ip link set … vf …
// state`.
type Link uint8

// Links.
const (
	LinkAuto    Link = iota // a VF's link follows its PF's, a PF's is up
	LinkEnable              // up
	LinkDisable             // down: the function neither sends to nor receives from the fabric
)

var linkNames = [...]string{"auto", "enable", "disable"}

// String returns "auto", "enable" or "disable".
func (l Link) String() string {
	if int(l) < len(linkNames) {
		return linkNames[l]
	}
	return fmt.Sprintf("Link(%d)", uint8(l))
}

// UnmarshalText reads what String writes.
func (l *Link) UnmarshalText(b []byte) error {
	for i, name := range linkNames {
		if string(b) == name {
			*l = Link(i)
			return nil
		}
	}
	return fmt.Errorf("%q is not a link state; write auto, enable or disable", b)
}
