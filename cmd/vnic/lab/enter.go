package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/agent"
	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/cmd/vnic/lab/labfile"
)

// Ways into machines: a machine that is a namespace is entered by ip netns exec, a guest over vsock or
// by its console.

// run runs a command in a machine or on a host with this process's standard streams. It returns only if
// it cannot, or if the place is a guest.
func (p *plan) run(ctx context.Context, place string, argv ...string) error {
	m := p.machine(place)
	if m == nil || m.Guest == nil {
		cmd, err := p.command(context.Background(), place, argv...)
		if err != nil {
			return err
		}
		return become(cmd)
	}
	return m.withAgent(ctx, func(c net.Conn) error {
		begun := time.Now()
		status, err := agent.Run(c, argv, os.Stdin, os.Stdout, os.Stderr)
		switch {
		case err != nil && ctx.Err() == nil:
			return m.lost(ctx, begun, err)
		case err == nil && status != 0:
			err = cli.CommandFailed(status)
		}
		return err
	})
}

// withAgent calls do with a connection to a guest's agent, and closes it when ctx ends: a guest may stop in the
// middle.
func (m *machine) withAgent(ctx context.Context, do func(c net.Conn) error) error {
	c, err := m.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	return do(c)
}

// dial connects to a guest's agent.
func (m *machine) dial(ctx context.Context) (net.Conn, error) {
	c, err := agent.Dial(ctx, m.File(".vsock"), agent.Port)
	if err != nil {
		err = fmt.Errorf("guest %s: %w", m.Name, err)
	}
	return c, err
}

func shellCommand(lab *string) *cobra.Command {
	return &cobra.Command{
		Use:   "shell GUEST|MACHINE|HOST",
		Short: "a shell in a guest, a machine or on a host",
		Long:  `Opens a shell: in a QEMU guest over vsock, which needs no network and no password.`,
		Args:  cli.Arguments(1, 1), ValidArgsFunction: completePlaces(lab),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := open(*lab)
			if err != nil {
				return err
			}
			return p.run(cmd.Context(), args[0], "bash", "-l")
		},
	}
}

func cpCommand(lab *string) *cobra.Command {
	return &cobra.Command{
		Use:   "cp GUEST:PATH PATH | PATH GUEST:PATH",
		Short: "copy a file or folder out of a guest or into it",
		Long: `Copies a file, or a folder with its content, over vsock. If the second path is a
folder, the copy is made in it. Links are followed, and devices left out.`,
		Example: `  vnic lab cp driver.ko red1:/root
  vnic lab cp red1:/var/log logs`,
		Args: cli.Arguments(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := open(*lab)
			if err != nil {
				return err
			}
			from, fromPath, out := p.inGuest(args[0])
			to, toPath, in := p.inGuest(args[1])
			if in == out {
				return cli.Usagef("%sone of the two paths is of a guest, as red1:/root; machines that are namespaces have the files of the host", cli.Place(cmd))
			}
			m := from
			if in {
				m = to
			}
			return m.withAgent(cmd.Context(), func(c net.Conn) error {
				if in {
					return agent.Put(c, args[0], toPath)
				}
				return agent.Get(c, fromPath, args[1])
			})
		},
	}
}

// inGuest reads GUEST:PATH.
func (p *plan) inGuest(arg string) (m *machine, path string, ok bool) {
	name, path, ok := strings.Cut(arg, ":")
	if !ok || strings.Contains(name, "/") {
		return nil, arg, false
	}
	if m = p.machine(name); m == nil || m.Guest == nil {
		return nil, arg, false
	}
	if path == "" {
		path = "."
	}
	return m, path, true
}

// leave is the key that leaves a console, Ctrl-], as in telnet and virsh.
const leave = 0x1d

func consoleCommand(lab *string) *cobra.Command {
	return &cobra.Command{
		Use:   "console GUEST",
		Short: "a guest's serial console; Ctrl-] leaves it",
		Long: `Shows the last lines of a guest's console and connects to it. Ctrl-] leaves it; the
guest goes on. The end of all that the console showed is in the machine's .log file
and, before that, in .log.1.`,
		Args: cli.Arguments(1, 1), ValidArgsFunction: completePlaces(lab),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := openGuest(*lab, args[0])
			if err != nil {
				return err
			}
			c, err := (&net.Dialer{}).DialContext(cmd.Context(), "unix", m.File(".console"))
			if err != nil {
				return fmt.Errorf("guest %s: its console: %w; vnic lab restart %[1]s starts it", m.Name, err)
			}
			defer c.Close()
			fmt.Fprintf(cmd.ErrOrStderr(), "The console of %s; Ctrl-] leaves it.\n%s\n", m.Name, lastLines(m.File(".log")))
			return attachConsole(cmd.Context(), c, os.Stdin, cmd.OutOrStdout())
		},
	}
}

// attachConsole carries keys and output until the key that leaves, the end of the keys, or of the guest.
func attachConsole(ctx context.Context, c net.Conn, keys *os.File, out io.Writer) error {
	if restore, err := agent.Raw(keys); err == nil { // it is a terminal
		defer restore()
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	left := make(chan struct{})
	go func() {
		defer close(left)
		b := make([]byte, 4096)
		for {
			n, err := keys.Read(b)
			typed, _, leaves := strings.Cut(string(b[:n]), string(rune(leave)))
			if _, werr := io.WriteString(c, typed); err != nil || werr != nil || leaves {
				return
			}
		}
	}()
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(out, c)
		ended <- err
	}()
	select {
	case <-left:
		return nil
	case err := <-ended:
		if errors.Is(err, net.ErrClosed) {
			err = nil
		}
		return err
	}
}

// openGuest returns a guest of a lab that is up, by its name.
func openGuest(lab, name string) (*machine, error) {
	p, err := open(lab)
	if err != nil {
		return nil, err
	}
	return p.guestNamed(name)
}

func (p *plan) guestNamed(name string) (*machine, error) {
	m := p.machine(name)
	if m != nil && m.Guest != nil {
		return m, nil
	}
	var names []string
	for _, m := range p.all() {
		if m.Guest != nil {
			names = append(names, m.Name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("lab %s has no guests: give a machine guest: {} in its file", p.Name)
	}
	return nil, fmt.Errorf("lab %s has no guest %q; it has %s", p.Name, name, labfile.List(names))
}

func (p *plan) noHostOrGuest(name string) error {
	var names []string
	for _, h := range p.hosts {
		names = append(names, h.Name)
	}
	for _, m := range p.all() {
		if m.Guest != nil {
			names = append(names, m.Name)
		}
	}
	return fmt.Errorf("lab %s has no host or guest %q; it has %s", p.Name, name, labfile.List(names))
}

func restartCommand(lab *string) *cobra.Command {
	var d debugging
	c := &cobra.Command{
		Use:   "restart GUEST|HOST",
		Short: "start a guest again, or a host's NIC with its guests",
		Long: `Ends the guest's QEMU, or the host's NIC and the QEMUs of its guests, and starts them
again with the same configuration.

With --kernel a guest boots that kernel from now on, until vnic lab up does what the
file says. With --gdb it stands still before its first instruction, and the command
becomes gdb with the kernel's symbols: set breakpoints, and continue.`,
		Example: `  vnic lab restart dev --kernel ~/linux
  vnic lab restart dev --gdb`,
		Args: cli.Arguments(1, 1), ValidArgsFunction: completePlaces(lab),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, unlock, err := openLocked(*lab)
			if err != nil {
				return err
			}
			defer unlock()
			b := &builder{plan: p, out: newProgress(cmd.ErrOrStderr()), running: map[string]*daemon{}}
			if h := p.host(args[0]); h != nil {
				if d != (debugging{}) {
					return cli.Usagef("--kernel and --gdb are for a guest, and %s is a host", h.Name)
				}
				return b.restart(cmd.Context(), h)
			}
			m, err := p.guestNamed(args[0])
			if err != nil {
				return p.noHostOrGuest(args[0])
			}
			if d.kernel != "" {
				if b.plan, err = p.withKernel(m, d.kernel); err != nil {
					return err
				}
				m = b.machine(m.Name)
			}
			if d.gdb {
				b.paused = m.Name
			}
			if err := checkGDB(d.gdb); err != nil {
				return err
			}
			if err := endGuest(m); err != nil {
				return err
			}
			if err := b.guests(cmd.Context()); err != nil || !d.gdb {
				return err
			}
			return m.gdb("")
		},
	}
	d.flags(c)
	return c
}

// replaceModule loads the module $1 of the name $0 in place of the one that is loaded, and prints what
// the kernel says to that: all behind a mark, since old messages make room for new ones. The Linux driver
// does not have the id of QEMU's doorbell device itself.
const replaceModule = `
mark="vnic lab reload: $0"
echo "$mark" > /dev/kmsg
load() {
	if [ -d "/sys/module/$0" ]; then rmmod "$0" || return; fi
	insmod "$1" || return
	[ "$0" != vnic ] || echo 1af4 1110 > /sys/bus/pci/drivers/vnic/new_id
}
load "$1"
status=$?
dmesg | awk -v mark="$mark" 'index($0, mark) { said = ""; next } { said = said $0 "\n" } END { printf "%s", said }'
exit $status`

// keepModule keeps a module that goes to a guest, for its symbols: it may be built again before the guest
// crashes.
func (m *machine) keepModule(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(m.File(".modules"), folderRights); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(m.File(".modules"), filepath.Base(path)), b, 0o644)
}

func reloadCommand(lab *string) *cobra.Command {
	return &cobra.Command{
		Use:   "reload GUEST FILE.ko",
		Short: "put a kernel module into a guest in place of the one that is loaded",
		Long: `Copies a module to the guest, unloads the one of the same name if there is one, loads
the new one, and prints what the guest's kernel says to that. It builds nothing. If the
guest crashes, it prints what "vnic lab crash" does, when the guest is up again.`,
		Example: "  vnic lab reload m1 build/linux/6.1.0-56-amd64/vnic.ko",
		Args:    cli.Arguments(2, 2), ValidArgsFunction: completePlaces(lab),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := open(*lab)
			if err != nil {
				return err
			}
			m, err := p.guestNamed(args[0])
			if err != nil {
				return err
			}
			base, ok := strings.CutSuffix(filepath.Base(args[1]), ".ko")
			if !ok {
				return cli.Usagef("%s%s: not a module: name a file that ends in .ko", cli.Place(cmd), args[1])
			}
			to := "/lib/" + base + ".ko"
			if err := m.withAgent(cmd.Context(), func(c net.Conn) error {
				return errors.Join(agent.Put(c, args[1], to), m.keepModule(args[1]))
			}); err != nil {
				return err
			}
			return p.run(cmd.Context(), m.Name, "/bin/sh", "-c", replaceModule, strings.ReplaceAll(base, "-", "_"), to)
		},
	}
}
