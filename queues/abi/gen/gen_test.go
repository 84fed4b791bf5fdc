package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi/schema"
)

const root = "../../.."

// TestGeneratedFilesMatchTheSchema fails when a generated file does not match the schema.
func TestGeneratedFilesMatchTheSchema(t *testing.T) {
	files, err := outputs(&schema.Current)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		have, err := os.ReadFile(filepath.Join(root, f.path))
		if err != nil {
			t.Error(err)
			continue
		}
		if !bytes.Equal(have, f.data) {
			t.Errorf("%s is stale: run go generate ./queues/abi", f.path)
		}
	}
}

func TestRunWritesAll(t *testing.T) {
	dir := t.TempDir()
	if err := run(dir); err == nil {
		t.Error("no error without the folders")
	}
	for _, d := range []string{"queues/abi", "docs/abi", "guestlib/c", "device/config", "device/control"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := run(dir); err != nil {
		t.Fatal(err)
	}
}

func TestBrokenSchemaWritesNothing(t *testing.T) {
	bad := schema.ABI{Consts: []schema.Const{{Name: "A"}, {Name: "A"}}}
	if _, err := outputs(&bad); err == nil {
		t.Fatal("no error")
	}
}

// TestEachLinkOfTheReferenceHasAHeading checks that every link within the reference has its heading.
func TestEachLinkOfTheReferenceHasAHeading(t *testing.T) {
	text := string(reference(&schema.Current))
	headings := map[string]bool{}
	for line := range strings.Lines(text) {
		if h := strings.TrimLeft(line, "#"); h != line {
			headings[strings.ReplaceAll(strings.ToLower(strings.TrimSpace(h)), " ", "-")] = true
		}
	}
	for _, m := range regexp.MustCompile(`\]\(#([^)]+)\)`).FindAllStringSubmatch(text, -1) {
		if !headings[m[1]] {
			t.Errorf("link to #%s has no heading", m[1])
		}
	}
}
