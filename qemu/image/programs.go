package image

import (
	"context"
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

// FetchPrograms returns programs of Debian packages with the libraries that they need, but nothing
// else of the packages, for guests that have to boot quickly. The programs are put into /bin.
// Packages and their unpacked content are kept in the cache folder.
func FetchPrograms(ctx context.Context, cache string, packages, programs []string) ([]Put, error) {
	ps, err := fetchPackages(ctx, nil, filepath.Join(cache, "packages"), packages)
	if err != nil {
		return nil, fmt.Errorf("programs for the guest: %w", err)
	}
	var roots []string
	for _, p := range ps {
		root, err := p.unpacked(ctx, filepath.Join(cache, "unpacked"))
		if err != nil {
			return nil, fmt.Errorf("package %s for the guest: %w", p.Name, err)
		}
		roots = append(roots, root)
	}
	return pick(roots, programs)
}

// unpacked returns the folder with a package's content. It unpacks the package if needed.
func (p Package) unpacked(ctx context.Context, cache string) (string, error) {
	dir := filepath.Join(cache, strings.TrimSuffix(filepath.Base(p.File), ".deb"))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	unlock, err := LockDir(ctx, cache)
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil { // another process was faster
		return dir, nil
	}
	tmp, err := TempDir(cache)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	root := filepath.Join(tmp, "root")
	if _, err := run(ctx, "", "dpkg-deb", "--extract", p.File, root); err != nil {
		return "", err
	}
	if err := os.RemoveAll(filepath.Join(root, "usr", "share")); err != nil { // half of the package
		return "", err
	}
	return dir, os.Rename(root, dir)
}

// programFolders are the folders in which packages have programs.
var programFolders = []string{"/usr/bin", "/bin", "/usr/sbin", "/sbin"}

// unwinder is a library that no program names as needed, but libc loads when a thread ends early.
const unwinder = "libgcc_s.so.1"

// pick finds programs, and the libraries that they need, in unpacked packages.
func pick(roots, programs []string) (puts []Put, err error) {
	find := func(name string, folders []string) (Put, error) {
		for _, folder := range folders {
			for _, root := range roots {
				at := filepath.Join(root, folder, name)
				// An absolute link leads out of the package's folder. Its target is found in
				// another folder.
				if to, err := os.Readlink(at); err == nil && filepath.IsAbs(to) {
					continue
				}
				if st, err := os.Stat(at); err == nil && st.Mode().IsRegular() {
					return Put{at, filepath.Join(folder, name)}, nil
				}
			}
		}
		return Put{}, fmt.Errorf("no %s in the packages %s", name, strings.Join(names(roots), ", "))
	}
	add := func(p Put) {
		if !slices.Contains(puts, p) {
			puts = append(puts, p)
		}
	}
	for _, name := range programs {
		p, err := find(name, programFolders)
		if err != nil {
			return nil, err
		}
		add(Put{p.From, "/bin/" + name})
	}
	if p, err := find(unwinder, libraryFolders); err == nil {
		add(p)
	}
	for i := 0; i < len(puts); i++ { // grows
		loader, libraries, err := needs(puts[i].From)
		if err != nil {
			return nil, err
		}
		if loader != "" {
			p, err := find(filepath.Base(loader), libraryFolders)
			if err != nil {
				return nil, err
			}
			add(Put{p.From, loader})
		}
		for _, l := range libraries {
			p, err := find(l, libraryFolders)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", puts[i].To, err)
			}
			add(p)
		}
	}
	return puts, nil
}

// names returns the last elements of paths.
func names(paths []string) (ns []string) {
	for _, p := range paths {
		ns = append(ns, filepath.Base(p))
	}
	return ns
}
