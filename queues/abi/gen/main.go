package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/falcon-vnic/vnic/queues/abi/schema"
)

// output is one generated file, its path relative to the root of the tree.
type output struct {
	path string
	data []byte
}

// outputs renders every generated file.
func outputs(a *schema.ABI) ([]output, error) {
	if err := a.Check(); err != nil {
		return nil, err
	}
	list := []output{
		{"docs/abi/reference.md", reference(a)},
		{"guestlib/c/vnic_abi.h", cHeader(a)},
	}
	for _, file := range []struct {
		path   string
		render func(*schema.ABI) ([]byte, error)
	}{
		{"queues/abi/abi_gen.go", goSource},
		{"queues/abi/clauses_gen.go", goClauses},
		{"queues/abi/commands_gen.go", goCommands},
		{"queues/abi/reserved_gen.go", goReserved},
		{"queues/abi/objects_gen.go", goObjects},
		{"device/config/quotas_gen.go", goQuotas},
		{"device/control/objects_gen.go", goShown},
	} {
		code, err := file.render(a)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file.path, err)
		}
		list = append(list, output{file.path, code})
	}
	return list, nil
}

func run(root string) error {
	files, err := outputs(&schema.Current)
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(root, f.path), f.data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gen <root of the tree>")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}
