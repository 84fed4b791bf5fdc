package verbs

// remote is the queue pair at the other end, as far as it is known.
type remote struct {
	number  uint32
	gid     [16]byte
	ird     uint8 // READs and atomics that it takes
	wired   bool  // the driver named it
	left    bool  // its end of a connection is gone, though the driver named it
	leaving bool  // it ends the connection
}

// anyIRD stands for a peer that has not said how many READs and atomics it takes.
const anyIRD = 255

// forget forgets whose connection there was, unless the driver named him.
func (r *remote) forget() {
	if !r.wired {
		r.number, r.gid = 0, [16]byte{}
	}
	r.ird = anyIRD
}
