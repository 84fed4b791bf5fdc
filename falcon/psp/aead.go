package psp

import (
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"fmt"
)

// ErrAuth means that the ICV does not match: a changed packet, a foreign key, or noise.
var ErrAuth = errors.New("psp: authentication failed")

// sealer is the cipher of one SPI. Versions 2 and 3 authenticate everything and encrypt nothing.
type sealer struct {
	aead    cipher.AEAD
	version uint8
}

func newSealer(version uint8, key []byte) (sealer, error) {
	if n := KeyLen(version); n == 0 || len(key) != n {
		return sealer{}, fmt.Errorf("psp: version %d needs a key of %d bytes, not %d", version, n, len(key))
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return sealer{}, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return sealer{}, fmt.Errorf("psp: %w (GODEBUG=fips140=only is not supported: PSP prescribes the nonce)", err)
	}
	return sealer{aead: aead, version: version}, nil
}

// clearLen returns how many bytes of a packet of n bytes (without ICV) stay in clear text, as
// additional data.
func (s *sealer) clearLen(h *Header, n int) (int, error) {
	if h.Version >= VersionGMAC128 {
		return n, nil
	}
	clear := BaseLen + 4*int(h.CryptOffset)
	if clear > n {
		return 0, errOffset
	}
	return clear, nil
}

// seal encrypts b[:n] in place and appends the ICV. The header must be in b; it contains the nonce
// SPI ‖ IV.
func (s *sealer) seal(h *Header, b []byte, n int) error {
	c, err := s.clearLen(h, n)
	if err != nil {
		return err
	}
	s.aead.Seal(b[c:c], b[4:BaseLen], b[c:n], b[:c])
	return nil
}

// sealFrom does what seal does for a payload that lies elsewhere. It saves a copy if the clear text
// ends with the header.
func (s *sealer) sealFrom(h *Header, b, payload []byte) error {
	at, n := h.Len(), h.Len()+len(payload)
	c, err := s.clearLen(h, n)
	switch {
	case err != nil:
		return err
	case c == at:
		s.aead.Seal(b[c:c], b[4:BaseLen], payload, b[:c])
		return nil
	}
	copy(b[at:n], payload)
	return s.seal(h, b, n)
}

// open verifies and decrypts b, which includes the ICV, in place. If it fails, the encrypted part
// is lost.
func (s *sealer) open(h *Header, b []byte) error {
	n := len(b) - ICVLen
	c, err := s.clearLen(h, n)
	if err != nil {
		return err
	}
	if _, err := s.aead.Open(b[c:c], b[4:BaseLen], b[c:], b[:c]); err != nil {
		return ErrAuth
	}
	return nil
}
