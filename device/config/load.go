package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"reflect"
	"sort"
	"strings"

	yaml "go.yaml.in/yaml/v4"
)

// maxFileSize bounds the file size; any sensible file is far smaller.
const maxFileSize = 16 << 20

// Load reads and checks the file at path. Its error names the file and lists
// every problem; errors.As finds the Problems in it.
func Load(path string) (*Config, error) {
	f, err := os.Open(path)
	if err != nil {
		if errors.Is(err, fs.ErrPermission) {
			return nil, fmt.Errorf("configuration: %w; run this as a user who may read it", err)
		}
		return nil, fmt.Errorf("configuration: %w; give the path of a file like docs/vnic.example.yaml", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err != nil {
		return nil, fmt.Errorf("configuration: %w; give the path of a file like docs/vnic.example.yaml", err)
	}
	c, err := Parse(b)
	if err != nil {
		return nil, fmt.Errorf("configuration %s:\n%w", path, err)
	}
	return c, nil
}

// Parse reads and checks a configuration; see Load.
func Parse(b []byte) (*Config, error) {
	r := &report{lines: map[string]int{}, zeros: map[string]bool{}}
	c := new(Config)
	if len(b) > maxFileSize {
		r.add("", fmt.Sprintf("the file is larger than %d bytes", maxFileSize), "give a NIC configuration file")
		return nil, r.problems
	}
	root, problem := parseNodes(b)
	if problem != nil {
		return nil, Problems{*problem}
	}
	if root != nil {
		d := decoder{report: r}
		d.value(root, "", reflect.ValueOf(c).Elem())
	}
	decoded := len(r.problems) == 0
	c.setDefaults()
	// Checks run on the values that could be read. A value that could not be read is not reported a
	// second time as missing.
	before := len(r.problems)
	c.check(r)
	if !decoded {
		r.problems = append(r.problems[:before:before], withoutRepeats(r.problems[:before], r.problems[before:])...)
	}
	if len(r.problems) > 0 {
		sort.SliceStable(r.problems, func(i, j int) bool { return r.problems[i].order() < r.problems[j].order() })
		return nil, r.problems
	}
	return c, nil
}

func parseNodes(b []byte) (root *yaml.Node, problem *Problem) {
	dec := yaml.NewDecoder(bytes.NewReader(b))
	var doc yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, notYAML(b, err)
	}
	var second yaml.Node
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, &Problem{What: "holds more than one YAML document", Remedy: "use one file per NIC"}
	}
	return doc.Content[0], nil
}

// notYAML returns the problem of a file that is not YAML. Indenting by a tab is the most common
// mistake, and the library's message does not mention it.
func notYAML(b []byte, err error) *Problem {
	for n, line := range bytes.Split(b, []byte("\n")) {
		if indent := line[:len(line)-len(bytes.TrimLeft(line, " \t"))]; bytes.ContainsRune(indent, '\t') {
			return &Problem{Line: n + 1, What: "not YAML: it is indented by a tab", Remedy: "indent by spaces"}
		}
	}
	return &Problem{What: "not YAML: " + strings.TrimPrefix(err.Error(), "yaml: "), Remedy: "compare with docs/vnic.example.yaml"}
}

// withoutRepeats removes from late the problems whose path already has one in early.
func withoutRepeats(early, late []Problem) []Problem {
	var kept []Problem
	for _, p := range late {
		repeat := false
		for _, e := range early {
			if e.Path == p.Path || strings.HasPrefix(p.Path, e.Path+".") || strings.HasPrefix(p.Path, e.Path+"[") || strings.HasPrefix(e.Path, p.Path+".") {
				repeat = true
				break
			}
		}
		if !repeat {
			kept = append(kept, p)
		}
	}
	return kept
}

// Decode reads YAML into the struct that v points to by its yaml tags, as strictly as Parse reads a
// configuration: it reports every problem with its path. It is for other files that contain
// sections of a configuration. If the file can be read, check adds what is wrong with its values;
// nil: nothing is checked.
func Decode(b []byte, v any, check func(add func(path, what, remedy string))) error {
	r := &report{lines: map[string]int{}, zeros: map[string]bool{}}
	if len(b) > maxFileSize {
		r.add("", fmt.Sprintf("the file is larger than %d bytes", maxFileSize), "give a smaller file")
		return r.problems
	}
	root, problem := parseNodes(b)
	if problem != nil {
		problem.Remedy = "" // the remedy is about a NIC's file
		return Problems{*problem}
	}
	if root != nil {
		d := decoder{report: r}
		d.value(root, "", reflect.ValueOf(v).Elem())
	}
	if check != nil && len(r.problems) == 0 {
		check(r.add)
	}
	return r.sorted()
}
