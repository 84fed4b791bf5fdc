// Package credit counts the transaction resources of Falcon §8.2.3: six counters, and two for the
// network pools of §8.2.4, at every level of the tree
//
//	connection ─▶ function ─▶ host ─▶ NIC
//
// A transaction takes its cost at all levels or at none; when it completes the same cost is
// returned. The sum of the children's limits may exceed the parent's (oversubscription): the
// parent's own counters are the global counters that §8.2.3 asks for.
//
// A node may hold a guarantee: that part is set aside in its parent for it alone, whatever the
// others use. The parent is charged max(guarantee, in use) for each child, so a flooding sibling
// runs out of the shared part first.
//
// Several trees may share a Pool at a level, a shard's each: they lease parts of it, and a
// guarantee in one tree is leased for as long as it lasts.
//
// The package is pure arithmetic: no locks, no time, no allocation after New. One goroutine (the
// shard) owns a tree; a Pool is shared by atomic counters.
package credit
