package cmlink

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
)

// protocol is the ALPN name; it changes when the framing changes.
const protocol = "vnic-cm/1"

// tlsConfig returns the configuration, which is the same for both sides. It verifies the chain
// itself, since identities are URIs and not host names. accept decides on the identity.
func tlsConfig(id *Identity, usage x509.ExtKeyUsage, accept func(uri string) error) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{id.cert},
		NextProtos:             []string{protocol},
		SessionTicketsDisabled: true, // each connection proves both identities
		ClientAuth:             tls.RequireAnyClientCert,
		InsecureSkipVerify:     true, // VerifyConnection verifies, and always runs
		VerifyConnection: func(cs tls.ConnectionState) error {
			if cs.NegotiatedProtocol != protocol {
				return fmt.Errorf("peer does not speak %s", protocol)
			}
			return verify(id, cs.PeerCertificates, usage, accept)
		},
	}
}

func verify(id *Identity, chain []*x509.Certificate, usage x509.ExtKeyUsage, accept func(string) error) error {
	if len(chain) == 0 {
		return fmt.Errorf("%w: no certificate", ErrIdentity)
	}
	// The CA signs hosts directly, so no intermediates are taken.
	opts := x509.VerifyOptions{Roots: id.roots, KeyUsages: []x509.ExtKeyUsage{usage}}
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
