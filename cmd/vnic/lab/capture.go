package lab

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/cmd/vnic/lab/labfile"
	"github.com/falcon-vnic/vnic/device/capture"
)

func captureCommand(lab *string) *cobra.Command {
	var file, mode string
	var duration time.Duration
	c := &cobra.Command{
		Use:   "capture LINK|HOST|MACHINE -w FILE",
		Short: "record the packets of a link, a host's NIC, or a machine's port",
		Long: `Records until interrupted, or for --for. Of a link: what its switch carries, as the
kernel sees it. Of a host: what its NIC sends and receives, as "vnic capture" does it
(--mode). Of a machine: the frames of its port.`,
		Example: `  vnic lab capture a-b -w cable.pcapng --for 10s
  vnic lab capture a --mode clear -w - | wireshark -k -i -`,
		Args:              cli.Arguments(1, 1),
		ValidArgsFunction: completeNames(lab, func(p *plan) []string { return append(p.linkNames(), p.places()...) }),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := open(*lab)
			if err != nil {
				return err
			}
			words := []string{"capture", "-w", file, "--for", duration.String()}
			if h := p.host(args[0]); h != nil {
				return become(h.command(context.Background(), append([]string{program}, append(words, "--mode", mode)...)...))
			}
			if m := p.machine(args[0]); m != nil {
				return become(m.host.command(context.Background(), append([]string{program}, append(words, "--port", fmt.Sprintf("pf0.vf%d", m.VF))...)...))
			}
			link := labfile.DirectoryEtcd // the end of its cable at the switch
			if i := slices.Index(p.linkNames(), args[0]); i >= 0 {
				link = fmt.Sprintf("sw%d", i)
			} else if !p.isEtcd(args[0]) {
				return fmt.Errorf("lab %s has no link, host or machine %q; it has %s", p.Name, args[0], labfile.List(append(p.linkNames(), p.places()...)))
			}
			ctx, cancel := cmd.Context(), context.CancelFunc(func() {})
			if duration > 0 {
				ctx, cancel = context.WithTimeout(ctx, duration)
			}
			defer cancel()
			s, err := sniff(p.Name, link, file)
			if err != nil {
				return err
			}
			<-ctx.Done()
			n, err := s.Close()
			if err == nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "%d frames: %d PSP, %d ARP, %d others\n", n.Total(), n.PSP, n.ARP, n.Total()-n.PSP-n.ARP)
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVarP(&file, "write", "w", "", "`file` to make, with mode 0600; of hosts and machines also - for standard output")
	f.StringVar(&mode, "mode", "both", "of a host: sealed, clear or both")
	f.DurationVar(&duration, "for", 0, "how long; 0: until interrupted")
	_ = c.MarkFlagRequired("write")
	_ = c.RegisterFlagCompletionFunc("mode", cli.Words("sealed", "clear", "both"))
	return c
}

// sniff records what a link in a namespace carries.
func sniff(space, link, file string) (s *capture.Sniffer, err error) {
	err = inNetns(space, func() (err error) {
		s, err = capture.Sniff(link, file)
		return err
	})
	return s, err
}
