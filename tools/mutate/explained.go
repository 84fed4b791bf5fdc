package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// readExplained reads the list of changes that no test can notice: a line with the mutant as the
// report prints it, then an indented line with the reason. # starts a comment.
func readExplained(path string) (map[string]string, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	why := map[string]string{}
	key := ""
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		text := strings.TrimSpace(line)
		switch {
		case text == "" || strings.HasPrefix(text, "#"):
		case text != line && key == "":
			return nil, fmt.Errorf("%s:%d: a reason without a change above it", path, n)
		case text != line:
			why[key] = strings.TrimSpace(why[key] + " " + text)
		default:
			key = text
			why[key] = ""
		}
	}
	for key, reason := range why {
		if reason == "" {
			return nil, fmt.Errorf("%s: no reason is given for %q: indent it on the next line", path, key)
		}
	}
	return why, lines.Err()
}
