package agent

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// pack writes a file, or a folder with its content, as an archive. Files that are neither are left out.
func pack(w io.Writer, from string) error {
	from = filepath.Clean(from)
	if _, err := os.Stat(from); err != nil {
		return err
	}
	out := tar.NewWriter(w)
	base := filepath.Base(from)
	err := filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Stat(p) // what a link leads to
		if err != nil || !info.IsDir() && !info.Mode().IsRegular() || info.IsDir() && !d.IsDir() && p != from {
			return nil //nolint:nilerr // as one that leads nowhere, or to a folder
		}
		rel, err := filepath.Rel(from, p)
		if err != nil {
			return err
		}
		return packOne(out, p, path.Join(base, filepath.ToSlash(rel)), info)
	})
	return errors.Join(err, out.Close())
}

func packOne(out *tar.Writer, p, name string, info fs.FileInfo) error {
	h := &tar.Header{Name: name, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Typeflag: tar.TypeDir}
	if info.IsDir() {
		return out.WriteHeader(h)
	}
	f, err := os.Open(p)
	if err != nil {
		return err
	}
	defer f.Close()
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.Copy(out, io.LimitReader(f, info.Size()))
	if err == nil && n < info.Size() {
		err = fmt.Errorf("%s became shorter while it was read", p)
	}
	return err
}

// limits are the most that is unpacked from one archive: it comes from a guest, which may send on
// without end.
type limits struct {
	bytes int64
	files int // and folders
}

var usual = limits{bytes: 16 << 30, files: 1 << 18}

// unpack makes the file or folder of an archive: within to, if that is a folder, else with that name.
// It writes nothing elsewhere, whatever the archive says.
func (l limits) unpack(r io.Reader, to string) error {
	dir, name := filepath.Split(filepath.Clean(to))
	if st, err := os.Stat(to); err == nil && st.IsDir() {
		dir, name = to, ""
	}
	if dir == "" {
		dir = "."
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	in := tar.NewReader(r)
	for first := true; ; first = false {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			if first {
				return errors.New("an archive without files")
			}
			return nil
		}
		if err != nil {
			return err
		}
		if l.files--; l.files < 0 {
			return errors.New("too many files: copy fewer folders at a time, or make one archive of them")
		}
		if l.bytes -= h.Size; l.bytes < 0 {
			return fmt.Errorf("%.100q and the files before it are too long: copy fewer at a time", h.Name)
		}
		p := path.Clean(h.Name)
		if name != "" { // the top of the archive gets another name
			_, below, _ := strings.Cut(p, "/")
			p = path.Join(name, below)
		}
		if err := unpackOne(root, in, h, p); err != nil {
			return err
		}
	}
}

func unpackOne(root *os.Root, in io.Reader, h *tar.Header, p string) error {
	mode := fs.FileMode(h.Mode) & fs.ModePerm
	switch h.Typeflag {
	case tar.TypeDir:
		err := root.Mkdir(p, mode|0o700) // not its parents: in an archive they come first
		if st, serr := root.Stat(p); errors.Is(err, fs.ErrExist) && serr == nil && st.IsDir() {
			return nil
		}
		return err
	case tar.TypeReg:
	default:
		return fmt.Errorf("%.100q is neither a file nor a folder", h.Name)
	}
	f, err := root.OpenFile(p, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode|0o200)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, in)
	return errors.Join(err, f.Close())
}
