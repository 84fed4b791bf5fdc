package image

import (
	"bufio"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// VsockModules are the modules for virtio-vsock: the bus and the transport.
var VsockModules = []string{"virtio_pci", "vmw_vsock_virtio_transport"}

// VFIOModules are the modules by which a guest's programs use PCI devices and their interrupts.
var VFIOModules = []string{"vfio_pci", "vfio_iommu_type1"}

// moduleClosure returns the files of the named modules and all they depend on,
// dependencies first. Modules built into the kernel need no file. A name that ends in
// .ko is the path of a module that is not the kernel's own.
func moduleClosure(k Kernel, names []string) ([]string, error) {
	files, err := moduleFiles(k.Modules)
	if err != nil {
		return nil, err
	}
	builtin, err := builtinModules(k.Modules)
	if err != nil {
		return nil, err
	}
	var order []string
	state := make(map[string]int) // 1: being visited, 2: in order
	var visit func(name, neededBy string) error
	visit = func(name, neededBy string) error {
		own := ""
		if strings.HasSuffix(name, ".ko") {
			own = name
		}
		name = moduleName(name)
		if builtin[name] || state[name] == 2 {
			return nil
		}
		if state[name] == 1 {
			return fmt.Errorf("module %s depends on itself", name)
		}
		file, ok := files[name]
		if own != "" {
			file, ok = own, true
		}
		if !ok {
			return fmt.Errorf("kernel %s has no module %s%s", k.Release, name, neededBy)
		}
		state[name] = 1
		deps, err := moduleDepends(file)
		if err != nil {
			return err
		}
		for _, d := range deps {
			if err := visit(d, ", which "+name+" needs"); err != nil {
				return err
			}
		}
		state[name] = 2
		order = append(order, file)
		return nil
	}
	for _, n := range names {
		if err := visit(n, ""); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// With returns those of some modules that the kernel has, built in or as files.
func (k Kernel) With(names []string) (there []string, err error) {
	files, err := moduleFiles(k.Modules)
	if err != nil {
		return nil, err
	}
	builtin, err := builtinModules(k.Modules)
	for _, n := range names {
		if files[moduleName(n)] != "" || builtin[moduleName(n)] {
			there = append(there, n)
		}
	}
	return there, err
}

// moduleName returns a module's name in the kernel's form; file names may use dashes.
func moduleName(s string) string {
	return strings.ReplaceAll(strings.TrimSuffix(filepath.Base(s), ".ko"), "-", "_")
}

func moduleFiles(dir string) (map[string]string, error) {
	files := make(map[string]string)
	if dir == "" {
		return files, nil
	}
	compressed := ""
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case strings.HasSuffix(path, ".ko"):
			files[moduleName(path)] = path
		case strings.Contains(d.Name(), ".ko."):
			compressed = path
		}
		return nil
	})
	if err == nil && len(files) == 0 && compressed != "" {
		err = fmt.Errorf("modules are compressed (%s); decompress the folder first", compressed)
	}
	return files, err
}

func builtinModules(dir string) (map[string]bool, error) {
	b, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	set := make(map[string]bool)
	sc := bufio.NewScanner(bytes.NewReader(b))
	for sc.Scan() {
		set[moduleName(sc.Text())] = true
	}
	return set, sc.Err()
}

// moduleDepends reads the "depends" entry of a module's .modinfo section.
func moduleDepends(path string) ([]string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", path, err)
	}
	defer f.Close()
	s := f.Section(".modinfo")
	if s == nil {
		return nil, fmt.Errorf("module %s has no .modinfo section", path)
	}
	b, err := s.Data()
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", path, err)
	}
	for entry := range bytes.SplitSeq(b, []byte{0}) {
		if list, ok := bytes.CutPrefix(entry, []byte("depends=")); ok && len(list) > 0 {
			return strings.Split(string(list), ","), nil
		}
	}
	return nil, nil
}
