package cmlink

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/falcon-vnic/vnic/device/files"
)

// Authority signs certificates: ca.pem with ca.key.
type Authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// OpenAuthority returns the authority in a folder.
func OpenAuthority(dir string) (*Authority, error) {
	cert, key, err := loadCA(dir)
	if err != nil {
		return nil, err
	}
	return &Authority{dir, cert, key}, nil
}

// Subject is what a certificate is for.
type Subject struct {
	Common   string        // for etcd, which knows its users by it
	Identity string        // URI of a NIC; "": it is none
	At       string        // address or name of a server; "": it is none
	Life     time.Duration // it ends with the authority at the latest
}

// ClockSkew is how far a clock may be behind that of the authority: certificates begin so much earlier.
const ClockSkew = 5 * time.Minute

// Sign returns a certificate for a key, as PEM.
func (a *Authority) Sign(s Subject, key crypto.PublicKey) ([]byte, error) {
	now := time.Now()
	c := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: s.Common}, NotBefore: now.Add(-ClockSkew), NotAfter: now.Add(s.Life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	if c.NotBefore.Before(a.cert.NotBefore) {
		c.NotBefore = a.cert.NotBefore
	}
	if c.NotAfter.After(a.cert.NotAfter) {
		c.NotAfter = a.cert.NotAfter
	}
	if s.Identity != "" {
		u, err := url.Parse(s.Identity)
		if err != nil {
			return nil, err
		}
		c.URIs = []*url.URL{u}
	}
	if ip := net.ParseIP(s.At); ip != nil {
		c.IPAddresses = []net.IP{ip}
	} else if s.At != "" {
		c.DNSNames = []string{s.At}
	}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, key, a.key)
	if err != nil {
		return nil, fmt.Errorf("certificate of %s: %w", s.Common, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// Issue makes a key with a certificate, as PEM.
func (a *Authority) Issue(s Subject) (cert, key []byte, err error) {
	private, key, err := NewKey()
	if err != nil {
		return nil, nil, err
	}
	cert, err = a.Sign(s, private.Public())
	return cert, key, err
}

// NewKey makes a key, also as PEM.
func NewKey() (*ecdsa.PrivateKey, []byte, error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(k)
	return k, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), err
}

// Pool returns the authority alone as one that is trusted.
func (a *Authority) Pool() *x509.CertPool { return authorities{a.cert}.pool() }

// Roots returns the certificates that are trusted where this authority is, as PEM.
func (a *Authority) Roots() ([]byte, error) { return os.ReadFile(filepath.Join(a.dir, "ca.pem")) }

// Revoke returns a list of revoked certificates, signed by this authority, as PEM. It has the
// certificates of an old list (PEM, or none) and these, without those that have expired or are of
// dropped authorities.
func (a *Authority) Revoke(old []byte, dropped Dropped, certs ...*x509.Certificate) ([]byte, error) {
	var was *x509.RevocationList
	if len(old) > 0 {
		block, _ := pem.Decode(old)
		if block == nil {
			return nil, errors.New("the list of revoked certificates is not in PEM format")
		}
		var err error
		if was, err = x509.ParseRevocationList(block.Bytes); err != nil {
			return nil, err
		}
	}
	caPath, _ := caPaths(a.dir)
	trusted, err := readAuthorities(caPath)
	if err != nil {
		return nil, err
	}
	revoked := revokes(was)
	var serials []*big.Int
	needless := map[string]bool{}
	for _, c := range certs {
		by := trusted.of(c)
		switch {
		case by != nil && IsOver(c) || by == nil && authorities(dropped).of(c) != nil:
			needless[c.SerialNumber.String()] = true
		case by != nil && !revoked(c): // of another one, what it says of its end may be wrong
			serials = append(serials, c.SerialNumber)
		}
	}
	if was != nil {
		was.RevokedCertificateEntries = slices.DeleteFunc(was.RevokedCertificateEntries, func(e x509.RevocationListEntry) bool {
			return needless[e.SerialNumber.String()]
		})
	}
	return a.revoked(was, serials...)
}

// Dropped are authorities that are trusted no more: what they signed need not be in a list of revoked
// certificates.
type Dropped authorities

// Dropped returns the authorities of a list, with its signature, that are not in the authority's folder any
// more. This authority must have signed the list.
func (a *Authority) Dropped(roots, signature []byte) (Dropped, error) {
	if !signed(a.cert, roots, signature) {
		return nil, nil
	}
	list, err := parseAuthorities(roots)
	if err != nil {
		return nil, err
	}
	caPath, _ := caPaths(a.dir)
	trusted, err := readAuthorities(caPath)
	return Dropped(slices.DeleteFunc(list, func(c *x509.Certificate) bool {
		return slices.ContainsFunc(trusted, c.Equal)
	})), err
}

// Revokes returns what reports whether a certificate is in a list of revoked certificates, as PEM.
func Revokes(list []byte) func(*x509.Certificate) bool {
	var is *x509.RevocationList
	if block, _ := pem.Decode(list); block != nil {
		is, _ = x509.ParseRevocationList(block.Bytes)
	}
	return revokes(is)
}

// IsOver reports whether a certificate has ended on all clocks that are less than a day behind. Then it
// need not be in a list of revoked ones any more (RFC 5280 §3.3).
func IsOver(c *x509.Certificate) bool { return time.Now().After(c.NotAfter.Add(24 * time.Hour)) }

func (a *Authority) revoked(was *x509.RevocationList, serials ...*big.Int) ([]byte, error) {
	list := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now(), NextUpdate: a.cert.NotAfter}
	if was != nil {
		list.Number.Add(was.Number, list.Number)
		list.RevokedCertificateEntries = was.RevokedCertificateEntries
	}
	for _, s := range serials {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: s, RevocationTime: time.Now()})
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, a.cert, a.key)
	if err != nil {
		return nil, fmt.Errorf("list of revoked certificates: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemRevoked, Bytes: der}), nil
}

// Replace writes another certificate of a NIC, with its key, in place of the one in a folder.
func Replace(dir, name string, cert, key []byte) error {
	certPath, keyPath := pairPaths(dir, name)
	for _, f := range []struct {
		path string
		b    []byte
		mode os.FileMode
	}{{keyPath, key, 0o600}, {certPath, cert, 0o644}} {
		if err := files.Replace(f.path, f.b, f.mode); err != nil {
			return err
		}
	}
	return nil
}

// TakeRevoked writes a list of revoked certificates to a folder, if it is of an authority there and
// another one than the one that is there.
func TakeRevoked(dir string, list []byte) error {
	path := revokedPath(dir)
	if was, err := os.ReadFile(path); err == nil && bytes.Equal(was, list) {
		return nil
	}
	caPath, _ := caPaths(dir)
	trusted, err := readAuthorities(caPath)
	if err != nil {
		return err
	}
	if _, err := trusted.parseRevoked(list); err != nil {
		return err
	}
	return files.Replace(path, list, 0o644)
}

// TLSCertificate returns the NIC's certificate with its key, for connections that are not to
// peers.
func (id *Identity) TLSCertificate() tls.Certificate { return id.cert }

// Roots returns the authorities that the NIC trusts.
func (id *Identity) Roots() *x509.CertPool { return id.trusted.pool() }
