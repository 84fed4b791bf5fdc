package conform

import (
	"strings"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/arena"
	"github.com/falcon-vnic/vnic/guestlib/window"
)

// pciDevice is the function's PCI device. A check opens it once, because with an IOMMU it cannot be
// opened twice. Its control block has one session at a time; all sessions share its memory.
type pciDevice struct {
	*window.PCI
	memory arena.Source
}

// borrowed is memory of a device that outlives the stream.
type borrowed struct{ arena.Source }

func (borrowed) Close() error { return nil }

// onPCI reports whether the function is reached as a PCI device.
func (t *T) onPCI() bool { return strings.HasPrefix(t.cfg.URL, "pci:") }

// memory returns the size of the memory that the device can access by one stream, in bytes; on PCI,
// by all streams of a check.
func (t *T) memory() int {
	if t.onPCI() {
		return 16 * clientMemory
	}
	return clientMemory
}

// redial opens another stream by the check's PCI device.
func (t *T) redial() *client {
	for _, c := range t.clients {
		if !c.stream.ended() {
			t.Skipf("a PCI device has one stream at a time")
		}
	}
	conn, err := guestlib.Redial(t.ctx, t.cfg.URL, t.device.memory)
	t.ok(err)
	return t.client(conn, borrowed{t.device.memory})
}

// pci returns the PCI device, or skips the check if there is none.
func (t *T) pci() *pciDevice {
	if t.device == nil {
		t.Skipf("the function is not reached by a PCI device of its own (--device pci://)")
	}
	return t.device
}
