package psp

import (
	"crypto/aes"
	"encoding/binary"
)

// KeyLen returns the key length of a version in bytes, 0 for an unknown version.
func KeyLen(version uint8) int {
	switch version {
	case VersionGCM128, VersionGMAC128:
		return 16
	case VersionGCM256, VersionGMAC256:
		return 32
	}
	return 0
}

// DeriveKey derives the key of an SPI from a master key: SP 800-108 in counter mode with
// AES-256-CMAC over the 16-byte block
//
//	counter(4) | "Pv" | '0'+version | 0 | SPI(4) | key length in bits(4)
//
// It returns nil for an unknown version.
func DeriveKey(master *[32]byte, version uint8, spi uint32) []byte {
	n := KeyLen(version)
	if n == 0 {
		return nil
	}
	block, err := aes.NewCipher(master[:])
	if err != nil {
		panic(err) // only for a wrong key length, which the type excludes
	}
	var in [16]byte
	in[4], in[5], in[6] = 'P', 'v', '0'+version
	binary.BigEndian.PutUint32(in[8:], spi)
	binary.BigEndian.PutUint32(in[12:], uint32(n)*8)
	key := make([]byte, 0, n)
	for ctr := uint32(1); len(key) < n; ctr++ {
		binary.BigEndian.PutUint32(in[:], ctr)
		mac := cmac(block, in[:])
		key = append(key, mac[:]...)
	}
	return key
}
