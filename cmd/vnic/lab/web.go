package lab

import (
	"fmt"
	"io"
	"math"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/web"
)

// page is where the page of a host's NIC is, as `vnic lab web --json` prints it.
type page struct {
	Host string `json:"host"`
	URL  string `json:"url"`
}

func webCommand(name *string) *cobra.Command {
	var port uint16
	var asJSON bool
	c := &cobra.Command{
		Use:   "web",
		Short: "show the lab's NICs in the browser",
		Long: `Serves a page for each host's NIC until it is interrupted, at ports of 127.0.0.1 that
follow each other. It asks the NICs by their control sockets, so it goes on when they
start again.`,
		Example: `  vnic lab web
  vnic lab web --port 8000`,
		Args: cli.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := open(*name)
			if err != nil {
				return err
			}
			if port > 0 && int(port)+len(p.hosts)-1 > math.MaxUint16 {
				return cli.Usagef("--port %d: lab %s has %d hosts, and ports end at %d: choose at most %d", port, p.Name, len(p.hosts), math.MaxUint16, math.MaxUint16-len(p.hosts)+1)
			}
			var pages []page
			for i, h := range p.hosts {
				at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port+uint16(i))
				if port == 0 {
					at = netip.AddrPortFrom(at.Addr(), 0)
				}
				s, err := web.Serve(at.String(), nil, control.NewClient(h.Control()))
				if err != nil {
					return fmt.Errorf("page of host %s: %w; choose other ports by --port", h.Name, err)
				}
				defer s.Close()
				pages = append(pages, page{h.Name, "http://" + s.Addr().String() + "/"})
			}
			if asJSON {
				err = cli.PrintJSON(cmd.OutOrStdout(), pages)
			} else {
				err = cli.PrintTable(cmd.OutOrStdout(), func(w io.Writer) {
					for _, p := range pages {
						fmt.Fprintf(w, "%s\t%s\n", p.Host, p.URL)
					}
				})
			}
			if err == nil {
				<-cmd.Context().Done()
			}
			return err
		},
	}
	c.Flags().Uint16Var(&port, "port", 9480, "`port` of the first host; 0: any for each")
	cli.JSONFlag(c.Flags(), &asJSON)
	return c
}
