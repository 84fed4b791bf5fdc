package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/falcon-vnic/vnic/device/directory"
)

// Dial returns a client of etcd. It waits for no connection.
func Dial(endpoints []string, tlsConfig *tls.Config, options ...grpc.DialOption) (*clientv3.Client, error) {
	for _, e := range endpoints {
		if err := CheckEndpoint(e, tlsConfig != nil); err != nil {
			return nil, err
		}
	}
	return clientv3.New(clientv3.Config{
		Endpoints: endpoints, TLS: tlsConfig, Logger: zap.NewNop(), DialOptions: options,
		DialTimeout: 5 * time.Second, DialKeepAliveTime: 5 * time.Second, DialKeepAliveTimeout: 5 * time.Second, PermitWithoutStream: true,
	})
}

// CheckEndpoint returns what is wrong with the URL of a member of etcd.
func CheckEndpoint(e string, secure bool) error {
	u, err := url.Parse(e)
	switch {
	case err != nil || u.Host == "" || u.Port() == "" || u.Scheme != "https" && u.Scheme != "http":
		return fmt.Errorf("endpoint %q: write it as https://10.0.0.1:2379", e)
	case secure && u.Scheme != "https":
		return fmt.Errorf("endpoint %q: etcd knows hosts by their certificates, so write https://", e)
	}
	return nil
}

// TLS returns how to speak to etcd with a certificate, trusting roots.
func TLS(cert tls.Certificate, roots *x509.CertPool) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}, RootCAs: roots}
}

// Explain says in a NIC's words what etcd's error means.
func Explain(err error) error {
	text, denied := explain(err)
	switch {
	case text == "":
		return err
	case denied:
		return fmt.Errorf("%s (%w)", text, deniedError{err})
	}
	return fmt.Errorf("%s (%w)", text, err)
}

// deniedError is an error of etcd that says that this NIC may not do that.
type deniedError struct{ error }

func (d deniedError) Is(target error) bool { return target == directory.ErrDenied }
func (d deniedError) Unwrap() error        { return d.error }

// explain returns what an error means, if that is not clear from its text, and whether etcd or this NIC
// refuses the other.
func explain(err error) (what string, denied bool) {
	var unknown x509.UnknownAuthorityError
	text := ""
	if err != nil {
		text = err.Error()
	}
	has := func(s string) bool { return strings.Contains(text, s) }
	switch {
	case err == nil:
		return "", false
	case errors.Is(err, rpctypes.ErrPermissionDenied) || has("permission denied"):
		return "etcd does not let this certificate do that: the prefix is another fleet's, the host was never let in (vnic fleet grant, join) or is revoked, or the role is too small", true
	case errors.Is(err, rpctypes.ErrUserNotFound), errors.Is(err, rpctypes.ErrUserEmpty), errors.Is(err, rpctypes.ErrAuthFailed), errors.Is(err, rpctypes.ErrInvalidAuthToken):
		return "etcd does not know who this is: the host was never let in (vnic fleet grant, join) or is revoked, or etcd runs without --client-cert-auth", true
	case errors.Is(err, rpctypes.ErrNoLeader):
		return "this member of etcd has no leader: it is cut off from the others", false
	case errors.As(err, &unknown) || has("unknown authority"):
		return "etcd's certificate is of another authority than ca.pem: is the endpoint that of this fleet?", true
	case has("bad certificate"), has("certificate required"), has("unknown certificate authority"), has("certificate expired"), has("expired certificate"):
		return "etcd refuses this certificate: it is of another authority, or has expired", true
	case errors.Is(err, context.DeadlineExceeded) || has("DeadlineExceeded") || has("deadline exceeded") || has("Unavailable") || has("connection refused") || has("i/o timeout") || has("no route to host") || has("network is unreachable"):
		return "etcd is not reached", false
	}
	return "", false
}

// Why returns why etcd is not reached: a request only says that its time was over. It returns err itself
// if that is not the case, or if an endpoint could be reached.
func Why(ctx context.Context, err error, endpoints []string, c *tls.Config) error {
	if !errors.Is(err, context.DeadlineExceeded) && !strings.Contains(fmt.Sprint(err), "DeadlineExceeded") || c == nil {
		return err
	}
	var found error
	for _, e := range endpoints {
		u, bad := url.Parse(e)
		if bad != nil {
			continue
		}
		reason := Shake(ctx, u.Host, c)
		if reason == nil {
			return err
		}
		found = fmt.Errorf("%s: %w", e, reason)
	}
	return found
}

// Shake does a TLS handshake with a member, and waits for a while for it to be refused.
func Shake(ctx context.Context, at string, c *tls.Config) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	conn, err := (&tls.Dialer{Config: c}).DialContext(ctx, "tcp", at)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
	if _, err = conn.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// sessionError turns etcd's errors into those that a session knows.
func sessionError(err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		return directory.ErrCompacted
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return directory.ErrNoLease
	}
	return Explain(err)
}
