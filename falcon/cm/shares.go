package cm

// Shares divides a table among its holders. Each holder may have a multiple of the number of free
// entries. So a single holder can have most of the table, several have equal parts, and a newcomer
// always finds room.
//
//	multiple 1: one holder has 1/2 at most, two 1/3 each, n 1/(n+1) each, and as much is free
//	multiple 3: one holder has 3/4 at most, two 3/7 each, n 3/(3n+1) each, and 1/(3n+1) is free
type Shares[K comparable] struct {
	Size     int // entries of the table
	Multiple int

	used int
	by   map[K]int
}

// Room reports whether a holder may take one more entry.
func (s *Shares[K]) Room(k K) bool { return s.by[k] < s.Multiple*(s.Size-s.used) }

// Held returns the number of entries of a holder.
func (s *Shares[K]) Held(k K) int { return s.by[k] }

// Take adds an entry to a holder.
func (s *Shares[K]) Take(k K) {
	if s.by == nil {
		s.by = map[K]int{}
	}
	s.by[k]++
	s.used++
}

// Give removes an entry from a holder.
func (s *Shares[K]) Give(k K) {
	s.used--
	if s.by[k]--; s.by[k] == 0 {
		delete(s.by, k)
	}
}
