package cmlink

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// The files of a folder of identities.

func caPaths(dir string) (cert, key string) {
	return filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca.key")
}

func hostPaths(dir string, host uint8) (cert, key string) {
	base := filepath.Join(dir, fmt.Sprintf("host-%d", host))
	return base + ".pem", base + ".key"
}

// revokedPath is where the list of revoked certificates lies, signed by the CA (RFC 5280 §5).
func revokedPath(dir string) string { return filepath.Join(dir, "ca.crl") }

const pemRevoked = "X509 CRL"

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
