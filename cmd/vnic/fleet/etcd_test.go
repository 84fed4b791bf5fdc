package fleet

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/directory"
)

// TestLongWhatBecomesOfEtcdIsSeen: what can happen to an etcd of three members, each thing on the real one:
// a NIC is cut off from it while it forgets what that NIC missed, a lease ends, a record is deleted, all
// members start again, no two of them reach each other. vnic fleet status shows it, traffic goes on, and in
// the end all is as before.
func TestLongWhatBecomesOfEtcdIsSeen(t *testing.T) {
	requireEtcdctl(t)
	inFleetOf(t, 3, 2, hostLife, func(w *hostsOf) {
		a, b := w.hosts[0], w.hosts[1]
		w.start()
		for _, h := range w.hosts {
			h.owns()
		}
		b.echo()
		s := a.talks(b)
		// shows waits until vnic fleet status of a NIC shows something, and the stream has gone on.
		shows := func(h *hostNIC, what string, is func(d control.Directory) bool, want ...string) {
			t.Helper()
			vnictest.Eventually(t, what, func() error {
				if d := h.status(); !is(d) {
					return fmt.Errorf("%+v", d)
				}
				out := w.must("status", "-s", h.control)
				for _, text := range want {
					if !strings.Contains(out, text) {
						return fmt.Errorf("no %q in\n%s", text, out)
					}
				}
				return nil
			})
			s.goesOn(t)
		}
		well := func(d control.Directory) bool { return d.Watching && d.Keeping == "" && d.Hosts == 2 && d.Peers == 1 }
		away := func(d control.Directory) bool { return !d.Watching }
		record := directory.HostKey(w.is.Prefix, b.name)

		// Compaction: a cannot reach etcd, and etcd forgets what it misses.
		a.reaches(false)
		shows(a, "cut off", away, "not watching", "1 peers, as last known")
		was := a.status()
		w.must("allow", b.name, "2")
		w.must("allow", b.name, "3")
		revision, _ := w.read(record)
		w.etcdctl("compaction", fmt.Sprint(revision))
		a.reaches(true)
		shows(a, "compaction", func(d control.Directory) bool {
			return well(d) && d.Compactions > was.Compactions && d.Lists > was.Lists
		}, "watching", "compactions")

		// A lease ends: the host has another one, and its record again.
		was = b.status()
		_, lease := w.read(record)
		w.etcdctl("lease", "revoke", fmt.Sprintf("%x", lease))
		shows(b, "a lost lease", func(d control.Directory) bool { return well(d) && d.LeasesLost > was.LeasesLost }, "leases lost")

		// Somebody deletes a record: it is there again.
		w.etcdctl("del", record)
		w.read(record)
		shows(b, "a deleted record", well, "record    there")

		// All members end at once, and start again.
		for _, m := range w.members {
			m.Kill()
		}
		shows(a, "no member", away, "not watching", "1 peers, as last known")
		for _, m := range w.members {
			m.Start()
		}
		shows(a, "all members again", well)
		shows(b, "all members again", well)

		// A partition: each member is alone, and says so to those who ask it.
		for _, at := range []string{"m2", "m3"} {
			w.cut(at, true)
		}
		shows(a, "no majority", away, "not watching")
		for _, at := range []string{"m2", "m3"} {
			w.cut(at, false)
		}
		shows(a, "a majority again", well)
		shows(b, "a majority again", well)
		w.meet()
		s.end(t)
	})
}

func requireEtcdctl(t *testing.T) {
	t.Helper()
	_, err := exec.LookPath("etcdctl")
	vnictest.Require(t, err == nil, "etcdctl is not installed (etcd-client)")
}

// etcdctl runs a command of etcd's own with the rights of root. A client in this process would dial on
// threads that are not in the test's namespace.
func (w *hostsOf) etcdctl(args ...string) (out []byte) {
	w.t.Helper()
	vnictest.Eventually(w.t, strings.Join(args, " "), func() (err error) {
		cmd := exec.Command("etcdctl", append([]string{"--command-timeout", "1m", "--endpoints", strings.Join(w.is.Endpoints, ","), "--cacert", w.path("ca.pem"), "--cert", w.path("root.pem"), "--key", w.path("root.key")}, args...)...)
		cmd.Env = append(os.Environ(), "ETCDCTL_API=3")
		var said bytes.Buffer
		cmd.Stderr = &said
		if out, err = cmd.Output(); err != nil {
			err = fmt.Errorf("%w: %s", err, said.Bytes())
		}
		return err
	})
	return out
}

// read waits until a key is there, and returns etcd's revision and the key's lease.
func (w *hostsOf) read(key string) (revision, lease int64) {
	w.t.Helper()
	var r struct {
		Header struct{ Revision int64 }
		Kvs    []struct{ Lease int64 }
	}
	vnictest.Eventually(w.t, key, func() error {
		out := w.etcdctl("get", key, "--write-out", "json")
		if err := json.Unmarshal(out, &r); err != nil || len(r.Kvs) == 0 {
			return fmt.Errorf("%v: %s", err, out)
		}
		return nil
	})
	return r.Header.Revision, r.Kvs[0].Lease
}

// reaches cuts a host off from etcd, and from nothing else, or lets it reach etcd again.
func (h *hostNIC) reaches(etcd bool) {
	h.t.Helper()
	err := h.in.Do(func() error {
		r := &netlink.Route{Dst: &net.IPNet{IP: net.IPv4(10, 98, 200, 0), Mask: net.CIDRMask(24, 32)}, Type: unix.RTN_BLACKHOLE}
		if etcd {
			return netlink.RouteDel(r)
		}
		return netlink.RouteAdd(r)
	})
	if err != nil {
		h.t.Fatal(err)
	}
}
