package ports

import (
	"fmt"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/shard"
	"github.com/falcon-vnic/vnic/device/tap"
)

// Device is the device of a port, as a Set uses it.
type Device interface {
	gateway.Device
	FD() int // readable when there is a frame
	Serve()  // starts serving the guest; the set's thread runs, or soon will
	Remove() error
	Close() error
}

// Polled is a Device whose guest is polled while it is busy, instead of signalling each frame, and
// whose writes and reads are reported to the guest for many frames at once. It may leave the ends
// of frames in its guest's memory, and accepts such frames from others.
type Polled interface {
	Device
	gateway.Gatherer
	// Wake tells the guest that it is polled: it need not signal.
	Wake()
	// Arm asks the guest to signal its next frame. If a frame already waits, it returns true and
	// changes nothing.
	Arm() (waiting bool)
	// Return gives the buffers read since the last call back to the guest. Data that is still in
	// them and may be needed is copied first.
	Return()
	// Settle shows the guest the frames written since the last call. It also does what Return does.
	Settle()
}

// Sources holds where devices come from.
type Sources struct {
	TAPs   tap.Keeper // keeps TAPs beyond the NIC; nil: they are not kept
	Guests Guests     // nil: ports in guests' memory are not supported
}

// Guests creates ports in the memory of guests.
type Guests interface {
	// OpenPort creates the device of a port as configured. post makes the thread that serves the
	// port call a function soon; it returns false once that thread has ended.
	OpenPort(c *config.Port, post func(f func()) bool) (Device, error)
}

// tapPort is a port on a TAP.
type tapPort struct{ *tap.Function }

func (p tapPort) Read(b []byte) (int, gateway.Rest, gateway.Offload, error) {
	n, off, err := p.Function.Read(b)
	return n, nil, gateway.Offload(off), err
}

// Serve implements Device. It does nothing: the kernel already serves the TAP.
func (tapPort) Serve() {}

// Takes implements gateway.Device: the kernel does any offload that its guest does not.
func (tapPort) Takes(gateway.Offload) bool { return true }

// Fault implements gateway.Device. It is always "": a broken TAP is lost instead.
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

// Open creates the device of a port as configured.
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
		// Then one send of the kernel's TCP fills one superframe, without a second one for the
		// rest. Frames of other origin are not to be cut for this.
		fc.Segs = segments(c.MTU)
	}
	f, err := tap.OpenFunction(fc)
	if err != nil {
		return nil, err
	}
	return tapPort{f}, nil
}

// superframePayload is the room for sealed packets in one frame of the uplink, in bytes.
const superframePayload = 65535 - 40 - 8

// segments returns how many sealed packets of a port fit into one superframe of the uplink, at
// least two.
func segments(mtu int) int { return max(2, superframePayload/(mtu+security.PlainOverhead)) }
