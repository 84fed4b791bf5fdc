package capture

import "github.com/falcon-vnic/vnic/device/config"

// Sink is a capture and a selection of what it receives.
type Sink struct {
	To            *Capture
	Sealed, Clear bool
	Ports         map[Port]int // interfaces of the captured ports
	AnyPort       bool         // also capture ports that are added later
}

// NewSink returns the sink for a capture mode of the configuration; "" captures nothing.
func NewSink(to *Capture, mode string) Sink {
	return Sink{
		To:     to,
		Sealed: mode == config.CaptureSealed || mode == config.CaptureBoth,
		Clear:  mode == config.CaptureClear || mode == config.CaptureBoth,
	}
}

// NamedPort is a function's port with its other names: those of the function.
type NamedPort struct {
	Port
	Names []string
}
