package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/cmd/vnic/lab/labfile"
	"github.com/falcon-vnic/vnic/device/files"
)

// Folders in which a lab leaves something. Namespaces are files in the second, and the third has the
// names that machines know each other by.
const (
	labsFolder   = "/run/vnic/lab"
	netnsFolder  = "/run/netns"
	netnsEtc     = "/etc/netns"
	labFile      = "lab.yaml"
	stateFile    = "state.json"
	folderRights = 0o755
)

// folder is where a lab keeps its files.
func folder(lab string) string { return filepath.Join(labsFolder, lab) }

// space returns the network namespace of a host or machine. That of the links has the lab's own name.
func space(lab, name string) string { return lab + "." + name }

// state is what a lab remembers between commands. All else is found by looking: at namespaces, at
// the processes in them, and at NICs.
type state struct {
	Source  string            `json:"source"`  // what up was given
	Folder  string            `json:"folder"`  // that the file's paths are relative to
	Numbers numbers           `json:"numbers"` // given out; they stay
	Made    map[string]string `json:"made"`    // namespaces that are complete, and what they are like
	Begun   map[string]bool   `json:"begun"`   // namespaces of machines whose commands have run

	// Links is what vnic lab link changed since up: what hosts do to what they send, in the file's words.
	Links map[string]string `json:"links,omitempty"`
}

func (s *state) save(dir string) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return files.Replace(filepath.Join(dir, stateFile), b, 0o644)
}

func loadState(dir string) (*state, error) {
	s := &state{Made: map[string]string{}, Begun: map[string]bool{}}
	b, err := os.ReadFile(filepath.Join(dir, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(b, s)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w; vnic lab down %s removes the lab", filepath.Join(dir, stateFile), err, filepath.Base(dir))
	}
	return s, nil
}

// lockTime is how long a command waits for another. One that was just killed may have begun a process,
// which has the lock until it becomes its program.
const lockTime = 2 * time.Second

// lock makes the lab's folder if it is missing, and keeps other commands from changing the lab. The
// kernel unlocks it when this process ends, however that happens.
func lock(lab string) (unlock func() error, err error) {
	dir := folder(lab)
	for begun := time.Now(); ; {
		if err := os.MkdirAll(dir, folderRights); err != nil {
			return nil, err
		}
		f, err := os.OpenFile(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if errors.Is(err, fs.ErrNotExist) { // vnic lab down removed it
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			if time.Since(begun) < lockTime {
				f.Close()
				time.Sleep(20 * time.Millisecond)
				continue
			}
			return nil, errors.Join(fmt.Errorf("lab %s: another command is changing it; try again when it has finished", lab), f.Close())
		}
		locked, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if now, err := os.Lstat(dir); err == nil && os.SameFile(locked, now) {
			return f.Close, nil
		}
		f.Close() // vnic lab down removed it before it was locked: what is there now is another
	}
}

// openLocked returns the plan of a lab that is up, for a command that changes it. It reads the state
// when no other command can write it any more.
func openLocked(name string) (p *plan, unlock func() error, err error) {
	if name, err = choose(name); err != nil {
		return nil, nil, err
	}
	if unlock, err = lock(name); err != nil {
		return nil, nil, err
	}
	if p, err = open(name); err != nil {
		_ = os.Remove(folder(name)) // if it is empty: lock made it, for a lab that was gone
		return nil, nil, errors.Join(err, unlock())
	}
	return p, unlock, nil
}

// labs returns the names of the labs that there are, also of those that are not complete.
func labs() (names []string) {
	entries, _ := os.ReadDir(labsFolder)
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

// choose returns the lab that a command is for: the one named, or the only one.
func choose(name string) (string, error) {
	switch all := labs(); {
	case name != "" && slices.Contains(all, name):
		return name, nil
	case name != "" && len(all) == 0:
		return "", fmt.Errorf("there is no lab %q, nor any other; vnic lab up makes one", name)
	case name != "":
		return "", fmt.Errorf("there is no lab %q; the labs are %s", name, strings.Join(all, ", "))
	case len(all) == 0:
		return "", errors.New("there is no lab: vnic lab up makes one")
	case len(all) > 1:
		return "", cli.Usagef("there are several labs; name one with --lab: %s", strings.Join(all, ", "))
	default:
		return all[0], nil
	}
}

// open returns the plan of a lab that is up.
func open(name string) (*plan, error) {
	name, err := choose(name)
	if err != nil {
		return nil, err
	}
	dir := folder(name)
	text, err := os.ReadFile(filepath.Join(dir, labFile))
	if err != nil {
		return nil, fmt.Errorf("lab %s is not complete: vnic lab up completes it, vnic lab down %[1]s removes it", name)
	}
	l, err := labfile.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s:\n%w", filepath.Join(dir, labFile), err)
	}
	s, err := loadState(dir)
	if err != nil {
		return nil, err
	}
	return newPlan(l, s)
}

// spaces returns the names of the lab's network namespaces.
func spaces(lab string) (names []string) {
	entries, _ := os.ReadDir(netnsFolder)
	for _, e := range entries {
		if e.Name() == lab || strings.HasPrefix(e.Name(), lab+".") {
			names = append(names, e.Name())
		}
	}
	return names
}
