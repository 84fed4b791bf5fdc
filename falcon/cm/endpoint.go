package cm

import (
	"bytes"
	"fmt"
)

// endpointKey is an address: GIDs of different tenants may be equal.
type endpointKey struct {
	tenant uint32
	gid    [16]byte
}

func (k endpointKey) String() string {
	return fmt.Sprintf("GID %s, tenant %d", gidString(k.gid), k.tenant)
}

// gidString prints a GID as pairs of bytes; it stands in error texts only.
func gidString(g [16]byte) string {
	var b bytes.Buffer
	for i := 0; i < 16; i += 2 {
		if i > 0 {
			b.WriteByte(':')
		}
		fmt.Fprintf(&b, "%02x%02x", g[i], g[i+1])
	}
	return b.String()
}

// seat is the function that has an address, and its shard.
type seat struct {
	function uint32
	shard    uint8
}

func (e *Endpoint) seat() seat { return seat{e.Function, e.Shard} }
