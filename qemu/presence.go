package qemu

import "sync"

// presence tells whether a QEMU is there, for drivers that come by windows. They are shared memory,
// so a driver may be sooner than what QEMU says of its memory: above all with a worker that takes
// over from one that died. A session that began then would have no memory, and the device would
// blame the driver for its addresses (DRV-401).
type presence struct {
	known <-chan struct{} // VhostOptions.Known

	mu   sync.Mutex
	here chan struct{} // closed while a QEMU is served
}

func newPresence(known <-chan struct{}) presence {
	return presence{known: known, here: make(chan struct{})}
}

// begin says that a QEMU is served now, which none was before.
func (p *presence) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.here)
}

// end says that it left.
func (p *presence) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.here = make(chan struct{})
}

// await waits for a QEMU of which all is known that was said before. It reports false when done is
// closed first.
func (p *presence) await(done <-chan struct{}) bool {
	p.mu.Lock()
	here := p.here
	p.mu.Unlock()
	for _, c := range []<-chan struct{}{p.known, here} {
		if c == nil {
			continue
		}
		select {
		case <-c:
		case <-done:
			return false
		}
	}
	return true
}
