package verbs

// remote holds what is known of the queue pair at the other end.
type remote struct {
	number  uint32
	gid     [16]byte
	ird     uint8 // READs and atomics that it accepts
	wired   bool  // the driver named it
	left    bool  // the driver named it, but its end of a connection is gone
	leaving bool  // it is ending the connection
}

// anyIRD means that the peer has not announced how many READs and atomics it accepts.
const anyIRD = 255

// forget clears the peer of a connection, unless the driver named it.
func (r *remote) forget() {
	if !r.wired {
		r.number, r.gid = 0, [16]byte{}
	}
	r.ird = anyIRD
}
