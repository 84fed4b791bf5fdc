package transport

// Wire is one kind of transport in an engine, with what the engine needs for all its connections
// together. Each wire has its own way to open connections; the code that opens them assigns them to
// queue pairs.
type Wire interface {
	// CreditsChanged reports that a queue pair does not need credit that it was offered, or that
	// credit was returned elsewhere. Connections that wait for credit may try again.
	CreditsChanged()
}

// Driven is a wire that the engine itself drives.
type Driven interface {
	Wire
	// Run does the work that is possible now. It reports whether there is work left for Run at
	// once.
	Run(now Time) (more bool)
	// Ready reports whether Run has work now. Deadline returns when it has work next.
	Ready() bool
	Deadline() Time
}

// Host is the engine that a wire is part of.
type Host interface {
	// CreditsChanged tells all wires that credit was returned.
	CreditsChanged()
}
