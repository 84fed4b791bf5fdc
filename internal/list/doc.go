// Package list is the one intrusive list of the protocol rooms: the links are part of what is
// listed, so that queueing, leaving from the middle and moving never allocate and are O(1).
//
//	type QP struct {
//		ready list.Node[QP] // in its function's list of those with work
//		…
//	}
//	f.ready.PushBack(&q.ready, q) ─▶ f.ready.First() ─▶ q ─▶ q.ready.Remove()
//
// A node is in at most one list; something that is in several at once has a node for each. Lists
// and nodes belong to one goroutine, and their zero values are ready.
package list
