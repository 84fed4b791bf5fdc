package image

import (
	"debug/elf"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// file is a file of the archive: its name there and its path on the host.
type file struct{ name, from string }

// libraryFolders are the folders in which Debian's loader looks for libraries.
var libraryFolders = []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"}

// withLibraries returns programs, as bin/NAME, and other files, together with the loaders and
// libraries that they need, at paths where the loader finds them.
func withLibraries(programs, others []string) ([]file, error) {
	var files []file
	add := func(f file) {
		if !slices.Contains(files, f) {
			files = append(files, f)
		}
	}
	for _, p := range programs {
		add(file{"bin/" + filepath.Base(p), p})
	}
	for _, p := range others {
		if st, err := os.Stat(p); err != nil || !st.Mode().IsRegular() {
			return nil, fmt.Errorf("file %s for the guest: not a file (%w)", p, err)
		}
		add(file{strings.TrimPrefix(p, "/"), p})
	}
	for i := 0; i < len(files); i++ { // grows
		if i >= len(programs) && !isELF(files[i].from) {
			continue
		}
		loader, libraries, err := needs(files[i].from)
		if err != nil {
			return nil, err
		}
		if loader != "" {
			add(file{strings.TrimPrefix(loader, "/"), loader})
		}
		for _, l := range libraries {
			at, err := findLibrary(l)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", files[i].from, err)
			}
			add(file{strings.TrimPrefix(at, "/"), at})
		}
	}
	return files, nil
}

// needs returns the loader and the libraries that an ELF file needs.
func needs(p string) (loader string, libraries []string, err error) {
	f, err := elf.Open(p)
	if err != nil {
		return "", nil, fmt.Errorf("program %s: %w", p, err)
	}
	defer f.Close()
	for _, prog := range f.Progs {
		if prog.Type == elf.PT_INTERP {
			b, err := io.ReadAll(prog.Open())
			if err != nil {
				return "", nil, fmt.Errorf("program %s: %w", p, err)
			}
			loader = strings.TrimRight(string(b), "\x00")
		}
	}
	libraries, err = f.ImportedLibraries()
	return loader, libraries, err
}

func isELF(p string) bool {
	f, err := elf.Open(p)
	if err == nil {
		f.Close()
	}
	return err == nil
}

func findLibrary(name string) (string, error) {
	for _, dir := range libraryFolders {
		at := filepath.Join(dir, name)
		if _, err := os.Stat(at); err == nil {
			return at, nil
		}
	}
	return "", fmt.Errorf("no library %s in %s", name, strings.Join(libraryFolders, ", "))
}
