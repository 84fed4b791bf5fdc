package rof

import (
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// TestPlaceInMessage: what may follow what, by class, offset, number and length.
func TestPlaceInMessage(t *testing.T) {
	send := func(first bool, message, offset, length uint32) arrival {
		return arrival{class: classSend, Packet: transport.Packet{Op: abi.OpSend, First: first, Message: message, Offset: offset, Length: length}}
	}
	write := func(first bool, offset, length uint32) arrival {
		return arrival{class: classWrite, Packet: transport.Packet{Op: abi.OpWrite, First: first, Message: 99, Offset: offset, Length: length}}
	}
	pull := func(message uint32) arrival {
		return arrival{class: classPull, Packet: transport.Packet{First: true, Message: message}}
	}
	for name, c := range map[string]struct {
		class messageClass // of the message that is unfinished
		bytes uint64       // of it
		next  arrival
		want  bool
	}{
		"first of a SEND":                       {classNone, 0, send(true, 5, 0, 10), true},
		"first of a SEND, after a long message": {classNone, maxMessage, send(true, 5, 0, 10), true},
		"first of a SEND, not at its beginning": {classNone, 0, send(true, 5, 1, 10), false},
		"first of another SEND":                 {classNone, 0, send(true, 6, 0, 10), false},
		"first in a SEND":                       {classSend, 100, send(true, 5, 0, 10), false},
		"middle of a SEND":                      {classSend, 100, send(false, 5, 100, 10), true},
		"middle of a SEND, before its place":    {classSend, 100, send(false, 5, 99, 10), false},
		"middle of another SEND":                {classSend, 100, send(false, 6, 100, 10), false},
		"middle of a SEND without its first":    {classNone, 0, send(false, 5, 0, 10), false},
		"middle of a SEND in a WRITE":           {classWrite, 100, send(false, 5, 100, 10), false},
		"end of the longest SEND":               {classSend, maxMessage - 10, send(false, 5, maxMessage-10, 10), true},
		"end of a longer SEND":                  {classSend, maxMessage - 10, send(false, 5, maxMessage-10, 11), false},
		"first of a WRITE":                      {classNone, 0, write(true, 0, 10), true},
		"first of a WRITE in a SEND":            {classSend, 100, write(true, 0, 10), false},
		"middle of a WRITE":                     {classWrite, 100, write(false, 7, 10), true},
		"end of the longest WRITE":              {classWrite, maxMessage - 10, write(false, 0, 10), true},
		"end of a longer WRITE":                 {classWrite, maxMessage - 10, write(false, 0, 11), false},
		"next READ":                             {classNone, 0, pull(3), true},
		"another READ":                          {classNone, 0, pull(5), false},
		"a READ in a SEND":                      {classSend, 100, pull(3), false},
	} {
		x := target{message: 5, nextPull: 3, class: c.class, bytes: c.bytes}
		if got := x.legal(&c.next); got != c.want {
			t.Errorf("%s: legal is %t", name, got)
		}
	}
}

// admitStep is a packet so many numbers ahead of the one expected, and what becomes of it.
type admitStep struct {
	ahead int32
	want  admission
}

// TestAdmit: what becomes of a packet by its distance from the one expected, on either kind of
// connection. Numbers wrap.
func TestAdmit(t *testing.T) {
	for name, c := range map[string]struct {
		ordered, notReady bool
		steps             []admitStep
	}{
		"ordered":              {true, false, []admitStep{{-1, misplaced}, {0, admitted}, {1, misplaced}, {2, misplaced}}},
		"ordered, come again":  {true, true, []admitStep{{-1, misplaced}, {0, admitted}, {1, tooEarly}, {2, tooEarly}}},
		"unordered":            {false, false, unorderedSteps},
		"unordered, and again": {false, true, unorderedSteps},
	} {
		for _, expected := range []uint32{1, 5000, ^uint32(0) - 1} {
			x := target{end: &end{ordered: c.ordered}}
			x.begin()
			x.expected, x.notReady = expected, c.notReady
			if !c.ordered {
				x.arrivals[(expected+7)%reorderWindow].present = true
			}
			for _, s := range c.steps {
				if got := x.admit(expected + uint32(s.ahead)); got != s.want {
					t.Errorf("%s: %d ahead of %d: %d, want %d", name, s.ahead, expected, got, s.want)
				}
			}
		}
	}
}

// unorderedSteps: the packet 7 ahead is there already, and what is a window ahead of that is no
// copy of it.
var unorderedSteps = []admitStep{
	{-1, misplaced},
	{-1000, misplaced},
	{0, admitted},
	{1, admitted},
	{6, admitted},
	{7, misplaced},
	{8, admitted},
	{reorderWindow - 1, admitted},
	{reorderWindow, tooEarly},
	{reorderWindow + 1, tooEarly},
	{reorderWindow + 7, tooEarly},
}
