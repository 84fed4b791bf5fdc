package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Check validates the schema: names, alignment, overlap, sizes and
// references. It returns every finding.
func (a *ABI) Check() error {
	c := checker{abi: a, names: map[string]string{}}
	for _, k := range a.Consts {
		c.name(k.Name, "constant")
	}
	for i := range a.Enums {
		c.enum(&a.Enums[i])
	}
	for i := range a.Flags {
		c.flags(&a.Flags[i])
	}
	for _, s := range a.Structs() {
		c.structure(s)
	}
	c.registers()
	c.messages()
	c.commands()
	c.clauses()
	return errors.Join(c.found...)
}

type checker struct {
	abi   *ABI
	names map[string]string // Go name → what has it
	found []error
}

func (c *checker) fail(format string, args ...any) {
	c.found = append(c.found, fmt.Errorf(format, args...))
}

// name claims a Go name.
func (c *checker) name(name, what string) {
	if name == "" {
		c.fail("%s without a name", what)
	}
	if other, dup := c.names[name]; dup {
		c.fail("%s %s: the name is used by a %s", what, name, other)
	}
	c.names[name] = what
}

func (c *checker) enum(e *Enum) {
	c.name(e.Name, "enum")
	values := map[uint64]string{}
	for _, v := range e.Values {
		c.name(e.Prefix+v.Name, "value of "+e.Name)
		if v.Text == "" || v.Doc == "" {
			c.fail("%s%s: no text", e.Prefix, v.Name)
		}
		if other, dup := values[v.Value]; dup {
			c.fail("%s%s: value %d is that of %s", e.Prefix, v.Name, v.Value, other)
		}
		values[v.Value] = v.Name
		if v.Value >= 1<<(8*e.Base.Size()) && e.Base != U64 {
			c.fail("%s%s: value %d does not fit %s", e.Prefix, v.Name, v.Value, e.Base)
		}
	}
}

func (c *checker) flags(f *FlagSet) {
	var used uint64
	for _, v := range f.Values {
		c.name(f.Prefix+v.Name, "bit of "+f.Name)
		if v.Value == 0 || v.Value&(v.Value-1) != 0 {
			c.fail("%s%s: %#x is not one bit", f.Prefix, v.Name, v.Value)
		}
		if used&v.Value != 0 {
			c.fail("%s%s: bit %#x is used", f.Prefix, v.Name, v.Value)
		}
		used |= v.Value
	}
}

func (c *checker) structure(s *Struct) {
	if !s.OffsetsOnly {
		c.name(s.Name, "structure")
	}
	if !strings.HasPrefix(s.Doc, s.Name+" ") {
		c.fail("%s: the text does not start with the name", s.Name)
	}
	end := 0
	fields := map[string]bool{}
	for i := range s.Fields {
		f := &s.Fields[i]
		where := s.Name + "." + f.Name
		if fields[f.Name] {
			c.fail("%s: twice", where)
		}
		fields[f.Name] = true
		if f.Size() <= 0 || (f.Kind != Bytes && f.Len != 0) {
			c.fail("%s: bad length", where)
		}
		if f.Offset < end {
			c.fail("%s: offset %d overlaps or precedes the field before", where, f.Offset)
		}
		if n := max(f.Kind.Size(), 1); f.Offset%n != 0 {
			c.fail("%s: offset %d is not a multiple of %d", where, f.Offset, n)
		}
		end = f.Offset + f.Size()
		if e := c.abi.Enum(f.Enum); f.Enum != "" && (e == nil || e.Base != f.Kind) {
			c.fail("%s: no enum %s for %s", where, f.Enum, f.Kind)
		}
		if f.Flags != "" && c.abi.FlagSet(f.Flags) == nil {
			c.fail("%s: no flags %s", where, f.Flags)
		}
		if w := f.Where; w.Field != "" {
			of := s.Field(w.Field)
			if of == nil || c.abi.Enum(of.Enum) == nil || c.abi.Enum(of.Enum).Value(w.Value) == nil || f.Kind != U8 || of.Kind != U8 {
				c.fail("%s: no byte %s with value %s, or no byte itself", where, w.Field, w.Value)
			}
		}
		if f.Doc == "" {
			c.fail("%s: no text", where)
		}
	}
	if end > s.Size || s.Size%8 != 0 {
		c.fail("%s: size %d with fields to %d", s.Name, s.Size, end)
	}
}

func (c *checker) registers() {
	end := 0
	for _, r := range c.abi.Registers {
		c.name("Reg"+r.Name, "register")
		if r.Width != 4 && r.Width != 8 {
			c.fail("register %s: width %d", r.Name, r.Width)
			continue
		}
		if r.Offset < end || r.Offset%r.Width != 0 {
			c.fail("register %s: offset %#x overlaps or is not aligned to %d", r.Name, r.Offset, r.Width)
		}
		end = r.Offset + r.Width
	}
}

func (c *checker) messages() {
	const header, limit = 16, 8192
	for _, m := range c.abi.Messages {
		if m.Body == "" {
			continue
		}
		switch s := c.abi.Struct(m.Body); {
		case s == nil:
			c.fail("message %s: no structure %s", m.Name, m.Body)
		case header+s.Size > limit:
			c.fail("message %s: too long", m.Name)
		}
	}
}

func (c *checker) commands() {
	for i := range c.abi.Commands {
		cmd := &c.abi.Commands[i]
		for _, part := range []struct {
			name string
			size int
		}{{cmd.Params, maxParams}, {cmd.Result, maxResult}} {
			if part.name == "" {
				continue
			}
			if s := c.abi.Struct(part.name); s == nil || s.Size > part.size {
				c.fail("command %s: %s is missing or longer than %d bytes", cmd.Name, part.name, part.size)
			}
		}
		c.rules(cmd)
	}
}

// rules checks what the command's rules name.
func (c *checker) rules(cmd *Command) {
	params := c.abi.Struct(cmd.Params)
	field := func(name string) (f *Field) {
		if params != nil {
			f = params.Field(name)
		}
		if f == nil {
			c.fail("command %s: no parameter %s", cmd.Name, name)
			f = &Field{}
		}
		return f
	}
	if g := c.abi.Group(cmd.Group); g == nil {
		c.fail("command %s: no group %s", cmd.Name, cmd.Group)
	} else if g.Of != "" {
		if of := field(g.Of); of.Offset != 0 || of.Kind != U16 {
			c.fail("command %s: %s is not its first parameter, of 16 bits", cmd.Name, g.Of)
		}
	}
	features := c.abi.FlagSet("Feature")
	for _, n := range cmd.Needs {
		if features == nil || !slices.ContainsFunc(features.Values, func(v Value) bool { return v.Name == n.Feature }) {
			c.fail("command %s: no feature %s", cmd.Name, n.Feature)
		}
		if n.Field == "" {
			continue
		}
		e := c.abi.Enum(field(n.Field).Enum)
		for _, v := range n.Values {
			if e == nil || e.Value(v) == nil {
				c.fail("command %s: %s has no value %s", cmd.Name, n.Field, v)
			}
		}
	}
	for _, area := range cmd.Areas {
		for _, name := range []string{area.Entries, area.Entry} {
			if name != "" && field(name).Kind != U8 {
				c.fail("command %s: %s is not a log2", cmd.Name, name)
			}
		}
	}
	status := c.abi.Enum("Status")
	for _, b := range cmd.Breaks {
		if status == nil || status.Value(b.Status) == nil || !slices.ContainsFunc(c.abi.Clauses, func(k Clause) bool { return k.Number == b.Clause }) {
			c.fail("command %s: no status %s, or no DRV-%d", cmd.Name, b.Status, b.Clause)
		}
	}
}

func (c *checker) clauses() {
	last := 0
	for _, k := range c.abi.Clauses {
		c.name(fmt.Sprintf("DRV%d", k.Number), "clause")
		if k.Number <= last || k.Doc == "" {
			c.fail("DRV-%d: behind DRV-%d, or without text", k.Number, last)
		}
		last = k.Number
	}
}

// Hash is a digest of everything that binds the two sides: numbers, offsets,
// widths and codes, but no texts.
func (a *ABI) Hash() string {
	h := sha256.New()
	for _, c := range a.Consts {
		fmt.Fprintf(h, "const %s %d\n", c.Name, c.Value)
	}
	for _, e := range a.Enums {
		fmt.Fprintf(h, "enum %s %s\n", e.Name, e.Base)
		for _, v := range e.Values {
			fmt.Fprintf(h, " %s %d\n", v.Name, v.Value)
		}
	}
	for _, f := range a.Flags {
		fmt.Fprintf(h, "flags %s\n", f.Name)
		for _, v := range f.Values {
			fmt.Fprintf(h, " %s %d\n", v.Name, v.Value)
		}
	}
	for _, r := range a.Registers {
		fmt.Fprintf(h, "register %s %d %d %s\n", r.Name, r.Offset, r.Width, r.Access)
	}
	for _, m := range a.Messages {
		fmt.Fprintf(h, "message %s %d %s %t %s %s %s\n", m.Name, m.Code, m.Body, m.List, m.Repeat, m.From, m.Answer)
	}
	for _, c := range a.Commands {
		fmt.Fprintf(h, "command %s %d %s %s\n", c.Name, c.Code, c.Params, c.Result)
	}
	for _, s := range a.Structs() {
		fmt.Fprintf(h, "struct %s %d\n", s.Name, s.Size)
		for i := range s.Fields {
			f := &s.Fields[i]
			fmt.Fprintf(h, " %s %d %s %d %s %s\n", f.Name, f.Offset, f.Kind, f.Size(), f.Enum, f.Flags)
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}
