package cmlink

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/falcon-vnic/vnic/device/files"
)

// An authority is replaced in three steps. After each, the hosts get the files that have changed:
//
//	            in ca.pem   signs   the hosts
//	               old       old
//	Next         old, new    old    trust both
//	Switch       new, old    new    get certificates of the new one
//	Drop           new       new    trust the new one alone
//
// The first in ca.pem signs. A step that was interrupted is done again.

// nextKey returns the path of the key of the authority that is to sign next.
func nextKey(dir string) string { return filepath.Join(dir, "ca-next.key") }

// Next makes an authority beside the one in a folder. It does not sign yet.
func Next(dir string) error {
	caPath, _ := caPaths(dir)
	list, err := readAuthorities(caPath)
	if err != nil {
		return explainFile(err, "--dir has to be the folder that `vnic keys init` made")
	}
	if len(list) > 1 {
		return fmt.Errorf("%s has %d authorities: one is being replaced already", caPath, len(list))
	}
	if _, _, err := loadCA(dir); err != nil {
		return err
	}
	domain, err := DomainOf(dir)
	if err != nil {
		return err
	}
	ca, key, err := newAuthority(domain)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	_ = os.Remove(nextKey(dir)) // of a Next that was interrupted
	if err := writeNew(nextKey(dir), 0o600, "PRIVATE KEY", der); err != nil {
		return err
	}
	return files.Replace(caPath, encode(list[0], ca), 0o644)
}

// OpenNext returns the authority that Next made; nil: it signs already, or there is none.
func OpenNext(dir string) (*Authority, error) {
	caPath, _ := caPaths(dir)
	if _, err := os.Stat(nextKey(dir)); errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	cert, key, err := loadAuthority(caPath, nextKey(dir))
	if err != nil {
		return nil, err
	}
	return &Authority{dir, cert, key}, nil
}

// Switch has the authority sign that Next made. The key of the old one is gone then.
func Switch(dir string) error {
	caPath, caKey := caPaths(dir)
	list, err := readAuthorities(caPath)
	if err != nil {
		return explainFile(err, "--dir has to be the folder that `vnic keys init` made")
	}
	if len(list) == 1 {
		return fmt.Errorf("%s has one authority, which signs: make the next one first", caPath)
	}
	next, err := OpenNext(dir)
	if err != nil {
		return err
	}
	if next != nil {
		// First the list of revoked certificates, which is to outlive the old authority.
		was, err := revokedList(dir, list)
		if err == nil && was != nil {
			var b []byte
			if b, err = next.revoked(was); err == nil {
				err = files.Replace(revokedPath(dir), b, 0o644)
			}
		}
		if err == nil {
			err = os.Rename(nextKey(dir), caKey)
		}
		if err != nil {
			return err
		}
	}
	ca, _, err := loadCA(dir)
	if err != nil {
		return err
	}
	others := slices.DeleteFunc(slices.Clone(list), ca.Equal)
	return files.Replace(caPath, encode(append(authorities{ca}, others...)...), 0o644)
}

// Drop takes all authorities out of a folder but the one that signs. It returns an error while a
// certificate there is of another one.
func Drop(dir string) error {
	caPath, _ := caPaths(dir)
	list, err := readAuthorities(caPath)
	if err != nil {
		return explainFile(err, "--dir has to be the folder that `vnic keys init` made")
	}
	ca, _, err := loadCA(dir)
	if err != nil {
		return err
	}
	revoked, err := revokedList(dir, list)
	if err != nil {
		return err
	}
	paths, err := pairsIn(dir)
	if err != nil {
		return err
	}
	for _, path := range paths {
		cert, err := readCertificate(path)
		if err != nil {
			return err
		}
		if by := list.of(cert); by != nil && !by.Equal(ca) && !isRevoked(revoked, cert) && time.Now().Before(cert.NotAfter) {
			return fmt.Errorf("%s is of the authority that would be dropped: renew it first (`vnic keys renew`), and copy it to its host", path)
		}
	}
	if err := files.Replace(caPath, encode(ca), 0o644); err != nil {
		return err
	}
	if err := os.Remove(nextKey(dir)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// SignRoots signs a list of authorities, for TakeRoots.
func (a *Authority) SignRoots(roots []byte) ([]byte, error) {
	sum := sha256.Sum256(roots)
	return ecdsa.SignASN1(rand.Reader, a.key, sum[:])
}

// signed reports whether an authority has signed a list of authorities.
func signed(by *x509.Certificate, roots, signature []byte) bool {
	sum := sha256.Sum256(roots)
	key, ok := by.PublicKey.(*ecdsa.PublicKey)
	return ok && ecdsa.VerifyASN1(key, sum[:], signature)
}

// Serial returns the serial number of the authority's certificate.
func (a *Authority) Serial() string { return fmt.Sprintf("%x", a.cert.SerialNumber) }

// TakeRoots writes a list of authorities to the folder of a NIC, and reports whether it is another one
// than the one there. One that the NIC trusts must have signed it, and one in it the NIC's certificate.
func TakeRoots(dir, name string, roots, signature []byte) (changed bool, err error) {
	caPath, _ := caPaths(dir)
	was, err := os.ReadFile(caPath)
	if err != nil || bytes.Equal(was, roots) {
		return false, err
	}
	trusted, err := parseAuthorities(was)
	if err != nil {
		return false, err
	}
	list, err := parseAuthorities(roots)
	if err != nil {
		return false, err
	}
	if !slices.ContainsFunc(trusted, func(ca *x509.Certificate) bool { return signed(ca, roots, signature) }) {
		return false, errors.New("no authority that this NIC trusts has signed them")
	}
	certPath, _ := pairPaths(dir, name)
	cert, err := readCertificate(certPath)
	if err != nil {
		return false, err
	}
	if list.of(cert) == nil {
		return false, errors.New("none of them has signed this NIC's certificate, which has to be renewed first")
	}
	return true, files.Replace(caPath, roots, 0o644)
}
