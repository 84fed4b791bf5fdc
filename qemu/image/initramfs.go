package image

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/falcon-vnic/vnic/qemu/guestinit"
)

// Initramfs describes a guest's root file system: one static program that is
// PID 1 (it must run guestinit there) and the modules it loads.
type Initramfs struct {
	Kernel  Kernel
	Init    string   // host path of a static program for the kernel's architecture
	Modules []string // names; dependencies are added

	// Programs are host paths of further programs, which are put into /bin. They may be linked
	// dynamically: the host's loader and libraries are added.
	Programs []string

	// Files are host paths of further files, which get the same paths in the guest. The libraries
	// that they need are added.
	Files []string

	// Packages are Debian packages (FetchPackages), unpacked but not configured. A guest that has
	// packages and is given no command runs a shell on its console.
	Packages []Package

	// Put are further files, copied without the libraries that they need.
	Put []Put
}

// Put is a file or a folder with its content: its path on the host and its path in the guest.
type Put struct{ From, To string }

// writeSize is the size of the write buffer of an archive.
const writeSize = 1 << 20

// Write writes the archive to path. It does not compress it, because under emulation decompressing
// takes longer than reading. The file appears complete or not at all.
func (r Initramfs) Write(path string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("initramfs %s: %w", path, err)
		}
	}()
	if err := checkStatic(r.Init, r.Kernel.Arch); err != nil {
		return err
	}
	modules, err := moduleClosure(r.Kernel, r.Modules)
	if err != nil {
		return err
	}
	programs, err := withLibraries(r.Programs, r.Files)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".initramfs-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails after the rename, as intended
	w := bufio.NewWriterSize(f, writeSize)
	if err := errors.Join(r.archive(&cpioWriter{w: w}, modules, programs), w.Flush(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func (r Initramfs) archive(c *cpioWriter, modules []string, programs []file) error {
	made := map[string]bool{}
	if len(r.Packages) > 0 {
		if err := c.root(r.Packages); err != nil {
			return err
		}
		for _, dir := range append([]string{"lib/modules", "tmp", "etc", "bin"}, mergedFolders...) {
			made[dir] = true
		}
	}
	for _, dir := range []string{"dev", "proc", "sys", "tmp", "etc", path.Dir(guestinit.ModuleList[1:])} {
		c.folders(dir, made)
	}
	// The kernel opens it for init before anything is mounted.
	c.add(cpioEntry{name: "dev/console", mode: cpioChar | 0o600, major: 5, minor: 1}, nil)
	if err := c.addFile("init", r.Init, 0o755); err != nil {
		return err
	}
	for _, p := range programs {
		c.folders(path.Dir(p.name), made)
		if err := c.addFile(p.name, p.from, 0o755); err != nil {
			return err
		}
	}
	for _, p := range r.Put {
		if err := c.put(p, made); err != nil {
			return err
		}
	}
	var list strings.Builder
	for _, m := range modules {
		name := path.Join(path.Dir(guestinit.ModuleList), filepath.Base(m))
		fmt.Fprintln(&list, name)
		if err := c.addFile(name[1:], m, 0o644); err != nil {
			return err
		}
	}
	c.add(cpioEntry{name: guestinit.ModuleList[1:], mode: cpioFile | 0o644, size: int64(list.Len())}, strings.NewReader(list.String()))
	return c.close()
}

// put writes a file or a folder with its content, unchanged.
func (c *cpioWriter) put(p Put, made map[string]bool) error {
	return filepath.WalkDir(p.From, func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name := strings.Trim(path.Join(p.To, strings.TrimPrefix(at, p.From)), "/")
		fi, err := os.Stat(at)
		if err != nil {
			return err
		}
		c.folders(path.Dir(name), made)
		return c.addFile(name, at, uint32(fi.Mode().Perm()))
	})
}

func (c *cpioWriter) addFile(name, from string, perm uint32) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	c.add(cpioEntry{name: name, mode: cpioFile | perm, size: fi.Size()}, f)
	return c.err
}

// checkStatic returns an error if a program needs a dynamic loader, since init has none.
func checkStatic(path string, arch Arch) error {
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("init %s: %w", path, err)
	}
	defer f.Close()
	if f.Machine != arch.machine() {
		return fmt.Errorf("init %s is for %v, the guest is %v", path, f.Machine, arch.machine())
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("init %s is linked dynamically; build it with CGO_ENABLED=0", path)
		}
	}
	return nil
}

// cpioWriter writes a newc archive as Linux unpacks it into its root file
// system. Entries must come parents first.
type cpioWriter struct {
	w   io.Writer
	n   int64 // bytes written
	ino int
	err error
}

// File types of a newc mode.
const (
	cpioDir  = 0o040000
	cpioFile = 0o100000
	cpioChar = 0o020000
	cpioLink = 0o120000
)

type cpioEntry struct {
	name         string // without leading slash
	mode         uint32 // type and permissions
	size         int64
	major, minor uint32 // of a device node
}

// add writes an entry and size bytes of body.
func (c *cpioWriter) add(e cpioEntry, body io.Reader) {
	if e.size>>32 != 0 {
		c.fail(fmt.Errorf("%s: %d bytes, a newc entry holds less than 4 GiB", e.name, e.size))
	}
	c.ino++
	c.printf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		c.ino, e.mode, 0, 0, 1, 0, e.size, 0, 0, e.major, e.minor, len(e.name)+1, 0, e.name)
	c.pad()
	if c.err == nil {
		n, err := io.Copy(c.w, io.LimitReader(body, e.size))
		c.n += n
		if err == nil && n != e.size {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			c.fail(fmt.Errorf("%s: %w", e.name, err))
		}
	}
	c.pad()
}

// close writes the trailer and returns the first error of all writes.
func (c *cpioWriter) close() error {
	c.ino = -1
	c.add(cpioEntry{name: "TRAILER!!!"}, nil)
	return c.err
}

func (c *cpioWriter) pad() {
	c.printf("%s", "\x00\x00\x00"[:-c.n&3])
}

func (c *cpioWriter) printf(format string, a ...any) {
	if c.err == nil {
		n, err := fmt.Fprintf(c.w, format, a...)
		c.n += int64(n)
		c.fail(err)
	}
}

func (c *cpioWriter) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}
