package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/controller"
)

// A NIC can change while it runs what its uplink does to packets, and its peers. All else of its
// configuration needs another start.

// sameNIC reports whether two configurations differ at most in what can change while the NIC runs.
func sameNIC(a, b []byte) bool {
	x, err := config.Parse(a)
	if err != nil {
		return false
	}
	y, err := config.Parse(b)
	if err != nil {
		return false
	}
	x.Uplink.Impair, y.Uplink.Impair = config.Impair{}, config.Impair{}
	x.Peers, y.Peers = nil, nil
	return reflect.DeepEqual(x, y)
}

// adapt writes the configuration of a host's NIC, and lets the running NIC do what changed in it.
func (h *host) adapt(ctx context.Context) error {
	text, err := os.ReadFile(h.Config())
	if err != nil {
		return err
	}
	was, err := config.Parse(text)
	if err != nil {
		return err
	}
	is, err := config.Parse([]byte(h.text))
	if err != nil {
		return err
	}
	nic := control.NewClient(h.Control())
	if !reflect.DeepEqual(was.Uplink.Impair, is.Uplink.Impair) {
		err = impair(ctx, nic, &is.Uplink.Impair)
	}
	for _, c := range peerChanges(was.Peers, is.Peers) {
		if err == nil {
			_, err = nic.ChangePeer(ctx, c)
		}
	}
	if err != nil {
		return fmt.Errorf("the NIC of host %s: %w", h.Name, err)
	}
	return os.WriteFile(h.Config(), []byte(h.text), 0o644)
}

// impair sets what the uplink of a NIC does to packets.
func impair(ctx context.Context, nic *control.Client, to *config.Impair) error {
	for direction, i := range map[string]config.Impairment{"tx": to.TX, "rx": to.RX} {
		set, err := json.Marshal(controller.DescribeImpairment(i))
		if err != nil {
			return err
		}
		if _, err := nic.InjectLink(ctx, control.LinkChange{Direction: direction, Clear: true, Set: set}); err != nil {
			return err
		}
	}
	return nil
}

// peerChanges returns what makes the peers of a NIC others. An address is taken from one peer before
// another one gets it.
func peerChanges(was, is []config.Peer) (changes []control.PeerChange) {
	find := func(list []config.Peer, name string) *config.Peer {
		if i := slices.IndexFunc(list, func(p config.Peer) bool { return p.Name == name }); i >= 0 {
			return &list[i]
		}
		return nil
	}
	var sets, adds []control.PeerChange
	for i := range was {
		old := &was[i]
		now := find(is, old.Name)
		if now != nil && reflect.DeepEqual(old, now) {
			continue
		}
		kept := *old
		kept.Functions = slices.DeleteFunc(slices.Clone(old.Functions), func(f config.PeerFunction) bool { return now == nil || !slices.Contains(now.Functions, f) })
		switch {
		case len(kept.Functions) == 0: // without a list it might have any address
			changes = append(changes, control.PeerChange{Action: "remove", Name: old.Name})
			if now != nil {
				adds = append(adds, peerChange("add", now))
			}
		default:
			if len(kept.Functions) < len(old.Functions) {
				changes = append(changes, peerChange("set", &kept))
			}
			sets = append(sets, peerChange("set", now))
		}
	}
	for i := range is {
		if find(was, is[i].Name) == nil {
			adds = append(adds, peerChange("add", &is[i]))
		}
	}
	return slices.Concat(changes, sets, adds)
}

func peerChange(action string, p *config.Peer) control.PeerChange {
	underlay, cm := p.Underlay.String(), p.CM.String()
	addresses := []control.PeerAddress{}
	for _, f := range p.Functions {
		addresses = append(addresses, control.PeerAddress{Tenant: f.Tenant, Address: f.Address.String()})
	}
	return control.PeerChange{Action: action, Name: p.Name, Underlay: &underlay, CM: &cm, Tenants: &p.Tenants, Addresses: &addresses}
}
