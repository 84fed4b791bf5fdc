package fleet

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/directory"
)

// hostLife is how long a host's certificate is good. It is renewed when half of that is over.
const hostLife = 30 * 24 * time.Hour

// sign answers a request to join.
func (f *folder) sign(ctx context.Context, k *clientv3.Client, id string, b []byte, life time.Duration) (name string, err error) {
	var r request
	if err := json.Unmarshal(b, &r); err != nil {
		return "", f.answer(ctx, k, id, answer{Error: "the request cannot be read"})
	}
	refuse := func(why string) (string, error) {
		return r.Name, errors.Join(f.answer(ctx, k, id, answer{Error: why}), fmt.Errorf("refused: %s", why))
	}
	got, err := k.Get(ctx, f.tokenKey(id))
	if err != nil {
		return r.Name, err
	}
	again := "; get another token (vnic fleet grant " + r.Name + ")"
	if len(got.Kvs) == 0 {
		return refuse("the token has expired" + again)
	}
	var t issued
	if err := json.Unmarshal(got.Kvs[0].Value, &t); err != nil {
		return r.Name, err
	}
	switch {
	case t.Used:
		return refuse("the token was used before: a token is good once. If that was not you, revoke " + t.Name + " (vnic fleet revoke)" + again)
	case t.Name != r.Name || !hmac.Equal(r.MAC, mac(t.Secret, r.CSR)):
		return refuse("the request was not made by the holder of the token")
	}
	cert, err := f.certify(t.Name, r.CSR, life)
	if err != nil {
		return refuse(err.Error())
	}
	g, granted, err := f.readGrant(ctx, k, t.Name)
	if err != nil {
		return r.Name, err
	}
	if g.Revoked {
		return refuse(t.Name + " is revoked")
	}
	keep, err := k.Grant(ctx, int64(usedLife/time.Second))
	if err != nil {
		return r.Name, err
	}
	then, err := f.giveCertificate(ctx, k, t.Name, cert)
	if err != nil {
		return r.Name, err
	}
	done, err := k.Txn(ctx).If(
		clientv3.Compare(clientv3.ModRevision(f.tokenKey(id)), "=", got.Kvs[0].ModRevision),
		f.grantIs(t.Name, granted),
	).Then(append(then,
		clientv3.OpPut(f.tokenKey(id), directory.Encode(issued{Name: t.Name, Used: true}), clientv3.WithLease(keep.ID)),
		clientv3.OpPut(f.answersKey(id), directory.Encode(answer{Certificate: cert}), clientv3.WithLease(keep.ID)),
		clientv3.OpDelete(f.requestsKey(id)),
	)...).Commit()
	if err == nil && !done.Succeeded { // the token was used meanwhile or is over, or the grant is another one
		return f.sign(ctx, k, id, b, life)
	}
	return t.Name, err
}

func (f *folder) answer(ctx context.Context, k *clientv3.Client, id string, a answer) error {
	l, err := k.Grant(ctx, int64(answerLife/time.Second))
	if err != nil {
		return err
	}
	_, err = k.Txn(ctx).Then(clientv3.OpPut(f.answersKey(id), directory.Encode(a), clientv3.WithLease(l.ID)), clientv3.OpDelete(f.requestsKey(id))).Commit()
	return err
}

// mostCertificates is about how many certificates a host can have at a time by asking for others. All of them are
// revoked with it, in a list that every NIC reads, which is in a record (directory.MaxRecord). A host that has lost
// the key of the newest one waits for a thousandth of a certificate's life.
const mostCertificates = 1000

// renew signs another certificate of a host that is in, if it needs one. Only the host itself could ask for it.
func (w *watcher) renew(ctx context.Context, name string, csr []byte) (signed bool, err error) {
	cert, granted, err := w.another(ctx, name, csr)
	if err != nil || cert == "" {
		_, failed := w.k.Delete(ctx, directory.RenewKey(w.is.Prefix, name)) // a host that needs one asks again
		return false, errors.Join(err, failed)
	}
	then, err := w.giveCertificate(ctx, w.k, name, cert)
	if err != nil {
		return false, err
	}
	done, err := w.k.Txn(ctx).If(w.grantIs(name, granted)).Then(append(then, clientv3.OpDelete(directory.RenewKey(w.is.Prefix, name)))...).Commit()
	if err == nil && !done.Succeeded { // the grant is another one
		return w.renew(ctx, name, csr)
	}
	return err == nil, err
}

// another returns another certificate for a host, and the revision of its grant; "": the host has one for that key.
func (w *watcher) another(ctx context.Context, name string, csr []byte) (text string, granted int64, err error) {
	g, granted, err := w.readGrant(ctx, w.k, name)
	if err != nil {
		return "", 0, err
	}
	if granted == 0 || g.Revoked {
		return "", 0, fmt.Errorf("%s is not in the fleet", name)
	}
	if text, err = w.certify(name, csr, w.life); err != nil {
		return "", 0, err
	}
	cert, err := certificateOf(text)
	if err != nil {
		return "", 0, err
	}
	r, err := w.k.Get(ctx, directory.CertKey(w.is.Prefix, name))
	if err != nil || len(r.Kvs) == 0 {
		return text, granted, err
	}
	newest, err := certificateOf(string(r.Kvs[0].Value))
	if err != nil || !bytes.Equal(newest.AuthorityKeyId, cert.AuthorityKeyId) { // all hosts ask at once if the authority is another one
		return text, granted, nil
	}
	if bytes.Equal(newest.RawSubjectPublicKeyInfo, cert.RawSubjectPublicKeyInfo) && time.Until(newest.NotAfter) > w.life/2 {
		return "", 0, nil // it asked again before it had the answer
	}
	if age, least := cert.NotBefore.Sub(newest.NotBefore), w.life/mostCertificates; age < least {
		return "", 0, fmt.Errorf("it got a certificate %v ago, and gets another one after %v", age, least)
	}
	return text, granted, nil
}

// certify signs a host's certificate.
func (f *folder) certify(name string, csr []byte, life time.Duration) (string, error) {
	r, err := x509.ParseCertificateRequest(csr)
	if err == nil {
		err = r.CheckSignature()
	}
	if err != nil {
		return "", fmt.Errorf("the request for a certificate is not good: %w", err)
	}
	a, err := cmlink.OpenAuthority(f.dir)
	if err != nil {
		return "", err
	}
	cert, err := a.Sign(cmlink.Subject{Common: userHost + name, Identity: cmlink.URI(f.is.Domain, name), Life: life}, r.PublicKey)
	return string(cert), err
}

// signedPrefix begins the keys of all certificates of a host that are not over: to revoke the host is to
// revoke them all.
func (f *folder) signedPrefix(name string) string {
	return directory.Aside(f.is.Prefix) + "signed/" + name + "/"
}

// giveCertificate returns what gives a host a certificate, and forgets those of it that are over.
func (f *folder) giveCertificate(ctx context.Context, k *clientv3.Client, name, text string) ([]clientv3.Op, error) {
	cert, err := certificateOf(text)
	if err != nil {
		return nil, err
	}
	then := []clientv3.Op{
		clientv3.OpPut(directory.CertKey(f.is.Prefix, name), text),
		clientv3.OpPut(fmt.Sprintf("%s%x", f.signedPrefix(name), cert.SerialNumber), text),
	}
	r, err := k.Get(ctx, f.signedPrefix(name), clientv3.WithPrefix())
	if err != nil {
		return nil, err
	}
	for _, kv := range r.Kvs {
		if c, err := certificateOf(string(kv.Value)); (err != nil || cmlink.IsOver(c)) && len(then) < mostOps {
			then = append(then, clientv3.OpDelete(string(kv.Key)))
		}
	}
	return then, nil
}

// mostOps is how many operations a transaction has at most, beside a few: etcd takes 128.
const mostOps = 100

// certificateOf returns the certificate in a PEM text.
func certificateOf(text string) (*x509.Certificate, error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil, errors.New("no certificate")
	}
	return x509.ParseCertificate(block.Bytes)
}
