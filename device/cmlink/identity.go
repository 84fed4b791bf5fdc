package cmlink

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// validity is how long certificates of Init last.
const validity = 10 * 365 * 24 * time.Hour

// URI is the identity of a host in a domain: vnic://<domain>/host/<n>.
func URI(domain string, host uint8) string {
	return (&url.URL{Scheme: "vnic", Host: domain, Path: "/host/" + strconv.Itoa(int(host))}).String()
}

// ParseURI takes an identity apart.
func ParseURI(s string) (domain string, host uint8, err error) {
	u, err := url.Parse(s)
	if err != nil {
		return "", 0, fmt.Errorf("identity %q: %w", s, err)
	}
	num, ok := strings.CutPrefix(u.Path, "/host/")
	n, err := strconv.ParseUint(num, 10, 8)
	if !ok || err != nil || URI(u.Host, uint8(n)) != s || checkDomain(u.Host) != nil {
		return "", 0, fmt.Errorf("identity %q: want vnic://<domain>/host/<0 to 255>", s)
	}
	return u.Host, uint8(n), nil
}

func checkDomain(d string) error {
	bad := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '.'
	}
	if d == "" || len(d) > 63 || strings.ContainsFunc(d, bad) || strings.Trim(d, "-.") != d || strings.Contains(d, "..") {
		return fmt.Errorf("domain %q: want 1 to 63 characters of a-z, 0-9, '-' and '.', like lab.example", d)
	}
	return nil
}

// Identity is what a host proves itself with, and the CA it trusts.
type Identity struct {
	Host   uint8
	Domain string
	cert   tls.Certificate
	roots  *x509.CertPool

	dir string            // with the list of revoked certificates, signed by
	ca  *x509.Certificate // the CA
}

// URI is the identity in its certificate.
func (id *Identity) URI() string { return URI(id.Domain, id.Host) }

func caPaths(dir string) (cert, key string) {
	return filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca.key")
}

func hostPaths(dir string, host uint8) (cert, key string) {
	base := filepath.Join(dir, fmt.Sprintf("host-%d", host))
	return base + ".pem", base + ".key"
}

// Init makes a new fabric in dir, which is created if it is missing: a CA
// (ca.pem, ca.key) and a certificate for each host (host-N.pem, host-N.key).
// Certificates get mode 0644, keys 0600. If one of the files exists nothing is
// written. Only ca.pem and its own pair need to go to a host; ca.key should not.
func Init(dir, domain string, hosts []uint8) error {
	if err := checkDomain(domain); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("identities: %w", err)
	}
	caCert, caKey := caPaths(dir)
	if err := refuseExisting(dir, hosts, caCert, caKey); err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("CA key: %w", err)
	}
	now := time.Now()
	tmpl := &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: "vnic CA of " + domain},
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.Add(validity),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return fmt.Errorf("CA certificate: %w", err)
	}
	ca, err := x509.ParseCertificate(der)
	if err != nil {
		return fmt.Errorf("CA certificate: %w", err)
	}
	if err := writePair(caCert, caKey, der, key); err != nil {
		return err
	}
	return issueAll(dir, domain, hosts, ca, key)
}

// AddHosts makes certificates for further hosts with the CA that Init left in
// dir.
func AddHosts(dir, domain string, hosts []uint8) error {
	if err := checkDomain(domain); err != nil {
		return err
	}
	if err := refuseExisting(dir, hosts); err != nil {
		return err
	}
	ca, key, err := loadCA(dir)
	if err != nil {
		return err
	}
	return issueAll(dir, domain, hosts, ca, key)
}

// loadCA reads the certificate and the key that Init left in dir.
func loadCA(dir string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	certPath, keyPath := caPaths(dir)
	pair, err := loadPair(certPath, keyPath)
	if err != nil {
		return nil, nil, err
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, nil, fmt.Errorf("%s: not an ECDSA key", keyPath)
	}
	return pair.Leaf, key, nil
}

func refuseExisting(dir string, hosts []uint8, paths ...string) error {
	for i, h := range hosts {
		if slices.Contains(hosts[:i], h) {
			return fmt.Errorf("identities: host %d is named twice", h)
		}
		c, k := hostPaths(dir, h)
		paths = append(paths, c, k)
	}
	for _, p := range paths {
		if _, err := os.Lstat(p); !errors.Is(err, fs.ErrNotExist) {
			if err != nil {
				return fmt.Errorf("identities: %w", err)
			}
			return fmt.Errorf("identities: %s exists and is not overwritten: remove it or choose another folder", p)
		}
	}
	return nil
}

func issueAll(dir, domain string, hosts []uint8, ca *x509.Certificate, caKey *ecdsa.PrivateKey) error {
	for _, h := range hosts {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return fmt.Errorf("key of host %d: %w", h, err)
		}
		uri, err := url.Parse(URI(domain, h))
		if err != nil {
			return fmt.Errorf("identity of host %d: %w", h, err)
		}
		tmpl := &x509.Certificate{
			SerialNumber: serial(),
			Subject:      pkix.Name{CommonName: fmt.Sprintf("vnic host %d of %s", h, domain)},
			NotBefore:    ca.NotBefore,
			NotAfter:     ca.NotAfter,
			KeyUsage:     x509.KeyUsageDigitalSignature,
			ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			URIs:         []*url.URL{uri},
		}
		der, err := x509.CreateCertificate(rand.Reader, tmpl, ca, key.Public(), caKey)
		if err != nil {
			return fmt.Errorf("certificate of host %d: %w", h, err)
		}
		certPath, keyPath := hostPaths(dir, h)
		if err := writePair(certPath, keyPath, der, key); err != nil {
			return err
		}
	}
	return nil
}

func serial() *big.Int {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	b[0] &= 0x7f
	return new(big.Int).SetBytes(b[:])
}

func writePair(certPath, keyPath string, cert []byte, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("%s: %w", keyPath, err)
	}
	if err := writeNew(keyPath, 0o600, "PRIVATE KEY", der); err != nil {
		return err
	}
	return writeNew(certPath, 0o644, "CERTIFICATE", cert)
}

func writeNew(path string, mode fs.FileMode, kind string, der []byte) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return fmt.Errorf("identities: %w", err)
	}
	if err = f.Chmod(mode); err == nil { // whatever the umask is
		err = pem.Encode(f, &pem.Block{Type: kind, Bytes: der})
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("identities: %s: %w", path, err)
	}
	return nil
}

// Load reads the identity of a host from the files Init wrote. It refuses a key
// that others can read and a certificate that is another host's or not valid
// now.
func Load(dir string, host uint8) (*Identity, error) {
	certPath, keyPath := hostPaths(dir, host)
	pair, err := loadPair(certPath, keyPath)
	if err != nil {
		return nil, err
	}
	caPath, _ := caPaths(dir)
	ca, err := readCertificate(caPath)
	if err != nil {
		return nil, fmt.Errorf("identity of host %d: %w", host, err)
	}
	id := &Identity{Host: host, cert: pair, roots: x509.NewCertPool(), dir: dir, ca: ca}
	id.roots.AddCert(ca)
	uri, err := identityOf(pair.Leaf)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", certPath, err)
	}
	domain, n, err := ParseURI(uri)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", certPath, err)
	}
	if n != host {
		return nil, fmt.Errorf("%s: it is the identity %s, not that of host %d", certPath, uri, host)
	}
	id.Domain = domain
	if err := id.checkRevoked(pair.Leaf); err != nil {
		return nil, fmt.Errorf("%s: %w", certPath, err)
	}
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: id.roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		return nil, fmt.Errorf("%s: %w (`vnic keys init` in a new folder makes new identities)", certPath, err)
	}
	return id, nil
}

func loadPair(certPath, keyPath string) (tls.Certificate, error) {
	st, err := os.Stat(keyPath)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("identity: %w (`vnic keys init` makes it)", err)
	}
	if st.Mode().Perm()&0o077 != 0 {
		return tls.Certificate{}, fmt.Errorf("identity: %s has mode %04o, others can use the key: chmod 600 %s", keyPath, st.Mode().Perm(), keyPath)
	}
	pair, err := tls.LoadX509KeyPair(certPath, keyPath)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("identity %s: %w", certPath, err)
	}
	return pair, nil
}

// identityOf returns the one identity a certificate names.
func identityOf(c *x509.Certificate) (string, error) {
	if len(c.URIs) != 1 {
		return "", fmt.Errorf("certificate of %q has %d URI names, want one", c.Subject.CommonName, len(c.URIs))
	}
	return c.URIs[0].String(), nil
}
