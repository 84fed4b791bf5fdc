package transport

// Wire is one kind of transport in an engine: what the engine does for all of its connections. How
// connections are made is each wire's own matter; whoever makes them gives them to queue pairs.
type Wire interface {
	// Run carries what can be carried now.
	Run(now Time)
	// Ready reports whether there is work for Run at once, Deadline when there is some later.
	Ready() bool
	Deadline() Time
	// CreditsChanged says that a queue pair needs no more of the credit it was offered, or that some
	// was returned elsewhere: those that wait may look again.
	CreditsChanged()
}

// Host is the engine that a wire is part of.
type Host interface {
	// CreditsChanged tells all wires that credit was returned.
	CreditsChanged()
}
