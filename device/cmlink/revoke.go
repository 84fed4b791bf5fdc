package cmlink

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"
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
		return fmt.Errorf("the certificate of NIC %s is revoked already", name)
	}
	tmpl.RevokedCertificateEntries = append(tmpl.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: cert.SerialNumber, RevocationTime: time.Now()})
	der, err := x509.CreateRevocationList(rand.Reader, tmpl, ca, key)
	if err != nil {
		return fmt.Errorf("list of revoked certificates: %w", err)
	}
	// Written under another name first, so that no NIC reads half a list.
	path := revokedPath(dir)
	temp := path + ".new"
	if err := os.WriteFile(temp, pem.EncodeToMemory(&pem.Block{Type: pemRevoked, Bytes: der}), 0o644); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

// Described describes a certificate in a folder.
type Described struct {
	File     string    `json:"file"`
	Identity string    `json:"identity"` // "" for the CA
	Serial   string    `json:"serial"`
	Expires  time.Time `json:"expires"`
	Key      bool      `json:"key"` // its private key is in the folder too
	Revoked  bool      `json:"revoked"`
}

// Describe lists the certificates of a folder, the CA first.
func Describe(dir string) (list []Described, err error) {
	caPath, _ := caPaths(dir)
	ca, err := readCertificate(caPath)
	if err != nil {
		return nil, explainFile(err, "--dir has to be a folder of identities; `vnic keys init` makes one")
	}
	revoked, err := revokedList(dir, ca)
	if err != nil {
		return nil, err
	}
	paths, err := pairsIn(dir)
	if err != nil {
		return nil, err
	}
	for _, path := range append([]string{caPath}, paths...) {
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
