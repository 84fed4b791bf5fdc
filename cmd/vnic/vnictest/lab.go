package vnictest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/guestlib/workload"
)

// Lab has two hosts in a private network namespace. The test starts and kills their processes. It is
// not made by vnic lab: there NICs are daemons that outlive whoever made them, and know from the lab's
// file all that they are. Here they are children of the test, which changes any word of a configuration
// (Rewrite), has several programs and orders of starting, and works in the one namespace itself.
type Lab struct {
	T     testing.TB
	Dir   string
	Hosts [2]*Host
	NICs  [2]*labkit.Process

	Program string // that NICs run; "": this one
	Plain   bool   // guests have a virtio-net on a plain bridge too
}

// InLab calls f with a lab, on a thread that is in the lab's namespace. vm says whether the hosts'
// guests are QEMU guests or bare clients.
func InLab(t testing.TB, vm bool, f func(l *Lab)) {
	t.Helper()
	MakeLab(t, Options{Bare: !vm, Windows: vm}, false, f)
}

func MakeLab(t testing.TB, o Options, ethernet bool, f func(l *Lab)) {
	t.Helper()
	RequireRoot(t)
	l := &Lab{T: t, Dir: t.TempDir()}
	run, err := os.MkdirTemp("", "vnic-lab-") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(run) })
	Program(t)
	netns.Run(t, func() {
		if err := tap.NewBridge(Bridge, MTU); err != nil {
			t.Fatal(err)
		}
		if err := netns.Up("lo", "10.98.0.1/24", "10.98.0.2/24"); err != nil { // both hosts' own
			t.Fatal(err)
		}
		ports, err := labkit.FreePorts()
		if err != nil {
			t.Fatal(err)
		}
		l.Hosts = newHosts(o, run, l.Dir, ports)
		if err := cmlink.Init(l.Hosts[0].Keys, "demo", []string{"1", "2"}); err != nil {
			t.Fatal(err)
		}
		for _, h := range l.Hosts {
			h.Ethernet = ethernet // the function has a port, so there is a bridge for it
			if ethernet {
				if err := tap.NewBridge(h.PortBridge, h.PortMTU); err != nil {
					t.Fatal(err)
				}
			}
			if err := h.WriteConfig(); err != nil {
				t.Fatal(err)
			}
		}
		defer func() {
			for _, p := range l.NICs {
				if p != nil {
					p.Stop(5 * time.Second)
				}
			}
			if t.Failed() {
				for _, h := range l.Hosts {
					b, _ := os.ReadFile(h.Log)
					t.Logf("%s:\n%s", h.Log, b)
				}
			}
		}()
		f(l)
	})
}

// Start starts a NIC and waits until it serves.
func (l *Lab) Start(i int) {
	l.T.Helper()
	h := l.Hosts[i]
	p, err := labkit.Start(h.Name(), h.Log, cmp.Or(l.Program, Program(l.T)), "run", "-c", h.Config)
	if err != nil {
		l.T.Fatal(err)
	}
	l.NICs[i] = p
	ctx, cancel := context.WithTimeout(context.Background(), Limit)
	defer cancel()
	err = p.Until(ctx, func(ctx context.Context) error {
		n, err := l.Control(i).NIC(ctx)
		if err == nil && n.PID != p.Cmd.Process.Pid {
			err = fmt.Errorf("process %d answers", n.PID)
		}
		return err
	})
	if err != nil {
		b, _ := os.ReadFile(h.Log)
		l.T.Fatalf("%v\n%s", err, b)
	}
}

// UseShards sets the number of shards of a NIC that does not run.
func (l *Lab) UseShards(i, shards int) {
	l.T.Helper()
	l.Rewrite(i, "nic: {", fmt.Sprintf("nic: {shards: %d, ", shards))
}

// Rewrite replaces a word in the configuration of a NIC that does not run.
func (l *Lab) Rewrite(i int, from, to string) {
	l.T.Helper()
	path := l.Hosts[i].Config
	b, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, bytes.Replace(b, []byte(from), []byte(to), 1), 0o644)
	}
	if err != nil {
		l.T.Fatal(err)
	}
}

func (l *Lab) Control(i int) *control.Client { return control.NewClient(l.Hosts[i].Control) }

// Joined waits until the hosts know each other's functions.
func (l *Lab) Joined() {
	l.T.Helper()
	for i := range l.Hosts {
		Eventually(l.T, "hosts joined", func() error {
			n, err := l.Control(i).NIC(context.Background())
			if err == nil && (!n.Peers[0].Up || n.Peers[0].Functions == 0) {
				err = fmt.Errorf("peer %+v", n.Peers[0])
			}
			return err
		})
	}
}

// VF returns host i's only assigned function.
func (l *Lab) VF(i int) control.Function {
	l.T.Helper()
	fs, err := l.Control(i).Functions(context.Background())
	if err != nil {
		l.T.Fatal(err)
	}
	return fs[1]
}

// Free waits until no driver is attached to the function and it is reset.
func (l *Lab) Free(i int) {
	l.T.Helper()
	Eventually(l.T, "function free", func() error {
		if f := l.VF(i); f.Attached != "" || f.State != "RESET" || f.QPs+f.CQs+f.MRs != 0 {
			return fmt.Errorf("%+v", f)
		}
		return nil
	})
}

// Client is a bare client that runs the workload.
type Client struct {
	t     testing.TB
	P     *labkit.Process
	lines *bufio.Scanner
	text  bytes.Buffer
}

func (l *Lab) Client(i, count int) *Client {
	l.T.Helper()
	h := l.Hosts[i]
	cmd := exec.Command(Program(l.T), append(h.WorkloadArgs("unix://"+h.Socket, count), "--recover", "0s")...)
	out, in, err := os.Pipe()
	if err != nil {
		l.T.Fatal(err)
	}
	l.T.Cleanup(func() { out.Close() })
	cmd.Stdout = in
	c := &Client{t: l.T, lines: bufio.NewScanner(out)}
	if c.P, err = labkit.StartCommand(h.Guest(), cmd); err != nil {
		l.T.Fatal(err)
	}
	in.Close()
	return c
}

// Next reads lines up to the first of a kind. It fails the test if there is none.
func (c *Client) Next(kind string) workload.Output {
	c.t.Helper()
	for c.lines.Scan() {
		fmt.Fprintln(&c.text, c.lines.Text())
		line, err := workload.DecodeOutput(c.lines.Bytes())
		if err != nil {
			c.t.Fatal(err)
		}
		if line.Kind == kind {
			return line
		}
	}
	c.t.Fatalf("%s ended without a line of kind %q:\n%s", c.P.Name, kind, &c.text)
	return workload.Output{}
}

// Busy waits until a NIC has sent many packets, so that its clients are connected and at work.
func (l *Lab) Busy(i int) {
	l.T.Helper()
	Eventually(l.T, "load", func() error {
		c, err := l.Control(i).Counters(context.Background())
		if err == nil && c["falcon.data_sent"] < 1000 {
			err = fmt.Errorf("%d packets", c["falcon.data_sent"])
		}
		return err
	})
}

// Works runs the whole workload between two fresh clients.
func (l *Lab) Works() {
	l.T.Helper()
	a, b := l.Client(0, 3), l.Client(1, 3)
	a.Next(workload.KindDone)
	b.Next(workload.KindDone)
	<-a.P.Done
	<-b.P.Done
}

// NIC returns the state of host i once a worker other than notWorker serves.
func (l *Lab) NIC(i, notWorker int) control.NIC {
	l.T.Helper()
	var n control.NIC
	Eventually(l.T, "worker", func() (err error) {
		if n, err = l.Control(i).NIC(context.Background()); err == nil && n.Worker == notWorker {
			err = fmt.Errorf("worker %d still serves", n.Worker)
		}
		return err
	})
	return n
}

func (l *Lab) Must(err error) {
	l.T.Helper()
	if err != nil {
		l.T.Fatal(err)
	}
}
