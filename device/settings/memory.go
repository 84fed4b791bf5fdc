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

// Store keeps the operators' settings of functions for the NIC's next run.
type Store interface {
	Load() ([]byte, error) // nil: nothing is stored
	Store(b []byte) error
}

// Memory holds the settings that operators made, by function. Settings that drivers of PFs made are
// not kept: those drivers make them again.
type Memory struct {
	store Store // nil: nothing is kept beyond the NIC's run

	mu      sync.Mutex
	changes map[pfvf.ID]control.FunctionChange
}

// NewMemory returns an empty memory.
func NewMemory(store Store) *Memory {
	return &Memory{store: store, changes: map[pfvf.ID]control.FunctionChange{}}
}

// Note records a change that was applied. For each key it records the function's value after the
// change, since a change may name only a part of a value.
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
	return keep(m.store, m.changes)
}

// Forget drops what operators set of a function: the configuration counts for these keys now.
// "enabled" stands for enabling and disabling.
func (m *Memory) Forget(id pfvf.ID, keys []string) error {
	if m.store == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	all, has := m.changes[id]
	if !has {
		return nil
	}
	all.Set = maps.Clone(all.Set)
	for _, key := range keys {
		if delete(all.Set, key); key == "enabled" {
			all.Action = ""
		}
	}
	if m.changes[id] = all; all.Action == "" && len(all.Set) == 0 {
		delete(m.changes, id)
	}
	return keep(m.store, m.changes)
}

// keep stores what a memory holds.
func keep(in Store, changes any) error {
	b, err := json.Marshal(changes)
	if err != nil {
		return err
	}
	return in.Store(b)
}

// Recall applies the settings that the memory kept from the earlier run. It drops those that set
// refuses, and returns the refusals.
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
	for progress := true; progress; { // one function may need what another gives up
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
