package psp

import (
	"bytes"
	"crypto/aes"
	"encoding/hex"
	"testing"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The two master keys published with Google's PSP reference tool.
func testMaster(t testing.TB) (m Master) {
	copy(m.Keys[0][:], unhex(t, "34448a064292601b11a0978f56a2d34cf3fc35ede1a6bc04f8db3e5243a2b0ca"))
	copy(m.Keys[1][:], unhex(t, "563952565d3a78ae773ec1b779f2f2d99f4a7f53a6fbb9b07d5b71f39364d739"))
	return m
}

// RFC 4493 §4 (AES-128) and NIST SP 800-38B D.3 (AES-256).
func TestCMACMatchesThePublishedVectors(t *testing.T) {
	msg := "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e5130c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
	for _, tc := range []struct {
		key  string
		n    int
		want string
	}{
		{"2b7e151628aed2a6abf7158809cf4f3c", 0, "bb1d6929e95937287fa37d129b756746"},
		{"2b7e151628aed2a6abf7158809cf4f3c", 16, "070a16b46b4d4144f79bdd9dd04a287c"},
		{"2b7e151628aed2a6abf7158809cf4f3c", 40, "dfa66747de9ae63030ca32611497c827"},
		{"2b7e151628aed2a6abf7158809cf4f3c", 64, "51f0bebf7e3b9d92fc49741779363cfe"},
		{"603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4", 0, "028962f61b7bf89efc6b551f4667d983"},
		{"603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4", 16, "28a7023f452e8f82bd4bf28d8c37c35c"},
		{"603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4", 40, "aaf3d8f1de5640c232f5b169b9c911e6"},
		{"603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4", 64, "e1992190549f6ed5696a2c056c315410"},
	} {
		block, err := aes.NewCipher(unhex(t, tc.key))
		if err != nil {
			t.Fatal(err)
		}
		if got := cmac(block, unhex(t, msg)[:tc.n]); !bytes.Equal(got[:], unhex(t, tc.want)) {
			t.Errorf("cmac of %d bytes with a %d-byte key = %x, want %s", tc.n, len(tc.key)/2, got, tc.want)
		}
	}
}

func TestDerivedKeysMatchTheKnownOnes(t *testing.T) {
	m := testMaster(t)
	for _, tc := range []struct {
		version uint8
		spi     uint32
		want    string
	}{
		{0, 0x12345678, "96c22dc799198090b74b70ae468e4e30"},
		{0, 0x9A345678, "3946da2554eae46ad1ef77a64372edc4"},
		{1, 0x12345678, "2b7d72074e42ca334487f2990e3f8c4037e436f38283449b76463e9b7fb2e3de"},
		{1, 0x9A345678, "fa00f609df6020289a1c93d6027081a637ad45b24a5576b36e6f49dd43114d80"},
		{0, 0x1A345678, "3fe9b90602a41ce17e20971810e9a6a0"},
		{1, 0x1A345678, "184eecc110d0ecfcf85e6f7c9eedab4d21122fb2d2b8c344af3a1c38d0b6adfd"},
		{2, 0x9A345678, "c42b1b69404d8338329b8ab392e87bb8"},
		{3, 0x9A345678, "1d5368a6bcc99c72dfb6f255fa2c4801ac303820e94e475573ad01df8f4d475a"},
	} {
		if got := DeriveKey(&m.Keys[tc.spi>>31], tc.version, tc.spi); !bytes.Equal(got, unhex(t, tc.want)) {
			t.Errorf("version %d SPI %08x: %x, want %s", tc.version, tc.spi, got, tc.want)
		}
	}
	if DeriveKey(&m.Keys[0], 4, 1) != nil {
		t.Error("a key for an unknown version")
	}
}
