package guest

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/workload"
	"github.com/falcon-vnic/vnic/queues/abi"
)

func Command() *cobra.Command {
	guest := &cobra.Command{Use: "guest", Short: "the guest side: attach to a function and use it"}
	url := cmp.Or(os.Getenv(cli.DeviceVariable), fmt.Sprintf("vsock://2:%d", abi.Port))
	guest.PersistentFlags().VarP((*deviceURL)(&url), "device", "d",
		"the function: vsock://2:PORT or pci:// in a guest, unix:///PATH without a VM; ?function=pf0.vf1 where several are assigned (default also: $"+cli.DeviceVariable+")")

	var asJSON bool
	var samples int
	info := &cobra.Command{
		Use: "info", Short: "the function, its features, and what it costs to reach it", Args: cli.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return guestInfo(cmd.Context(), url, samples, asJSON, cmd.OutOrStdout())
		},
	}
	cli.JSONFlag(info.Flags(), &asJSON)
	info.Flags().IntVar(&samples, "samples", 200, "round trips to measure; 0: none")

	guest.AddCommand(info, workloadCommand(&url), latencyCommand(&url), perfCommand(&url), conformCommand(&url), agentCommand())
	return guest
}

// guestDescription is what `vnic guest info --json` prints.
type guestDescription struct {
	Device   string           `json:"device"`
	Function string           `json:"function"`
	Type     string           `json:"type"`
	MAC      string           `json:"mac"`
	GID      string           `json:"gid"`
	Tenant   uint32           `json:"tenant"`
	MTU      int              `json:"mtu"`
	Features uint64           `json:"features"`
	Limits   guestlib.Limits  `json:"limits"`
	Memory   []guestlib.Range `json:"memory"` // device addresses that can be registered
	Path     string           `json:"path"`
	Latency  guestlib.Latency `json:"latency"`
}

// deviceURL is the value of the flag --device: the URL of a function for guestlib.
type deviceURL string

func (u *deviceURL) String() string { return string(*u) }
func (u *deviceURL) Type() string   { return "URL" }

// Set implements pflag.Value.
func (u *deviceURL) Set(s string) error {
	*u = deviceURL(s)
	return guestlib.CheckURL(s)
}

func guestInfo(ctx context.Context, url string, samples int, asJSON bool, w io.Writer) error {
	dev, err := guestlib.Open(ctx, url, guestlib.Options{Driver: "vnic guest info"})
	if err != nil {
		return err
	}
	defer dev.Close()
	info, limits := dev.Info(), dev.Limits()
	path, why := dev.Path()
	ranges, err := dev.Memory(ctx)
	if err != nil {
		return err
	}
	var cost guestlib.Latency
	if samples > 0 {
		if cost, err = dev.MeasureLatency(ctx, samples); err != nil {
			return err
		}
	}
	if asJSON {
		return cli.PrintJSON(w, guestDescription{
			Device: url, Function: info.Function.String(), Type: info.Type.String(), MAC: info.MAC.String(), GID: info.GID.String(),
			Tenant: info.Tenant, MTU: info.MTU, Features: info.Features, Limits: limits, Memory: ranges, Path: path, Latency: cost,
		})
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "device\t%s\n", url)
	fmt.Fprintf(tw, "function\t%v (%v)\n", info.Function, info.Type)
	fmt.Fprintf(tw, "MAC\t%v\n", info.MAC)
	fmt.Fprintf(tw, "GID\t%v\n", info.GID)
	fmt.Fprintf(tw, "tenant\t%d\n", info.Tenant)
	fmt.Fprintf(tw, "path MTU\t%d\n", info.MTU)
	fmt.Fprintf(tw, "limits\t%d QP, %d CQ, %d MR, %d PD, %d SRQ, %d XRC domains, %d MW, %d AH\n",
		limits.MaxQP, limits.MaxCQ, limits.MaxMR, limits.MaxPD, limits.MaxSRQ, limits.MaxXRCD, limits.MaxMW, limits.MaxAH)
	for i, r := range ranges {
		fmt.Fprintf(tw, "%s\t%v\n", [...]string{"memory", ""}[min(i, 1)], r)
	}
	fmt.Fprintf(tw, "path\t%s\n", path)
	if why != nil {
		fmt.Fprintf(tw, "no better path\t%v\n", why)
	}
	if samples > 0 {
		fmt.Fprintf(tw, "doorbell to service\t%.1f µs (a device that sleeps; medians of %d)\n", cost.DoorbellUS, cost.Samples)
		if cost.ShadowUS > 0 {
			fmt.Fprintf(tw, "\t%.1f µs (a device that is busy and looks by itself)\n", cost.ShadowUS)
		}
		fmt.Fprintf(tw, "completion to wake\t%.1f µs\n", cost.WakeUS)
	}
	return tw.Flush()
}

func workloadCommand(url *string) *cobra.Command {
	var cfg workload.Config
	var first, second bool
	var peer, ip string
	var lspci bool
	var module string
	cmd := &cobra.Command{
		Use:   "workload --first|--second --peer GID",
		Short: "run every operation and size with a peer and verify every byte, as the demo does",
		Long: `Start it on two guests, on one with --first and on the other with --second. The
first drives every operation while the second serves and checks; then they swap
roles. It prints one JSON line per result.

With --ip it also sets that address on the guest's Ethernet interface, and measures
TCP and UDP to the other guest with iperf3 at the same time. With --verbs it then gives
the function to the Linux driver, and runs ib_write_bw and rping with the other guest.`,
		Args: cli.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			gid, err := guestlib.ParseGID(peer)
			if err != nil {
				return cli.Usagef("--peer: %w", err)
			}
			cfg.URL, cfg.PeerGID, cfg.First, cfg.Out = *url, gid, first, cmd.OutOrStdout()
			if ip != "" {
				address, err := netip.ParsePrefix(ip)
				if err != nil {
					return cli.Usagef("--ip %q: write it as 192.168.100.11/24", ip)
				}
				t := &Traffic{Address: address, Peer: peer, Seconds: 2}
				cfg.Beside = t.Run
				if module != "" {
					v := &verbsPrograms{Module: module, Address: address.Addr(), Peer: peer, Serve: second}
					cfg.Then = v.run
				}
			}
			if lspci {
				showPCI(cmd.Context(), cmd.OutOrStdout())
			}
			return workload.Run(cmd.Context(), cfg)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&first, "first", false, "drive first, then serve")
	f.BoolVar(&second, "second", false, "serve first, then drive")
	f.StringVar(&peer, "peer", "", "tenant address of the other guest's function")
	f.Uint64Var(&cfg.Service, "service", 4791, "service number to meet at")
	f.IntVar(&cfg.Count, "count", 0, "operations per row (0: by size)")
	f.IntVar(&cfg.Repeat, "repeat", 1, "how often each of the two runs all operations")
	f.DurationVar(&cfg.Recover, "recover", time.Minute, "how long to retry after the NIC or the peer was lost (0s: not at all)")
	f.BoolVar(&lspci, "lspci", false, "show what lspci -vv says of the guest's functions")
	f.StringVar(&ip, "ip", "", "`address`/length of the guest's Ethernet interface: run plain IP too")
	f.StringVar(&module, "verbs", "", "`file` of the Linux driver: programs that use verbs after that; needs --ip")
	cmd.MarkFlagsOneRequired("first", "second")
	cmd.MarkFlagsMutuallyExclusive("first", "second")
	_ = cmd.MarkFlagRequired("peer")
	return cmd
}

// showPCI prints lspci's output for functions that are PCI devices with the default ids.
func showPCI(ctx context.Context, out io.Writer) {
	said, err := exec.CommandContext(ctx, "lspci", "-vvnn", "-d", "1af4:10f0").Output()
	if err != nil {
		said = fmt.Appendf(said, "lspci: %v", err)
	}
	for line := range strings.Lines(string(said)) {
		if line = strings.TrimRight(line, "\n"); line != "" {
			workload.Progress(out, line)
		}
	}
}
