package lab

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/falcon-vnic/vnic/cmd/vnic/lab/labfile"
)

// down removes a lab. It needs nothing but the lab's name: all that a lab has is in its namespaces and
// its folder.
func down(name string) error {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces need root: run it with sudo")
	}
	unlock, err := lock(name)
	if err != nil {
		return err
	}
	defer unlock()
	// All processes end at the same time; then no namespace is busy. But etcd ends last: NICs that end take
	// their records out of it.
	all := spaces(name)
	etcd := space(name, labfile.DirectoryEtcd)
	if err := endAll(slices.DeleteFunc(slices.Clone(all), func(s string) bool { return s == etcd })...); err != nil {
		return err
	}
	if err := endAll(all...); err != nil {
		return err
	}
	for _, s := range all {
		if err := removeSpace(s); err != nil {
			return err
		}
	}
	if err := errors.Join(os.RemoveAll(filepath.Join(overlaysFolder, name)), os.RemoveAll(folder(name))); err != nil {
		return err
	}
	// Folders that are empty now were most likely made for this lab.
	for _, dir := range []string{labsFolder, filepath.Dir(labsFolder), netnsEtc, overlaysFolder} {
		_ = os.Remove(dir)
	}
	return nil
}

// nameOf returns the lab that an argument of down means: the name of a lab that is there, or the file
// that it was made from.
func nameOf(arg string) (string, error) {
	if arg == "" {
		return choose("")
	}
	// If the folder is gone, namespaces show a lab: its own and those in it. One alone is somebody else's.
	if slices.Contains(labs(), arg) || len(spaces(arg)) > 1 && !strings.Contains(arg, ".") {
		return arg, nil
	}
	if !strings.ContainsAny(arg, "./") {
		return choose(arg) // which says what labs there are
	}
	l, _, err := labfile.Load(arg)
	if err != nil {
		return "", err
	}
	return l.Name, nil
}
