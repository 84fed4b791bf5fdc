package gateway

// GSO kinds of an Offload, as virtio-net numbers them.
const (
	GSONone = 0
	GSOTCP4 = 1
	GSOTCP6 = 4
	GSOUDP  = 5
	GSOECN  = 0x80 // flag beside TCP kinds: CWR stands in the first segment only
)

// Offload is the work that a frame's sender left for others. Offsets count from the Ethernet
// header. It is the part of the virtio-net header that matters here, and converts from and to
// tap.Offload.
type Offload struct {
	GSO        uint8  // kind of a frame that stands for several packets; GSONone
	NeedsCsum  bool   // the checksum at CsumStart+CsumOffset holds the pseudo header's sum only
	Size       uint16 // of each segment's payload, with GSO
	CsumStart  uint16
	CsumOffset uint16
}

// gso returns the kind without the ECN flag.
func (o *Offload) gso() uint8 { return o.GSO &^ GSOECN }
