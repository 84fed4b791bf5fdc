package vfiouser

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// vectors is a Device with so many of each kind, that says what it is told.
type vectors struct {
	Device
	n    uint32
	told string
}

func (v *vectors) Vectors(uint32) uint32 { return v.n }

func (v *vectors) SetIRQs(irq, start uint32, fds []int) error {
	v.told += fmt.Sprintf("set %d from %d: %d ", irq, start, fds)
	return nil
}

func (v *vectors) Trigger(irq, vector uint32) {
	v.told += fmt.Sprintf("trigger %d of %d ", vector, irq)
}

// TestSetIRQs: of each kind of interrupt as many vectors can be named as there are, and kinds that
// are not are refused, even where nothing is asked of them.
func TestSetIRQs(t *testing.T) {
	const none, signal = IRQTrigger | IRQDataNone, IRQTrigger | IRQDataEventfd
	for _, c := range []struct {
		set  IRQSet
		told string // "": refused
	}{
		{IRQSet{Flags: none, Index: 2, Start: 0, Count: 3}, "trigger 0 of 2 trigger 1 of 2 trigger 2 of 2 "},
		{IRQSet{Flags: none, Index: 2, Start: 2, Count: 1}, "trigger 2 of 2 "},
		{IRQSet{Flags: none, Index: 2, Start: 1, Count: 2}, "trigger 1 of 2 trigger 2 of 2 "},
		{IRQSet{Flags: none, Index: NumIRQs - 1, Start: 0, Count: 0}, fmt.Sprintf("set %d from 0: [-1 -1 -1] ", NumIRQs-1)},
		{IRQSet{Flags: none, Index: NumIRQs, Start: 0, Count: 0}, ""},
		{IRQSet{Flags: none, Index: NumIRQs + 1, Start: 0, Count: 0}, ""},
		{IRQSet{Flags: none, Index: 2, Start: 0, Count: 4}, ""},
		{IRQSet{Flags: none, Index: 2, Start: 3, Count: 1}, ""},
		{IRQSet{Flags: none, Index: 2, Start: 4, Count: 0}, ""},
		{IRQSet{Flags: signal, Index: 2, Start: 1, Count: 2}, "set 2 from 1: [-1 -1] "},
		{IRQSet{Flags: signal, Index: 2, Start: 1, Count: 3}, ""},
		{IRQSet{Flags: IRQDataNone, Index: 2, Start: 0, Count: 1}, ""},
		{IRQSet{Flags: signal | IRQDataNone, Index: 2, Start: 0, Count: 1}, ""},
	} {
		v := &vectors{n: 3}
		s := &server{dev: v}
		err := s.setIRQs(&message{body: c.set.Append(nil)})
		if v.told != c.told || (err == nil) != (c.told != "") || err != nil && !errors.Is(err, unix.EINVAL) {
			t.Errorf("%+v: told %q, %v", c.set, v.told, err)
		}
	}
}
