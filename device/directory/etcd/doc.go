// Package etcd carries a directory.Session to etcd: it is the one package that knows etcd's client
// besides the commands of operators.
//
//	Run, one goroutine:  Session.Step ─▶ asks ─▶ a goroutine for each, with a time limit
//	                     Session.Listed, Watched, … ◀─ answers
//	                     View changed ─▶ Config.Changed
//
// A Client that cannot reach etcd tries on, and says so once. Its methods may be called from any
// goroutine; Config.Changed is called on Run's, and nothing is read from etcd while it lasts.
//
// Watches ask for a leader (WithRequireLeader), so that a member that is cut off from the others ends
// them, and the client goes on with another member. Requests have etcd's own guarantee: lists are
// linearizable, so that a member that is behind cannot take the view back.
package etcd
