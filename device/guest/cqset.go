package guest

// cqSet is a set of completion queue numbers, in the order in which they were added. Membership is
// a bitmap in pages: a number has a slot in its low bits and a generation in its high bits, so the
// pages are few and dense.
type cqSet struct {
	list  []uint32
	pages map[uint32]*cqPage
}

type cqPage [pageCQs / 64]uint64

const (
	pageCQs  = 1 << 12
	maxPages = 64 // pages that an empty set keeps
)

func (s *cqSet) len() int { return len(s.list) }

// add adds a number, if it is not in the set.
func (s *cqSet) add(n uint32) {
	p := s.pages[n/pageCQs]
	if p == nil {
		if s.pages == nil {
			s.pages = map[uint32]*cqPage{}
		}
		p = &cqPage{}
		s.pages[n/pageCQs] = p
	}
	word, bit := &p[n%pageCQs/64], uint64(1)<<(n%64)
	if *word&bit == 0 {
		*word |= bit
		s.list = append(s.list, n)
	}
}

// drop removes the first n numbers.
func (s *cqSet) drop(n int) {
	for _, cqn := range s.list[:n] {
		s.pages[cqn/pageCQs][cqn%pageCQs/64] &^= 1 << (cqn % 64)
	}
	s.list = s.list[:copy(s.list, s.list[n:])]
	if len(s.list) == 0 && len(s.pages) > maxPages {
		clear(s.pages)
	}
}
