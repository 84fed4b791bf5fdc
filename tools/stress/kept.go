package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// keptRow is a row as tally.json has it. Its runs count for as long as the package's tests are
// built to the same bytes: a change to the tests, or to any code in them, begins anew.
type keptRow struct {
	Binary string // SHA-256
	Runs   [2]int // quiet and busy
	Failed [2]int
	Most   time.Duration
}

const keptName = "tally.json"

// resume adds what earlier runs of the command came to, and says how much that is.
func (y *tally) resume(dir string, out io.Writer) error {
	text, err := os.ReadFile(filepath.Join(dir, keptName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	kept := map[string]keptRow{}
	if err := json.Unmarshal(text, &kept); err != nil {
		return fmt.Errorf("%s, which has the runs so far, cannot be read: %w; delete it to begin anew", filepath.Join(dir, keptName), err)
	}
	y.mu.Lock()
	defer y.mu.Unlock()
	y.others = kept
	runs := 0
	for path, r := range y.rows {
		if k, ok := kept[path]; ok && k.Binary == r.test.pkg.sum {
			r.runs, r.failed, r.most, r.last = k.Runs, k.Failed, k.Most, k.Most
			runs += k.Runs[0] + k.Runs[1]
		}
	}
	if runs > 0 {
		fmt.Fprintf(out, "%d earlier runs count\n", runs)
	}
	return nil
}

// keep writes the rows for the next run of the command, with those of tests that were not asked
// for.
func (y *tally) keep(dir string) error {
	y.mu.Lock()
	defer y.mu.Unlock()
	kept := map[string]keptRow{}
	for path, k := range y.others {
		kept[path] = k
	}
	for path, r := range y.rows {
		kept[path] = keptRow{Binary: r.test.pkg.sum, Runs: r.runs, Failed: r.failed, Most: r.most}
	}
	text, err := json.MarshalIndent(kept, "", "\t")
	if err != nil {
		return err
	}
	path := filepath.Join(dir, keptName)
	if err := os.WriteFile(path+".new", text, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// lock takes a folder for this process alone, until unlock or its end.
func lock(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: another stress uses it: wait for its end, or give this one a folder by -o: %w", dir, err)
	}
	return func() { f.Close() }, nil
}

// sumOf is the SHA-256 of a file.
func sumOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
