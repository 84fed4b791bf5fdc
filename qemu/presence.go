package qemu

import "sync"

// presence records whether a QEMU is connected. Sessions that drivers open by windows wait for it:
// a window is shared memory, so a driver can open a session before QEMU has announced the guest's
// memory, above all when a worker takes over from one that died. Such a session would have no
// memory, and the device would reject the driver's valid addresses (DRV-401).
type presence struct {
	known <-chan struct{} // VhostOptions.Known

	mu   sync.Mutex
	here chan struct{} // closed while a QEMU is connected
}

func newPresence(known <-chan struct{}) presence {
	return presence{known: known, here: make(chan struct{})}
}

// begin records that a QEMU has connected. None may be connected already.
func (p *presence) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.here)
}

// end records that the QEMU has disconnected.
func (p *presence) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.here = make(chan struct{})
}

// await waits until the earlier announcements are known (VhostOptions.Known) and a QEMU is
// connected. It returns false if done is closed first.
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
