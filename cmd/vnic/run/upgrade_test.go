package run_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
)

// configure writes host i's configuration again, with strings replaced.
func configure(l *vnictest.Lab, i int, oldnew ...string) {
	l.T.Helper()
	if err := l.Hosts[i].WriteConfig(); err != nil {
		l.T.Fatal(err)
	}
	b, err := os.ReadFile(l.Hosts[i].Config)
	if err == nil {
		err = os.WriteFile(l.Hosts[i].Config, []byte(strings.NewReplacer(oldnew...).Replace(string(b))), 0o644)
	}
	if err != nil {
		l.T.Fatal(err)
	}
}

// TestARefusedUpgradeLeavesTheNICRunning: a worker that cannot take over leaves the NIC running. vnic upgrade prints
// the reason, and vnic show nic has it afterwards.
func TestARefusedUpgradeLeavesTheNICRunning(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		l.Start(0)
		h := l.Hosts[0]
		before := l.NIC(0, 0)
		for _, tt := range []struct {
			change []string
			want   string
		}{
			{[]string{"log:", "nonsense: 1\nlog:"}, "nonsense: unknown key"},
			{[]string{h.Socket, h.Socket + "2"}, "the attachment with socket " + h.Socket + "2 (type unix) is new: this takes effect when vnic run is stopped and started"},
			{[]string{"identity: " + h.Keys, "identity: /nowhere/keys"}, "cm.identity: "},
			{[]string{"bridge: " + vnictest.Bridge, "bridge: nobridge"}, `uplink.bridge: bridge "nobridge" does not exist`},
			{[]string{"log:", "psp: {keylog: /nowhere/keys}\nlog:"}, "psp.keylog: "},
			{[]string{"log:", "capture: {file: /nowhere/x}\nlog:"}, "capture.file: /nowhere/x: there is no folder /nowhere"},
			{[]string{"log:", "metrics: {listen: '192.0.2.1:9000'}\nlog:"}, "metrics.listen: 192.0.2.1 is not an address of this host"},
			// Only the worker finds these out: the check of the configuration takes no ports.
			{[]string{"listen: " + h.CM, "listen: " + l.Hosts[1].CM}, "cm.listen: " + l.Hosts[1].CM + ": address already in use: another process listens there"},
		} {
			configure(l, 0, tt.change...)
			if strings.Contains(tt.want, "in use") {
				l.Start(1)
			}
			out, errs, code := vnictest.Run(t, "upgrade", "-s", h.Control)
			if code == 0 || !strings.Contains(errs, tt.want) || !strings.Contains(errs, "continues as before") {
				t.Errorf("exit status %d: %s%s, want %q", code, out, errs, tt.want)
			}
			if n := l.NIC(0, 0); n.PID != before.PID || !strings.Contains(n.UpgradeRefused, tt.want) {
				t.Errorf("%+v", n)
			}
			if out, _, _ := vnictest.Run(t, "show", "nic", "-s", h.Control); !strings.Contains(out, "last upgrade refused: ") {
				t.Error(out)
			}
		}
		// A worker that is started again does not read the file either.
		n := l.NIC(0, 0)
		if err := syscall.Kill(n.Worker, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		l.NIC(0, n.Worker)
		l.Joined()
		l.Works()
		configure(l, 0)
		if out, errs, code := vnictest.Run(t, "upgrade", "-s", h.Control); code != 0 {
			t.Errorf("exit status %d: %s%s", code, out, errs)
		}
		if n := l.NIC(0, 0); n.UpgradeRefused != "" || n.PID != before.PID {
			t.Errorf("%+v", n)
		}
	})
}

// TestUpgradeTriesTheProgramFirst: a program on disk that is not vnic does not end the serving
// worker, whatever it prints and however it ends.
func TestUpgradeTriesTheProgramFirst(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		l.Program = filepath.Join(l.Dir, "program")
		replace := func(make func(path string) error) {
			t.Helper()
			next := l.Program + ".new"
			if err := errors.Join(make(next), os.Rename(next, l.Program)); err != nil {
				t.Fatal(err)
			}
		}
		itself := func(path string) error {
			b, err := os.ReadFile(vnictest.Program(t))
			return errors.Join(err, os.WriteFile(path, b, 0o755))
		}
		replace(itself)
		l.Start(0)
		before := l.NIC(0, 0)
		for _, script := range []string{"exit 0", "echo '{}'", "echo '{\"file\": \"another\"}'", "yes | head -c 1000000"} {
			replace(func(path string) error { return os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755) })
			_, errs, code := vnictest.Run(t, "upgrade", "-s", l.Hosts[0].Control)
			if code != 1 || !strings.Contains(errs, l.Program+" is not a vnic program") || !strings.Contains(errs, "continues as before") {
				t.Errorf("%s: exit status %d: %s", script, code, errs)
			}
		}
		if after := l.NIC(0, 0); after.Worker != before.Worker || after.Starts != before.Starts {
			t.Errorf("worker %d, start %d; want still worker %d, start %d", after.Worker, after.Starts, before.Worker, before.Starts)
		}
		replace(itself)
		if _, errs, code := vnictest.Run(t, "upgrade", "-s", l.Hosts[0].Control); code != 0 {
			t.Errorf("back to a vnic: exit status %d: %s", code, errs)
		}
	})
}

// TestKeysThatTheWorkerCannotRead: a worker has no capabilities, so even as root it cannot read
// other users' files. `--check` and `vnic run` report that before any peer is refused.
func TestKeysThatTheWorkerCannotRead(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		h := l.Hosts[0]
		if err := os.Chmod(h.Keys, 0o700); err != nil {
			t.Fatal(err)
		}
		own := func(uid int) {
			t.Helper()
			if err := os.Chown(h.Keys, uid, uid); err != nil {
				t.Fatal(err)
			}
		}
		own(990)
		want := h.Keys + " belongs to "
		for _, args := range [][]string{{"--check"}, nil} {
			_, errs, code := vnictest.Run(t, append([]string{"run", "-c", h.Config}, args...)...)
			if code != 1 || !strings.Contains(errs, "cm.identity: ") || !strings.Contains(errs, want) || !strings.Contains(errs, "chown -R root "+h.Keys) {
				t.Errorf("run %v: exit status %d: %s", args, code, errs)
			}
		}
		own(0)
		if _, errs, code := vnictest.Run(t, "run", "--check", "-c", h.Config); code != 0 {
			t.Errorf("exit status %d: %s", code, errs)
		}
	})
}

// TestGoesOnWithout: a NIC works without a capture, a key log or metrics that it cannot have, and
// says what is missing. A full disk ends the capture and not the worker.
func TestGoesOnWithout(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		const metricsAddress = "10.98.0.1:9977"
		disk := filepath.Join(l.Dir, "disk")
		if err := os.Mkdir(disk, 0o700); err != nil {
			t.Fatal(err)
		}
		// 64 KiB are soon full.
		if err := unix.Mount("vnic-test", disk, "tmpfs", 0, "size=64k,mode=700"); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		}()
		configure(l, 0, "log:", "capture: {file: "+disk+"/x.pcapng, mode: both}\npsp: {keylog: "+disk+"/keys}\nmetrics: {listen: '"+metricsAddress+"'}\nlog:")
		l.Start(0)
		l.Start(1)
		l.Joined()
		l.Works()
		warns := func(want ...string) {
			t.Helper()
			vnictest.Eventually(t, "warnings", func() error {
				out, _, _ := vnictest.Run(t, "show", "nic", "-s", l.Hosts[0].Control)
				for _, w := range want {
					if !strings.Contains(out, "runs without "+w) {
						return fmt.Errorf("no %q in\n%s", w, out)
					}
				}
				return nil
			})
			c, err := l.Control(0).Counters(context.Background())
			if err != nil || c["nic.warnings"] != uint64(len(want)) {
				t.Errorf("%d warnings, want %q: %v", c["nic.warnings"], want, err)
			}
		}
		warns("capture " + disk + "/x.pcapng: write " + disk + "/x.pcapng: no space left on device")
		vnictest.Eventually(t, "metrics", func() error {
			c, err := net.DialTimeout("tcp", metricsAddress, 5*time.Second) // by this thread, which is in the lab's namespace
			if err != nil {
				return err
			}
			defer c.Close()
			l.Must(c.SetDeadline(time.Now().Add(vnictest.Limit)))
			fmt.Fprint(c, "GET /metrics HTTP/1.0\r\n\r\n")
			if said, err := io.ReadAll(c); !bytes.HasPrefix(said, []byte("HTTP/1.0 200 ")) || !bytes.Contains(said, []byte("vnic_")) {
				return fmt.Errorf("%v: %s", err, said)
			}
			return nil
		})
		log, err := os.ReadFile(l.Hosts[0].Log)
		if err != nil || !strings.Contains(string(log), "runs without capture") {
			t.Errorf("the log says nothing of the disk: %v", err)
		}
		for range 3 { // a full disk stops no worker after the first
			n := l.NIC(0, 0)
			if err := syscall.Kill(n.Worker, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			l.NIC(0, n.Worker)
			warns("capture: ")
		}
		// Nor does a disk that can only be read.
		if err := errors.Join(unix.Unmount(disk, unix.MNT_DETACH), unix.Mount("vnic-test", disk, "tmpfs", unix.MS_RDONLY, "size=64k,mode=700")); err != nil {
			t.Fatal(err)
		}
		n := l.NIC(0, 0)
		if err := syscall.Kill(n.Worker, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		l.NIC(0, n.Worker)
		warns("capture: ", "psp.keylog: ")
		l.Joined()
		l.Works()
	})
}
