package falcon

import "unsafe"

// self is the connection whose state c is. There is no state but at the beginning of a Conn, and a
// pointer back would take place in a connection's hottest cache line.
func (c *state) self() *Conn { return (*Conn)(unsafe.Pointer(c)) }

// The first field of state is the first of Conn.
var _ [0]struct{} = [unsafe.Offsetof(Conn{}.e)]struct{}{}
