package fleet

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/directory"
	"github.com/falcon-vnic/vnic/device/directory/etcd/etcdtest"
)

// inMemory makes a fleet's folder, with an etcd in memory that serves it.
func inMemory(t *testing.T) (*folder, *etcdtest.Server) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &folder{dir: t.TempDir()}
	if err := f.make([]string{"https://" + l.Addr().String()}, "lab", ""); err != nil {
		t.Fatal(err)
	}
	a, err := cmlink.OpenAuthority(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(f.path("etcd-1.pem"), f.path("etcd-1.key"))
	if err != nil {
		t.Fatal(err)
	}
	s := etcdtest.New()
	s.Start(l, &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: a.Pool()})
	t.Cleanup(s.Stop)
	return f, s
}

// TestAWatchGoesOnWhereItWas: what changes while etcd is not reached is printed when it is reached again, once, and
// each time that it is not reached is said once. What etcd has forgotten is said to be missing.
func TestAWatchGoesOnWhereItWas(t *testing.T) {
	f, s := inMemory(t)
	out := &lines{}
	w := &watcher{folder: f, user: userOperator, out: out}
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { _ = w.run(ctx) })
	defer done.Wait()
	defer cancel()
	says := func(text string, n int) {
		t.Helper()
		vnictest.Eventually(t, text, func() error {
			if said := out.String(); strings.Count(said, text) != n {
				return fmt.Errorf("not %d times in\n%s", n, said)
			}
			return nil
		})
	}
	change := func(name string) { s.Put(directory.GrantKey(f.is.Prefix, name), "1") }
	vnictest.Eventually(t, "the watch", func() error {
		if !w.watching.Load() {
			return fmt.Errorf("it is not there: %s", out.String())
		}
		return nil
	})
	change("first")
	says("grants/first 1\n", 1)
	for i := range 2 {
		s.Refuse(rpctypes.ErrGRPCNoLeader)
		says("trying again: ", i+1) // for what reason, the client may not say in time
		missed := fmt.Sprint("missed", i)
		change(missed)
		failed := w.failures.Load()
		vnictest.Eventually(t, "another attempt", func() error {
			if w.failures.Load() == failed {
				return fmt.Errorf("%d failures", failed)
			}
			return nil
		})
		s.Refuse(nil)
		says("grants/"+missed+" 1\n", 1)
	}
	s.Refuse(rpctypes.ErrGRPCNoLeader)
	says("trying again: ", 3)
	change("forgotten")
	forgotten := s.Revision()
	s.Compact()
	change("kept")
	s.Refuse(nil)
	says(fmt.Sprintf("trying again: the changes of revisions %d to %[1]d are missing", forgotten), 1)
	says("grants/kept 1\n", 1)
	change("last")
	says("grants/last 1\n", 1)
	for text, n := range map[string]int{"trying again: ": 4, "grants/": 5, "grants/forgotten": 0} {
		says(text, n)
	}
}

// ended is an etcd whose watches end without a reason.
type ended struct{ clientv3.Watcher }

func (ended) Watch(context.Context, string, ...clientv3.OpOption) clientv3.WatchChan {
	c := make(chan clientv3.WatchResponse)
	close(c)
	return c
}

// TestTheEndOfAWatchIsAFailure: also an end without a reason, as of a watch that was read too slowly.
func TestTheEndOfAWatchIsAFailure(t *testing.T) {
	w := &watcher{folder: &folder{is: description{Prefix: "/vnic/lab/"}}, k: &clientv3.Client{Watcher: ended{}}}
	if err := w.follow(t.Context(), 1); err == nil {
		t.Error("no error")
	}
}
