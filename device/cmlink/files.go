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
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
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
		return tls.Certificate{}, unreadable(keyPath, err)
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

// unreadable says why a file of identities cannot be read, and what to do about it.
func unreadable(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("identity: %w (`vnic keys init` makes it)", err)
	case errors.Is(err, fs.ErrPermission):
		dir, me := filepath.Dir(path), nameOf(os.Geteuid())
		owner := me
		if st, err := os.Stat(dir); err == nil {
			owner = ownerOf(st)
		}
		if owner == me { // the file alone is another's
			return fmt.Errorf("identity: %w: %s must be able to read it (chown -R %s %s)", err, me, me, dir)
		}
		return fmt.Errorf("identity: %w: %s belongs to %s, and vnic runs as %s: run it as %s, or give the folder to %s (chown -R %s %s)", err, dir, owner, me, owner, me, me, dir)
	}
	return fmt.Errorf("identity: %w", err)
}

func ownerOf(st fs.FileInfo) string {
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		return nameOf(int(sys.Uid))
	}
	return "another user"
}

// nameOf is a user's name, or number if it has none.
func nameOf(uid int) string {
	id := strconv.Itoa(uid)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return id
}

func readCertificate(path string) (*x509.Certificate, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, unreadable(path, err)
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
		return nil, unreadable(path, err)
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

// giveToOwner gives files to the owner of their folder if root writes them: the NIC that is to read
// them may run as a user of its own, to whom the folder belongs.
func giveToOwner(paths ...string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	for _, path := range paths {
		st, err := os.Stat(filepath.Dir(path))
		if err == nil {
			if sys, ok := st.Sys().(*syscall.Stat_t); ok {
				err = os.Lchown(path, int(sys.Uid), int(sys.Gid))
			}
		}
		if err != nil {
			return fmt.Errorf("identities: %w", err)
		}
	}
	return nil
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
