package roce

// A window bounds the packets under way by what the network showed to take: it grows by one in each
// round trip without a loss, and falls to half in one with a loss. Peers that tell of congestion are
// not needed for it.

const (
	firstWindow = 32  // packets
	leastWindow = 2   // packets: one may be lost, the other shows it
	mostWindow  = 128 // packets, as rdma_rxe has it
)

type window struct {
	size  int  // packets
	slow  bool // has not lost anything yet: grows with every answer
	acked int  // packets since it grew
}

func (w *window) begin() { *w = window{size: firstWindow, slow: true} }

// answered notes that n packets arrived.
func (w *window) answered(n int) {
	if w.slow {
		w.size = min(w.size+n, mostWindow)
		return
	}
	if w.acked += n; w.acked >= w.size {
		w.acked, w.size = 0, min(w.size+1, mostWindow)
	}
}

// lost notes that a packet did not.
func (w *window) lost() {
	w.size, w.slow, w.acked = max(w.size/2, leastWindow), false, 0
}

// collapsed notes that nothing came back for a while.
func (w *window) collapsed() {
	w.size, w.slow, w.acked = leastWindow, false, 0
}
