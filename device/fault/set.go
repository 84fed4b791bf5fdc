package fault

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// MaxRules is the most rules of one function.
const MaxRules = 64

// Time is in nanoseconds.
type Time = int64

// Set holds the rules of one function.
type Set struct {
	rules []*Active
	next  uint32
}

// Active is a rule in a Set.
type Active struct {
	parsed
	ID    uint32
	Seen  uint64 // number of operations that matched
	Hits  uint64
	since Time
	ends  Time
	dice  *rand.Rand
}

// Status returns the status that a command or a work request ends with.
func (a *Active) Status() uint32 { return a.status }

// Over reports whether the rule has ended.
func (a *Active) Over(now Time) bool {
	return now >= a.ends || a.Limit != 0 && a.Hits >= a.Limit || a.Nth != 0 && a.Seen >= a.Nth
}

// Add adds a rule and returns its Active.
func (s *Set) Add(now Time, r Rule) (*Active, error) {
	p, err := r.parse()
	if err != nil {
		return nil, err
	}
	s.rules = slices.DeleteFunc(s.rules, func(a *Active) bool { return len(s.rules) >= MaxRules && a.Over(now) })
	if len(s.rules) >= MaxRules {
		return nil, fmt.Errorf("%s: the function has %d rules already; clear some (vnic inject clear)", r.Kind, MaxRules)
	}
	s.next++
	a := &Active{parsed: p, ID: s.next, since: now, ends: math.MaxInt64, dice: rand.New(rand.NewPCG(r.Seed, 0x766e6963))}
	if r.ForNS > 0 {
		a.ends = now + r.ForNS
	}
	s.rules = append(s.rules, a)
	return a, nil
}

// Remove removes a rule, or all with ID 0. It reports whether there was one.
func (s *Set) Remove(id uint32) bool {
	n := len(s.rules)
	s.rules = slices.DeleteFunc(s.rules, func(a *Active) bool { return id == 0 || a.ID == id })
	return len(s.rules) < n
}

// Rules returns the rules, the oldest first.
func (s *Set) Rules() []*Active { return s.rules }

// Hit returns the first rule of a kind that makes an operation fail, nil if none does. It counts
// the operation for each rule that matches.
func (s *Set) Hit(now Time, k Kind, o *Operation) (hit *Active) {
	for _, a := range s.rules {
		if a.Kind != k || a.Over(now) || !a.matches(o) {
			continue
		}
		a.Seen++
		strikes := (a.Nth == 0 || a.Seen == a.Nth) && (a.Every == 0 || a.Seen%a.Every == 0) &&
			(a.Probability == 0 || a.dice.Float64() < a.Probability)
		if strikes && hit == nil {
			a.Hits++
			hit = a
		}
	}
	return hit
}

// InForce reports whether a rule of a kind is active. It counts nothing.
func (s *Set) InForce(now Time, k Kind) bool {
	return slices.ContainsFunc(s.rules, func(a *Active) bool { return a.Kind == k && !a.Over(now) })
}

// Ends returns when the next rule ends by time, math.MaxInt64 if none does.
func (s *Set) Ends(now Time) Time {
	at := Time(math.MaxInt64)
	for _, a := range s.rules {
		if a.ends > now {
			at = min(at, a.ends)
		}
	}
	return at
}

// Since returns when the rule was added.
func (a *Active) Since() Time { return a.since }

// Remains returns how much longer the rule is active by time, 0 if it has no time limit.
func (a *Active) Remains(now Time) Time {
	if a.ends == math.MaxInt64 {
		return 0
	}
	return max(a.ends-now, 0)
}
