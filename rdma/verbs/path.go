package verbs

import "github.com/falcon-vnic/vnic/queues/abi"

// Path holds what a driver requests of the path to its peer, as in ibv_ah_attr.
type Path struct {
	FlowLabel    uint32 // 20 bits; 0: the device picks a path
	TrafficClass uint8  // without the bits of ECN
	HopLimit     uint8  // 0: the device's default
	SL           uint8  // not carried
}

// ecnMask holds the bits of a traffic class that belong to the network.
const ecnMask = 3

// pathOf checks the path that a driver requests.
func pathOf(flowLabel uint32, class, hopLimit, sl uint8, vlan uint16) (Path, abi.Status) {
	switch {
	case flowLabel >= 1<<20 || sl > 15:
		return Path{}, abi.StatusInvalidArgument
	case vlan != 0 && vlan != abi.NoVLAN:
		return Path{}, abi.StatusUnsupported
	}
	return Path{FlowLabel: flowLabel, TrafficClass: class &^ ecnMask, HopLimit: hopLimit, SL: sl}, abi.StatusOK
}

// IsIPv4 reports whether a GID is an IPv4-mapped address.
func IsIPv4(gid [16]byte) bool {
	return [12]byte(gid[:12]) == [12]byte{10: 0xff, 11: 0xff}
}

// IsMulticast reports whether a GID is a multicast address.
func IsMulticast(gid [16]byte) bool {
	return gid[0] == 0xff || IsIPv4(gid) && gid[12]>>4 == 0xe
}
