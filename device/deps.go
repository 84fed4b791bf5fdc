package device

import (
	"io"
	"log/slog"
	"net"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/device/ports"
	"github.com/falcon-vnic/vnic/device/settings"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/queues"
)

// Attachment is a way for guests to reach the NIC, with the name that
// functions of the configuration refer to ("" for those known by their guests'
// context ids).
type Attachment struct {
	Name string
	queues.Attachment
}

// Deps are what a NIC is given. A NIC takes over Uplink, Attachments and
// Capture: Run closes them, and NewNIC closes them when it fails.
type Deps struct {
	Uplink tap.Port     // nil: a TAP as the configuration says
	TAPs   tap.Keeper   // of the uplink's TAP and the ports'; nil: they go with the NIC
	Guests ports.Guests // ports in the memory of guests; nil: there are none
	// GuestMemory tells what of guests' memory is mapped, and how often that was to be too much;
	// nil: nobody counts.
	GuestMemory func() (bytes, maps, refused uint64)
	Control     net.Listener           // of the control API, somebody else's; nil: one of its own as the configuration says
	Supervisor  *controller.Supervisor // nil: none
	Pulses      []thread.Pulse         // of the shards' threads, in order; nobody watches others
	Settings    settings.Store         // of functions, beyond the configuration; nil: they go with the NIC
	Attachments []Attachment           // listening already
	Identity    *cmlink.Identity       // nil: loaded from cm.identity, if there are peers
	Capture     *capture.Capture       // nil: as the configuration says
	Clock       func() int64           // ns, monotonic; nil: the system's
	Rand        io.Reader              // nil: the system's; master keys and sequence numbers come from it
	Log         *slog.Logger           // nil: none
	// Begin is called once, when everything listens, and before any guest or operator is answered:
	// who has had an answer knows that it has returned. nil: there is nothing to do then.
	Begin func()
}

// sources are where the devices of ports come from.
func (d *Deps) sources() ports.Sources { return ports.Sources{TAPs: d.TAPs, Guests: d.Guests} }

// close closes what a NIC takes over.
func (d *Deps) close() {
	for _, a := range d.Attachments {
		_ = a.Close()
	}
	if d.Uplink != nil {
		_ = d.Uplink.Close()
	}
	_ = d.Capture.Close() // also of none
	if d.Control != nil {
		_ = d.Control.Close()
	}
}
