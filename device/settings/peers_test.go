package settings

import (
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/falcon-vnic/vnic/device/config"
)

// keptPeers is a Store in memory.
type keptPeers struct{ b []byte }

func (k *keptPeers) Load() ([]byte, error) { return k.b, nil }
func (k *keptPeers) Store(b []byte) error  { k.b = b; return nil }

// TestTheNextRunHasThePeersAsOperatorsLeftThem: changes are applied to the configuration of the
// next run; what is forgotten is as the configuration says.
func TestTheNextRunHasThePeersAsOperatorsLeftThem(t *testing.T) {
	named := func(name string, tenants ...uint32) config.Peer {
		return config.Peer{Name: name, Tenants: tenants}
	}
	var store keptPeers
	m := NewPeerMemory(&store)
	changed, added := named("2", 9), named("4", 1)
	for name, is := range map[string]*config.Peer{"2": &changed, "3": nil, "4": &added} {
		if err := m.Note(name, is); err != nil {
			t.Fatal(err)
		}
	}
	recall := func() string {
		list, err := NewPeerMemory(&store).Recall([]config.Peer{named("1", 1), named("2", 1), named("3", 1)})
		if err != nil {
			t.Fatal(err)
		}
		var s []string
		for i := range list {
			s = append(s, fmt.Sprint(list[i].Name, list[i].Tenants))
		}
		return fmt.Sprint(s)
	}
	if got := recall(); got != "[1[1] 2[9] 4[1]]" {
		t.Error(got)
	}
	if err := m.Forget("2", "4"); err != nil {
		t.Fatal(err)
	}
	if got := recall(); got != "[1[1] 2[1]]" {
		t.Error(got)
	}
	store.b = []byte("{")
	if _, err := NewPeerMemory(&store).Recall(nil); err == nil {
		t.Error("nonsense was taken")
	}
}

// TestPeersAreAsConfiguredWithoutAStore: nothing is kept, and nothing is missed.
func TestPeersAreAsConfiguredWithoutAStore(t *testing.T) {
	listed := []config.Peer{{Name: "1"}}
	for _, m := range []*PeerMemory{nil, NewPeerMemory(nil), NewPeerMemory(&keptPeers{})} {
		list, err := m.Recall(listed)
		if err = errors.Join(err, m.Note("2", nil), m.Forget("1")); err != nil || !reflect.DeepEqual(list, listed) {
			t.Errorf("%+v, %v", list, err)
		}
	}
}
