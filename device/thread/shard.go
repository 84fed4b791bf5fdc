package thread

import (
	"github.com/falcon-vnic/vnic/device/effect"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// Shard is what a thread steps. Neither call reads a clock or does I/O.
type Shard interface {
	// Step does everything there is to do at one moment.
	Step(now vtime.Time, in *Input, out *Output)
	// Flush is called before the thread waits: what was held back goes out now, and what was polled
	// asks to be woken. With out.More the thread must not wait.
	Flush(now vtime.Time, out *Output)
	// Roused reports whether a goroutine was made runnable since the last call.
	Roused() bool
}

// Door is where others leave input for the shard.
type Door interface {
	// Park says that the thread is about to sleep; false: it must not.
	Park() bool
	// Unpark says that it is awake.
	Unpark()
}

// Input is what a Step works on.
type Input struct {
	Frames   [][]byte // received from the uplink, each cut to its length; opened in place
	Segments []int    // tap.Received.Segment of each frame; nil: there are no superframes among them

	Rung []int // eventfds of guests that were written to
}

// Output is what a Step leaves, beside the frames in the uplink's queue and the events in the
// drivers' channels.
type Output struct {
	Effects  effect.List // to be done before the next Step
	Deadline vtime.Time  // Step again at this time at the latest
	Polled   bool        // a ring that was polled had work
	Worked   bool        // so had the inbox, a ring, or what ports had sent before
	More     bool        // Step again at once: work was left
}

// Do does what a Step asked for.
func (o *Output) Do() { o.Effects.Do() }

// Ports are the functions' ports as the thread serves them.
type Ports interface {
	// Read gives the shard what the ports have, if it is done with what they had before, and
	// reports whether there was anything.
	Read() (some bool)
	// Write gives the ports what the shard has for them.
	Write()
	// More tells whether frames of ports will follow at once on the last that was queued for the
	// uplink, which is one of theirs too.
	More() bool
	// Arm is called before the thread waits: ports that were looked at are to tell of their next
	// frame. It reports true, and the thread must not wait, if there is one already.
	Arm() (waiting bool)
	// FD is readable when a port has a frame; -1 while none is to be read.
	FD() int
	// Deadline is when a port may be read again that is paused.
	Deadline() vtime.Time
}
