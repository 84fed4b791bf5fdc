package schema

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestTheCurrentSchemaIsWithoutMistakes(t *testing.T) {
	if err := Current.Check(); err != nil {
		t.Fatal(err)
	}
}

// good is a schema with a bit of everything, each number at the limit of what it may be. Change makes
// it another one.
func good(change func(a *ABI)) *ABI {
	a := &ABI{
		Consts: []Const{{Name: "C"}},
		Enums: []Enum{
			{Name: "E", Prefix: "E", Base: U8, Values: []Value{{Name: "A", Value: 0, Text: "a", Doc: "a"}, {Name: "B", Value: 255, Text: "b", Doc: "b"}}},
			{Name: "Wide", Prefix: "W", Base: U64, Values: []Value{{Name: "A", Value: 1<<64 - 1, Text: "a", Doc: "a"}}},
			{Name: "Status", Values: []Value{{Name: "OK", Text: "ok", Doc: "ok"}}},
		},
		Flags:     []FlagSet{{Name: "Feature", Prefix: "F", Values: []Value{{Name: "A", Value: 1}, {Name: "B", Value: 1 << 63}}}},
		Registers: []Register{{Name: "A", Offset: 0, Width: 4}, {Name: "B", Offset: 4, Width: 4}, {Name: "C", Offset: 8, Width: 8}},
		Messages:  []Message{{Name: "M", Body: "Body"}, {Name: "Empty"}},
		Groups:    []Group{{Name: "G"}, {Name: "H", Of: "Of"}},
		Commands: []Command{
			{
				Name: "C", Group: "G", Params: "S", Result: "Result", Needs: []Need{{Feature: "A"}, {Feature: "B", Field: "Kind", Values: []string{"A", "B"}}},
				Areas: []Area{{Entries: "Kind", Entry: "Case"}, {Entries: "Kind"}}, Breaks: []Breach{{"OK", 1}},
			},
			{Name: "D", Group: "H", Params: "S"},
		},
		Control: []Struct{{Name: "Body", Size: 8192 - 16, Doc: "Body is.", Fields: []Field{{Name: "A", Kind: Bytes, Len: 8192 - 16, Doc: "a"}}}},
		Admin: []Struct{
			{Name: "S", Size: maxParams, Doc: "S is.", Fields: []Field{
				{Name: "Of", Kind: U16, Doc: "of"},
				{Name: "Kind", Offset: 2, Kind: U8, Enum: "E", Doc: "kind"},
				{Name: "Case", Offset: 3, Kind: U8, Where: Where{"Kind", "B"}, Doc: "case"},
				{Name: "Flags", Offset: 4, Kind: U32, Flags: "Feature", Doc: "flags"},
				{Name: "Long", Offset: 8, Kind: U64, Doc: "long"},
				{Name: "Rest", Offset: 17, Kind: Bytes, Len: maxParams - 17, Doc: "rest"},
			}},
			{Name: "Result", Size: maxResult, Doc: "Result is."},
		},
		Queues:  []Struct{{Name: "C", Size: 8, Doc: "C is.", OffsetsOnly: true}}, // which has no Go name of its own
		Clauses: []Clause{{1, "a", ""}, {2, "b", ""}},
	}
	change(a)
	return a
}

// TestCheckFindsEachMistake breaks a copy of a schema in every way that Check guards against: it finds that, and
// nothing else.
func TestCheckFindsEachMistake(t *testing.T) {
	field := func(i int, change func(f *Field)) func(a *ABI) { return func(a *ABI) { change(&a.Admin[0].Fields[i]) } }
	command := func(change func(c *Command)) func(a *ABI) { return func(a *ABI) { change(&a.Commands[0]) } }
	const missing = " is missing or longer than "
	params, result := fmt.Sprintf("%d bytes", maxParams), fmt.Sprintf("%d bytes", maxResult)
	for name, c := range map[string]struct {
		change func(a *ABI)
		want   string // the one finding
	}{
		"nothing": {func(*ABI) {}, ""},

		"no name":         {func(a *ABI) { a.Consts[0].Name = "" }, "constant without a name"},
		"name twice":      {func(a *ABI) { a.Consts = append(a.Consts, Const{Name: "C"}) }, "constant C: the name is used by a constant"},
		"name of another": {func(a *ABI) { a.Consts[0].Name = "S" }, "structure S: the name is used by a constant"},

		"enum twice":     {func(a *ABI) { a.Enums[1].Name, a.Enums[0].Prefix = "E", "Is" }, "enum E: the name is used by a enum"},
		"value unnamed":  {func(a *ABI) { a.Enums[0].Values[0].Text = "" }, "EA: no text"},
		"value unknown":  {func(a *ABI) { a.Enums[0].Values[0].Doc = "" }, "EA: no text"},
		"value twice":    {func(a *ABI) { a.Enums[0].Values[0].Value = 255 }, "EB: value 255 is that of A"},
		"value range":    {func(a *ABI) { a.Enums[0].Values[1].Value = 256 }, "EB: value 256 does not fit u8"},
		"bit of nothing": {func(a *ABI) { a.Flags[0].Values[0].Value = 0 }, "FA: 0x0 is not one bit"},
		"two bits":       {func(a *ABI) { a.Flags[0].Values[0].Value = 3 }, "FA: 0x3 is not one bit"},
		"bit twice":      {func(a *ABI) { a.Flags[0].Values[1].Value = 1 }, "FB: bit 0x1 is used"},

		"structure untold":   {func(a *ABI) { a.Admin[0].Doc = "Sis." }, "S: the text does not start with the name"},
		"field twice":        {field(5, func(f *Field) { f.Name = "Long" }), "S.Long: twice"},
		"empty field":        {field(5, func(f *Field) { f.Len = 0 }), "S.Rest: bad length"},
		"length of a number": {field(4, func(f *Field) { f.Len = 8 }), "S.Long: bad length"},
		"overlap":            {field(1, func(f *Field) { f.Offset = 1 }), "S.Kind: offset 1 overlaps or precedes the field before"},
		"misaligned":         {field(4, func(f *Field) { f.Offset = 9 }), "S.Long: offset 9 is not a multiple of 8"},
		"no enum":            {field(3, func(f *Field) { f.Enum = "X" }), "S.Flags: no enum X for u32"},
		"enum of less bits":  {field(3, func(f *Field) { f.Enum = "E" }), "S.Flags: no enum E for u32"},
		"no flags":           {field(3, func(f *Field) { f.Flags = "X" }), "S.Flags: no flags X"},
		"no case":            {field(2, func(f *Field) { f.Where.Value = "X" }), "S.Case: no byte Kind with value X, or no byte itself"},
		"case of no field":   {field(2, func(f *Field) { f.Where.Field = "X" }), "S.Case: no byte X with value B, or no byte itself"},
		"case of no enum":    {field(2, func(f *Field) { f.Where.Field = "Case" }), "S.Case: no byte Case with value B, or no byte itself"},
		"case of no byte":    {field(3, func(f *Field) { f.Where = Where{"Kind", "B"} }), "S.Flags: no byte Kind with value B, or no byte itself"},
		"case of a wide field": {func(a *ABI) {
			a.Admin[0].Fields[4].Enum, a.Admin[0].Fields[2].Where = "Wide", Where{"Long", "A"}
		}, "S.Case: no byte Long with value A, or no byte itself"},
		"field untold": {field(4, func(f *Field) { f.Doc = "" }), "S.Long: no text"},
		"too long":     {field(5, func(f *Field) { f.Len++ }), fmt.Sprintf("S: size %d with fields to %d", maxParams, maxParams+1)},
		"odd size":     {func(a *ABI) { a.Queues[0].Size = 12 }, "C: size 12 with fields to 0"},

		"register width":      {func(a *ABI) { a.Registers[1].Width = 2 }, "register B: width 2"},
		"register overlap":    {func(a *ABI) { a.Registers[1].Offset = 0 }, "register B: offset 0x0 overlaps or is not aligned to 4"},
		"register misaligned": {func(a *ABI) { a.Registers[2].Offset = 12 }, "register C: offset 0xc overlaps or is not aligned to 8"},
		"register twice":      {func(a *ABI) { a.Registers[1].Name = "A" }, "register RegA: the name is used by a register"},
		"no body":             {func(a *ABI) { a.Messages[0].Body = "X" }, "message M: no structure X"},
		"body too long":       {func(a *ABI) { a.Control[0].Size += 8 }, "message M: too long"},

		"no parameters":       {command(func(c *Command) { *c = Command{Name: "C", Group: "G", Params: "X"} }), "command C: X" + missing + params},
		"parameters too long": {func(a *ABI) { a.Admin[0].Size, a.Commands = maxParams+8, a.Commands[:1] }, "command C: S" + missing + params},
		"result too long":     {func(a *ABI) { a.Admin[1].Size += 8 }, "command C: Result" + missing + result},
		"no group":            {command(func(c *Command) { c.Group = "X" }), "command C: no group X"},
		"of whom":             {func(a *ABI) { a.Groups[1].Of = "X" }, "command D: no parameter X\ncommand D: X is not its first parameter, of 16 bits"},
		"of whom, in 8 bits":  {field(0, func(f *Field) { f.Kind = U8 }), "command D: Of is not its first parameter, of 16 bits"},
		"of whom, later": {func(a *ABI) {
			a.Groups[1].Of = "Second"
			a.Admin[0].Fields[3] = Field{Name: "Second", Offset: 4, Kind: U16, Doc: "second"}
		}, "command D: Second is not its first parameter, of 16 bits"},
		"no feature":         {command(func(c *Command) { c.Needs[0].Feature = "X" }), "command C: no feature X"},
		"no parameter":       {command(func(c *Command) { c.Needs[1] = Need{Feature: "A", Field: "X"} }), "command C: no parameter X"},
		"no value":           {command(func(c *Command) { c.Needs[1].Values[1] = "X" }), "command C: Kind has no value X"},
		"value of no enum":   {command(func(c *Command) { c.Needs[1].Field = "Case" }), "command C: Case has no value A\ncommand C: Case has no value B"},
		"no log2":            {command(func(c *Command) { c.Areas[0].Entries = "Flags" }), "command C: Flags is not a log2"},
		"no log2 of entries": {command(func(c *Command) { c.Areas[0].Entry = "Of" }), "command C: Of is not a log2"},
		"no status":          {command(func(c *Command) { c.Breaks[0].Status = "X" }), "command C: no status X, or no DRV-1"},
		"no rule":            {command(func(c *Command) { c.Breaks[0].Clause = 3 }), "command C: no status OK, or no DRV-3"},

		"clauses exchanged": {func(a *ABI) { a.Clauses[0].Number, a.Clauses[1].Number = 2, 1 }, "DRV-1: behind DRV-2, or without text"},
		"clause untold":     {func(a *ABI) { a.Clauses[1].Doc = "" }, "DRV-2: behind DRV-1, or without text"},
	} {
		got := ""
		if err := good(c.change).Check(); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: found %q, want %q", name, got, c.want)
		}
	}
}

// TestALayoutChangesOnlyWithItsVersion holds the layout to its version: what driver writers rely on
// cannot change without a new version number.
func TestALayoutChangesOnlyWithItsVersion(t *testing.T) {
	text, err := os.ReadFile("testdata/layouts.txt")
	if err != nil {
		t.Fatal(err)
	}
	version := fmt.Sprintf("%d.%d", Current.Major, Current.Minor)
	for line := range strings.Lines(string(text)) {
		v, hash, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || v != version {
			continue
		}
		if got := Current.Hash(); got != hash {
			t.Fatalf("the layout of ABI %s has changed: raise the version in schema.go and add its line to testdata/layouts.txt:\n%s %s", version, version, got)
		}
		return
	}
	t.Fatalf("testdata/layouts.txt lacks ABI %s; add the line\n%s %s", version, version, Current.Hash())
}
