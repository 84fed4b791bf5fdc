package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/image"
)

// A guest that names neither image nor disk boots from a folder that vnic image made for a lab. It is named
// by the hash of what it is made of, so two versions of this program, or guests with other packages, have
// folders of their own:
//
//	~/.cache/vnic/lab-guests/HASH/{vmlinux,vmlinuz,initrd}
//
// A folder appears whole or not at all. Those used last stay. Each QEMU has a shared lock on its own, which
// the kernel keeps as long as the QEMU runs, whoever is killed and in whatever namespaces it is.

// images is the folder of images.
type images struct {
	dir  string
	kept int // how many stay, beside those in use
}

// keptImages are one to two gigabytes.
const keptImages = 6

// image returns the folder from which a guest boots, and a file by which that folder stays while the file,
// or a copy of it, is open. It makes the folder if there is none. A guest with a disk has none.
func (b *builder) image(ctx context.Context, m *machine) (dir string, inUse *os.File, err error) {
	if g := m.Guest; g.Image != "" || g.Disk != "" {
		return g.Image, nil, nil
	}
	cache, err := image.DefaultCache()
	if err != nil {
		return "", nil, err
	}
	args, files, err := b.imageArgs(ctx, m, cache)
	if err != nil {
		return "", nil, err
	}
	name, err := recipe(args, files)
	if err != nil {
		return "", nil, err
	}
	all := images{filepath.Join(filepath.Dir(cache), "lab-guests"), keptImages}
	return all.open(ctx, name, func(part string) error {
		b.out.now("a guest's image is made in %s", all.dir)
		if _, err := output(exec.CommandContext(ctx, program, append([]string{"image", "--out", part}, args...)...)); err != nil {
			return fmt.Errorf("vnic image: %w", err)
		}
		b.out.step("guest: its image is made in %s", filepath.Join(all.dir, name))
		return nil
	})
}

// imageArgs returns the arguments of vnic image for what the file adds to a guest, and the files that they
// name.
func (b *builder) imageArgs(ctx context.Context, m *machine, cache string) (args, files []string, err error) {
	g := m.Guest
	for _, p := range g.Packages {
		args = append(args, "--package", p)
	}
	for _, name := range g.Modules {
		args = append(args, "--module", name)
	}
	own, err := m.kernel()
	if err != nil {
		return nil, nil, err
	}
	var k image.Kernel
	switch {
	case own != "":
		if k, err = image.OpenKernel(own); err != nil {
			return nil, nil, err
		}
		args, files = append(args, "--kernel", own), append(files, k.Image)
	case g.Driver != "":
		if b.debian.Image == "" { // apt may take a second or more to say which it is
			if b.debian, err = image.FetchKernel(ctx, cache); err != nil {
				return nil, nil, err
			}
		}
		k = b.debian
	}
	if g.Driver == "" {
		return args, files, nil
	}
	module := filepath.Join(g.Driver, k.Release, "vnic.ko")
	if _, err := os.Stat(module); err != nil {
		return nil, nil, fmt.Errorf("driver %s: it was not built for the guest's kernel %s: %w (make -C guestlib/linux RELEASE=%[2]s builds it)", g.Driver, k.Release, err)
	}
	const provider = "libvnic-rdmav34.so"
	library, driver := filepath.Join(g.Driver, "provider", provider), filepath.Join(g.Driver, "provider", "vnic.driver")
	args = append(args,
		"--module", "ib_uverbs", "--module", "rdma_ucm", "--module", module,
		"--file", library+":/usr/lib/x86_64-linux-gnu/libibverbs/"+provider, "--file", driver+":/etc/libibverbs.d/vnic.driver")
	return args, append(files, module, library, driver), nil
}

// open returns the folder of an image, and the file by which it stays. If there is none, fill makes it in a
// folder that is renamed then.
func (s images) open(ctx context.Context, name string, fill func(part string) error) (path string, inUse *os.File, err error) {
	if err := os.MkdirAll(s.dir, folderRights); err != nil {
		return "", nil, err
	}
	unlock, err := image.LockDir(ctx, s.dir)
	if err != nil {
		return "", nil, err
	}
	defer unlock()
	path = filepath.Join(s.dir, name)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		part, err := image.TempDir(s.dir)
		if err == nil {
			err = errors.Join(os.Chmod(part, folderRights), fill(part))
		}
		if err == nil {
			err = os.Rename(part, path)
		}
		if err != nil {
			return "", nil, err
		}
	}
	now := time.Now()
	if err := os.Chtimes(path, now, now); err != nil {
		return "", nil, err
	}
	if inUse, err = os.Open(path); err != nil {
		return "", nil, err
	}
	if err := errors.Join(unix.Flock(int(inUse.Fd()), unix.LOCK_SH), s.prune()); err != nil {
		return "", nil, errors.Join(err, inUse.Close())
	}
	return path, inUse, nil
}

// prune removes the images that were not used lately and are not in use. The caller has locked the folder.
func (s images) prune() error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	used := map[string]time.Time{}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && e.IsDir() && e.Name()[0] != '.' {
			used[e.Name()] = info.ModTime()
		}
	}
	names := slices.SortedFunc(maps.Keys(used), func(a, b string) int { return used[b].Compare(used[a]) })
	for _, name := range names[min(len(names), s.kept):] {
		err = errors.Join(err, s.remove(name))
	}
	return err
}

// remove removes an image that is not in use. Under its own name it is whole until it is gone.
func (s images) remove(name string) error {
	path := filepath.Join(s.dir, name)
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return nil
	}
	part, err := image.TempDir(s.dir)
	if err == nil {
		err = os.Rename(path, filepath.Join(part, name))
	}
	return errors.Join(err, os.RemoveAll(part))
}

// recipe returns a name for what an image is made of: this program, the arguments of vnic image, and the
// content of the files that they name, wherever those are.
func recipe(args, files []string) (string, error) {
	text := strings.Join(args, "\n")
	for _, path := range files {
		sum, err := hashFile(path)
		if err != nil {
			return "", err
		}
		text = strings.ReplaceAll(text, path, filepath.Base(path)) + "\n" + sum
	}
	own, err := programHash()
	return hash([]byte(text + "\n" + own))[:16], err
}

var programHash = sync.OnceValues(func() (string, error) { return hashFile(program) })

func hashFile(path string) (string, error) {
	b, err := os.ReadFile(path)
	return hash(b), err
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
