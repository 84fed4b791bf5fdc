package conform

import (
	"strings"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/arena"
	"github.com/falcon-vnic/vnic/guestlib/window"
)

// pciDevice is the function's PCI device, which a check takes once: with an IOMMU nobody can open
// it twice. Its control block has one session at a time, and its memory is that of all of them.
type pciDevice struct {
	*window.PCI
	memory arena.Source
}

// borrowed is memory of a device that outlives the stream.
type borrowed struct{ arena.Source }

func (borrowed) Close() error { return nil }

// onPCI reports whether the function is reached by its own PCI device.
func (t *T) onPCI() bool { return strings.HasPrefix(t.cfg.URL, "pci:") }

// memory is how much a stream may make visible to the device, in bytes; on PCI all of a check.
func (t *T) memory() int {
	if t.onPCI() {
		return 16 * clientMemory
	}
	return clientMemory
}

// redial opens a further stream by the device that the check has.
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

// pci is the device itself. The check is skipped where there is none.
func (t *T) pci() *pciDevice {
	if t.device == nil {
		t.Skipf("the function is not reached by a PCI device of its own (--device pci://)")
	}
	return t.device
}
