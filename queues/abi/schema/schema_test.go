package schema

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	if err := Current.Check(); err != nil {
		t.Fatal(err)
	}
}

// TestCheckFinds breaks a copy of the schema in every way Check guards against.
func TestCheckFinds(t *testing.T) {
	good := Struct{Name: "S", Size: 16, Doc: "S is.", Fields: []Field{
		{Name: "A", Offset: 0, Kind: U32, Doc: "a"},
		{Name: "B", Offset: 8, Kind: U64, Doc: "b"},
	}}
	one := func(change func(s *Struct)) *ABI {
		s := good
		s.Fields = append([]Field(nil), good.Fields...)
		change(&s)
		return &ABI{Queues: []Struct{s}}
	}
	if err := one(func(*Struct) {}).Check(); err != nil {
		t.Fatal(err)
	}
	command := func(cmd Command) *ABI {
		cmd.Name = "C"
		if cmd.Group == "" {
			cmd.Group = "G"
		}
		return &ABI{
			Groups: []Group{{Name: "G"}, {Name: "H", Of: "B"}}, Commands: []Command{cmd}, Queues: []Struct{good},
			Flags:   []FlagSet{{Name: "Feature", Values: []Value{{Name: "F", Value: 1}}}},
			Enums:   []Enum{{Name: "Status", Values: []Value{{Name: "OK", Text: "ok", Doc: "ok"}}}},
			Clauses: []Clause{{1, "a", ""}},
		}
	}
	if err := command(Command{Params: "S", Needs: []Need{{Feature: "F", Field: "A"}}, Breaks: []Breach{{"OK", 1}}}).Check(); err != nil {
		t.Fatal(err)
	}
	for name, a := range map[string]*ABI{
		"overlap":      one(func(s *Struct) { s.Fields[1].Offset = 0 }),
		"misaligned":   one(func(s *Struct) { s.Fields[1].Offset = 4 }),
		"too long":     one(func(s *Struct) { s.Size = 8 }),
		"odd size":     one(func(s *Struct) { s.Size = 20 }),
		"twice":        one(func(s *Struct) { s.Fields[1].Name = "A" }),
		"no enum":      one(func(s *Struct) { s.Fields[0].Enum = "X" }),
		"no flags":     one(func(s *Struct) { s.Fields[0].Flags = "X" }),
		"no text":      one(func(s *Struct) { s.Fields[0].Doc = "" }),
		"empty bytes":  one(func(s *Struct) { s.Fields[0] = Field{Name: "A", Kind: Bytes, Doc: "a"} }),
		"value twice":  {Enums: []Enum{{Name: "E", Values: []Value{{Name: "A", Text: "a", Doc: "a"}, {Name: "B", Text: "b", Doc: "b"}}}}},
		"value range":  {Enums: []Enum{{Name: "E", Values: []Value{{Name: "A", Value: 256, Text: "a", Doc: "a"}}}}},
		"bit twice":    {Flags: []FlagSet{{Name: "F", Values: []Value{{Name: "A", Value: 1}, {Name: "B", Value: 1}}}}},
		"two bits":     {Flags: []FlagSet{{Name: "F", Values: []Value{{Name: "A", Value: 3}}}}},
		"name twice":   {Consts: []Const{{Name: "A"}, {Name: "A"}}},
		"register":     {Registers: []Register{{Name: "A", Offset: 4, Width: 8}}},
		"body":         {Messages: []Message{{Name: "A", Body: "X"}}},
		"clause twice": {Clauses: []Clause{{1, "a", ""}, {1, "b", ""}}},
		"no clause":    {Clauses: []Clause{{1, "", ""}}},
		"params":       {Commands: []Command{{Name: "A", Params: "X"}}},
		"no group":     {Commands: []Command{{Name: "A"}}},
		"no case":      one(func(s *Struct) { s.Fields[0].Where = Where{"B", "X"} }),
		"no feature":   command(Command{Needs: []Need{{Feature: "X"}}}),
		"no parameter": command(Command{Needs: []Need{{Feature: "F", Field: "X"}}}),
		"no value":     command(Command{Params: "S", Needs: []Need{{Feature: "F", Field: "A", Values: []string{"X"}}}}),
		"no log2":      command(Command{Params: "S", Areas: []Area{{Entries: "A"}}}),
		"no status":    command(Command{Breaks: []Breach{{"X", 1}}}),
		"no rule":      command(Command{Breaks: []Breach{{"OK", 2}}}),
		"of whom":      command(Command{Group: "H", Params: "S"}),
		"register gap": {Registers: []Register{{Name: "A", Offset: 0, Width: 8}, {Name: "B", Offset: 4, Width: 4}}},
	} {
		if a.Check() == nil {
			t.Errorf("%s: not found", name)
		}
	}
}

// TestVersion holds the layout to its version: what driver writers rely on
// cannot change without a new version number.
func TestVersion(t *testing.T) {
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
