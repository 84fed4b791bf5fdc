package effect

// Effect is one thing to be done outside a Step. What is asked for again and again, like an
// interrupt, is an object that is made once, so that asking costs no memory.
type Effect interface{ Do() }

// Func is an effect that is asked for seldom.
type Func func()

// Do calls f.
func (f Func) Do() { f() }

// List is effects in the order in which they were asked for. The zero value is empty.
type List struct{ waiting []Effect }

// Add asks for an effect.
func (l *List) Add(e Effect) { l.waiting = append(l.waiting, e) }

// Take moves what from holds to the end of l.
func (l *List) Take(from *List) {
	l.waiting = append(l.waiting, from.waiting...)
	from.forget()
}

// Waiting is what was asked for and not done yet. It is valid until the next call.
func (l *List) Waiting() []Effect { return l.waiting }

// Do does everything, in order. An effect asks for no others.
func (l *List) Do() {
	for _, e := range l.waiting {
		e.Do()
	}
	l.forget()
}

func (l *List) forget() {
	clear(l.waiting)
	l.waiting = l.waiting[:0]
}
