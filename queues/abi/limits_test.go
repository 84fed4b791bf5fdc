package abi

import (
	"strings"
	"testing"
)

// TestPages: how many entries of page lists a command has read at once: one for each page of its
// queues' areas, with their headers. Areas larger than any are not read.
func TestPages(t *testing.T) {
	cmd := func(op AdminOp, p layout) *AdminCmd {
		c := &AdminCmd{Opcode: op}
		p.Marshal(c.Params[:])
		return c
	}
	cq := func(log2 uint8) *AdminCmd { return cmd(AdminOpCreateCQ, &CreateCQ{Log2Entries: log2}) }
	qp := func(sq, sqStride, rq, rqStride uint8) *AdminCmd {
		return cmd(AdminOpCreateQP, &CreateQP{SQLog2Entries: sq, SQLog2Stride: sqStride, RQLog2Entries: rq, RQLog2Stride: rqStride})
	}
	for name, c := range map[string]struct {
		cmd  *AdminCmd
		want int
	}{
		"no queue":                   {&AdminCmd{Opcode: AdminOpAllocPD}, 1},
		"32 entries of 64 bytes":     {cq(5), 1},
		"64 entries, and the header": {cq(6), 2},
		"most entries":               {cq(18), 1<<(18+6-12) + 1},
		"largest queue of entries":   {cq(24), 1<<(24+6-12) + 1},
		"a larger one":               {cq(25), 0},
		"no number":                  {cq(255), 0},
		"two queues":                 {qp(6, 7, 5, 6), 3 + 1},
		"largest of both":            {qp(18, 12, 18, 12), 2 * (1<<18 + 1)},
		"one too large":              {qp(18, 13, 5, 6), 1},
		"no number of either":        {qp(255, 255, 31, 1), 0},
	} {
		if got := c.cmd.Pages(); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// TestShorten: a text that is too long ends with dots behind a word, where there is one in the second
// half of the room; without room for dots it is cut.
func TestShorten(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"exactly sixteen.", 16, "exactly sixteen."},
		{"exactly sixteen.", 15, "exactly sixteen"}, // no dots below 16
		{"one more, sixteen", 16, "one more..."},
		{"abcdef ghijklmnopq", 16, "abcdef ghijkl..."},  // the space is at 6, half of the room for text
		{"abcdefg hijklmnopq", 16, "abcdefg..."},        // just behind it
		{"abcdefghijklm nopqr", 16, "abcdefghijklm..."}, // the last that the room allows
		{"abcdefghijklmn opqr", 16, "abcdefghijklm..."},
		{"abcdefghi ,;: klmnopq", 16, "abcdefghi..."},
		{"éé", 3, "é"},
		{"é", 1, ""},
		{"é", 0, ""},
		{"", 0, ""},
	} {
		if got := Shorten(c.in, c.n); got != c.want {
			t.Errorf("%q to %d: %q, want %q", c.in, c.n, got, c.want)
		}
	}
	for n := range 30 {
		if got := Shorten(strings.Repeat("é ", 20), n); len(got) > n {
			t.Errorf("%q is longer than %d bytes", got, n)
		}
	}
}

// TestPathMTUs: each path MTU is what its bytes say, and the largest of so many bytes or fewer.
func TestPathMTUs(t *testing.T) {
	bytes := 128
	for m := MTU256; m <= MTU4096; m++ {
		bytes *= 2
		if m.Bytes() != bytes || PathMTUFor(bytes) != m || PathMTUFor(bytes-1) != m-1 || PathMTUFor(bytes+1) != m {
			t.Errorf("%v: %d bytes; of %d bytes %v", m, m.Bytes(), bytes, PathMTUFor(bytes))
		}
	}
	if m := MTU4096 + 1; m.Bytes() != 0 {
		t.Errorf("%d has %d bytes", m, m.Bytes())
	}
}
