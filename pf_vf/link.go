package pfvf

import "fmt"

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
