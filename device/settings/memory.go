package settings

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// Store keeps what operators set of functions for the NIC that runs after this one.
type Store interface {
	Load() ([]byte, error) // nil: nothing was set
	Store(b []byte) error
}

// Memory is what operators set, function by function. What drivers of PFs set is theirs to set
// again.
type Memory struct {
	store Store // nil: it goes with the NIC

	mu      sync.Mutex
	changes map[pfvf.ID]control.FunctionChange
}

// NewMemory returns a memory that knows nothing yet.
func NewMemory(store Store) *Memory {
	return &Memory{store: store, changes: map[pfvf.ID]control.FunctionChange{}}
}

// Note remembers a change that came into force. What counts of a key is the value that the function
// has then: a change may have said only what is to be different.
func (m *Memory) Note(id pfvf.ID, c *control.FunctionChange, is *config.Function) error {
	if m.store == nil || c.Action == "reset" || c.Action == "" && len(c.Set) == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.changes[id]
	all.Function = id.String()
	if c.Action != "" {
		all.Action = c.Action
	}
	if all.Set = maps.Clone(all.Set); all.Set == nil {
		all.Set = map[string]string{}
	}
	for name := range c.Set {
		if s := Find(name); s != nil {
			all.Set[s.Key] = s.Text(is)
		}
	}
	m.changes[id] = all
	b, err := json.Marshal(m.changes)
	if err != nil {
		return err
	}
	return m.store.Store(b)
}

// Recall sets functions as they were set in the NIC before. What set refuses is forgotten, and
// told.
func (m *Memory) Recall(set func(pfvf.ID, *control.FunctionChange) error) (refused map[pfvf.ID]error, err error) {
	if m.store == nil {
		return nil, nil
	}
	b, err := m.store.Load()
	if err != nil || b == nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := json.Unmarshal(b, &m.changes); err != nil {
		return nil, fmt.Errorf("settings of functions: %w", err)
	}
	left := slices.Sorted(maps.Keys(m.changes))
	for progress := true; progress; { // one may need what another gives up
		progress, refused = false, map[pfvf.ID]error{}
		left = slices.DeleteFunc(left, func(id pfvf.ID) bool {
			c := m.changes[id]
			err := set(id, &c)
			if progress = progress || err == nil; err != nil {
				refused[id] = err
			}
			return err == nil
		})
	}
	for _, id := range left {
		delete(m.changes, id)
	}
	return refused, nil
}
