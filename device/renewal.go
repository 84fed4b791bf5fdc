package device

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"time"

	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/directory"
)

// A NIC in a fleet asks for another certificate, through the directory, when half of the life of its
// own is over, or when its authority is being replaced.
//
//	renewals ─▶ askForRenewal: a request with a key made here ─▶ the directory
//	the directory's View ─▶ takeCertificate, takeAuthority ─▶ cm.identity ─▶ reidentify

// renewPause is the least time between two requests for another certificate.
const renewPause = 5 * time.Second

// untilRenewal returns when the NIC needs another certificate: at once if its authority is being replaced.
func (f *fleet) untilRenewal() time.Duration {
	is := f.links.identity()
	if is.Outdated() {
		return 0
	}
	return untilHalf(is.TLSCertificate().Leaf)
}

// untilHalf returns when half of the life of a certificate is over.
func untilHalf(leaf *x509.Certificate) time.Duration {
	return time.Until(leaf.NotAfter.Add(-max(leaf.NotAfter.Sub(leaf.NotBefore)-cmlink.ClockSkew, 0) / 2))
}

// renewals calls ask when another certificate is needed, and again and again until there is one. It looks
// when it is told, and once an hour, since a clock may be set.
func renewals(ctx context.Context, until func() time.Duration, told <-chan struct{}, ask func(context.Context)) {
	wait := time.NewTimer(0)
	defer wait.Stop()
	for {
		select {
		case <-wait.C:
		case <-told:
		case <-ctx.Done():
			return
		}
		if until() <= 0 {
			ask(ctx)
		}
		wait.Reset(min(max(until(), renewPause), time.Hour))
	}
}

// askForRenewal asks for another certificate, with a key that is made here. Asked again, it has the same
// key: the answer to any of the requests will do.
func (f *fleet) askForRenewal(ctx context.Context) {
	f.mu.Lock()
	key, text := f.renewing, f.keyPEM
	f.mu.Unlock()
	var csr []byte
	var err error
	if key == nil {
		key, text, err = cmlink.NewKey()
	}
	if err == nil {
		csr, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	}
	if err == nil {
		f.mu.Lock()
		f.renewing, f.keyPEM = key, text
		f.mu.Unlock()
		limited, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		err = f.client.Put(limited, directory.RenewKey(directory.Prefix(f.cfg.Directory.Etcd.Prefix), f.cfg.CM.Name), string(csr))
	}
	if err != nil {
		f.log.Warn("directory: no other certificate was asked for", "err", err, "ends", f.links.identity().Ends())
	}
}

// takeCertificate takes over the certificate that was asked for, when it is there.
func (f *fleet) takeCertificate(v *directory.View) error {
	f.mu.Lock()
	key, text := f.renewing, f.keyPEM
	f.mu.Unlock()
	cert := v.Certificate(f.cfg.CM.Name)
	if key == nil || cert == "" {
		return nil
	}
	if _, err := tls.X509KeyPair([]byte(cert), text); err != nil {
		return nil // it is that of an earlier request
	}
	if err := cmlink.Replace(f.cfg.CM.Identity, f.cfg.CM.Name, []byte(cert), text); err != nil {
		return fmt.Errorf("another certificate is there and cannot be written to cm.identity: %w", err)
	}
	f.mu.Lock()
	f.renewing, f.keyPEM = nil, nil
	f.mu.Unlock()
	return f.reidentify()
}

// reidentify uses what is in cm.identity now.
func (f *fleet) reidentify() error {
	is, err := f.links.newIdentity()
	if err != nil || is == nil {
		return err
	}
	f.links.use(is)
	f.client.Redial()
	f.announced() // the record says whom the NIC trusts
	select {
	case f.due <- struct{}{}:
	default:
	}
	f.log.Info("directory: the NIC has another certificate, or other authorities", "ends", is.Ends(), "authorities", is.Authorities())
	return nil
}

// takeAuthority writes the fleet's authorities to cm.identity, and its list of revoked certificates, which
// the links watch.
func (f *fleet) takeAuthority(v *directory.View) error {
	a, err := v.Authority()
	if err != nil {
		return nil // the fleet has none yet
	}
	changed, err := cmlink.TakeRoots(f.cfg.CM.Identity, f.cfg.CM.Name, []byte(a.Roots), a.Signature)
	if err == nil && changed {
		err = f.reidentify()
	}
	if err != nil {
		return fmt.Errorf("the fleet's authorities are not taken: %w", err)
	}
	if a.Revoked == "" {
		return nil
	}
	if err := cmlink.TakeRevoked(f.cfg.CM.Identity, []byte(a.Revoked)); err != nil {
		return fmt.Errorf("the list of revoked certificates is not taken: %w", err)
	}
	return nil
}
