package transport

// Wire is one kind of transport in an engine: what the engine does for all of its connections. How
// connections are made is each wire's own matter; whoever makes them gives them to queue pairs.
type Wire interface {
	// CreditsChanged says that a queue pair needs no more of the credit it was offered, or that
	// some was returned elsewhere: those that wait may look again.
	CreditsChanged()
}

// Driven is a wire that the engine drives, because nobody else does.
type Driven interface {
	Wire
	// Run carries what can be carried now. It reports whether there is work left for Run at once.
	Run(now Time) (more bool)
	// Ready reports the same, Deadline when there is some later.
	Ready() bool
	Deadline() Time
}

// Host is the engine that a wire is part of.
type Host interface {
	// CreditsChanged tells all wires that credit was returned.
	CreditsChanged()
}
