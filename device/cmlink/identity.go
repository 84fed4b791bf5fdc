package cmlink

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// URI returns the identity of a host in a domain: vnic://<domain>/host/<n>.
func URI(domain string, host uint8) string {
	return (&url.URL{Scheme: "vnic", Host: domain, Path: "/host/" + strconv.Itoa(int(host))}).String()
}

// ParseURI returns the parts of an identity.
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

// Identity is the certificate of a host, and the CA that it trusts.
type Identity struct {
	Host   uint8
	Domain string
	cert   tls.Certificate
	roots  *x509.CertPool

	dir string            // folder with the list of revoked certificates, which is signed by
	ca  *x509.Certificate // the CA
}

// URI returns the identity in its certificate.
func (id *Identity) URI() string { return URI(id.Domain, id.Host) }

// Same reports whether both are the same certificate and CA.
func (id *Identity) Same(other *Identity) bool {
	return id.cert.Leaf.Equal(other.cert.Leaf) && id.ca.Equal(other.ca)
}

// Again reads the identity again from where it came from.
func (id *Identity) Again() (*Identity, error) { return Load(id.dir, id.Host) }

// Ends returns when the host's certificate expires, or the CA's if that is sooner.
func (id *Identity) Ends() time.Time {
	ends := id.cert.Leaf.NotAfter
	if id.ca != nil && id.ca.NotAfter.Before(ends) {
		ends = id.ca.NotAfter
	}
	return ends
}

// ErrIdentity means that a peer could not prove the expected identity.
var ErrIdentity = errors.New("wrong identity")

// ErrRevoked means that a peer's certificate is on the list of revoked certificates.
var ErrRevoked = fmt.Errorf("%w: it is revoked", ErrIdentity)

// Load reads the identity of a host from the files that Init wrote. It refuses a key that others
// can read, a certificate of another host, and a certificate that is not valid now.
func Load(dir string, host uint8) (*Identity, error) {
	certPath, keyPath := hostPaths(dir, host)
	pair, err := loadPair(certPath, keyPath)
	if err != nil {
		return nil, explainFile(err, howToGet(dir, host))
	}
	caPath, _ := caPaths(dir)
	ca, err := readCertificate(caPath)
	if err != nil {
		return nil, explainFile(err, "copy ca.pem from where `vnic keys init` was run")
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
		return nil, fmt.Errorf("%s: it is the identity %s, not that of host %d: copy the files of host %[3]d, or correct nic.host", certPath, uri, host)
	}
	id.Domain = domain
	if err := id.checkRevoked(pair.Leaf); err != nil {
		return nil, fmt.Errorf("%s: %w", certPath, err)
	}
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: id.roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		return nil, fmt.Errorf("%s: %w; %s", certPath, err, id.remedy(err))
	}
	return id, nil
}

// remedy says what to do about a certificate of this host that does not verify.
func (id *Identity) remedy(err error) string {
	now := time.Now()
	leaf := id.cert.Leaf
	var stranger x509.UnknownAuthorityError
	switch {
	case now.After(id.ca.NotAfter):
		return fmt.Sprintf("the authority (ca.pem) has expired on %s, and every host's identity with it: make a new one in another folder (`vnic keys init`), and give each host its files of there",
			id.ca.NotAfter.Format(time.DateOnly))
	case now.After(leaf.NotAfter):
		return fmt.Sprintf("it has expired on %s: where ca.key is, renew it (`vnic keys renew %[2]d`), and copy host-%[2]d.pem and host-%[2]d.key here; the other hosts keep theirs",
			leaf.NotAfter.Format(time.DateOnly), id.Host)
	case now.Before(leaf.NotBefore) || now.Before(id.ca.NotBefore):
		return fmt.Sprintf("it is not valid yet, and this machine's clock says %s: set the clock", now.UTC().Format(time.DateTime))
	case errors.As(err, &stranger):
		return fmt.Sprintf("the ca.pem beside it is of another authority: copy ca.pem, host-%[1]d.pem and host-%[1]d.key from one folder of `vnic keys init`", id.Host)
	}
	return "use a certificate that `vnic keys` made"
}

// identityOf returns the only identity in a certificate.
func identityOf(c *x509.Certificate) (string, error) {
	if len(c.URIs) != 1 {
		return "", fmt.Errorf("certificate of %q has %d URI names, want one", c.Subject.CommonName, len(c.URIs))
	}
	return c.URIs[0].String(), nil
}

// checkRevoked reads the present list, so a running NIC obeys a new one (Link.watchRevoked). If the
// list cannot be read, no peer is accepted, but links that are up stay up.
func (id *Identity) checkRevoked(cert *x509.Certificate) error {
	if id.dir == "" {
		return nil // the identity is in memory only
	}
	list, err := revokedList(id.dir, id.ca)
	if err != nil {
		return err
	}
	if isRevoked(list, cert) {
		return fmt.Errorf("%w: certificate %x of %q", ErrRevoked, cert.SerialNumber, cert.Subject.CommonName)
	}
	return nil
}
