package tap

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"
)

// Split makes n uplinks of one, each with its own owner, who closes it. p must not be used
// afterwards. A TAP with at least n queues is split by queues. For any other uplink, only the first
// part reads, and all parts write, one at a time.
//
//	TAP ─┬─ queues 0, n, 2n … ─▶ part 0        other ─┬─ Read ─▶ part 0
//	     └─ queues 1, n+1 …   ─▶ part 1               └◀─ Write ── part 0, part 1
func Split(p Uplink, n int) ([]Uplink, error) {
	if n == 1 {
		return []Uplink{p}, nil
	}
	if t, ok := p.(*uplink); ok && len(t.dev.fds) >= n {
		return t.split(n)
	}
	one := &shared{Uplink: p, owners: n}
	parts := []Uplink{one}
	for range n - 1 {
		parts = append(parts, &writer{shared: one})
	}
	return parts, nil
}

// Reads reports whether a part receives frames: every part of a TAP that has a queue for each part,
// else only the first part.
func Reads(part Uplink) bool {
	_, never := part.(*writer)
	return !never
}

// Steer makes the kernel choose the queue of each frame that it gives a TAP with an eBPF program of
// the socket filter kind, one instruction in each number. Queues are counted from 0, in the order
// of Split's parts. Other uplinks fail with errors.ErrUnsupported.
func Steer(p Uplink, program []uint64) error {
	t, ok := p.(*uplink)
	if !ok || len(t.dev.fds) == 0 {
		return errors.ErrUnsupported
	}
	return steer(t.dev.fds[0], program)
}

func (p *uplink) split(n int) ([]Uplink, error) {
	if err := p.queues.close(); err != nil {
		return nil, err
	}
	own := make([][]int, n)
	for i, fd := range p.dev.fds {
		own[i%n] = append(own[i%n], fd)
	}
	parts := make([]Uplink, n)
	for i, fds := range own {
		dev := p.dev
		dev.fds = fds
		dev.close = func() (err error) {
			for _, fd := range fds {
				err = errors.Join(err, unix.Close(fd))
			}
			return err
		}
		part, err := newUplink(p.name, p.mtu, dev)
		if err != nil {
			return nil, err
		}
		parts[i] = part
	}
	return parts, nil
}

// shared is an uplink with several owners. The owner that holds shared itself reads.
type shared struct {
	Uplink
	mu     sync.Mutex
	owners int
}

// Read implements Uplink.
func (s *shared) Read(bufs [][]byte, got []Received) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Uplink.Read(bufs, got)
}

// Write implements Uplink.
func (s *shared) Write(frames [][]byte, more bool) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Uplink.Write(frames, more)
}

// Stats implements Uplink.
func (s *shared) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Uplink.Stats()
}

// Close implements Uplink. The last owner closes it.
func (s *shared) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owners--; s.owners > 0 {
		return nil
	}
	return s.Uplink.Close()
}

// writer is the part of an owner that does not read.
type writer struct{ *shared }

// FD implements Uplink: there is nothing to wait for.
func (*writer) FD() int { return -1 }

// Read implements Uplink.
func (*writer) Read([][]byte, []Received) (int, error) { return 0, nil }

// Stats implements Uplink. The first part has the counters.
func (*writer) Stats() Stats { return Stats{} }
