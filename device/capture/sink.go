package capture

import "github.com/falcon-vnic/vnic/device/config"

// Sink is a capture and what it takes of what passes.
type Sink struct {
	To            *Capture
	Sealed, Clear bool
	Ports         map[Port]int // interfaces of those it takes
	AnyPort       bool         // also of ports that come later
}

// NewSink takes what a mode of the configuration says; "" is nothing.
func NewSink(to *Capture, mode string) Sink {
	return Sink{
		To:     to,
		Sealed: mode == config.CaptureSealed || mode == config.CaptureBoth,
		Clear:  mode == config.CaptureClear || mode == config.CaptureBoth,
	}
}

// NamedPort is a function's port with what else it may be called: the function's names.
type NamedPort struct {
	Port
	Names []string
}
