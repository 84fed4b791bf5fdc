package vfiouser

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
)

// Protocol version, vfio-user "VFIO_USER_VERSION". QEMU proposes 0.0 and refuses a larger minor.
const (
	versionMajor = 0
	versionMinor = 0
	versionSize  = 4
)

// Capabilities are the capabilities of one side. A missing key means the protocol's default.
type Capabilities struct {
	MaxFDs      int    `json:"max_msg_fds,omitempty"`        // descriptors accepted in one message
	MaxTransfer int    `json:"max_data_xfer_size,omitempty"` // bytes of a region in one message
	MaxMaps     int    `json:"max_dma_maps,omitempty"`       // mappings at the same time
	PageSizes   uint64 `json:"pgsizes,omitempty"`            // page sizes for DMA_MAP, or'ed together
}

// Greeting is the first message of each side.
type Greeting struct {
	Major, Minor uint16
	Capabilities Capabilities
}

type versionData struct {
	Capabilities Capabilities `json:"capabilities"`
}

// Append appends the message's body: the version, then JSON that ends with a zero byte.
func (g *Greeting) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint16(b, g.Major)
	b = binary.LittleEndian.AppendUint16(b, g.Minor)
	data, _ := json.Marshal(versionData{g.Capabilities}) // numbers always encode
	return append(append(b, data...), 0)
}

// ParseGreeting parses the body of a VERSION message. It ignores capabilities that it does not
// know.
func ParseGreeting(b []byte) (g Greeting, err error) {
	if len(b) < versionSize {
		return g, short("VERSION", b, versionSize)
	}
	g.Major, g.Minor = binary.LittleEndian.Uint16(b), binary.LittleEndian.Uint16(b[2:])
	data := b[versionSize:]
	if len(data) == 0 {
		return g, nil
	}
	if data[len(data)-1] != 0 {
		return g, fmt.Errorf("vfio-user VERSION: the capabilities do not end with a zero byte")
	}
	var v versionData
	if err := json.Unmarshal(bytes.TrimRight(data, "\x00"), &v); err != nil {
		return g, fmt.Errorf("vfio-user VERSION: capabilities: %w", err)
	}
	g.Capabilities = v.Capabilities
	return g, nil
}
