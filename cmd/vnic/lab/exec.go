package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/cmd/vnic/lab/labfile"
)

// command returns a command that runs in a machine. vnic guest finds the machine's function there.
func (m *machine) command(ctx context.Context, argv ...string) *exec.Cmd {
	if m.Guest != nil {
		return exec.CommandContext(ctx, program, append([]string{"lab", "--lab", m.Lab, "exec", m.Name}, argv...)...)
	}
	return userCommand(ctx, m.Space(), cli.DeviceVariable+"=unix://"+m.Socket(), argv...)
}

// command returns a command that runs on a host. vnic show and others find the host's NIC there.
func (h *host) command(ctx context.Context, argv ...string) *exec.Cmd {
	cmd := userCommand(ctx, h.Space(), cli.SocketVariable+"="+h.Control(), argv...)
	if h.Etcd != nil {
		cmd.Env = append(cmd.Env, cli.FleetVariable+"="+h.Etcd.Folder())
	}
	return cmd
}

// userCommand returns a user's command in a namespace, with this program as vnic and one more variable. If
// there is no such program, the command fails with what to do.
func userCommand(ctx context.Context, space, variable string, argv ...string) *exec.Cmd {
	cmd := netnsCommand(ctx, space, argv...)
	cmd.Env = append(os.Environ(), variable, "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"))
	if name := argv[0]; cmd.Err == nil && name != "vnic" {
		if _, err := exec.LookPath(name); errors.Is(err, exec.ErrNotFound) {
			remedy := "install it"
			if in := packages[name]; in != "" {
				remedy = "apt-get install " + in
			}
			cmd.Err = fmt.Errorf("program %q: %w. Hosts, and machines without QEMU, use the programs of the system that runs the lab: %s", name, exec.ErrNotFound, remedy)
		}
	}
	return cmd
}

// packages names Debian's packages of programs in common use whose names say nothing of them.
var packages = map[string]string{"ping": "iputils-ping", "nc": "netcat-openbsd"}

// command returns a command that runs in the machine, on the host or where etcd is, by its name.
func (p *plan) command(ctx context.Context, name string, argv ...string) (*exec.Cmd, error) {
	if m := p.machine(name); m != nil && m.Service == "" {
		return m.command(ctx, argv...), nil
	}
	if h := p.host(name); h != nil {
		return h.command(ctx, argv...), nil
	}
	if p.isEtcd(name) {
		return p.etcd.command(ctx, argv...), nil
	}
	return nil, fmt.Errorf("lab %s has no machine or host %q; it has %s", p.Name, name, labfile.List(p.places()))
}

// places lists the names of machines and hosts, and etcd.
func (p *plan) places() (names []string) {
	for _, m := range p.Machines {
		if m.Service == "" { // the NIC is no place to be in
			names = append(names, m.Name)
		}
	}
	for _, h := range p.hosts {
		names = append(names, h.Name)
	}
	if p.etcd != nil {
		names = append(names, labfile.DirectoryEtcd)
	}
	return names
}

// become replaces this process by a command, so that its terminal, signals and exit status are the
// caller's.
func become(cmd *exec.Cmd) error {
	if cmd.Err != nil {
		return cmd.Err
	}
	return fmt.Errorf("%s: %w", cmd.Path, syscall.Exec(cmd.Path, cmd.Args, cmd.Environ()))
}
