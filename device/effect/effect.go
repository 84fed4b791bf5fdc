package effect

// Effect is one action outside a Step. Effects that are needed often, like interrupts, are objects
// that are created once, so that adding them allocates nothing.
type Effect interface{ Do() }

// Func is an effect that is needed rarely.
type Func func()

// Do calls f.
func (f Func) Do() { f() }

// List is a list of effects, in the order in which they were added. The zero value is empty.
type List struct{ waiting []Effect }

// Add adds an effect.
func (l *List) Add(e Effect) { l.waiting = append(l.waiting, e) }

// Take moves the effects of from to the end of l.
func (l *List) Take(from *List) {
	l.waiting = append(l.waiting, from.waiting...)
	from.forget()
}

// Waiting returns the effects that were added and not run yet. It is valid until the next call.
func (l *List) Waiting() []Effect { return l.waiting }

// Do runs all effects, in order. An effect must not add others.
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
