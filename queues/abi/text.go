package abi

import (
	"bytes"
	"strings"
	"unicode"
	"unicode/utf8"
)

// PutText fills dst with s, shortened by Shorten if it is too long, and zeros. It returns the
// number of bytes used.
func PutText(dst []byte, s string) int {
	s = Shorten(s, len(dst))
	n := copy(dst, s)
	clear(dst[n:])
	return n
}

// Shorten cuts a text that is longer than n bytes after a word, and appends three dots; if no space
// is near, it cuts between characters. If there is no room for dots, it appends none.
func Shorten(s string, n int) string {
	dots := "..."
	if len(s) <= n {
		return s
	}
	if n < 16 {
		dots = ""
	}
	most := n - len(dots)
	if at := strings.LastIndexByte(s[:most+1], ' '); dots != "" && at > most/2 {
		return strings.TrimRight(s[:at], " ,;:") + dots
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most] + dots
}

// Text returns the text of a zero-padded field, with everything that is not printable replaced: the
// other side wrote it, and it is written to logs.
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
