package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/directory"
	"github.com/falcon-vnic/vnic/device/directory/etcd/etcdtest"
)

// TestAnErrorSaysWhatItMeans: whoever cannot reach etcd, or is refused by it, is told so in plain words,
// and an error that is clear stays as it is.
func TestAnErrorSaysWhatItMeans(t *testing.T) {
	for _, c := range []struct {
		err    error
		says   string
		denied bool
	}{
		{context.DeadlineExceeded, "etcd is not reached", false},
		{errors.New("rpc error: code = Unknown desc = context deadline exceeded"), "etcd is not reached", false}, // of a member without a majority
		{errors.New("dial tcp 10.0.0.1:2379: connect: connection refused"), "etcd is not reached", false},
		{rpctypes.ErrNoLeader, "has no leader", false},
		{rpctypes.ErrPermissionDenied, "does not let this certificate do that", true},
		{errors.New("the record is too long"), "", false},
	} {
		said := Explain(c.err)
		if !strings.Contains(said.Error(), c.says) || !strings.Contains(said.Error(), c.err.Error()) || errors.Is(said, directory.ErrDenied) != c.denied {
			t.Errorf("%v: %v", c.err, said)
		}
	}
}

// TestWhyAMemberOfEtcdIsNotReachedIsFoundOut: a request only says that its time was over. What TLS says
// of it tells who refuses whom.
func TestWhyAMemberOfEtcdIsNotReachedIsFoundOut(t *testing.T) {
	t.Parallel()
	ours, others := authority(t), authority(t)
	nic, stranger := identity(t, ours, "h1"), identity(t, others, "h1")
	etcd := etcdtest.New()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	etcd.Start(l, &tls.Config{Certificates: []tls.Certificate{identity(t, ours, "etcd")}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ours.Pool()})
	t.Cleanup(etcd.Stop)
	at := []string{"https://" + l.Addr().String()}
	for name, c := range map[string]struct {
		endpoints []string
		tls       *tls.Config
		says      string
		denied    bool
	}{
		"all is well but slow":           {at, TLS(nic, ours.Pool()), "etcd is not reached", false},
		"etcd is another fleet's":        {at, TLS(nic, others.Pool()), "etcd's certificate is of another authority", true},
		"the NIC is another fleet's":     {at, TLS(stranger, ours.Pool()), "etcd refuses this certificate", true},
		"the NIC has no certificate":     {at, &tls.Config{RootCAs: ours.Pool()}, "etcd refuses this certificate", true},
		"one member of two can be asked": {append([]string{"https://127.0.0.1:1"}, at...), TLS(nic, ours.Pool()), "etcd is not reached", false},
		"nobody is there":                {[]string{"https://127.0.0.1:1"}, TLS(nic, ours.Pool()), "connection refused", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := Explain(Why(t.Context(), context.DeadlineExceeded, c.endpoints, c.tls)); !strings.Contains(err.Error(), c.says) || errors.Is(err, directory.ErrDenied) != c.denied {
				t.Error(err)
			}
		})
	}
}

// authority makes an authority.
func authority(t *testing.T) *cmlink.Authority {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "keys")
	if err := cmlink.Init(dir, "test", nil); err != nil {
		t.Fatal(err)
	}
	a, err := cmlink.OpenAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// identity makes a certificate that is good for this machine's address, too.
func identity(t *testing.T, a *cmlink.Authority, name string) tls.Certificate {
	t.Helper()
	cert, key, err := a.Issue(cmlink.Subject{Common: name, At: "127.0.0.1", Life: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}
