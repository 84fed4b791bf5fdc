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
