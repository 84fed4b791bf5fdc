package cmlink

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// revokedPath is where the list of revoked certificates lies, signed by the CA (RFC 5280 §5).
func revokedPath(dir string) string { return filepath.Join(dir, "ca.crl") }

const pemRevoked = "X509 CRL"

// Revoke makes every NIC that has the new ca.crl refuse the certificate that a host has now. It
// needs the CA's key.
func Revoke(dir string, host uint8) error {
	certPath, _ := hostPaths(dir, host)
	cert, err := readCertificate(certPath)
	if err != nil {
		return err
	}
	ca, key, err := loadCA(dir)
	if err != nil {
		return err
	}
	if ca.KeyUsage&x509.KeyUsageCRLSign == 0 {
		caCert, _ := caPaths(dir)
		return fmt.Errorf("%s was made by a vnic that knew no revocation: make new identities in another folder (`vnic keys init`)", caCert)
	}
	old, err := revokedList(dir, ca)
	if err != nil {
		return err
	}
	tmpl := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now(), NextUpdate: ca.NotAfter}
	if old != nil {
		tmpl.Number.Add(old.Number, tmpl.Number)
		tmpl.RevokedCertificateEntries = old.RevokedCertificateEntries
	}
	if isRevoked(old, cert) {
		return fmt.Errorf("the certificate of host %d is revoked already", host)
	}
	tmpl.RevokedCertificateEntries = append(tmpl.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: cert.SerialNumber, RevocationTime: time.Now()})
	der, err := x509.CreateRevocationList(rand.Reader, tmpl, ca, key)
	if err != nil {
		return fmt.Errorf("list of revoked certificates: %w", err)
	}
	// By way of another name, so that no NIC reads half a list.
	path := revokedPath(dir)
	temp := path + ".new"
	if err := os.WriteFile(temp, pem.EncodeToMemory(&pem.Block{Type: pemRevoked, Bytes: der}), 0o644); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

// revokedList reads the list of a folder, nil if there is none.
func revokedList(dir string, ca *x509.Certificate) (*x509.RevocationList, error) {
	path := revokedPath(dir)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(b)
	if block == nil || block.Type != pemRevoked {
		return nil, fmt.Errorf("%s: no list of revoked certificates", path)
	}
	list, err := x509.ParseRevocationList(block.Bytes)
	if err == nil {
		err = list.CheckSignatureFrom(ca)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return list, nil
}

func isRevoked(list *x509.RevocationList, cert *x509.Certificate) bool {
	return list != nil && slices.ContainsFunc(list.RevokedCertificateEntries, func(e x509.RevocationListEntry) bool {
		return e.SerialNumber.Cmp(cert.SerialNumber) == 0
	})
}

// checkRevoked reads the list as it is now: a NIC that runs heeds a new one within a keepalive. A
// list that cannot be read lets nobody in, and ends no link that is up.
func (id *Identity) checkRevoked(cert *x509.Certificate) error {
	if id.dir == "" {
		return nil // in memory
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

func readCertificate(path string) (*x509.Certificate, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("identity: %w (`vnic keys init` makes it)", err)
	}
	block, _ := pem.Decode(b)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, fmt.Errorf("%s: no certificate in it", path)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return cert, nil
}

// Described is a certificate of a folder.
type Described struct {
	File     string    `json:"file"`
	Identity string    `json:"identity"` // "" for the CA
	Serial   string    `json:"serial"`
	Expires  time.Time `json:"expires"`
	Key      bool      `json:"key"` // its private key is there too
	Revoked  bool      `json:"revoked"`
}

// Describe lists the certificates of a folder, the CA first.
func Describe(dir string) (list []Described, err error) {
	caPath, _ := caPaths(dir)
	ca, err := readCertificate(caPath)
	if err != nil {
		return nil, err
	}
	revoked, err := revokedList(dir, ca)
	if err != nil {
		return nil, err
	}
	paths := []string{caPath}
	for host := range 256 {
		path, _ := hostPaths(dir, uint8(host))
		if _, err := os.Stat(path); err == nil {
			paths = append(paths, path)
		}
	}
	for _, path := range paths {
		c, err := readCertificate(path)
		if err != nil {
			return nil, err
		}
		d := Described{File: filepath.Base(path), Serial: fmt.Sprintf("%x", c.SerialNumber), Expires: c.NotAfter, Revoked: isRevoked(revoked, c)}
		if path != caPath {
			if d.Identity, err = identityOf(c); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
		}
		_, err = os.Stat(path[:len(path)-len(".pem")] + ".key")
		d.Key = err == nil
		list = append(list, d)
	}
	return list, nil
}

// DomainOf is the domain of the identities in a folder.
func DomainOf(dir string) (string, error) {
	list, err := Describe(dir)
	if err != nil {
		return "", err
	}
	for _, d := range list {
		if d.Identity != "" {
			domain, _, err := ParseURI(d.Identity)
			return domain, err
		}
	}
	return "", fmt.Errorf("%s has no identity of a host to take the domain from: name it with --domain", dir)
}
