package lab

import (
	"context"
	"io"
	"os/exec"
	"path/filepath"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/device/capture"
)

// Made is a lab that this process made, for commands that work in one, as vnic demo does.
type Made struct{ *plan }

// Make makes the lab of a file, or one that comes with the program, with changes in the file's words
// (labfile.Load), and prints its progress and what there is, as vnic lab up does.
func Make(ctx context.Context, w io.Writer, source string, changes ...string) (*Made, error) {
	p, err := up(ctx, source, changes, "", newProgress(w))
	if err != nil {
		return nil, err
	}
	return &Made{p}, cli.PrintTable(w, statusOf(ctx, p.Name).print)
}

// Command returns a command that runs in a machine or on a host.
func (l *Made) Command(ctx context.Context, place string, argv ...string) (*exec.Cmd, error) {
	return l.command(ctx, place, argv...)
}

// Address returns a machine's address with the prefix length of its subnet.
func (l *Made) Address(machine string) string { return l.machine(machine).Prefix() }

// SniffUplink records what the NIC of a host sends and receives, as the kernel sees it.
func (l *Made) SniffUplink(host, file string) (*capture.Sniffer, error) {
	return sniff(space(l.Name, host), "up0", file)
}

// Logs lists the files of a lab that may tell what went wrong: configurations, logs, QEMU's lines.
func Logs(name string) (files []string) {
	for _, pattern := range []string{"*.yaml", "*.log", "*.log.1", "*.qemu", "*.crash"} {
		more, _ := filepath.Glob(filepath.Join(folder(name), pattern))
		files = append(files, more...)
	}
	return files
}

// Remove removes a lab.
func Remove(name string) error { return down(name) }
