package underlay

// Bounds of what waits inside a stack.
const (
	maxARPs         = 64 // ARP packets to send
	maxParked       = 64 // frames waiting, at all neighbours and in the ready ring together
	parkedPerPeer   = 4  // frames waiting at one neighbour
	maxNeighbours   = 512
	solicitedSpared = 64 // entries kept for peers we ask for; others must not fill them
)

// arpQueue is a ring of complete ARP frames.
type arpQueue struct {
	frames      [maxARPs][arpFrameLen]byte
	head, count int
}

// slot returns the memory of a new frame at the end, nil when full.
func (q *arpQueue) slot() []byte {
	if q.count == maxARPs {
		return nil
	}
	f := &q.frames[(q.head+q.count)%maxARPs]
	q.count++
	return f[:]
}

func (q *arpQueue) pop(out []byte) int {
	if q.count == 0 {
		return 0
	}
	n := copy(out, q.frames[q.head][:])
	q.head = (q.head + 1) % maxARPs
	q.count--
	return n
}

// ring holds parked frames that may go now; Stack.parked keeps it from overflowing.
type ring struct {
	frames      [maxParked][]byte
	head, count int
}

func (r *ring) push(f []byte) {
	r.frames[(r.head+r.count)%maxParked] = f
	r.count++
}

func (r *ring) pop() []byte {
	if r.count == 0 {
		return nil
	}
	f := r.frames[r.head]
	r.frames[r.head] = nil
	r.head = (r.head + 1) % maxParked
	r.count--
	return f
}
