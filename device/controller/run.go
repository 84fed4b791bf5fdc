package controller

import (
	"time"

	"github.com/falcon-vnic/vnic/device/inbox"
	"github.com/falcon-vnic/vnic/internal/vtime"
)

// Run steps the core until Halt. send sends a message to the connection manager of another NIC. A
// message that cannot be sent is lost with the link, which the manager learns by PeerDown. end ends
// the link to another NIC.
func (k *Core) Run(clock func() int64, send func(host uint8, msg []byte), end func(host uint8, reason error)) {
	var out CoreOutput
	due := time.NewTimer(0)
	defer due.Stop()
	for !k.stop.Load() {
		k.Step(clock(), &out)
		out.Effects.Do()
		for _, host := range out.Ends {
			end(host, errFault)
		}
		for _, m := range out.Messages {
			send(m.Host, m.Data)
		}
		clear(out.Messages)
		k.sleep(due, out.Deadline-clock())
	}
}

// sleep waits ns nanoseconds, or until there is input.
func (k *Core) sleep(due *time.Timer, ns int64) {
	defer k.box.Unpark()
	if ns <= 0 || !k.box.Park() {
		return
	}
	due.Reset(time.Duration(ns))
	select {
	case <-k.woken:
	case <-due.C:
	}
}

// wake makes the core look at its inbox. It never blocks.
func (k *Core) wake() {
	select {
	case k.woken <- struct{}{}:
	default:
	}
}

// Halt makes Run return soon.
func (k *Core) Halt() {
	k.stop.Store(true)
	k.wake()
}

// Stop refuses further input. It is called when Run has returned. Callers that still wait get
// inbox.ErrStopped.
func (k *Core) Stop() {
	k.box.Stop()
	close(k.ended)
}

// Do runs f on the core's goroutine and returns when it is done (inbox.Do).
func (k *Core) Do(f func(now vtime.Time)) error {
	return inbox.Do(&k.box, func(_ *Core, now vtime.Time) { f(now) })
}

// ask runs f on the core's goroutine, and returns the error that f passes to then, at once or
// later.
func (k *Core) ask(f func(then func(error))) error {
	answer := make(chan error, 1)
	if err := k.Do(func(vtime.Time) { f(func(err error) { answer <- err }) }); err != nil {
		return err
	}
	select {
	case err := <-answer:
		return err
	case <-k.ended:
		return inbox.ErrStopped
	}
}
