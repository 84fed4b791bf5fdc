package main

import (
	"fmt"
	"strings"

	"github.com/falcon-vnic/vnic/queues/abi/schema"
)

// reference renders docs/abi/reference.md.
func reference(a *schema.ABI) []byte {
	p := new(printer)
	p.f("<!-- Generated from queues/abi/schema by \"go generate ./queues/abi\"; do not edit. -->\n\n")
	p.f("# ABI reference, version %d.%d\n\n", a.Major, a.Minor)
	p.prose("", "Tables of the device's registers, messages, commands, descriptors and codes. The rules for using them "+
		"are in [index.md](index.md). All integers are unsigned and little-endian. Offsets and sizes are in bytes. "+
		"Bytes and bits that no row names are reserved: the writer stores zero, the reader ignores them. In diagrams "+
		"each row is 8 bytes, lowest address left, `·` marks a reserved byte.")
	p.f("\n")
	p.f("1. [Numbers](#numbers)\n2. [Registers](#registers)\n3. [Control messages](#control-messages)\n4. [Admin commands](#admin-commands)\n")
	p.f("5. [Queues and descriptors](#queues-and-descriptors)\n6. [Codes](#codes)\n7. [Flags](#flags)\n8. [Errors](#errors)\n\n")

	p.f("## Numbers\n\n| name | value | meaning |\n|---|---|---|\n")
	for _, c := range a.Consts {
		p.f("| `%s` | %s | %s |\n", c.Name, number(c.Value, c.Hex), cell(c.Doc))
	}
	docRegisters(p, a)
	docMessages(p, a)
	docCommands(p, a)
	docQueues(p, a)
	docCodes(p, a)
	return p.Bytes()
}

func docRegisters(p *printer, a *schema.ABI) {
	p.f("\n## Registers\n\n")
	p.prose("", "A register is read and written by `RegRead` and `RegWrite` messages, at its own offset and with its own "+
		"width only; anything else is refused and has no effect. RO: writes are refused. WO: reads are refused. "+
		"\"by function\" values are set by the host's configuration and do not change with a reset.")
	p.f("\n| offset | width | access | name | reset value | meaning | side effects |\n|---|---|---|---|---|---|---|\n")
	for _, r := range a.Registers {
		effect := r.Effect
		if effect == "" {
			effect = "none"
		}
		p.f("| `%#04x` | %d | %s | `Reg%s` | %s | %s | %s |\n", r.Offset, r.Width, r.Access, r.Name, r.Reset, cell(r.Doc), cell(effect))
	}
}

func docMessages(p *printer, a *schema.ABI) {
	p.f("\n## Control messages\n\n")
	p.f("| type | name | from | body | answer | meaning |\n|---|---|---|---|---|---|\n")
	for _, m := range a.Messages {
		body := "empty"
		switch {
		case m.List && m.Body != "":
			body = "n × `" + m.Body + "`"
		case m.List:
			body = "n × " + m.Repeat.String()
		case m.Body != "":
			body = "`" + m.Body + "`"
		}
		answer := "–"
		if m.Answer != "" {
			answer = "`" + m.Answer + "`"
		}
		p.f("| %d | `Msg%s` | %s | %s | %s | %s |\n", m.Code, m.Name, m.From, body, answer, cell(m.Doc))
	}
	docStructs(p, a.Control)
}

func docCommands(p *printer, a *schema.ABI) {
	p.f("\n## Admin commands\n\n")
	p.prose("", "Every command can end in InvalidArgument, and after a fault or reset in no completion at all. "+
		"The last column names the other statuses it can end in.")
	p.f("\n| opcode | name | parameters | result | meaning | statuses |\n|---|---|---|---|---|---|\n")
	for _, c := range a.Commands {
		p.f("| %d | `AdminOp%s` | %s | %s | %s | %s |\n", c.Code, c.Name, link(c.Params), link(c.Result), cell(c.Doc), cell(orDash(c.Errors)))
	}
	docStructs(p, a.Admin)
}

func docQueues(p *printer, a *schema.ABI) {
	p.f("\n## Queues and descriptors\n")
	docStructs(p, a.Queues)
}

func docStructs(p *printer, list []schema.Struct) {
	for i := range list {
		s := &list[i]
		part(p, s.Name, fmt.Sprintf("%s Size: %d bytes.", s.Doc, s.Size))
		diagram(p, s)
		p.f("\n| offset | type | field | meaning |\n|---|---|---|---|\n")
		for j := range s.Fields {
			f := &s.Fields[j]
			typ := f.Kind.String()
			if f.Kind == schema.Bytes {
				typ = fmt.Sprintf("byte[%d]", f.Len)
			}
			doc := f.Doc
			if f.Enum != "" {
				doc += " See " + link(f.Enum) + "."
			}
			if f.Flags != "" {
				doc += " See " + link(f.Flags) + "."
			}
			p.f("| %d | %s | `%s` | %s |\n", f.Offset, typ, f.Name, cell(doc))
		}
	}
}

// byteWidth is the number of characters one byte takes in a diagram.
const byteWidth = 9

// diagram draws a structure, 8 bytes per row. Runs of rows without any field,
// and rows inside one long field, are drawn as one.
func diagram(p *printer, s *schema.Struct) {
	p.f("```text\n%6s", "")
	for i := range 7 {
		p.f(" %-*d", byteWidth-1, i)
	}
	p.f(" 7\n")
	rule := fmt.Sprintf("%5s +%s+\n", "", strings.Repeat("-", 8*byteWidth-1))
	p.WriteString(rule)
	owner := make([]int, s.Size) // index of the field that has the byte, -1 for none
	for i := range owner {
		owner[i] = -1
	}
	for i := range s.Fields {
		f := &s.Fields[i]
		for j := range f.Size() {
			owner[f.Offset+j] = i
		}
	}
	for row := 0; row < s.Size; {
		rows := 8
		for row+rows < s.Size && uniform(owner[row:row+rows+8]) {
			rows += 8
		}
		p.f("%5d |", row)
		for at := row; at < row+8; {
			n := 1
			for at+n < row+8 && owner[at+n] == owner[at] {
				n++
			}
			label := strings.TrimSuffix(strings.Repeat("·"+strings.Repeat(" ", byteWidth-1), n), " ")
			if i := owner[at]; i >= 0 {
				label = s.Fields[i].Name
				if rows > 8 {
					label = fmt.Sprintf("%s (to byte %d)", label, row+rows-1)
				}
			} else if rows > 8 {
				label = fmt.Sprintf("· (to byte %d)", row+rows-1)
			}
			width := n*byteWidth - 1
			if len([]rune(label)) > width {
				label = label[:width]
			}
			p.f("%s%s|", label, strings.Repeat(" ", width-len([]rune(label))))
			at += n
		}
		p.f("\n%s", rule)
		row += rows
	}
	p.f("```\n")
}

// uniform reports whether all bytes have the same owner.
func uniform(owner []int) bool {
	for _, o := range owner {
		if o != owner[0] {
			return false
		}
	}
	return true
}

func docCodes(p *printer, a *schema.ABI) {
	p.f("\n## Codes\n")
	for i := range a.Enums {
		e := &a.Enums[i]
		if e.Name == "Status" || e.Name == "Fault" {
			continue // in the error tables
		}
		part(p, e.Name, e.Doc)
		p.f("| value | name | meaning |\n|---|---|---|\n")
		for _, v := range e.Values {
			p.f("| %d | `%s%s` | %s |\n", v.Value, e.Prefix, v.Name, cell(v.Doc))
		}
	}
	p.f("\n## Flags\n")
	for i := range a.Flags {
		f := &a.Flags[i]
		part(p, f.Name, f.Doc)
		p.f("| bit | value | name | meaning |\n|---|---|---|---|\n")
		for _, v := range f.Values {
			p.f("| %d | `%#x` | `%s%s` | %s |\n", bit(v.Value), v.Value, f.Prefix, v.Name, cell(v.Doc))
		}
	}
	p.f("\n## Errors\n")
	for _, name := range []string{"Status", "Fault"} {
		e := a.Enum(name)
		part(p, e.Name, e.Doc)
		if name == "Status" {
			p.f("| value | name | errno | cause | what the driver does |\n|---|---|---|---|---|\n")
			for _, v := range e.Values {
				p.f("| %d | `%s%s` | %s | %s | %s |\n", v.Value, e.Prefix, v.Name, v.Errno, cell(v.Doc), cell(v.Action))
			}
			continue
		}
		p.f("| value | name | cause | what the driver does |\n|---|---|---|---|\n")
		for _, v := range e.Values {
			p.f("| %d | `%s%s` | %s | %s |\n", v.Value, e.Prefix, v.Name, cell(v.Doc), cell(v.Action))
		}
	}
	part(p, "Clause", "Rules for drivers in [index.md](index.md), as Violation names them, and what breaks each.")
	p.f("| number | broken by | not noticed, because |\n|---|---|---|\n")
	for _, c := range a.Clauses {
		p.f("| %d | %s | %s |\n", c.Number, cell(c.Doc), cell(orDash(c.Unseen)))
	}
}

// part begins what is said of one thing.
func part(p *printer, name, doc string) {
	p.f("\n### %s\n\n", name)
	p.prose("", doc)
	p.f("\n")
}

// cell makes text safe in a table.
func cell(s string) string { return strings.ReplaceAll(s, "|", "\\|") }

func orDash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}

// link points to a structure or code table of the page.
func link(name string) string {
	if name == "" {
		return "–"
	}
	return "[" + name + "](#" + strings.ToLower(name) + ")"
}

func bit(v uint64) int {
	n := 0
	for v > 1 {
		v >>= 1
		n++
	}
	return n
}
