package vhostuser

import (
	"fmt"
	"math"
	"slices"
)

// Layout describes the rings and protocol features of a kind of device.
type Layout struct {
	Rings    int    // number of virtqueues that a front end may set up
	Queues   uint64 // reply to GET_QUEUE_NUM, which for some devices counts queue pairs
	Protocol uint64 // protocol features offered
}

// VsockLayout is the layout of vhost-user-vsock: the receive queue (0) and the transmit queue (1),
// named from the guest's side. QEMU handles the event queue itself.
var VsockLayout = Layout{Rings: 2, Queues: 2, Protocol: ProtocolMQ | ProtocolReplyAck | ProtocolConfig | ProtocolConfigureMemSlots}

// MaxMemSlots is the number of memory regions offered through CONFIGURE_MEM_SLOTS. The protocol
// forbids lowering it later.
const MaxMemSlots = 509

// maxRingSize is the largest size of a ring, Virtio §2.7 and §2.8.10.1.
const maxRingSize = 32768

// packedBegin is the base of a new packed ring: both wrap counters are 1 (Virtio §2.8.1).
const packedBegin = 1<<15 | 1<<31

// State holds everything that the front end has sent, except for descriptors. It can be encoded as
// JSON.
type State struct {
	Features         uint64   `json:"features"`
	ProtocolFeatures uint64   `json:"protocolFeatures"`
	Owned            bool     `json:"owned"`
	Regions          []Region `json:"regions"`
	Vrings           []Vring  `json:"vrings"`
}

// Packed reports whether the rings are packed (Virtio §2.8).
func (s *State) Packed() bool { return s.Features&FeaturePacked != 0 }

// Vring is the state of one ring. Addresses are virtual addresses of the front end.
type Vring struct {
	Num     uint16 `json:"num"`
	Base    uint32 `json:"base"` // next available entry; for a packed ring with its wrap counter, and the next used entry in the upper half
	Desc    uint64 `json:"desc"`
	Used    uint64 `json:"used"`
	Avail   uint64 `json:"avail"`
	NoBase  bool   `json:"noBase"` // the front end has sent no base: the ring continues where it stopped
	HasAddr bool   `json:"hasAddr"`
	Enabled bool   `json:"enabled"`
	HasKick bool   `json:"hasKick"`
	Running bool   `json:"running"`
}

// ready reports whether the ring can start. Without FeatureProtocol there is no enable message, and
// every ring counts as enabled.
func (s *State) ready(i int) bool {
	v := &s.Vrings[i]
	return v.Num != 0 && v.HasAddr && v.HasKick && (v.Enabled || s.Features&FeatureProtocol == 0)
}

// GPA translates a front-end address to a guest-physical one. The n bytes from there must be in one
// region.
func (s *State) GPA(user, n uint64) (uint64, error) {
	for _, r := range s.Regions {
		if user >= r.User && user-r.User < r.Size {
			if n > r.Size-(user-r.User) {
				break
			}
			return r.GPA + (user - r.User), nil
		}
	}
	return 0, fmt.Errorf("front-end address %#x+%#x is in none of the %d memory regions", user, n, len(s.Regions))
}

// RingGPA returns the guest-physical addresses of a ring's three parts. The parts of a packed ring
// are the descriptors and the event suppression structures of the driver and of the device.
func (s *State) RingGPA(i int) (desc, avail, used uint64, err error) {
	v := &s.Vrings[i]
	n := uint64(v.Num)
	availLen, usedLen := 6+2*n, 6+8*n
	if s.Packed() {
		availLen, usedLen = 4, 4
	}
	if desc, err = s.GPA(v.Desc, 16*n); err != nil {
		return 0, 0, 0, fmt.Errorf("ring %d descriptors: %w", i, err)
	}
	if avail, err = s.GPA(v.Avail, availLen); err != nil {
		return 0, 0, 0, fmt.Errorf("ring %d available ring: %w", i, err)
	}
	if used, err = s.GPA(v.Used, usedLen); err != nil {
		return 0, 0, 0, fmt.Errorf("ring %d used ring: %w", i, err)
	}
	return desc, avail, used, nil
}

// checkRegion returns an error if a region is empty, wraps or overlaps a known one.
func (s *State) checkRegion(r Region) error {
	switch {
	case r.Size == 0:
		return fmt.Errorf("memory region at %#x is empty", r.GPA)
	case r.Size > math.MaxInt64 || r.Offset > math.MaxInt64-r.Size || r.GPA > math.MaxUint64-r.Size || r.User > math.MaxUint64-r.Size:
		return fmt.Errorf("memory region %#x+%#x (front end %#x, file offset %#x) wraps around", r.GPA, r.Size, r.User, r.Offset)
	}
	for _, o := range s.Regions {
		if r.GPA < o.GPA+o.Size && o.GPA < r.GPA+r.Size {
			return fmt.Errorf("memory regions %#x+%#x and %#x+%#x overlap", o.GPA, o.Size, r.GPA, r.Size)
		}
	}
	return nil
}

// findRegion returns the index of the region that REM_MEM_REG names, or -1. It does not compare the
// file offset, because front ends leave it zero.
func (s *State) findRegion(r Region) int {
	return slices.IndexFunc(s.Regions, func(o Region) bool {
		return o.GPA == r.GPA && o.Size == r.Size && o.User == r.User
	})
}
