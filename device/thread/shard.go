package thread

import (
	"github.com/falcon-vnic/vnic/device/effect"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// Shard is stepped by a thread. Its methods read no clock and do no I/O.
type Shard interface {
	// Step does all work that is due at one moment.
	Step(now vtime.Time, in *Input, out *Output)
	// Flush is called before the thread waits: delayed output is sent now, and polled rings are
	// armed to wake the thread. If out.More is set, the thread must not wait.
	Flush(now vtime.Time, out *Output)
	// Roused reports whether a goroutine was made runnable since the last call.
	Roused() bool
}

// Door guards the shard's sleep against input from other goroutines.
type Door interface {
	// Park records that the thread is about to sleep; false: it must not.
	Park() bool
	// Unpark records that the thread is awake.
	Unpark()
}

// Input is the input of a Step.
type Input struct {
	Frames   [][]byte // received from the uplink, each cut to its length; opened in place
	Segments []int    // tap.Received.Segment of each frame; nil: there are no superframes among them

	Rung []int // eventfds of guests that rang
}

// Output is the result of a Step, beside the frames in the uplink's queue and the events in the
// drivers' channels.
type Output struct {
	Effects  effect.List // to be run before the next Step
	Deadline vtime.Time  // latest time of the next Step
	Polled   bool        // a polled ring had work
	Worked   bool        // so had the inbox, a ring, or frames that ports had sent before
	More     bool        // Step again at once: work is left
}

// Do runs the effects of a Step.
func (o *Output) Do() { o.Effects.Do() }

// Ports serves the functions' ports for the thread.
type Ports interface {
	// Read gives the shard the frames that the ports have, if the shard is done with those it got
	// before, and reports whether there were any.
	Read() (some bool)
	// Write gives the ports the frames that the shard has for them.
	Write()
	// More reports whether frames of ports will follow at once, after a last frame in the uplink's
	// queue that is a port's too.
	More() bool
	// Arm is called before the thread waits: it asks polled ports to signal their next frame. If a
	// frame already waits, it returns true and the thread must not wait.
	Arm() (waiting bool)
	// FD returns a descriptor, readable when a port has a frame; -1 while none is to be read.
	FD() int
	// Deadline returns when a paused port may be read again.
	Deadline() vtime.Time
}
