// Package credit counts the transaction resources of Falcon §8.2.3: six counters, and two for the
// network pools of §8.2.4. It counts them at every level of the tree
//
//	connection ─▶ function ─▶ host ─▶ NIC
//
// A transaction takes its cost at all levels or at none. When it completes, the same cost is
// returned. The sum of the children's limits may exceed the parent's (oversubscription): the
// parent's own counters are the global counters that §8.2.3 asks for.
//
// A node may hold a guarantee. The parent sets that part aside for this node alone, whatever the
// others use: it is charged max(guarantee, in use) for each child. A flooding sibling therefore
// runs out of the shared part first.
//
// Several trees, one for each shard, may share a Pool at a level. They lease parts of it. A
// guarantee in a tree is leased for as long as it lasts.
//
// The package is pure arithmetic: no locks, no time, no allocation after New. One goroutine, the
// shard, owns a tree. Trees share a Pool by atomic counters.
package credit
