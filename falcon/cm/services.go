package cm

import "fmt"

// services holds the services that our functions listen on.
type services struct {
	most       int // limit of one function
	byFunction map[uint32]map[uint64]struct{}
}

func newServices(c *Config) *services {
	return &services{most: c.MaxListeners, byFunction: make(map[uint32]map[uint64]struct{})}
}

func (s *services) listen(fn uint32, service uint64) error {
	if s.has(fn, service) {
		return fmt.Errorf("cm: function %#06x, service %#x: %w", fn, service, ErrInUse)
	}
	if n := len(s.byFunction[fn]); n >= s.most {
		return fmt.Errorf("cm: function %#06x listens on %d services: %w", fn, n, ErrLimit)
	}
	if s.byFunction[fn] == nil {
		s.byFunction[fn] = make(map[uint64]struct{})
	}
	s.byFunction[fn][service] = struct{}{}
	return nil
}

func (s *services) unlisten(fn uint32, service uint64) error {
	if !s.has(fn, service) {
		return fmt.Errorf("cm: function %#06x does not listen on service %#x: %w", fn, service, ErrNotFound)
	}
	delete(s.byFunction[fn], service)
	if len(s.byFunction[fn]) == 0 {
		s.forget(fn)
	}
	return nil
}

func (s *services) has(fn uint32, service uint64) bool {
	_, has := s.byFunction[fn][service]
	return has
}

// forget removes all services of a function.
func (s *services) forget(fn uint32) { delete(s.byFunction, fn) }
