package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi/schema"
)

// TestEachClauseIsDefinedOnceAndTested checks that each clause of the rules is defined once, that those for drivers are the
// schema's, that every clause named in the rules or in Go code exists, and that each is named by a
// test that holds a side to it, or in the schema with the reason why none can. The device has
// code for every clause that it can see broken, and for no other.
func TestEachClauseIsDefinedOnceAndTested(t *testing.T) {
	rules, err := os.ReadFile(filepath.Join(root, "docs/abi/index.md"))
	if err != nil {
		t.Fatal(err)
	}
	defined := map[string]bool{}
	for _, m := range regexp.MustCompile(`\*\*((?:DRV|DEV)-\d+)\*\*`).FindAllStringSubmatch(string(rules), -1) {
		if defined[m[1]] {
			t.Errorf("%s is defined twice", m[1])
		}
		defined[m[1]] = true
	}
	if len(defined) < 50 {
		t.Errorf("only %d clauses found", len(defined))
	}
	named := regexp.MustCompile(`\b(?:DRV|DEV)-\d{3,4}\b`)
	tested, inCode := map[string]bool{}, map[string]bool{}
	constant := regexp.MustCompile(`\babi\.DRV(\d{3,4})\b`)
	check := func(path string, text []byte) {
		for _, id := range named.FindAllString(string(text), -1) {
			tested[id] = tested[id] || strings.HasSuffix(path, "_test.go")
			if !defined[id] {
				t.Errorf("%s names %s, which does not exist", path, id)
			}
		}
		for _, m := range constant.FindAllStringSubmatch(string(text), -1) {
			inCode[m[1]] = inCode[m[1]] || !strings.HasSuffix(path, "_test.go")
		}
	}
	check("docs/abi/index.md", rules)
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2:
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".go":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		check(path, text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range schema.Current.Commands { // what a status says
		for _, b := range schema.Current.Commands[i].Breaks {
			inCode[strconv.Itoa(b.Clause)] = true
		}
	}
	drivers := 0
	for _, c := range schema.Current.Clauses {
		number := strconv.Itoa(c.Number)
		if drivers++; !defined["DRV-"+number] {
			t.Errorf("DRV-%s of the schema is not in docs/abi", number)
		}
		if c.Unseen != "" {
			tested["DRV-"+number] = true
		}
		if inCode[number] != (c.Unseen == "") {
			t.Errorf("DRV-%s: the device's code names it: %t; why it cannot be seen broken: %q", number, inCode[number], c.Unseen)
		}
	}
	for id := range defined {
		if strings.HasPrefix(id, "DRV-") {
			drivers--
		}
	}
	if drivers != 0 {
		t.Errorf("%d more clauses for drivers in the schema than in docs/abi", drivers)
	}
	for id := range defined {
		if !tested[id] {
			t.Errorf("no test names %s", id)
		}
	}
}
