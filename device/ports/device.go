package ports

import (
	"fmt"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/shard"
	"github.com/falcon-vnic/vnic/device/tap"
)

// Device is a port as the set reads it.
type Device interface {
	gateway.Port
	FD() int // readable when there is a frame
	Serve()  // lets its guest in; the set's thread runs, or will
	Remove() error
	Close() error
}

// Polled is a Device whose guest is looked at while it is busy, instead of telling of each frame,
// and which is told of what was done for many frames at once. It may leave the ends of frames in
// its guest's memory, and takes such of others.
type Polled interface {
	Device
	gateway.Gatherer
	// Wake says that the guest is looked at: it need not tell.
	Wake()
	// Arm says that it is to tell from now on. It reports true, and nothing changes, if there is a
	// frame already.
	Arm() (waiting bool)
	// Return gives the guest back what was read since. What is in its memory still, and may be
	// needed, is copied before.
	Return()
	// Settle shows the guest what was written since, too.
	Settle()
}

// Sources are where devices come from.
type Sources struct {
	TAPs   tap.Keeper // keeps TAPs; nil: nobody does
	Guests Guests     // nil: there are none
}

// Guests makes ports in the memory of guests.
type Guests interface {
	// OpenPort makes the device of a port as it is configured. post has a function called on the
	// thread that the port is served by, soon; false: it has ended.
	OpenPort(c *config.Port, post func(f func()) bool) (Device, error)
}

// tapPort is a TAP as a port.
type tapPort struct{ *tap.Function }

func (p tapPort) Read(b []byte) (int, gateway.Rest, gateway.Offload, error) {
	n, off, err := p.Function.Read(b)
	return n, nil, gateway.Offload(off), err
}

// Serve implements Device: the kernel has let everybody in.
func (tapPort) Serve() {}

// Takes implements gateway.Port: the kernel does what its guest does not.
func (tapPort) Takes(gateway.Offload) bool { return true }

// Fault implements gateway.Port: one that is broken is lost.
func (tapPort) Fault() string { return "" }

func (p tapPort) Write(parts [][]byte, off gateway.Offload) bool {
	return p.Function.Write(parts, tap.Offload(off))
}

func (p tapPort) Stats() gateway.PortStats {
	st := p.Function.Stats()
	return gateway.PortStats{
		RxFrames: st.RxFrames, RxBytes: st.RxBytes, RxDropped: st.RxDropped,
		TxFrames: st.TxFrames, TxBytes: st.TxBytes, TxDropped: st.TxDropped,
	}
}

// Open makes the device of a port as it is configured.
func (s Sources) Open(of shard.Ports, c *config.Port) (Device, error) {
	if c.Type == config.PortVhostUser {
		if s.Guests == nil {
			return nil, fmt.Errorf("a port of type %s needs a program that serves guests: use vnic run", c.Type)
		}
		return s.Guests.OpenPort(c, of.Post)
	}
	return openTAP(c, s.TAPs)
}

func openTAP(c *config.Port, keeper tap.Keeper) (Device, error) {
	fc := tap.FunctionConfig{Name: c.Name, MAC: c.MAC, MTU: c.MTU, Bridge: c.Bridge, Netns: c.Netns, Persist: c.Persist, Keeper: keeper}
	if c.Mode == config.PortDirect {
		// What the kernel's TCP sends at once then makes one superframe, and not a second one of
		// the rest. Frames that others made are not to be cut for it.
		fc.Segs = segments(c.MTU)
	}
	f, err := tap.OpenFunction(fc)
	if err != nil {
		return nil, err
	}
	return tapPort{f}, nil
}

// superframePayload is how many bytes one frame on the uplink has for sealed packets.
const superframePayload = 65535 - 40 - 8

// segments is how many packets of a port one superframe on the uplink holds, sealed; two at least.
func segments(mtu int) int { return max(2, superframePayload/(mtu+security.PlainOverhead)) }
