package main

import (
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi/schema"
)

// TestLinesFillTheirWidthAndNoMore: lines are as long as they may be, and no longer; a tab counts for four columns.
func TestLinesFillTheirWidthAndNoMore(t *testing.T) {
	half := strings.Repeat("a", 49)
	for _, c := range []struct{ before, text, want string }{
		{"", half + " " + half + "b", half + " " + half + "b\n"}, // 100 columns
		{"", half + " " + half + "bc", half + "\n" + half + "bc\n"},
		{"", half + "é " + half, half + "é " + half + "\n"},
		{"// ", half + " " + half[:47], "// " + half + " " + half[:47] + "\n"},
		{"// ", half + " " + half[:48], "// " + half + "\n// " + half[:48] + "\n"},
		{"\t", half + " " + half[:46], "\t" + half + " " + half[:46] + "\n"},
		{"\t", half + " " + half[:47], "\t" + half + "\n\t" + half[:47] + "\n"},
		{"", "two  spaces\nand a line", "two spaces and a line\n"},
		{"", half + " " + half + "bc d", half + "\n" + half + "bc d\n"},
	} {
		var p printer
		if p.prose(c.before, c.text); p.String() != c.want {
			t.Errorf("%q:\n%s want\n%s", c.text, p.String(), c.want)
		}
	}
}

// TestAFlagIsNamedByItsBit: a flag is named by the number of its bit.
func TestAFlagIsNamedByItsBit(t *testing.T) {
	for n := range 64 {
		if got := bit(1 << n); got != n {
			t.Errorf("bit %d: %d", n, got)
		}
	}
}

// TestAShortCommentIsOnOneLine: a comment that fits is on one line.
func TestAShortCommentIsOnOneLine(t *testing.T) {
	for n, lines := range map[int]int{94: 2, 95: 4} { // with /* and */
		var p printer
		if cComment(&p, strings.Repeat("é", n)); strings.Count(p.String(), "\n") != lines {
			t.Errorf("%d characters: %q", n, p.String())
		}
	}
}

// TestAStructureOfOneFieldStandsForIt: a structure of one field stands for that; the one that says whom a command is for
// does not count.
func TestAStructureOfOneFieldStandsForIt(t *testing.T) {
	a, b := schema.Field{Name: "A"}, schema.Field{Name: "B"}
	for _, c := range []struct {
		fields []schema.Field
		of     string
		one    string
		none   bool
	}{
		{nil, "", "", true},
		{[]schema.Field{a}, "", "A", false},
		{[]schema.Field{a}, "A", "", true},
		{[]schema.Field{a, b}, "A", "B", false},
		{[]schema.Field{a, b}, "", "", false},
	} {
		name := ""
		f, none := only(&schema.Struct{Fields: c.fields}, c.of)
		if f != nil {
			name = f.Name
		}
		if name != c.one || none != c.none {
			t.Errorf("%+v: %q, none %t", c, name, none)
		}
	}
}
