package lab

import (
	"context"
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
	return withEnvironment(inside(ctx, m.Space(), argv...), cli.DeviceVariable+"=unix://"+m.Socket())
}

// command returns a command that runs on a host. vnic show and others find the host's NIC there.
func (h *host) command(ctx context.Context, argv ...string) *exec.Cmd {
	cmd := withEnvironment(inside(ctx, h.Space(), argv...), cli.SocketVariable+"="+h.Control())
	if h.Etcd != nil {
		cmd.Env = append(cmd.Env, cli.FleetVariable+"="+h.Etcd.Folder())
	}
	return cmd
}

// withEnvironment lets a command find this program as vnic.
func withEnvironment(cmd *exec.Cmd, entry string) *exec.Cmd {
	cmd.Env = append(os.Environ(), entry, "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"))
	return cmd
}

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
	return nil, fmt.Errorf("lab %s has no machine or host %q; there are %s", p.Name, name, labfile.List(p.places()))
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
