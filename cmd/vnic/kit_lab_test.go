package main

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

	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/device/tap"
	"github.com/falcon-vnic/vnic/guestlib/workload"
)

// lab is two hosts in a private network namespace, as the demo lays them out,
// whose processes a test starts and kills by itself.
type lab struct {
	t     testing.TB
	dir   string
	hosts [2]*demoHost
	nics  [2]*process

	program string // that NICs run; "": this one
	plain   bool   // guests have a virtio-net on a plain bridge too
}

// inLab runs f with a lab, on a thread that is in the lab's namespace.
func inLab(t testing.TB, vm bool, f func(l *lab)) {
	t.Helper()
	makeLab(t, demoOptions{noVM: !vm, windows: vm}, false, f)
}

func makeLab(t testing.TB, o demoOptions, ethernet bool, f func(l *lab)) {
	t.Helper()
	requireRoot(t)
	l := &lab{t: t, dir: t.TempDir()}
	run, err := os.MkdirTemp("", "vnic-lab-") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(run) })
	vnic(t)
	netns.Run(t, func() {
		if err := tap.NewBridge(demoBridge, demoMTU); err != nil {
			t.Fatal(err)
		}
		if err := netns.Up("lo", "10.98.0.1/24", "10.98.0.2/24"); err != nil { // both hosts' own
			t.Fatal(err)
		}
		ports, err := freePorts()
		if err != nil {
			t.Fatal(err)
		}
		o.fabric, o.out = "tap", l.dir
		l.hosts = newHosts(&o, run, ports)
		if err := cmlink.Init(l.hosts[0].Keys, "demo", []uint8{1, 2}); err != nil {
			t.Fatal(err)
		}
		for _, h := range l.hosts {
			h.Ethernet = ethernet // the function has a port, so there is a bridge for it
			if ethernet {
				if err := tap.NewBridge(h.PortBridge, h.PortMTU); err != nil {
					t.Fatal(err)
				}
			}
			if err := h.writeConfig(); err != nil {
				t.Fatal(err)
			}
		}
		defer func() {
			for _, p := range l.nics {
				if p != nil {
					p.stop(5 * time.Second)
				}
			}
			if t.Failed() {
				for _, h := range l.hosts {
					b, _ := os.ReadFile(h.Log)
					t.Logf("%s:\n%s", h.Log, b)
				}
			}
		}()
		f(l)
	})
}

// start starts a NIC and waits until it serves.
func (l *lab) start(i int) {
	l.t.Helper()
	h := l.hosts[i]
	p, err := startProcess(h.name(), h.Log, cmp.Or(l.program, vnic(l.t)), "run", "-c", h.Config)
	if err != nil {
		l.t.Fatal(err)
	}
	l.nics[i] = p
	ctx, cancel := context.WithTimeout(context.Background(), testTime)
	defer cancel()
	err = p.until(ctx, func(ctx context.Context) error {
		n, err := l.control(i).NIC(ctx)
		if err == nil && n.PID != p.cmd.Process.Pid {
			err = fmt.Errorf("process %d answers", n.PID)
		}
		return err
	})
	if err != nil {
		b, _ := os.ReadFile(h.Log)
		l.t.Fatalf("%v\n%s", err, b)
	}
}

// useShards gives a NIC that does not run so many shards.
func (l *lab) useShards(i, shards int) {
	l.t.Helper()
	l.rewrite(i, "nic: {", fmt.Sprintf("nic: {shards: %d, ", shards))
}

// rewrite replaces a word in the configuration of a NIC that does not run.
func (l *lab) rewrite(i int, from, to string) {
	l.t.Helper()
	path := l.hosts[i].Config
	b, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, bytes.Replace(b, []byte(from), []byte(to), 1), 0o644)
	}
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) control(i int) *control.Client { return control.NewClient(l.hosts[i].Control) }

// joined waits until the hosts know each other's functions.
func (l *lab) joined() {
	l.t.Helper()
	for i := range l.hosts {
		eventually(l.t, "hosts joined", func() error {
			n, err := l.control(i).NIC(context.Background())
			if err == nil && (!n.Peers[0].Up || n.Peers[0].Functions == 0) {
				err = fmt.Errorf("peer %+v", n.Peers[0])
			}
			return err
		})
	}
}

// vf is what host i says of its only assigned function.
func (l *lab) vf(i int) control.Function {
	l.t.Helper()
	fs, err := l.control(i).Functions(context.Background())
	if err != nil {
		l.t.Fatal(err)
	}
	return fs[1]
}

// free waits until nothing is attached to the function and it is reset.
func (l *lab) free(i int) {
	l.t.Helper()
	eventually(l.t, "function free", func() error {
		if f := l.vf(i); f.Attached != "" || f.State != "RESET" || f.QPs+f.CQs+f.MRs != 0 {
			return fmt.Errorf("%+v", f)
		}
		return nil
	})
}

// client is a bare client doing the workload.
type client struct {
	t     testing.TB
	p     *process
	lines *bufio.Scanner
	text  bytes.Buffer
}

func (l *lab) client(i, count int) *client {
	l.t.Helper()
	h := l.hosts[i]
	cmd := exec.Command(vnic(l.t), append(h.workloadArgs("unix://"+h.Socket, count), "--recover", "0s")...)
	out, in, err := os.Pipe()
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { out.Close() })
	cmd.Stdout = in
	c := &client{t: l.t, lines: bufio.NewScanner(out)}
	if c.p, err = start(h.guest(), cmd); err != nil {
		l.t.Fatal(err)
	}
	in.Close()
	return c
}

// next reads lines up to the first of a kind, and fails at the end.
func (c *client) next(kind string) workload.Output {
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
	c.t.Fatalf("%s ended without a line of kind %q:\n%s", c.p.name, kind, &c.text)
	return workload.Output{}
}

// busy waits until a NIC has sent much: its clients are connected then, and in the middle of their
// work.
func (l *lab) busy(i int) {
	l.t.Helper()
	eventually(l.t, "load", func() error {
		c, err := l.control(i).Counters(context.Background())
		if err == nil && c["falcon.data_sent"] < 1000 {
			err = fmt.Errorf("%d packets", c["falcon.data_sent"])
		}
		return err
	})
}

// works runs the whole workload between two fresh clients.
func (l *lab) works() {
	l.t.Helper()
	a, b := l.client(0, 3), l.client(1, 3)
	a.next(workload.KindDone)
	b.next(workload.KindDone)
	<-a.p.done
	<-b.p.done
}

// nic is what host i says of itself, once another worker than the one given
// serves.
func (l *lab) nic(i, notWorker int) control.NIC {
	l.t.Helper()
	var n control.NIC
	eventually(l.t, "worker", func() (err error) {
		if n, err = l.control(i).NIC(context.Background()); err == nil && n.Worker == notWorker {
			err = fmt.Errorf("worker %d still serves", n.Worker)
		}
		return err
	})
	return n
}

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}
