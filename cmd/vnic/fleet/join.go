package fleet

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/directory"
	"github.com/falcon-vnic/vnic/device/directory/etcd"
	"github.com/falcon-vnic/vnic/device/files"
)

// A host joins by a token. The token lets it put a request beside the fleet's tree; whoever has the
// authority's key signs the request, if the token is there and was not used. Whether it is, is decided
// by etcd: the token's key has a lease, and a transaction replaces it when it is used.

// token is what a host needs to join, and no more.
type token struct {
	Name        string    `json:"name"`
	Domain      string    `json:"domain"`
	Prefix      string    `json:"prefix"`
	Endpoints   []string  `json:"endpoints"`
	Roots       string    `json:"roots"`
	Certificate string    `json:"certificate"` // of etcd's user join
	Key         string    `json:"key"`
	ID          string    `json:"id"`
	Secret      []byte    `json:"secret"`
	Ends        time.Time `json:"ends"`
}

// issued is what is kept of a token until it is used, or its life is over.
type issued struct {
	Name   string `json:"name"`
	Secret []byte `json:"secret,omitempty"`
	Used   bool   `json:"used,omitempty"`
}

// request asks for a certificate.
type request struct {
	Name string `json:"name"`
	CSR  []byte `json:"csr"` // DER
	MAC  []byte `json:"mac"` // of the CSR, by the token's secret
}

// answer is the answer to a request: a certificate, or why not.
type answer struct {
	Certificate string `json:"certificate,omitempty"`
	Error       string `json:"error,omitempty"`
}

func (f *folder) tokenKey(id string) string {
	return directory.Aside(f.is.Prefix) + "tokens/" + id
}

func (f *folder) requestsKey(id string) string {
	return directory.Aside(f.is.Prefix) + "requests/" + id
}

func (f *folder) answersKey(id string) string {
	return directory.Aside(f.is.Prefix) + "answers/" + id
}

// lives of what is beside the tree.
const (
	answerLife = time.Hour      // of an answer
	usedLife   = 24 * time.Hour // a used token is remembered for so long
)

const grantLong = `Lets a host in, with what it may have: the addresses of --allow, and no others. Without
an address, as --allow 1, it may have any of that tenant that no other host is granted
or has. Then it makes a token by which the host joins, once, within --life.

For a host that is in already, the command makes another token: to join anew, or from
another machine.`

func grantCommand() *cobra.Command {
	var f folder
	var allow []string
	var out string
	var life time.Duration
	cmd := &cobra.Command{
		Use: "grant NAME", Short: "let a host in: what it may have, and a token to join by", Long: grantLong, Args: cli.Arguments(1, 1),
		Example: "  vnic fleet grant rack1 --allow 1:192.168.100.21 --allow 2 --token rack1.token",
		RunE: func(cmd *cobra.Command, args []string) error {
			name := args[0]
			if err := cmlink.CheckName(name); err != nil {
				return err
			}
			if len(userHost+name) > 64 {
				return fmt.Errorf("%s has %d characters: in a fleet a name has at most %d", name, len(name), 64-len(userHost))
			}
			list, err := parseAllowed(allow)
			if err != nil {
				return err
			}
			var t *token
			err = f.with(cmd, userRoot, func(ctx context.Context, k *clientv3.Client) (err error) {
				t, err = f.grant(ctx, k, name, list, life)
				return err
			})
			if err != nil {
				return err
			}
			text := base64.StdEncoding.EncodeToString([]byte(directory.Encode(t)))
			said := text
			if out != "" {
				if err := files.Replace(out, []byte(text+"\n"), 0o600); err != nil {
					return err
				}
				text, said = "", fmt.Sprintf("%s: may join until %s by %s", name, t.Ends.Local().Format(time.TimeOnly), out)
			}
			return f.print(cmd, struct {
				Name  string    `json:"name"`
				Ends  time.Time `json:"ends"`
				File  string    `json:"file,omitempty"`
				Token string    `json:"token,omitempty"`
			}{name, t.Ends, out, text}, "%s\n", said)
		},
	}
	cmd.Flags().StringArrayVar(&allow, "allow", nil, "`TENANT[:ADDRESS]` that the host may have; again for more")
	cmd.Flags().StringVar(&out, "token", "", "`file` for the token (default: printed)")
	cmd.Flags().DurationVar(&life, "life", 15*time.Minute, "time within which the host has to join")
	f.flags(cmd.Flags())
	return cmd
}

// parseAllowed reads TENANT or TENANT:ADDRESS.
func parseAllowed(texts []string) (list []directory.Address, err error) {
	for _, text := range texts {
		a := directory.Address{}
		if t, _, _ := strings.Cut(text, ":"); t == "0" {
			return nil, cli.Usagef("%q: there is no tenant 0; tenants are 1 to 4294967295", text)
		}
		if strings.Contains(text, ":") {
			a, err = directory.ParseAddress(text)
		} else if n, scan := fmt.Sscanf(text+"\n", "%d\n", &a.Tenant); n != 1 || scan != nil || a.Tenant == 0 {
			err = fmt.Errorf("%q: write TENANT or TENANT:ADDRESS, as 1 or 1:192.168.100.21", text)
		}
		if err != nil {
			return nil, cli.Usagef("%w", err)
		}
		list = append(list, a)
	}
	return list, nil
}

// grant writes a host's grant, makes it a user of etcd, and returns a token.
func (f *folder) grant(ctx context.Context, k *clientv3.Client, name string, list []directory.Address, life time.Duration) (*token, error) {
	a, err := cmlink.OpenAuthority(f.dir)
	if err != nil {
		return nil, err
	}
	if life < time.Second || life > usedLife {
		return nil, fmt.Errorf("--life %s: use 1s to %s", life, usedLife)
	}
	t := &token{Name: name, Domain: f.is.Domain, Prefix: f.is.Prefix, Endpoints: f.is.Endpoints, Secret: make([]byte, 32), Ends: time.Now().Add(life).UTC().Truncate(time.Second)}
	id := make([]byte, 12)
	_, _ = rand.Read(t.Secret) // never fails (crypto/rand)
	_, _ = rand.Read(id)
	t.ID = hex.EncodeToString(id)
	roots, err := a.Roots()
	if err != nil {
		return nil, err
	}
	t.Roots = string(roots)
	cert, key, err := a.Issue(cmlink.Subject{Common: userJoin, Life: life + time.Minute})
	if err != nil {
		return nil, err
	}
	t.Certificate, t.Key = string(cert), string(key)
	l, err := k.Grant(ctx, int64(life/time.Second))
	if err != nil {
		return nil, err
	}
	// The token is there with the grant: a revocation between the two would miss it.
	_, err = f.changeGrant(ctx, k, name, func(_ *directory.View, g *directory.Grant, _ bool) error {
		if g.Revoked = false; g.Allow == nil {
			g.Allow = []directory.Allowed{}
		}
		for _, a := range list {
			g.Add(a)
		}
		return nil
	}, clientv3.OpPut(f.tokenKey(t.ID), directory.Encode(issued{Name: name, Secret: t.Secret}), clientv3.WithLease(l.ID)))
	if err != nil {
		return nil, err
	}
	return t, setUser(ctx, k, userHost+name, userHost+name, f.hostRole(name))
}

const joinLong = `Joins a fleet by a token of vnic fleet grant. The host's key is made here and does not
leave; whoever runs vnic fleet watch --sign signs its certificate. --dir gets ca.pem,
host-NAME.pem and host-NAME.key, and is what cm.identity names.

A token is good once, and for as long as vnic fleet grant said.`

func joinCommand() *cobra.Command {
	var dir, file string
	var asJSON bool
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "join --token FILE", Short: "join a fleet by a token", Long: joinLong, Args: cli.Arguments(0, 0),
		Example: "  vnic fleet join --token rack1.token --dir /etc/vnic/keys",
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, err := readToken(cmd.InOrStdin(), file)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), wait)
			defer cancel()
			if err := join(ctx, t, dir); err != nil {
				return err
			}
			j := joined{t.Name, t.Domain, dir, t.Prefix, t.Endpoints}
			if asJSON {
				return cli.PrintJSON(cmd.OutOrStdout(), j)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: joined %s. In the NIC's configuration:\n\ncm: {name: %s, identity: %s, listen: …}\ndirectory: {etcd: {endpoints: [%s], prefix: %s}}\n",
				j.Name, j.Domain, j.Name, j.Dir, strings.Join(j.Endpoints, ", "), strings.TrimSuffix(j.Prefix, "/"))
			return nil
		},
	}
	cmd.Flags().StringVar(&file, "token", "", "`file` with the token; - for standard input")
	_ = cmd.MarkFlagRequired("token")
	cmd.Flags().StringVar(&dir, "dir", "keys", "`folder` for the certificate (cm.identity)")
	cmd.Flags().DurationVar(&wait, "wait", time.Minute, "time to wait for the signature")
	cli.JSONFlag(cmd.Flags(), &asJSON)
	return cmd
}

// joined is what `vnic fleet join --json` prints.
type joined struct {
	Name      string   `json:"name"`
	Domain    string   `json:"domain"`
	Dir       string   `json:"dir"`
	Prefix    string   `json:"prefix"`
	Endpoints []string `json:"endpoints"`
}

func readToken(in io.Reader, file string) (*token, error) {
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, 1<<16))
	if err != nil {
		return nil, err
	}
	var t token
	text, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(b)))
	if err == nil {
		err = json.Unmarshal(text, &t)
	}
	if err == nil {
		err = cmlink.CheckName(t.Name)
	}
	if err != nil || t.ID == "" {
		return nil, fmt.Errorf("%s: not a token of vnic fleet grant, or only part of one", file)
	}
	if now := time.Now(); now.After(t.Ends) {
		return nil, fmt.Errorf("the token expired on %s, and this machine's clock says %s: get another one (vnic fleet grant %s)",
			t.Ends.Format(time.DateTime), now.UTC().Format(time.DateTime), t.Name)
	}
	return &t, nil
}

// join gets a certificate by a token and writes the host's files.
func join(ctx context.Context, t *token, dir string) error {
	paths := []string{filepath.Join(dir, "host-"+t.Name+".key"), filepath.Join(dir, "host-"+t.Name+".pem"), filepath.Join(dir, "ca.pem")}
	for _, path := range paths {
		if _, err := os.Lstat(path); err == nil {
			return fmt.Errorf("%s exists and is not overwritten: name another folder by --dir, or remove it; the token is still good", path)
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	key, keyPEM, err := cmlink.NewKey()
	if err != nil {
		return err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return err
	}
	a, err := t.ask(ctx, request{t.Name, csr, mac(t.Secret, csr)})
	if err != nil {
		return err
	}
	if a.Error != "" {
		return errors.New(a.Error)
	}
	if _, err := tls.X509KeyPair([]byte(a.Certificate), keyPEM); err != nil {
		return fmt.Errorf("the certificate that came is not for this host's key: %w", err)
	}
	return errors.Join(files.Replace(paths[0], keyPEM, 0o600), files.Replace(paths[1], []byte(a.Certificate), 0o644), files.Replace(paths[2], []byte(t.Roots), 0o644))
}

func mac(secret, csr []byte) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write(csr)
	return h.Sum(nil)
}

// ask puts a request beside the fleet and waits for its answer.
func (t *token) ask(ctx context.Context, r request) (a answer, err error) {
	f := folder{is: description{t.Domain, t.Prefix, t.Endpoints}}
	pair, err := tls.X509KeyPair([]byte(t.Certificate), []byte(t.Key))
	if err != nil {
		return a, fmt.Errorf("the token: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(t.Roots))
	k, err := etcd.Dial(t.Endpoints, etcd.TLS(pair, roots))
	if err != nil {
		return a, err
	}
	defer k.Close()
	limited, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	old, err := k.Get(limited, f.answersKey(t.ID)) // of an earlier request
	if err == nil {
		_, err = k.Put(limited, f.requestsKey(t.ID), directory.Encode(r))
	}
	if err != nil {
		return a, etcd.Explain(err)
	}
	for w := range k.Watch(clientv3.WithRequireLeader(ctx), f.answersKey(t.ID), clientv3.WithRev(old.Header.Revision+1)) {
		for _, e := range w.Events {
			if e.Type == clientv3.EventTypePut {
				return a, json.Unmarshal(e.Kv.Value, &a)
			}
		}
		if err := w.Err(); err != nil {
			return a, etcd.Explain(err)
		}
	}
	return a, errors.New("nobody signs: run vnic fleet watch --sign where the fleet's folder is, then join again; the token is still good")
}
