package main

import (
	"fmt"
	"strings"

	"github.com/falcon-vnic/vnic/queues/abi/schema"
)

// goCommands renders what carries out admin commands needs to know of each: its handler, its
// parameters and result, who may use it and what it costs.
func goCommands(a *schema.ABI) ([]byte, error) {
	p := new(printer)
	p.head("import \"encoding/binary\"\n\n")
	for i := range a.Groups {
		goHandler(p, a, &a.Groups[i])
	}
	p.f("// Handler carries out the admin commands of one function.\ntype Handler interface {\n")
	for i := range a.Groups {
		if g := &a.Groups[i]; g.Of == "" {
			p.f("\t%sHandler\n", g.Name)
		} else {
			p.f("\t// %s returns who carries out the commands about %s, or the status they end in.\n", g.Of, g.Doc)
			p.f("\t%s(n uint16) (%sHandler, Status)\n", g.Of, g.Name)
		}
	}
	p.f("}\n\n")
	p.f("// call carries out the command. The result counts only with StatusOK.\n")
	p.f("func (c *AdminCmd) call(h Handler, result []byte) Status {\n\tswitch c.Opcode {\n")
	for i := range a.Groups {
		if g := &a.Groups[i]; g.Of == "" {
			goCases(p, a, g)
		} else {
			p.f("\tcase %s:\n\t\treturn c.call%s(h, result)\n", strings.Join(opsOf(a, g), ", "), g.Of)
		}
	}
	p.f("\t}\n\treturn StatusUnknownCommand\n}\n\n")
	for i := range a.Groups {
		if g := &a.Groups[i]; g.Of != "" {
			p.f("func (c *AdminCmd) call%s(of Handler, result []byte) Status {\n", g.Of)
			p.f("\th, st := of.%s(binary.LittleEndian.Uint16(c.Params[:]))\n\tif st != StatusOK {\n\t\treturn st\n\t}\n", g.Of)
			p.f("\tswitch c.Opcode {\n")
			goCases(p, a, g)
			p.f("\t}\n\treturn StatusUnknownCommand\n}\n\n")
		}
	}
	goCommandTable(p, a)
	goNeeds(p, a)
	goPages(p, a)
	goBreaks(p, a)
	return p.goSource()
}

// opsOf names the opcodes of a group.
func opsOf(a *schema.ABI, g *schema.Group) (list []string) {
	for i := range a.Commands {
		if c := &a.Commands[i]; c.Group == g.Name {
			list = append(list, "AdminOp"+c.Name)
		}
	}
	return list
}

// only returns the one field of a structure, that of the group aside, or nil when there are more or
// none, which none tells.
func only(s *schema.Struct, of string) (one *schema.Field, none bool) {
	n := 0
	for i := range s.Fields {
		if s.Fields[i].Name != of {
			n++
			one = &s.Fields[i]
		}
	}
	if n != 1 {
		one = nil
	}
	return one, n == 0
}

// goHandler writes the interface of a group. Parameters and results of one field are that field.
func goHandler(p *printer, a *schema.ABI, g *schema.Group) {
	p.f("// %sHandler carries out the commands about %s.\ntype %sHandler interface {\n", g.Name, g.Doc, g.Name)
	for i := range a.Commands {
		c := &a.Commands[i]
		if c.Group != g.Name {
			continue
		}
		params, result := "", "Status"
		if s := a.Struct(c.Params); s != nil {
			if f, none := only(s, g.Of); f != nil {
				params = strings.ToLower(f.Name) + " " + goFieldType(f)
			} else if !none {
				params = "p *" + s.Name
			}
		}
		if s := a.Struct(c.Result); s != nil && !c.Long {
			if f, _ := only(s, ""); f != nil {
				result = fmt.Sprintf("(%s %s, st Status)", strings.ToLower(f.Name), goFieldType(f))
			} else {
				result = fmt.Sprintf("(%s, Status)", s.Name)
			}
		}
		p.prose("\t// ", c.Name+" "+c.Doc)
		if c.Long {
			p.f("\t// It is only begun: whoever goes on with it makes the result.\n")
		}
		p.f("\t%s(%s) %s\n", c.Name, params, result)
	}
	p.f("}\n\n")
}

// goCases writes a case for each command of a group: decode, call, encode.
func goCases(p *printer, a *schema.ABI, g *schema.Group) {
	for i := range a.Commands {
		c := &a.Commands[i]
		if c.Group != g.Name {
			continue
		}
		p.f("\tcase AdminOp%s:\n", c.Name)
		args := ""
		if s := a.Struct(c.Params); s != nil {
			f, none := only(s, g.Of)
			if !none {
				p.f("\t\tvar p %s\n\t\tp.Unmarshal(c.Params[:])\n", s.Name)
				args = "&p"
			}
			if f != nil {
				args = "p." + f.Name
			}
		}
		call := fmt.Sprintf("h.%s(%s)", c.Name, args)
		s := a.Struct(c.Result)
		if s == nil || c.Long {
			p.f("\t\treturn %s\n", call)
			continue
		}
		p.f("\t\tr, st := %s\n", call)
		if f, _ := only(s, ""); f != nil {
			p.f("\t\t(&%s{%s: r}).Marshal(result)\n", s.Name, f.Name)
		} else {
			p.f("\t\tr.Marshal(result)\n")
		}
		p.f("\t\treturn st\n")
	}
}

// goCommandTable writes what holds for every command of an opcode.
func goCommandTable(p *printer, a *schema.ABI) {
	p.f("// commands describes the commands, by opcode.\nvar commands = [...]command{\n")
	for i := range a.Commands {
		c := &a.Commands[i]
		needs := ""
		for _, n := range c.Needs {
			if n.Field == "" {
				needs += ", needs: Feature" + n.Feature
			}
		}
		if a.Group(c.Group).PFOnly {
			needs += ", pfOnly: true"
		}
		mask := strings.Repeat("\xff", a.Struct("AdminCmd").Field("Params").Len)
		if s := a.Struct(c.Params); s != nil {
			mask = string(a.Reserved(s)) + mask[s.Size:]
		}
		p.f("\tAdminOp%s: {reserved: %s%s},\n", c.Name, hexString(mask), needs)
	}
	p.f("}\n\n")
}

// goNeeds writes which features values of parameters are part of.
func goNeeds(p *printer, a *schema.ABI) {
	p.f("// valueNeeds returns the features that values of the command's parameters are part of, and those\n")
	p.f("// without which the value is just an invalid argument.\n")
	p.f("func (c *AdminCmd) valueNeeds() (needs, lenient uint64) {\n\tswitch c.Opcode {\n")
	for i := range a.Commands {
		c := &a.Commands[i]
		s, begun := a.Struct(c.Params), false
		for _, n := range c.Needs {
			if n.Field == "" {
				continue
			}
			if !begun {
				p.f("\tcase AdminOp%s:\n\t\tvar p %s\n\t\tp.Unmarshal(c.Params[:])\n", c.Name, s.Name)
				begun = true
			}
			cond := fmt.Sprintf("p.%s != 0", n.Field)
			if len(n.Values) > 0 {
				e, is := a.Enum(s.Field(n.Field).Enum), []string(nil)
				for _, v := range n.Values {
					is = append(is, fmt.Sprintf("p.%s == %s%s", n.Field, e.Prefix, v))
				}
				cond = strings.Join(is, " || ")
			}
			to := "needs"
			if n.Lenient {
				to = "lenient"
			}
			p.f("\t\tif %s {\n\t\t\t%s |= Feature%s\n\t\t}\n", cond, to, n.Feature)
		}
	}
	p.f("\t}\n\treturn needs, lenient\n}\n\n")
}

// goPages writes what page lists of queue areas cost.
func goPages(p *printer, a *schema.ABI) {
	p.f("// Pages bounds the page list entries that the command reads at once; at least 1.\n")
	p.f("func (c *AdminCmd) Pages() int {\n\tswitch c.Opcode {\n")
	for i := range a.Commands {
		c := &a.Commands[i]
		if len(c.Areas) == 0 {
			continue
		}
		p.f("\tcase AdminOp%s:\n\t\tvar p %s\n\t\tp.Unmarshal(c.Params[:])\n", c.Name, c.Params)
		var sum []string
		for _, area := range c.Areas {
			entry := fmt.Sprint(area.Log2Entry)
			if area.Entry != "" {
				entry = "p." + area.Entry
			}
			sum = append(sum, fmt.Sprintf("areaPages(p.%s, %s)", area.Entries, entry))
		}
		p.f("\t\treturn %s\n", strings.Join(sum, " + "))
	}
	p.f("\t}\n\treturn 1\n}\n\n")
}

// goBreaks writes which rule a status says was broken.
func goBreaks(p *printer, a *schema.ABI) {
	p.f("// brokenBy returns the rule that the driver broke by a command that ended in st, or 0.\n")
	p.f("func (c *AdminCmd) brokenBy(st Status) Clause {\n\tswitch c.Opcode {\n")
	for i := range a.Commands {
		c := &a.Commands[i]
		if len(c.Breaks) == 0 {
			continue
		}
		p.f("\tcase AdminOp%s:\n\t\tswitch st {\n", c.Name)
		for _, b := range c.Breaks {
			p.f("\t\tcase Status%s:\n\t\t\treturn DRV%d\n", b.Status, b.Clause)
		}
		p.f("\t\t}\n")
	}
	p.f("\t}\n\treturn 0\n}\n")
}
