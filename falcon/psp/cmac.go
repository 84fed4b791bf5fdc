package psp

import (
	"crypto/aes"
	"crypto/cipher"
)

// cmac computes AES-CMAC (RFC 4493, NIST SP 800-38B) of msg. The standard library contains it but
// does not export it.
func cmac(block cipher.Block, msg []byte) (mac [aes.BlockSize]byte) {
	var k [aes.BlockSize]byte // subkey: K1 if the last block is full, K2 if it is padded
	block.Encrypt(k[:], k[:])
	double(&k)
	for len(msg) > aes.BlockSize {
		xor(&mac, msg[:aes.BlockSize])
		block.Encrypt(mac[:], mac[:])
		msg = msg[aes.BlockSize:]
	}
	xor(&mac, msg)
	if len(msg) < aes.BlockSize {
		double(&k)
		mac[len(msg)] ^= 0x80
	}
	xor(&mac, k[:])
	block.Encrypt(mac[:], mac[:])
	return mac
}

// double multiplies by x in GF(2^128), in constant time.
func double(k *[aes.BlockSize]byte) {
	carry := k[0] >> 7
	for i := range len(k) - 1 {
		k[i] = k[i]<<1 | k[i+1]>>7
	}
	k[len(k)-1] = k[len(k)-1]<<1 ^ 0x87&-carry
}

func xor(dst *[aes.BlockSize]byte, src []byte) {
	for i, v := range src {
		dst[i] ^= v
	}
}
