package image

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// FetchPrograms returns programs of Debian packages with the libraries that they need, and nothing
// else of these packages: for guests that are to boot quickly. Programs are found in /bin.
// Packages, and what is in them, are kept in the cache folder.
func FetchPrograms(ctx context.Context, cache string, packages, programs []string) ([]Put, error) {
	ps, err := fetchPackages(ctx, filepath.Join(cache, "packages"), packages)
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

// unpacked is the folder with a package's content.
func (p Package) unpacked(ctx context.Context, cache string) (string, error) {
	dir := filepath.Join(cache, strings.TrimSuffix(filepath.Base(p.File), ".deb"))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	unlock, err := lockDir(ctx, cache)
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil { // another process was faster
		return dir, nil
	}
	tmp, err := tempDir(cache)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	root := filepath.Join(tmp, "root")
	if _, err := run(ctx, "", "dpkg-deb", "--extract", p.File, root); err != nil {
		return "", err
	}
	if err := os.RemoveAll(filepath.Join(root, "usr", "share")); err != nil { // half of it
		return "", err
	}
	return dir, os.Rename(root, dir)
}

// programFolders are where packages have programs.
var programFolders = []string{"/usr/bin", "/bin", "/usr/sbin", "/sbin"}

// unwinder is a library that no program names and libc loads when a thread ends early.
const unwinder = "libgcc_s.so.1"

// pick finds programs in unpacked packages, and what they need.
func pick(roots, programs []string) (puts []Put, err error) {
	find := func(name string, folders []string) (Put, error) {
		for _, folder := range folders {
			for _, root := range roots {
				at := filepath.Join(root, folder, name)
				// An absolute link leads out of the folder; what it is for is elsewhere too.
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

// names are the last parts of paths.
func names(paths []string) (ns []string) {
	for _, p := range paths {
		ns = append(ns, filepath.Base(p))
	}
	return ns
}
