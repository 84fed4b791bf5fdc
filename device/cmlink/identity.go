package cmlink

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
)

// URI returns the identity of a NIC in a domain: vnic://<domain>/host/<name>.
func URI(domain, name string) string {
	return (&url.URL{Scheme: "vnic", Host: domain, Path: "/host/" + name}).String()
}

// ParseURI returns the parts of an identity.
func ParseURI(s string) (domain, name string, err error) {
	u, err := url.Parse(s)
	if err != nil {
		return "", "", fmt.Errorf("identity %q: %w", s, err)
	}
	name, ok := strings.CutPrefix(u.Path, "/host/")
	if !ok || CheckName(name) != nil || CheckName(u.Host) != nil || URI(u.Host, name) != s {
		return "", "", fmt.Errorf("identity %q: want vnic://<domain>/host/<name>", s)
	}
	return u.Host, name, nil
}

// MaxName is the most characters that the name of a NIC or of a domain can have.
const MaxName = 63

// CheckName reports an error if s cannot be the name of a NIC or of a domain. A name can be part of
// a path, a URI and a label.
func CheckName(s string) error {
	bad := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '.'
	}
	switch {
	case len(s) > MaxName:
		return fmt.Errorf("%.20q… has %d characters: use at most %d", s, len(s), MaxName)
	case s == "" || strings.ContainsFunc(s, bad) || strings.Trim(s, "-.") != s || strings.Contains(s, ".."):
		return fmt.Errorf("%q is not a name: use a-z, 0-9, '-' and '.', like rack1.lab", s)
	}
	return nil
}

// compareNames defines the order of NICs: shorter names first, so that numbers are in their order.
func compareNames(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

// Identity is the certificate of a NIC, and the authorities that it trusts.
type Identity struct {
	Name    string
	Domain  string
	cert    tls.Certificate
	ca      *x509.Certificate // the authority that signed cert
	trusted authorities
	dir     string // folder with the list of revoked certificates
}

// URI returns the identity in its certificate.
func (id *Identity) URI() string { return URI(id.Domain, id.Name) }

// Same reports whether both are the same certificate, and trust the same authorities.
func (id *Identity) Same(other *Identity) bool {
	return id.cert.Leaf.Equal(other.cert.Leaf) && slices.EqualFunc(id.trusted, other.trusted, (*x509.Certificate).Equal)
}

// Outdated reports whether the NIC's certificate is of an authority that is being replaced.
func (id *Identity) Outdated() bool { return !id.ca.Equal(id.trusted[0]) }

// Authority returns the serial number of the authority that signed the NIC's certificate.
func (id *Identity) Authority() string { return fmt.Sprintf("%x", id.ca.SerialNumber) }

// Authorities returns the serial numbers of the authorities that the NIC trusts.
func (id *Identity) Authorities() (list []string) {
	for _, ca := range id.trusted {
		list = append(list, fmt.Sprintf("%x", ca.SerialNumber))
	}
	return list
}

// Again reads the identity again from where it came from.
func (id *Identity) Again() (*Identity, error) { return Load(id.dir, id.Name) }

// Ends returns when the NIC's certificate expires, or that of its authority if that is sooner.
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

// Load reads the identity of a NIC from the files that Init wrote. It refuses a key that others can
// read, a certificate of another name, and a certificate that is not valid now.
func Load(dir, name string) (*Identity, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	certPath, keyPath := pairPaths(dir, name)
	pair, err := loadPair(certPath, keyPath)
	if err != nil {
		return nil, explainFile(err, howToGet(dir, name))
	}
	caPath, _ := caPaths(dir)
	trusted, err := readAuthorities(caPath)
	if err != nil {
		return nil, explainFile(err, "copy ca.pem from where `vnic keys init` was run")
	}
	id := &Identity{Name: name, cert: pair, ca: trusted.of(pair.Leaf), trusted: trusted, dir: dir}
	uri, err := identityOf(pair.Leaf)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", certPath, err)
	}
	domain, is, err := ParseURI(uri)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", certPath, err)
	}
	if is != name {
		return nil, fmt.Errorf("%s: it is the identity %s, not that of NIC %s: copy the files of NIC %[3]s, or correct cm.name", certPath, uri, name)
	}
	id.Domain = domain
	if err := id.checkRevoked(pair.Leaf); err != nil {
		return nil, fmt.Errorf("%s: %w", certPath, err)
	}
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: id.Roots(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		return nil, fmt.Errorf("%s: %w; %s", certPath, err, id.remedy())
	}
	return id, nil
}

// remedy says what to do about a certificate of this NIC that does not verify.
func (id *Identity) remedy() string {
	now := time.Now()
	leaf := id.cert.Leaf
	switch {
	case id.ca == nil:
		return fmt.Sprintf("the ca.pem beside it is of another authority: copy ca.pem, host-%[1]s.pem and host-%[1]s.key from one folder of `vnic keys`; if the authority was replaced there, renew this identity first (`vnic keys renew %[1]s`)", id.Name)
	case now.After(id.ca.NotAfter):
		return fmt.Sprintf("the authority (ca.pem) has expired on %s, and every NIC's identity with it: make a new one in another folder (`vnic keys init`), and give each NIC its files from there",
			id.ca.NotAfter.Format(time.DateOnly))
	case now.After(leaf.NotAfter):
		return fmt.Sprintf("it has expired on %s: where ca.key is, renew it (`vnic keys renew %[2]s`), and copy host-%[2]s.pem and host-%[2]s.key here; the other NICs keep theirs",
			leaf.NotAfter.Format(time.DateOnly), id.Name)
	case now.Before(leaf.NotBefore) || now.Before(id.ca.NotBefore):
		return fmt.Sprintf("it is not valid yet, and this machine's clock says %s: set the clock", now.UTC().Format(time.DateTime))
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

// errDropped means that the authority that signed a certificate is trusted no more.
var errDropped = fmt.Errorf("%w: its certificate is of an authority that is no longer trusted", ErrIdentity)

// stillGood returns whether a certificate that was good is revoked, or of an authority that is trusted no
// more.
func (id *Identity) stillGood(cert *x509.Certificate) error {
	if id.dir != "" && id.trusted.of(cert) == nil {
		return errDropped
	}
	return id.checkRevoked(cert)
}

// checkRevoked reads the present list, so a running NIC obeys a new one (Link.watchRevoked). If the
// list cannot be read, no peer is accepted, but links that are up stay up.
func (id *Identity) checkRevoked(cert *x509.Certificate) error {
	if id.dir == "" {
		return nil // the identity is in memory only
	}
	list, err := revokedList(id.dir, id.trusted)
	if err != nil {
		return err
	}
	if isRevoked(list, cert) {
		return fmt.Errorf("%w: certificate %x of %q", ErrRevoked, cert.SerialNumber, cert.Subject.CommonName)
	}
	return nil
}

// Names of ALPN. A change of the framing needs a new one. With protocolFirst, keepalives carry no clock.
const (
	protocol      = "vnic-cm/2"
	protocolFirst = "vnic-cm/1"
)

// tlsConfig returns the configuration, which is the same for both sides. It verifies the chain
// itself, since identities are URIs and not host names. accept decides on the identity.
func tlsConfig(id *Identity, usage x509.ExtKeyUsage, accept func(uri string) error) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{id.cert},
		NextProtos:             []string{protocol, protocolFirst},
		SessionTicketsDisabled: true, // each connection proves both identities
		ClientAuth:             tls.RequireAnyClientCert,
		InsecureSkipVerify:     true, // VerifyConnection verifies, and always runs
		VerifyConnection: func(cs tls.ConnectionState) error {
			if p := cs.NegotiatedProtocol; p != protocol && p != protocolFirst {
				return fmt.Errorf("peer speaks neither %s nor %s", protocol, protocolFirst)
			}
			return verify(id, cs.PeerCertificates, usage, accept)
		},
	}
}

func verify(id *Identity, chain []*x509.Certificate, usage x509.ExtKeyUsage, accept func(string) error) error {
	if len(chain) == 0 {
		return fmt.Errorf("%w: no certificate", ErrIdentity)
	}
	// Authorities sign hosts directly, so no intermediates are taken.
	opts := x509.VerifyOptions{Roots: id.Roots(), KeyUsages: []x509.ExtKeyUsage{usage}}
	if _, err := chain[0].Verify(opts); err != nil {
		return fmt.Errorf("%w: %w", ErrIdentity, err)
	}
	if err := id.checkRevoked(chain[0]); err != nil {
		return err
	}
	uri, err := identityOf(chain[0])
	if err != nil {
		return fmt.Errorf("%w: %w", ErrIdentity, err)
	}
	return accept(uri)
}
