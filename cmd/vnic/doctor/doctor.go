package doctor

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
)

// Finding is something that is wrong.
type Finding struct {
	Check  string `json:"check"`
	About  string `json:"about,omitempty"` // a file, a socket, a device; "": the machine
	Wrong  string `json:"wrong"`
	Remedy string `json:"remedy"`
}

// report is what `vnic doctor --json` prints.
type report struct {
	Looked   []string  `json:"looked"` // at which files and sockets
	Checks   int       `json:"checks"`
	Findings []Finding `json:"findings"`
}

// errFound is the error of a command that has found something.
var errFound = errors.New("something is wrong; see above")

// Command returns `vnic doctor`. check finds what a machine lacks for a configuration, as `vnic run
// --check` does.
func Command(check machineCheck) *cobra.Command {
	o := options{check: check}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "say what is wrong with this machine, configurations and running NICs, and what to do",
		Long: `Looks at the machine, at the configurations that -c names, and at the NICs that run:
those of these configurations, and those at the control sockets that -s names. It
changes nothing. For each thing that is wrong it prints what it is and what to do,
and it ends with status 1 if there is one.

Run it as the user that runs the NICs, mostly root: control sockets open to that user
only. Without -c it looks at /etc/vnic/nic.yaml, if there is one.`,
		Example: `  vnic doctor
  vnic doctor -c nic1.yaml -c nic2.yaml
  vnic doctor -s /run/vnic/control.sock --json`,
		Args: cli.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s := look(cmd.Context(), &o, cmd.Root().Version)
			r := report{Looked: s.looked(), Checks: len(checks), Findings: s.findings()}
			if asJSON {
				if err := cli.PrintJSON(cmd.OutOrStdout(), r); err != nil {
					return err
				}
			} else {
				r.print(cmd.OutOrStdout())
			}
			if len(r.Findings) > 0 {
				return errFound
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringArrayVarP(&o.files, "config", "c", nil, "`file` with the configuration of a NIC; again for more")
	f.StringArrayVarP(&o.sockets, "socket", "s", nil, "`path` of the control socket of a running NIC; again for more")
	f.StringVar(&o.user, "qemu-user", "", "`user` that runs QEMU (default libvirt-qemu, if there is one)")
	cli.JSONFlag(f, &asJSON)
	return cmd
}

// findings returns what all checks find.
func (s *seen) findings() []Finding {
	list := []Finding{}
	for _, c := range checks {
		for _, w := range c.find(s) {
			list = append(list, Finding{c.name, w.about, w.what, c.remedy})
		}
	}
	return list
}

func (r *report) print(w io.Writer) {
	for _, f := range r.Findings {
		about := f.About
		if about != "" {
			about += ": "
		}
		fmt.Fprintf(w, "%s: %s%s\n  %s\n", f.Check, about, strings.ReplaceAll(f.Wrong, "\n", "\n  "), f.Remedy)
	}
	what := "this machine"
	if len(r.Looked) > 0 {
		what += ", " + strings.Join(r.Looked, ", ")
	}
	fmt.Fprintf(w, "looked at %s: %d checks, %d found something wrong\n", what, r.Checks, len(r.failed()))
}

// failed returns the checks that found something.
func (r *report) failed() map[string]bool {
	names := map[string]bool{}
	for _, f := range r.Findings {
		names[f.Check] = true
	}
	return names
}
