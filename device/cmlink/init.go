package cmlink

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// validity is the lifetime of certificates made by Init.
const validity = 10 * 365 * 24 * time.Hour

// Init makes a new fabric in dir, which is created if it is missing: a CA (ca.pem, ca.key) and a
// certificate for each host (host-N.pem, host-N.key). Certificates get mode 0644, keys 0600. If one
// of the files exists, nothing is written. A host needs only ca.pem and its own pair; ca.key should
// not be copied to hosts. If root writes the files, a host's pair belongs to the owner of dir;
// ca.key stays root's.
func Init(dir, domain string, hosts []uint8) error {
	if err := checkDomain(domain); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
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
		Subject:               pkix.Name{CommonName: authorityOf + domain},
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

// AddHosts makes certificates for further hosts with the CA that Init made in dir.
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
	if own, ok := domainOf(ca); ok && own != domain {
		return fmt.Errorf("%s is the authority of domain %s, and NICs of %s would refuse identities of %s: leave --domain out, or make an authority of that domain in another folder (`vnic keys init`)",
			filepath.Join(dir, "ca.pem"), own, own, domain)
	}
	return issueAll(dir, domain, hosts, ca, key)
}

// Renew replaces the keys and certificates of hosts. The old ones are valid until they expire or
// are revoked, so hosts may change over one by one.
func Renew(dir string, hosts []uint8) error {
	ca, key, err := loadCA(dir)
	if err != nil {
		return err
	}
	for _, h := range hosts {
		certPath, _ := hostPaths(dir, h)
		cert, err := readCertificate(certPath)
		if err != nil {
			return explainFile(err, fmt.Sprintf("host %d has no identity to be renewed: make one (`vnic keys add %[1]d`)", h))
		}
		uri, err := identityOf(cert)
		if err != nil {
			return fmt.Errorf("%s: %w", certPath, err)
		}
		domain, n, err := ParseURI(uri)
		if err != nil || n != h {
			return fmt.Errorf("%s: it is the identity %s, not one of host %d", certPath, uri, h)
		}
		if err := renew(dir, domain, h, ca, key); err != nil {
			return err
		}
	}
	return nil
}

// renew writes the new pair to a temporary folder and then renames it, so that no reader finds half
// of a file.
func renew(dir, domain string, host uint8, ca *x509.Certificate, key *ecdsa.PrivateKey) error {
	beside, err := os.MkdirTemp(dir, ".renew-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(beside) }()
	if err := issueAll(beside, domain, []uint8{host}, ca, key); err != nil {
		return err
	}
	newCert, newKey := hostPaths(beside, host)
	cert, keyPath := hostPaths(dir, host)
	if err := giveLike(dir, newCert, newKey); err != nil {
		return err
	}
	return errors.Join(os.Rename(newKey, keyPath), os.Rename(newCert, cert))
}

// authorityOf is the beginning of the name of a domain's CA.
const authorityOf = "vnic CA of "

// domainOf returns the domain of a CA certificate.
func domainOf(ca *x509.Certificate) (string, bool) {
	domain, ok := strings.CutPrefix(ca.Subject.CommonName, authorityOf)
	return domain, ok && checkDomain(domain) == nil
}

func refuseExisting(dir string, hosts []uint8, paths ...string) error {
	caCert, caKey := caPaths(dir)
	for i, h := range hosts {
		if slices.Contains(hosts[:i], h) {
			return fmt.Errorf("host %d is named twice", h)
		}
		c, k := hostPaths(dir, h)
		paths = append(paths, c, k)
	}
	for _, p := range paths {
		if _, err := os.Lstat(p); !errors.Is(err, fs.ErrNotExist) {
			if err != nil {
				return err
			}
			if filepath.Base(p) == filepath.Base(caCert) || filepath.Base(p) == filepath.Base(caKey) {
				return fmt.Errorf("%s exists and is not overwritten: all hosts' identities hang on it; add hosts to them (`vnic keys add`), or choose another folder for others", p)
			}
			return fmt.Errorf("%s exists and is not overwritten: `vnic keys renew` replaces that host's identity", p)
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
		if err := giveToOwner(certPath, keyPath); err != nil {
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
