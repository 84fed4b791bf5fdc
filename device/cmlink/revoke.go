package cmlink

import (
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/falcon-vnic/vnic/device/files"
)

// Revoke adds a NIC's present certificate to ca.crl; every NIC that has the new ca.crl refuses it.
// It needs the CA's key.
func Revoke(dir, name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	certPath, _ := pairPaths(dir, name)
	cert, err := readCertificate(certPath)
	if err != nil {
		return explainFile(err, "what is revoked is a certificate; copy the NIC's here, where ca.key is")
	}
	a, err := OpenAuthority(dir)
	if err != nil {
		return err
	}
	caPath, _ := caPaths(dir)
	if a.cert.KeyUsage&x509.KeyUsageCRLSign == 0 {
		return fmt.Errorf("%s was made by a vnic that knew no revocation: make new identities in another folder (`vnic keys init`)", caPath)
	}
	trusted, err := readAuthorities(caPath)
	if err != nil {
		return err
	}
	old, err := revokedList(dir, trusted)
	if err != nil {
		return err
	}
	if isRevoked(old, cert) {
		return fmt.Errorf("the certificate of NIC %s is revoked already", name)
	}
	list, err := a.revoked(old, cert.SerialNumber)
	if err != nil {
		return err
	}
	return files.Replace(revokedPath(dir), list, 0o644)
}

// Described describes a certificate in a folder.
type Described struct {
	File     string    `json:"file"`
	Identity string    `json:"identity"` // "" for an authority
	Serial   string    `json:"serial"`
	Expires  time.Time `json:"expires"`
	Key      bool      `json:"key"` // its private key is in the folder too
	Revoked  bool      `json:"revoked"`
	Outdated bool      `json:"outdated"` // it is of another authority than the one that signs now
}

// Describe lists the certificates of a folder, the authorities first, of these the one that signs.
func Describe(dir string) (list []Described, err error) {
	caPath, caKey := caPaths(dir)
	trusted, err := readAuthorities(caPath)
	if err != nil {
		return nil, explainFile(err, "--dir has to be a folder of identities; `vnic keys init` makes one")
	}
	revoked, err := revokedList(dir, trusted)
	if err != nil {
		return nil, err
	}
	paths, err := pairsIn(dir)
	if err != nil {
		return nil, err
	}
	add := func(path, key string, c *x509.Certificate) *Described {
		_, err := os.Stat(key)
		list = append(list, Described{File: filepath.Base(path), Serial: fmt.Sprintf("%x", c.SerialNumber), Expires: c.NotAfter, Key: err == nil, Revoked: isRevoked(revoked, c)})
		return &list[len(list)-1]
	}
	for i, ca := range trusted {
		key := caKey
		if i > 0 {
			key = nextKey(dir)
		}
		add(caPath, key, ca)
	}
	for _, path := range paths {
		c, err := readCertificate(path)
		if err != nil {
			return nil, err
		}
		d := add(path, strings.TrimSuffix(path, ".pem")+".key", c)
		if d.Identity, err = identityOf(c); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		d.Outdated = trusted.of(c) != trusted[0]
	}
	return list, nil
}

// DomainOf returns the domain of the identities in a folder.
func DomainOf(dir string) (string, error) {
	list, err := Describe(dir)
	if err != nil {
		return "", err
	}
	caPath, _ := caPaths(dir)
	if ca, err := readCertificate(caPath); err == nil {
		if domain, ok := domainOf(ca); ok {
			return domain, nil
		}
	}
	for _, d := range list {
		if d.Identity != "" {
			domain, _, err := ParseURI(d.Identity)
			return domain, err
		}
	}
	return "", fmt.Errorf("%s has no identity of a host to take the domain from: name it with --domain", dir)
}
