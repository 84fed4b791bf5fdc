package guest

import (
	"sync"
	"time"
)

// How long a guest may take to send its first message, and to read the last.
const (
	HelloTimeout = 10 * time.Second
	finalTimeout = 2 * time.Second
)

// Carrier is a control channel that is being served, as Sessions sees it.
type Carrier interface {
	// Expect sets the time that the driver has for its hello.
	Expect(d time.Duration)
	// Drop ends a channel whose driver has not said hello.
	Drop()
	// End ends the channel in an orderly way.
	End()
}

// Sessions holds the control channels that are being served, each by its own goroutine.
type Sessions struct {
	HelloTimeout time.Duration // for a guest's first message

	mu   sync.Mutex
	open map[Carrier]*served
	last uint64 // number of the newest channel
	end  bool
	wg   sync.WaitGroup
}

// served describes one of the channels.
type served struct {
	Key
	number  uint64 // in the order of arrival
	greeted bool   // it has a function
	ousted  bool
}

// Start serves c in a goroutine of its own. It returns false if the guest has limit channels
// already or all are being closed. At the limit, the oldest channel that has not said hello is
// ended to make room: an honest driver says it at once.
func (s *Sessions) Start(c Carrier, from Key, limit int, serve func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end || s.count(from) >= limit && !s.oust(from) {
		return false
	}
	if s.open == nil {
		s.open = map[Carrier]*served{}
	}
	s.last++
	s.open[c] = &served{Key: from, number: s.last}
	c.Expect(s.HelloTimeout) // before it can be ended to make room
	s.wg.Go(func() {
		defer func() {
			s.mu.Lock()
			delete(s.open, c)
			s.mu.Unlock()
		}()
		serve()
	})
	return true
}

// count returns how many channels a guest has, without those ended to make room.
func (s *Sessions) count(from Key) (n int) {
	for _, o := range s.open {
		if o.Key == from && !o.ousted {
			n++
		}
	}
	return n
}

// oust ends the oldest of a guest's channels that have not said hello, if there is one.
func (s *Sessions) oust(from Key) bool {
	var oldest Carrier
	for c, o := range s.open {
		if o.Key == from && !o.greeted && !o.ousted && (oldest == nil || o.number < s.open[oldest].number) {
			oldest = c
		}
	}
	if oldest == nil {
		return false
	}
	s.open[oldest].ousted = true
	oldest.Drop()
	return true
}

// greet records that a channel's driver has said hello. It returns false if the channel was already
// ended to make room.
func (s *Sessions) greet(c Carrier) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.open[c]
	if o == nil || o.ousted {
		return o == nil
	}
	o.greeted = true
	return true
}

// CloseAll ends all sessions and waits for them. Each channel ends after the device has released
// the guest's memory.
func (s *Sessions) CloseAll() {
	s.mu.Lock()
	s.end = true
	for c := range s.open {
		c.End()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// Begun returns how many channels were served so far.
func (s *Sessions) Begun() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}
