package settings

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/falcon-vnic/vnic/device/config"
)

// PeerMemory holds what operators changed of the peers in the configuration, for the NIC's next run.
type PeerMemory struct {
	store Store // nil: nothing is kept beyond the NIC's run

	mu      sync.Mutex
	changes map[string]*config.Peer // by name; nil: removed
}

// NewPeerMemory returns an empty memory.
func NewPeerMemory(store Store) *PeerMemory {
	return &PeerMemory{store: store, changes: map[string]*config.Peer{}}
}

// Note records what a peer is after a change; nil: it was removed.
func (m *PeerMemory) Note(name string, is *config.Peer) error {
	if m == nil || m.store == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changes[name] = is
	return keep(m.store, m.changes)
}

// Forget drops what is known of peers: the configuration counts for them now.
func (m *PeerMemory) Forget(names ...string) error {
	if m == nil || m.store == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range names {
		delete(m.changes, name)
	}
	return keep(m.store, m.changes)
}

// Recall returns the peers of a configuration with the changes that the memory kept from the earlier
// run.
func (m *PeerMemory) Recall(list []config.Peer) ([]config.Peer, error) {
	if m == nil || m.store == nil {
		return list, nil
	}
	b, err := m.store.Load()
	if err != nil || b == nil {
		return list, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := json.Unmarshal(b, &m.changes); err != nil {
		return list, fmt.Errorf("changes of peers: %w", err)
	}
	for _, c := range m.changes {
		if c != nil {
			c.Complete() // an older NIC kept no names
		}
	}
	var is []config.Peer
	for i := range list {
		c, changed := m.changes[list[i].Name]
		switch {
		case !changed:
			is = append(is, list[i])
		case c != nil:
			is = append(is, *c)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.changes)) {
		known := slices.ContainsFunc(list, func(p config.Peer) bool { return p.Name == name })
		if c := m.changes[name]; c != nil && !known {
			is = append(is, *c)
		}
	}
	return is, nil
}
