package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// chosenBy is the environment's variable that names the change which a test binary runs with.
const chosenBy = "MUTATE_CHANGE"

// chosen is the variable with its value in every changed package.
const chosen = "mutateChange"

// writeVariants writes an overlay in which every change is present and none is made: a changed
// function asks the environment which variant of its body runs. All changes are thereby compiled
// and linked at once. The i-th mutant is named by variant(i).
func writeVariants(dir string, mutants []mutant) (string, error) {
	replace := map[string]string{}
	write := func(path, text string) error {
		name := filepath.Join(dir, fmt.Sprintf("%d-%s", len(replace), filepath.Base(path)))
		replace[path] = name
		return os.WriteFile(name, []byte(text), 0o600)
	}
	byFile := map[string][]int{}
	for i, m := range mutants {
		byFile[m.file] = append(byFile[m.file], i)
	}
	for file, list := range byFile {
		src, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		text, name, err := withVariants(file, src, mutants, list)
		if err != nil {
			return "", err
		}
		if err := write(file, text); err != nil {
			return "", err
		}
		asks := filepath.Join(filepath.Dir(file), "mutate_change.go")
		if replace[asks] != "" {
			continue
		}
		if err := write(asks, fmt.Sprintf("package %s\n\nimport \"os\"\n\nvar %s = os.Getenv(%q)\n", name, chosen, chosenBy)); err != nil {
			return "", err
		}
	}
	b, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, b, 0o600)
}

func variant(i int) string { return strconv.Itoa(i) }

// withVariants returns a file's text with the listed mutants, and the name of its package.
func withVariants(file string, src []byte, mutants []mutant, list []int) (text, pkg string, err error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, src, parser.SkipObjectResolution)
	if err != nil {
		return "", "", err
	}
	offset := func(p token.Pos) int { return fset.Position(p).Offset }
	var out strings.Builder
	done := 0
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		from, to := offset(fn.Pos()), offset(fn.End())
		inside := slices.DeleteFunc(slices.Clone(list), func(i int) bool { return mutants[i].offset < from || mutants[i].offset >= to })
		if len(inside) == 0 {
			continue
		}
		slices.SortFunc(inside, cmp.Compare)
		out.Write(src[done:from])
		s := signature{src: src, fset: fset, fn: fn}
		out.WriteString(s.dispatcher(inside))
		name := offset(fn.Name.Pos()) // the copies differ in their name and their change
		for _, i := range inside {
			changed := mutants[i].apply(src)
			end := to + len(changed) - len(src)
			fmt.Fprintf(&out, "\n\n%s%s%s", changed[from:name], s.copyName(variant(i)), changed[name+len(fn.Name.Name):end])
		}
		fmt.Fprintf(&out, "\n\n%s%s%s", src[from:name], s.copyName(""), src[name+len(fn.Name.Name):to])
		done = to
	}
	out.Write(src[done:])
	return out.String(), f.Name.Name, nil
}

// A signature writes the function that stands in the place of a changed one.
type signature struct {
	src  []byte
	fset *token.FileSet
	fn   *ast.FuncDecl
}

func (s signature) text(from, to token.Pos) string {
	return string(s.src[s.fset.Position(from).Offset:s.fset.Position(to).Offset])
}

// copyName has no capital at its beginning: a copy of an exported method is not one of its type's.
func (s signature) copyName(variant string) string { return "mutate" + variant + "_" + s.fn.Name.Name }

// dispatcher calls the variant that is chosen, or the unchanged copy.
func (s signature) dispatcher(variants []int) string {
	receiver, on := "", ""
	if s.fn.Recv != nil {
		names, fields := s.named(s.fn.Recv, "self")
		receiver, on = "("+fields+") ", names[0]+"."
	}
	args, params := s.named(s.fn.Type.Params, "p")
	typeParams, instance := "", ""
	if list := s.fn.Type.TypeParams; list != nil {
		typeParams = s.text(list.Opening, list.Closing+1)
		names, _ := s.named(list, "t")
		instance = "[" + strings.Join(names, ", ") + "]"
	}
	results, answer := "", ""
	if r := s.fn.Type.Results; r != nil && len(r.List) > 0 {
		results, answer = s.text(r.Pos(), r.End())+" ", "return "
	}
	call := func(variant string) string {
		return answer + on + s.copyName(variant) + instance + "(" + strings.Join(args, ", ") + ")"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "func %s%s%s(%s) %s{\n\tswitch %s {\n", receiver, s.fn.Name.Name, typeParams, params, results, chosen)
	for _, v := range variants {
		fmt.Fprintf(&b, "\tcase %q:\n\t\t%s\n", variant(v), call(variant(v)))
	}
	fmt.Fprintf(&b, "\tdefault:\n\t\t%s\n\t}\n}", call(""))
	return b.String()
}

// named gives every field a name, and returns them as arguments and as parameters.
func (s signature) named(list *ast.FieldList, prefix string) (args []string, params string) {
	var fields []string
	for _, f := range list.List {
		names := f.Names
		if len(names) == 0 {
			names = []*ast.Ident{{Name: "_"}}
		}
		for _, id := range names {
			name := id.Name
			if name == "_" {
				name = fmt.Sprintf("mutate_%s%d", prefix, len(args))
			}
			arg := name
			if _, ok := f.Type.(*ast.Ellipsis); ok {
				arg += "..."
			}
			args, fields = append(args, arg), append(fields, name+" "+s.text(f.Type.Pos(), f.Type.End()))
		}
	}
	return args, strings.Join(fields, ", ")
}
