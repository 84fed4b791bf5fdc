package underlay

// Bounds of frames and entries in a stack.
const (
	maxQueued       = 64 // ARP and neighbour discovery packets to send
	maxParked       = 64 // frames waiting, at all neighbours and in the ready ring together
	parkedPerPeer   = 4  // frames waiting at one neighbour
	maxNeighbours   = 512
	solicitedSpared = 64 // entries reserved for peers that we ask for; others cannot fill them
)

// frameQueue is a ring of complete ARP or neighbour discovery frames.
type frameQueue struct {
	frames      [maxQueued][ndFrameLen]byte // size of the longer kind
	lens        [maxQueued]int
	head, count int
}

// slot appends a frame of n bytes and returns its memory, or nil when the queue is full.
func (q *frameQueue) slot(n int) []byte {
	if q.count == maxQueued {
		return nil
	}
	i := (q.head + q.count) % maxQueued
	q.lens[i] = n
	q.count++
	return q.frames[i][:n]
}

func (q *frameQueue) pop(out []byte) int {
	if q.count == 0 {
		return 0
	}
	n := copy(out, q.frames[q.head][:q.lens[q.head]])
	q.head = (q.head + 1) % maxQueued
	q.count--
	return n
}

// ring holds parked frames that can be sent now; the bound on Stack.parked keeps it from
// overflowing.
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
