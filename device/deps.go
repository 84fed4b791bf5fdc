package device

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"

	"github.com/falcon-vnic/vnic/device/capture"
	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/device/ports"
	"github.com/falcon-vnic/vnic/device/record"
	"github.com/falcon-vnic/vnic/device/settings"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/internal/tape"
	"github.com/falcon-vnic/vnic/queues"
)

// Attachment is a way for guests to reach the NIC, with the name that functions of the
// configuration refer to. The name is "" for an attachment whose guests are known by their CIDs.
type Attachment struct {
	Name string
	queues.Attachment
}

// Deps holds what a NIC gets from its caller. The NIC takes over Uplink, Attachments and Capture:
// Run closes them, and NewNIC closes them when it fails.
type Deps struct {
	Uplink tap.Uplink   // nil: open a TAP by the configuration
	TAPs   tap.Keeper   // keeps the TAPs of the uplink and the ports; nil: they end with the NIC
	Guests ports.Guests // ports in the memory of guests; nil: none
	// GuestMemory returns how much of guests' memory is mapped, in how many maps, and how often a
	// map was refused because it would have been too much; nil: nobody counts.
	GuestMemory func() (bytes, maps, refused uint64)
	Control     net.Listener                // listener of the control API, opened by the caller; nil: the NIC opens one by the configuration
	Supervisor  *controller.Supervisor      // nil: none
	Pulses      []thread.Pulse              // watch the shards' threads, in order; may be fewer
	Reload      func(context.Context) error // has the configuration read again, which ends in Reconfigure; nil: there is no file
	LogLevel    func(slog.Level)            // changes the level of Log; nil: it stays
	Peers       settings.Store              // keeps what operators changed of peers; nil: it ends with the NIC
	Settings    settings.Store              // keeps settings of functions that operators made; nil: they end with the NIC
	Attachments []Attachment                // already listening
	Identity    *cmlink.Identity            // nil: loaded from cm.identity, if there are peers
	Capture     *capture.Capture            // nil: open one by the configuration
	Record      record.Config               // of what the shards take from outside; without a file: the recorder of the configuration, if there is one
	// StartRecording makes a file for the recording of the next worker, and has this one replaced; nil: there is no
	// next one.
	StartRecording func(file string, keep tape.Payload) error
	KeepRing       func(memory *os.File) error // gives the recorder's memory to somebody who outlives the NIC; nil: nobody does
	Clock          func() int64                // ns, monotonic; nil: the system's
	Rand           io.Reader                   // source of master keys and sequence numbers; nil: the system's
	Log            *slog.Logger                // nil: none
	// Begin is called once, when everything listens, and before any guest or operator gets an
	// answer: whoever has an answer knows that Begin has returned. nil: not called.
	Begin func()
}

// sources returns where the devices of ports come from.
func (d *Deps) sources() ports.Sources { return ports.Sources{TAPs: d.TAPs, Guests: d.Guests} }

// close closes what a NIC takes over.
func (d *Deps) close() {
	for _, a := range d.Attachments {
		_ = a.Close()
	}
	if d.Uplink != nil {
		_ = d.Uplink.Close()
	}
	_ = d.Capture.Close() // nil is allowed
	if d.Control != nil {
		_ = d.Control.Close()
	}
}
