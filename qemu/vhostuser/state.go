package vhostuser

import (
	"fmt"
	"math"
	"slices"
)

// Layout is what a kind of device has of the protocol.
type Layout struct {
	Rings    int    // virtqueues that a front end may hand over
	Queues   uint64 // the answer to GET_QUEUE_NUM, which for some devices counts pairs
	Protocol uint64 // protocol features offered
}

// VsockLayout is that of vhost-user-vsock: receive (0) and transmit (1) as the guest sees them. The
// event queue stays in QEMU.
var VsockLayout = Layout{Rings: 2, Queues: 2, Protocol: ProtocolMQ | ProtocolReplyAck | ProtocolConfig | ProtocolConfigureMemSlots}

// MaxMemSlots is the number of memory regions offered through
// CONFIGURE_MEM_SLOTS. The protocol forbids to lower it later.
const MaxMemSlots = 509

// maxRingSize is the limit of a split ring, Virtio §2.7.
const maxRingSize = 32768

// packedBegin is the base of a packed ring that begins: both wrap counters are 1 (Virtio §2.8.1).
const packedBegin = 1<<15 | 1<<31

// State is what the front end has told us, without descriptors: it can be
// stored as JSON and taken up by another process that is handed the descriptors.
type State struct {
	Features         uint64   `json:"features"`
	ProtocolFeatures uint64   `json:"protocolFeatures"`
	Owned            bool     `json:"owned"`
	Regions          []Region `json:"regions"`
	Vrings           []Vring  `json:"vrings"`
}

// Packed tells whether the rings are packed ones (Virtio §2.8).
func (s *State) Packed() bool { return s.Features&FeaturePacked != 0 }

// Vring is the state of one ring. Addresses are the front end's virtual ones.
type Vring struct {
	Num     uint16 `json:"num"`
	Base    uint32 `json:"base"` // next available entry; of a packed ring with its wrap counter, and the next used one above
	Desc    uint64 `json:"desc"`
	Used    uint64 `json:"used"`
	Avail   uint64 `json:"avail"`
	NoBase  bool   `json:"noBase"` // none was told: the ring goes on where it stands
	HasAddr bool   `json:"hasAddr"`
	Enabled bool   `json:"enabled"`
	HasKick bool   `json:"hasKick"`
	Running bool   `json:"running"`
}

// ready reports whether the ring can run. Without the protocol-features bit a
// ring has no enable message and counts as enabled.
func (s *State) ready(i int) bool {
	v := &s.Vrings[i]
	return v.Num != 0 && v.HasAddr && v.HasKick && (v.Enabled || s.Features&FeatureProtocol == 0)
}

// GPA translates a front-end address to a guest-physical one. n bytes must lie
// inside one region.
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

// RingGPA returns the guest-physical addresses of a ring's three parts. Those of a packed ring are
// the descriptors, the driver's and the device's event suppression.
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

// checkRegion refuses a region that wraps, is empty or meets one we have.
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

// findRegion returns the index of the region REM_MEM_REG names: the file offset
// is not compared, as front ends leave it zero.
func (s *State) findRegion(r Region) int {
	return slices.IndexFunc(s.Regions, func(o Region) bool {
		return o.GPA == r.GPA && o.Size == r.Size && o.User == r.User
	})
}
