package supervisor

import (
	"fmt"
	"sync"
)

// store holds the descriptors that workers keep with the supervisor.
type store struct {
	mu     sync.Mutex
	things map[string][]int
}

// maxKept is the largest number of names: one for each possible port and window of a NIC, with room
// to spare.
const maxKept = 1 << 18

// put stores descriptors, which it owns, under a name. It closes those stored there before.
func (s *store) put(name string, fds []int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, there := s.things[name]; !there && len(s.things) >= maxKept {
		closeAll(fds)
		return fmt.Errorf("descriptors are already kept under %d names, the limit", maxKept)
	}
	if s.things == nil {
		s.things = map[string][]int{}
	}
	closeAll(s.things[name])
	s.things[name] = fds
	return nil
}

func (s *store) drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	closeAll(s.things[name])
	delete(s.things, name)
}

// each calls f for every name, until f fails.
func (s *store) each(f func(name string, fds []int) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, fds := range s.things {
		if err := f(name, fds); err != nil {
			return err
		}
	}
	return nil
}

func (s *store) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, fds := range s.things {
		closeAll(fds)
	}
	s.things = nil
}
