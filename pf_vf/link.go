package pfvf

import "fmt"

// Link is what decides the state of a function's link, as `ip link set … vf …
// state` does.
type Link uint8

// Links.
const (
	LinkAuto    Link = iota // a VF's follows its PF's, a PF's is up
	LinkEnable              // up
	LinkDisable             // down: nothing of it reaches the fabric, nothing reaches it
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
