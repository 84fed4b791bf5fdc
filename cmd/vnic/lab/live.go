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
	"github.com/falcon-vnic/vnic/device/files"
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

// differs reports whether a running NIC is to change: its configuration, or the peers that it has.
func (h *host) differs(text string, has []control.Peer) bool {
	is, err := config.Parse([]byte(h.text))
	return err == nil && (text != h.text || h.Etcd == nil && len(peerChanges(has, is.Peers)) > 0)
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
	if err == nil && h.Etcd == nil {
		err = h.adaptPeers(ctx, nic, is.Peers)
	}
	if err != nil {
		return fmt.Errorf("the NIC of host %s: %w", h.Name, err)
	}
	return files.Replace(h.Config(), []byte(h.text), 0o644)
}

// adaptPeers gives a NIC the peers of its configuration.
func (h *host) adaptPeers(ctx context.Context, nic *control.Client, is []config.Peer) error {
	has, err := nic.Peers(ctx)
	for _, c := range peerChanges(has, is) {
		if err == nil {
			_, err = nic.ChangePeer(ctx, c)
		}
	}
	return err
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

// peerChanges returns the changes that turn a NIC's peers into those of its configuration, even if
// somebody changed them while it ran. An address is taken from one peer before another one gets it.
func peerChanges(has []control.Peer, is []config.Peer) (changes []control.PeerChange) {
	var sets, adds []control.PeerChange
	for i := range has {
		old := &has[i]
		at := slices.IndexFunc(is, func(p config.Peer) bool { return p.Name == old.Name })
		if at < 0 {
			changes = append(changes, control.PeerChange{Action: "remove", Name: old.Name})
			continue
		}
		change := peerChange("set", &is[at])
		if changesNothing(old, &change) {
			continue
		}
		kept := slices.DeleteFunc(slices.Clone(old.Addresses), func(a control.PeerAddress) bool { return !slices.Contains(*change.Addresses, a) })
		if len(kept) == 0 { // without a list it might have any address
			changes = append(changes, control.PeerChange{Action: "remove", Name: old.Name})
			change.Action = "add"
			adds = append(adds, change)
			continue
		}
		if len(kept) < len(old.Addresses) {
			changes = append(changes, control.PeerChange{Action: "set", Name: old.Name, Addresses: &kept})
		}
		sets = append(sets, change)
	}
	for i := range is {
		if !slices.ContainsFunc(has, func(p control.Peer) bool { return p.Name == is[i].Name }) {
			adds = append(adds, peerChange("add", &is[i]))
		}
	}
	return slices.Concat(changes, sets, adds)
}

// changesNothing reports whether a peer is already as a change makes it.
func changesNothing(p *control.Peer, c *control.PeerChange) bool {
	return p.Underlay == *c.Underlay && p.CM == *c.CM && equalSets(p.Tenants, *c.Tenants) && equalSets(p.Addresses, *c.Addresses)
}

func equalSets[T comparable](a, b []T) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(v T) bool { return !slices.Contains(b, v) })
}

func peerChange(action string, p *config.Peer) control.PeerChange {
	underlay, cm := p.Underlay.String(), p.CM.String()
	addresses := []control.PeerAddress{}
	for _, f := range p.Functions {
		addresses = append(addresses, control.PeerAddress{Tenant: f.Tenant, Address: f.Address.String()})
	}
	return control.PeerChange{Action: action, Name: p.Name, Underlay: &underlay, CM: &cm, Tenants: &p.Tenants, Addresses: &addresses}
}
