package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"hash/fnv"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A site is one operator in one file, and what can be put in its place.
type site struct {
	testers []tester // whose tests hold it
	pkg     string   // import path
	file    string   // absolute path
	fn      string   // the function around it
	fnFrom  int      // its first line
	fnTo    int      // its last
	line    int      // 1-based
	col     int      // 1-based, in bytes
	offset  int      // of the operator, in bytes
	old     string   // the operator as written; empty: nothing is replaced but inserted
	news    []string // what may replace it
	text    string   // the expression around it, for the report and explained.txt
}

// A mutant is a site with its replacement chosen.
type mutant struct {
	site
	replace string
}

// key names a mutant without a line number, so that explanations outlive edits elsewhere.
func (m mutant) key(root string) string {
	rel, err := filepath.Rel(root, m.file)
	if err != nil {
		rel = m.file
	}
	return fmt.Sprintf("%s %s: %s: %s -> %s", rel, m.fn, m.text, orNothing(m.old), orNothing(m.replace))
}

func orNothing(s string) string {
	if s == "" {
		return "nothing"
	}
	return s
}

// apply returns the file's bytes with the operator replaced.
func (m mutant) apply(src []byte) []byte {
	out := append([]byte(nil), src[:m.offset]...)
	out = append(out, m.replace...)
	return append(out, src[m.offset+len(m.old):]...)
}

// replacements lists, for each operator, those that a slip of the hand would put in its place.
// Comparisons lose or gain the border first: limits are where tests are thin.
var replacements = map[token.Token][]string{
	token.ADD: {"-"}, token.SUB: {"+"}, token.MUL: {"/"}, token.QUO: {"*"}, token.REM: {"*"},
	token.AND: {"|"}, token.OR: {"&"}, token.XOR: {"&"}, token.AND_NOT: {"&"},
	token.SHL: {">>"}, token.SHR: {"<<"},
	token.LAND: {"||"}, token.LOR: {"&&"},
	token.EQL: {"!="}, token.NEQ: {"=="},
	token.LSS: {"<=", ">="}, token.LEQ: {"<", ">"}, token.GTR: {">=", "<="}, token.GEQ: {">", "<"},
	token.ADD_ASSIGN: {"-="}, token.SUB_ASSIGN: {"+="}, token.OR_ASSIGN: {"&="},
	token.AND_ASSIGN: {"|="}, token.SHL_ASSIGN: {">>="}, token.SHR_ASSIGN: {"<<="},
	token.INC: {"--"}, token.DEC: {"++"},
	token.NOT: {""},
}

// sites finds every operator of a file inside functions. Constants and types outside functions are
// left alone: they say what the layout is, and golden vectors hold them. So are functions that
// recover from panics: only the deferred function itself can, not a variant that it calls.
func sites(file string, src []byte) ([]site, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var found []site
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil || recovers(fn) {
			continue
		}
		name := funcName(fn)
		add := func(n ast.Node, pos token.Pos, op token.Token) {
			news := replacements[op]
			if news == nil {
				return
			}
			at := fset.Position(pos)
			found = append(found, site{
				file: file, fn: name, line: at.Line, col: at.Column, offset: at.Offset,
				fnFrom: fset.Position(fn.Pos()).Line, fnTo: fset.Position(fn.End()).Line,
				old: op.String(), news: news, text: excerpt(src, fset, n),
			})
		}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				// The text of an error or a panic is not behaviour.
				return !isCall(n, "panic")
			case *ast.BinaryExpr:
				if !isString(n.X) && !isString(n.Y) {
					add(n, n.OpPos, n.Op)
				}
			case *ast.UnaryExpr:
				if n.Op != token.AND && n.Op != token.XOR { // what replaces those takes two operands
					add(n, n.OpPos, n.Op)
				}
			case *ast.AssignStmt:
				add(n, n.TokPos, n.Tok)
			case *ast.IncDecStmt:
				add(n, n.TokPos, n.Tok)
			}
			return true
		})
	}
	return found, nil
}

func recovers(fn *ast.FuncDecl) (found bool) {
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		if c, ok := n.(*ast.CallExpr); ok && isCall(c, "recover") {
			found = true
		}
		_, inner := n.(*ast.FuncLit)
		return !inner
	})
	return found
}

func isCall(c *ast.CallExpr, name string) bool {
	id, ok := c.Fun.(*ast.Ident)
	return ok && id.Name == name
}

func isString(e ast.Expr) bool {
	lit, ok := e.(*ast.BasicLit)
	return ok && lit.Kind == token.STRING
}

func funcName(fn *ast.FuncDecl) string {
	if fn.Recv == nil || len(fn.Recv.List) == 0 {
		return fn.Name.Name
	}
	t := fn.Recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	if index, ok := t.(*ast.IndexExpr); ok {
		t = index.X
	}
	if id, ok := t.(*ast.Ident); ok {
		return id.Name + "." + fn.Name.Name
	}
	return fn.Name.Name
}

// excerpt is the source of a node on one line.
func excerpt(src []byte, fset *token.FileSet, n ast.Node) string {
	return strings.Join(strings.Fields(string(src[fset.Position(n.Pos()).Offset:fset.Position(n.End()).Offset])), " ")
}

// draw puts the sites into a random order and chooses a replacement for each. Both follow from the
// seed and the site's own text, so that an edit elsewhere does not change what is drawn.
func draw(all []site, root string, seed uint64) []mutant {
	type drawn struct {
		mutant
		at uint64
	}
	seen := map[string]int{} // equal expressions of one function
	order := make([]drawn, len(all))
	for i, s := range all {
		key := mutant{site: s}.key(root)
		h := fnv.New64a()
		fmt.Fprintf(h, "%d %s %d", seed, key, seen[key])
		seen[key]++
		r := rand.New(rand.NewPCG(h.Sum64(), seed))
		order[i] = drawn{mutant{site: s, replace: s.news[r.IntN(len(s.news))]}, r.Uint64()}
	}
	slices.SortFunc(order, func(a, b drawn) int { return cmp.Compare(a.at, b.at) })
	out := make([]mutant, len(order))
	for i, d := range order {
		out[i] = d.mutant
	}
	return out
}

// matching lists every change whose key the expression finds.
func matching(all []site, root string, only *regexp.Regexp) []mutant {
	var out []mutant
	for _, s := range all {
		for _, r := range s.news {
			if m := (mutant{site: s, replace: r}); only.MatchString(m.key(root)) {
				out = append(out, m)
			}
		}
	}
	return out
}
