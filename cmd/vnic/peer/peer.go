package peer

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/device/control"
)

// Command returns `vnic peer`.
func Command() *cobra.Command {
	var o cli.NIC
	peer := &cobra.Command{Use: "peer", Short: "list, add, change and remove the peers of a running NIC"}
	o.Flags(peer.PersistentFlags())
	peer.AddCommand(listCommand(&o), changeCommand(&o, "add"), changeCommand(&o, "set"), removeCommand(&o))
	return peer
}

func listCommand(o *cli.NIC) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "the NIC's peers, where they are and what they may have", Args: cli.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := o.Client().Peers(cmd.Context())
			if err != nil {
				return err
			}
			return o.Print(cmd, list, func(w io.Writer) { Print(w, list) })
		},
	}
}

// Print writes a table of peers.
func Print(w io.Writer, list []control.Peer) {
	fmt.Fprintln(w, "PEER\tHOST\tUNDERLAY\tCM\tTENANTS\tADDRESSES\tSTATE\tFUNCTIONS\tCONNECTIONS\tNOTE")
	for _, p := range list {
		host, state := "-", "down"
		if p.Host != 0 {
			host = strconv.Itoa(int(p.Host))
		}
		if p.Up {
			state = "up"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\n", p.Name, host, p.Underlay, cmp.Or(p.CM, "-"), numbers(p.Tenants), addresses(p.Addresses), state, p.Functions, p.Connections, p.Note)
	}
}

func numbers(list []uint32) string {
	var s []string
	for _, n := range list {
		s = append(s, strconv.FormatUint(uint64(n), 10))
	}
	return strings.Join(s, ",")
}

func addresses(list []control.PeerAddress) string {
	if len(list) == 0 {
		return "any"
	}
	var s []string
	for _, a := range list {
		s = append(s, fmt.Sprintf("%d:%s", a.Tenant, a.Address))
	}
	return strings.Join(s, ",")
}

const addLong = `Adds a peer, while the NIC runs. NAME is the name in its certificate: that
of host-NAME.pem. The peer needs to know this NIC, too: run the command there as well.`

const setLong = `Changes a peer, while the NIC runs: what a flag names is replaced, all else stays.
Connections go on, unless the peer may no longer have their tenant or address.`

const lasts = `

The change lasts until vnic run ends. Write it to the configuration, too, if it is to
last longer; vnic reload then finds that nothing is left to do.`

// changeCommand returns `vnic peer add` or `vnic peer set`.
func changeCommand(o *cli.NIC, action string) *cobra.Command {
	var identity, underlay, cm string
	var host uint8
	var tenants string
	var has []string
	cmd := &cobra.Command{
		Use: action + " NAME", Args: cli.Arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c := control.PeerChange{Action: action, Name: args[0]}
			given := cmd.Flags().Changed
			if given("identity") {
				c.Identity = &identity
			}
			if given("underlay") {
				c.Underlay = &underlay
			}
			if given("cm") {
				c.CM = &cm
			}
			if given("host") {
				c.Host = &host
			}
			if given("tenants") {
				list, err := parseTenants(tenants)
				if err != nil {
					return err
				}
				c.Tenants = &list
			}
			if given("address") {
				list, err := parseAddresses(has)
				if err != nil {
					return err
				}
				c.Addresses = &list
			}
			return change(cmd, o, c)
		},
	}
	f := cmd.Flags()
	f.StringVar(&underlay, "underlay", "", "its uplink.address without prefix length, or ADDRESS:PORT")
	f.StringVar(&cm, "cm", "", "its cm.listen, as 192.0.2.2:7471 (default: it dials this NIC)")
	f.StringVar(&tenants, "tenants", "", "`numbers` of tenants that it may use, as 1,2")
	f.StringArrayVar(&has, "address", nil, "`TENANT:ADDRESS` that is at this peer, and in that tenant no others; again for more; \"\" for any")
	f.Uint8Var(&host, "host", 0, "its nic.host; a peer that says another is refused (default: what it says)")
	if action == "add" {
		cmd.Short, cmd.Long = "add a peer", addLong+lasts
		cmd.Example = "  vnic peer add rack1-c --underlay 10.0.0.3 --cm 192.0.2.3:7471 --tenants 1"
		f.StringVar(&identity, "identity", "", "URI that its certificate must carry (default: NAME in this NIC's domain)")
		return cmd
	}
	cmd.Short, cmd.Long = "change a peer", setLong+lasts
	cmd.Example = "  vnic peer set 3 --underlay 10.0.1.3\n  vnic peer set 2 --tenants 1,2 --address 1:192.168.100.21 --address 2:192.168.200.21"
	cmd.ValidArgsFunction = cli.ByPosition(completePeers)
	return cmd
}

func parseTenants(text string) (list []uint32, err error) {
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(word), 10, 32)
		if err != nil {
			return nil, cli.Usagef("--tenants %q: write the numbers of tenants, as 1,2", text)
		}
		list = append(list, uint32(n))
	}
	return list, nil
}

func parseAddresses(texts []string) ([]control.PeerAddress, error) {
	list := []control.PeerAddress{}
	for _, text := range texts {
		if text == "" {
			continue
		}
		tenant, addr, _ := strings.Cut(text, ":")
		n, err := strconv.ParseUint(tenant, 10, 32)
		if err == nil {
			_, err = netip.ParseAddr(addr)
		}
		if err != nil {
			return nil, cli.Usagef("--address %q: write TENANT:ADDRESS, as 1:192.168.100.21", text)
		}
		list = append(list, control.PeerAddress{Tenant: uint32(n), Address: addr})
	}
	return list, nil
}

func removeCommand(o *cli.NIC) *cobra.Command {
	return &cobra.Command{
		Use: "remove NAME", Short: "remove a peer: its link, connections, tunnels and keys end",
		Long: `Removes a peer. Drivers on both sides are told that the connections have ended.

The change lasts until vnic run ends. Remove the peer from the configuration, too, if
it is to last longer.`,
		Args: cli.Arguments(1, 1), ValidArgsFunction: cli.ByPosition(completePeers),
		RunE: func(cmd *cobra.Command, args []string) error {
			return change(cmd, o, control.PeerChange{Action: "remove", Name: args[0]})
		},
	}
}

// change asks the NIC for a change, and prints the peers that it has then.
func change(cmd *cobra.Command, o *cli.NIC, c control.PeerChange) error {
	list, err := o.Client().ChangePeer(cmd.Context(), c)
	if err != nil {
		return err
	}
	return o.Print(cmd, list, func(w io.Writer) { Print(w, list) })
}

// completePeers offers the peers of the NIC.
var completePeers = cli.FromNIC(func(ctx context.Context, c *control.Client) (names []string) {
	list, _ := c.Peers(ctx)
	for _, p := range list {
		names = append(names, p.Name)
	}
	return names
})
