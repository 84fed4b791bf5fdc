package falcon

import "unsafe"

// self returns the connection that c is part of. Every state is at the beginning of a Conn. A back
// pointer instead would take space in the connection's hottest cache line.
func (c *state) self() *Conn { return (*Conn)(unsafe.Pointer(c)) }

// The first field of state is the first of Conn.
var _ [0]struct{} = [unsafe.Offsetof(Conn{}.e)]struct{}{}
