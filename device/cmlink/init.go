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

	"github.com/falcon-vnic/vnic/device/files"
)

// validity is the lifetime of certificates made by Init.
const validity = 10 * 365 * 24 * time.Hour

// Init makes a new fabric in dir, which is created if it is missing: a CA (ca.pem, ca.key) and a
// certificate for each NIC (host-NAME.pem, host-NAME.key). Certificates get mode 0644, keys 0600. If
// one of the files exists, nothing is written. A NIC needs only ca.pem and its own pair; ca.key
// should not be copied to hosts. If root writes the files, a NIC's pair belongs to the owner of dir;
// ca.key stays root's.
func Init(dir, domain string, names []string) error {
	if err := checkNames(domain, names); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	caCert, caKey := caPaths(dir)
	if err := refuseExisting(dir, names, caCert, caKey); err != nil {
		return err
	}
	ca, key, err := newAuthority(domain)
	if err != nil {
		return err
	}
	if err := writePair(caCert, caKey, ca.Raw, key); err != nil {
		return err
	}
	return issueAll(dir, domain, names, ca, key)
}

// newAuthority makes the certificate and the key of an authority.
func newAuthority(domain string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("CA key: %w", err)
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
		return nil, nil, fmt.Errorf("CA certificate: %w", err)
	}
	ca, err := x509.ParseCertificate(der)
	return ca, key, err
}

// Add makes certificates for further NICs with the CA that Init made in dir.
func Add(dir, domain string, names []string) error {
	if err := checkNames(domain, names); err != nil {
		return err
	}
	if err := refuseExisting(dir, names); err != nil {
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
	return issueAll(dir, domain, names, ca, key)
}

// Renew replaces the keys and certificates of NICs. The old ones are valid until they expire or are
// revoked, so NICs may change over one by one.
func Renew(dir string, names []string) error {
	for _, name := range names {
		if err := CheckName(name); err != nil {
			return err
		}
	}
	ca, key, err := loadCA(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		certPath, _ := pairPaths(dir, name)
		cert, err := readCertificate(certPath)
		if err != nil {
			return explainFile(err, fmt.Sprintf("NIC %s has no identity to be renewed: make one (`vnic keys add %[1]s`)", name))
		}
		uri, err := identityOf(cert)
		if err != nil {
			return fmt.Errorf("%s: %w", certPath, err)
		}
		domain, is, err := ParseURI(uri)
		if err != nil || is != name {
			return fmt.Errorf("%s: it is the identity %s, not one of NIC %s", certPath, uri, name)
		}
		if err := renew(dir, domain, name, ca, key); err != nil {
			return err
		}
	}
	return nil
}

// renew writes the new pair to a temporary folder and then renames it, so that no reader finds half
// of a file.
func renew(dir, domain, name string, ca *x509.Certificate, key *ecdsa.PrivateKey) error {
	beside, err := os.MkdirTemp(dir, ".renew-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(beside) }()
	if err := issueAll(beside, domain, []string{name}, ca, key); err != nil {
		return err
	}
	newCert, newKey := pairPaths(beside, name)
	cert, keyPath := pairPaths(dir, name)
	if err := files.GiveLike(dir, newCert, newKey); err != nil {
		return err
	}
	return errors.Join(os.Rename(newKey, keyPath), os.Rename(newCert, cert))
}

// authorityOf is the beginning of the name of a domain's CA.
const authorityOf = "vnic CA of "

// domainOf returns the domain of a CA certificate.
func domainOf(ca *x509.Certificate) (string, bool) {
	domain, ok := strings.CutPrefix(ca.Subject.CommonName, authorityOf)
	return domain, ok && CheckName(domain) == nil
}

// checkNames checks names that get certificates.
func checkNames(domain string, names []string) error {
	if err := CheckName(domain); err != nil {
		return fmt.Errorf("domain %w", err)
	}
	for i, name := range names {
		if err := CheckName(name); err != nil {
			return err
		}
		if slices.Contains(names[:i], name) {
			return fmt.Errorf("NIC %s is named twice", name)
		}
	}
	return nil
}

func refuseExisting(dir string, names []string, paths ...string) error {
	caCert, caKey := caPaths(dir)
	for _, name := range names {
		c, k := pairPaths(dir, name)
		paths = append(paths, c, k)
	}
	for _, p := range paths {
		if _, err := os.Lstat(p); !errors.Is(err, fs.ErrNotExist) {
			if err != nil {
				return err
			}
			if filepath.Base(p) == filepath.Base(caCert) || filepath.Base(p) == filepath.Base(caKey) {
				return fmt.Errorf("%s exists and is not overwritten: all NICs' identities hang on it; add NICs to them (`vnic keys add`), or choose another folder for others", p)
			}
			return fmt.Errorf("%s exists and is not overwritten: `vnic keys renew` replaces that NIC's identity", p)
		}
	}
	return nil
}

func issueAll(dir, domain string, names []string, ca *x509.Certificate, caKey *ecdsa.PrivateKey) error {
	for _, name := range names {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return fmt.Errorf("key of NIC %s: %w", name, err)
		}
		uri, err := url.Parse(URI(domain, name))
		if err != nil {
			return fmt.Errorf("identity of NIC %s: %w", name, err)
		}
		tmpl := &x509.Certificate{
			SerialNumber: serial(),
			Subject:      pkix.Name{CommonName: commonName(name, domain)},
			NotBefore:    ca.NotBefore,
			NotAfter:     ca.NotAfter,
			KeyUsage:     x509.KeyUsageDigitalSignature,
			ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			URIs:         []*url.URL{uri},
		}
		der, err := x509.CreateCertificate(rand.Reader, tmpl, ca, key.Public(), caKey)
		if err != nil {
			return fmt.Errorf("certificate of NIC %s: %w", name, err)
		}
		certPath, keyPath := pairPaths(dir, name)
		if err := writePair(certPath, keyPath, der, key); err != nil {
			return err
		}
		if err := giveToOwner(certPath, keyPath); err != nil {
			return err
		}
	}
	return nil
}

// commonName is for people. It has at most 64 characters (RFC 5280 §A.1), and tools refuse more.
func commonName(name, domain string) string {
	s := fmt.Sprintf("vnic host %s of %s", name, domain)
	return s[:min(len(s), 64)]
}

func serial() *big.Int {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	b[0] &= 0x7f
	return new(big.Int).SetBytes(b[:])
}
