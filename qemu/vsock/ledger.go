package vsock

import "encoding/binary"

// LedgerSize is the size of a Ledger's memory in bytes.
const LedgerSize = maxFlows * ledgerEntry

const ledgerEntry = 8

// Ledger records the flows of a Transport in memory that outlives the process, so that the next
// process can reset them. Otherwise a peer that only waits for data would not learn that its flows
// are gone. Whoever else has the memory clears it when the peer itself has lost its flows.
//
// An entry is the two ports of a flow, or 0. It is written with one store, because the process may
// be killed at any instruction. A nil Ledger records nothing.
type Ledger struct {
	mem  []byte
	slot map[flowKey]int
	free []int
}

// NewLedger returns a ledger in LedgerSize bytes of memory.
func NewLedger(mem []byte) *Ledger {
	l := &Ledger{mem: mem[:LedgerSize], slot: map[flowKey]int{}}
	l.load()
	return l
}

// load reads the memory.
func (l *Ledger) load() {
	l.forget()
	l.free = l.free[:0]
	for i := range maxFlows {
		if v := l.entry(i); v != 0 {
			l.slot[flowKey{local: uint32(v >> 32), remote: uint32(v)}] = i
		} else {
			l.free = append(l.free, i)
		}
	}
}

// forget leaves all flows in the memory, as at the end of the process.
func (l *Ledger) forget() {
	if l != nil {
		clear(l.slot)
	}
}

// has reports whether a flow is recorded.
func (l *Ledger) has(k flowKey) bool {
	if l == nil {
		return false
	}
	_, there := l.slot[k]
	return there
}

func (l *Ledger) entry(i int) uint64 { return binary.LittleEndian.Uint64(l.mem[i*ledgerEntry:]) }

func (l *Ledger) set(i int, v uint64) { binary.LittleEndian.PutUint64(l.mem[i*ledgerEntry:], v) }

func (l *Ledger) add(k flowKey) {
	if l == nil || l.has(k) || len(l.free) == 0 { // full: the other flows are still to be reset
		return
	}
	i := l.free[len(l.free)-1]
	l.free = l.free[:len(l.free)-1]
	l.slot[k] = i
	l.set(i, uint64(k.local)<<32|uint64(k.remote))
}

func (l *Ledger) remove(k flowKey) {
	if l == nil {
		return
	}
	if i, there := l.slot[k]; there {
		l.set(i, 0)
		delete(l.slot, k)
		l.free = append(l.free, i)
	}
}
