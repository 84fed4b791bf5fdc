package abi

import (
	"bytes"
	"strings"
	"unicode"
	"unicode/utf8"
)

// PutText fills dst with s, cut at a character's end when it is too long, and
// zeros, and returns the bytes of s taken.
func PutText(dst []byte, s string) int {
	if len(s) > len(dst) {
		s = s[:len(dst)]
		for len(s) > 0 && !utf8.ValidString(s) {
			s = s[:len(s)-1]
		}
	}
	n := copy(dst, s)
	clear(dst[n:])
	return n
}

// Text returns the text of a zero padded field, with everything that is not
// printable replaced: the other side wrote it, and it goes into logs.
func Text(field []byte) string {
	if i := bytes.IndexByte(field, 0); i >= 0 {
		field = field[:i]
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '\ufffd'
		}
		return r
	}, string(field))
}
