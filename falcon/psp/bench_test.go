package psp

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"testing"
	"time"
)

const benchPayload = 4096

// BenchmarkSealOpen compares sealing and opening 4 KiB with the bare cipher doing the same work, in
// the same run.
func BenchmarkSealOpen(b *testing.B) {
	d, tx := pair(b, VersionGCM128, 8, true)
	open := d.Opener(0)
	buf := make([]byte, tx.Overhead()+benchPayload)
	block, err := aes.NewCipher(make([]byte, 16))
	if err != nil {
		b.Fatal(err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		b.Fatal(err)
	}
	bare := make([]byte, 12+48+benchPayload+ICVLen)
	nonce, aad, text := bare[:12], bare[12:60], bare[60:60+benchPayload]
	var ours, cipherOnly time.Duration
	var n uint64
	for b.Loop() {
		n++
		start := time.Now()
		for range 16 { // alternate in blocks, so that both meet the same neighbours
			if _, err := tx.Seal(0, NextHeaderIPv4, buf, benchPayload); err != nil {
				b.Fatal(err)
			}
			if _, _, _, err := open.Open(buf); err != nil {
				b.Fatal(err)
			}
		}
		ours += time.Since(start)
		start = time.Now()
		for i := range uint64(16) {
			binary.BigEndian.PutUint64(nonce[4:], n*16+i)
			sealed := aead.Seal(text[:0], nonce, text, aad)
			if _, err := aead.Open(text[:0], nonce, sealed, aad); err != nil {
				b.Fatal(err)
			}
		}
		cipherOnly += time.Since(start)
	}
	b.ReportMetric(float64(ours.Nanoseconds())/float64(16*n), "tunnel/seal_open4k_ns")
	b.ReportMetric(float64(ours)/float64(cipherOnly), "tunnel/seal4k_over_cipher")
}
