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
	"strings"
	"syscall"
	"time"

	"github.com/falcon-vnic/vnic/device/files"
)

// The files of a folder of identities. Those of a NIC are host-NAME.pem and host-NAME.key.

const pairPrefix = "host-"

func caPaths(dir string) (cert, key string) {
	return filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca.key")
}

// pairPaths returns the files of a NIC.
func pairPaths(dir, name string) (cert, key string) {
	base := filepath.Join(dir, pairPrefix+name)
	return base + ".pem", base + ".key"
}

// pairsIn lists the certificates of NICs in a folder, in the order of their names.
func pairsIn(dir string) (paths []string, err error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, f := range files {
		name, is := strings.CutPrefix(f.Name(), pairPrefix)
		name, pem := strings.CutSuffix(name, ".pem")
		if is && pem && CheckName(name) == nil {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, compareNames)
	for _, name := range names {
		path, _ := pairPaths(dir, name)
		paths = append(paths, path)
	}
	return paths, nil
}

// revokedPath returns the path of the list of revoked certificates, signed by the CA (RFC 5280 §5).
func revokedPath(dir string) string { return filepath.Join(dir, "ca.crl") }

const pemRevoked = "X509 CRL"

// readKey reads a key that nobody else can read.
func readKey(path string) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if st.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s has mode %04o, others can use the key: chmod 600 %s", path, st.Mode().Perm(), path)
	}
	return os.ReadFile(path)
}

func loadPair(certPath, keyPath string) (tls.Certificate, error) {
	key, err := readKey(keyPath)
	if err != nil {
		return tls.Certificate{}, err
	}
	cert, err := os.ReadFile(certPath)
	if err != nil {
		return tls.Certificate{}, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("%s and %s are not a pair of certificate and key: copy both from where `vnic keys` made them (%w)", certPath, filepath.Base(keyPath), err)
	}
	return pair, nil
}

// explainFile adds to a file's error what the user can do; missing is the advice if the file does
// not exist.
func explainFile(err error, missing string) error {
	var at *fs.PathError
	switch {
	case !errors.As(err, &at):
		return err
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("there is no %s: %s (%w)", at.Path, missing, fs.ErrNotExist)
	case errors.Is(err, fs.ErrPermission):
		return forbidden(at.Path, err)
	}
	return err
}

// howToGet says how a NIC gets the identity that its folder lacks.
func howToGet(dir, name string) string {
	caCert, caKey := caPaths(dir)
	if _, err := os.Stat(caKey); err == nil {
		return fmt.Sprintf("make it: vnic keys add --dir %s %s", dir, name)
	}
	if _, err := os.Stat(caCert); err == nil {
		return fmt.Sprintf("copy host-%[1]s.pem and host-%[1]s.key from where ca.key is; `vnic keys add %[1]s` makes them there", name)
	}
	return fmt.Sprintf("copy ca.pem, host-%[1]s.pem and host-%[1]s.key from where ca.key is; for the first NIC of all, make them: vnic keys init --dir %[2]s %[1]s", name, dir)
}

// loadCA reads the authority of dir that signs: its key is ca.key, its certificate in ca.pem.
func loadCA(dir string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	certPath, keyPath := caPaths(dir)
	return loadAuthority(certPath, keyPath)
}

func loadAuthority(certPath, keyPath string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	text, err := readKey(keyPath)
	var list authorities
	if err == nil {
		list, err = readAuthorities(certPath)
	}
	if err != nil {
		return nil, nil, explainFile(err, "--dir has to be the folder that `vnic keys init` made, with the authority's key, which no NIC needs")
	}
	var pair tls.Certificate
	for _, c := range list {
		if pair, err = tls.X509KeyPair(encode(c), text); err == nil {
			break
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s and %s are not a pair of certificate and key (%w)", certPath, filepath.Base(keyPath), err)
	}
	if now := time.Now(); now.After(pair.Leaf.NotAfter) {
		return nil, nil, fmt.Errorf("%s has expired on %s, and what it signs would be refused: make a new authority in another folder (`vnic keys init`), and give each NIC its files from there",
			certPath, pair.Leaf.NotAfter.Format(time.DateOnly))
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, nil, fmt.Errorf("%s: not an ECDSA key", keyPath)
	}
	return pair.Leaf, key, nil
}

// forbidden says what to do if this process may not read an identity file.
func forbidden(path string, err error) error {
	dir, me := filepath.Dir(path), nameOf(os.Geteuid())
	owner := me
	if st, err := os.Stat(dir); err == nil {
		owner = ownerOf(st)
	}
	if owner == me { // only the file belongs to another user
		return fmt.Errorf("%w: %s must be able to read it (chown -R %s %s)", err, me, me, dir)
	}
	return fmt.Errorf("%w: %s belongs to %s, and vnic runs as %s: run it as %s, or give the folder to %s (chown -R %s %s)", err, dir, owner, me, owner, me, me, dir)
}

func ownerOf(st fs.FileInfo) string {
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		return nameOf(int(sys.Uid))
	}
	return "another user"
}

// nameOf returns a user's name, or the number if it has no name.
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
		return nil, err
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

// maxAuthorities bounds the authorities in ca.pem. There are two while one replaces the other.
const maxAuthorities = 8

// authorities are the certificates in ca.pem. The first one is that which signs.
type authorities []*x509.Certificate

func readAuthorities(path string) (authorities, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	list, err := parseAuthorities(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return list, nil
}

func parseAuthorities(b []byte) (list authorities, err error) {
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("it contains a %s, which is not a certificate", block.Type)
		}
		if len(list) == maxAuthorities {
			return nil, fmt.Errorf("it contains more than %d authorities", maxAuthorities)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	if len(list) == 0 {
		return nil, errors.New("no certificate in it")
	}
	return list, nil
}

func encode(list ...*x509.Certificate) (b []byte) {
	for _, c := range list {
		b = append(b, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return b
}

func (a authorities) pool() *x509.CertPool {
	roots := x509.NewCertPool()
	for _, ca := range a {
		roots.AddCert(ca)
	}
	return roots
}

// of returns the authority that signed a certificate; nil: none of these.
func (a authorities) of(cert *x509.Certificate) *x509.Certificate {
	for _, ca := range a {
		if cert.CheckSignatureFrom(ca) == nil {
			return ca
		}
	}
	return nil
}

// parseRevoked reads a list of revoked certificates that one of the authorities signed.
func (a authorities) parseRevoked(b []byte) (*x509.RevocationList, error) {
	block, _ := pem.Decode(b)
	if block == nil || block.Type != pemRevoked {
		return nil, errors.New("no list of revoked certificates")
	}
	list, err := x509.ParseRevocationList(block.Bytes)
	if err != nil {
		return nil, err
	}
	for _, ca := range a {
		if err = list.CheckSignatureFrom(ca); err == nil {
			return list, nil
		}
	}
	return nil, err
}

// revokedList reads the folder's list of revoked certificates, or returns nil if there is none.
func revokedList(dir string, trusted authorities) (*x509.RevocationList, error) {
	path := revokedPath(dir)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, explainFile(err, "")
	}
	list, err := trusted.parseRevoked(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return list, nil
}

// revokes returns what isRevoked reports, for many certificates.
func revokes(list *x509.RevocationList) func(*x509.Certificate) bool {
	serials := map[string]bool{}
	if list != nil {
		for _, e := range list.RevokedCertificateEntries {
			serials[e.SerialNumber.String()] = true
		}
	}
	return func(c *x509.Certificate) bool { return serials[c.SerialNumber.String()] }
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

// giveToOwner gives files to the owner of their folder if root writes them: the NIC that will read
// them may run as the user who owns the folder.
func giveToOwner(paths ...string) error { return files.GiveLike(filepath.Dir(paths[0]), paths...) }

func writeNew(path string, mode fs.FileMode, kind string, der []byte) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	if err = f.Chmod(mode); err == nil { // whatever the umask is
		err = pem.Encode(f, &pem.Block{Type: kind, Bytes: der})
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
