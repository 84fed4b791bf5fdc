package examples

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/guestlib/internal/fakedev"
)

func TestEveryExampleBuildsAndRuns(t *testing.T) {
	bin := t.TempDir()
	build := exec.Command("go", "build", "-o", bin, "./...")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, tc := range map[string]struct {
		clients int
		says    string // one of them
	}{
		"pingpong":  {1, `200 round trips of 64 bytes, [\d.]+.s each\n`},
		"bandwidth": {1, `1024 WRITEs of 64 KiB: \d+ MB/s\n`},
		"kv":        {1, `600 puts, 301 gets with \d+ READs, none of which the server noticed\n`},
		"lock":      {2, `2 clients counted to 400\n`},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s")
			nic, err := fakedev.Listen(path, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer nic.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var wg sync.WaitGroup
			said := make([]bytes.Buffer, 1+tc.clients)
			for i := range said {
				args := []string{"-d", "unix://" + path}
				if i > 0 {
					args = append(args, "10.0.0.1")
				}
				cmd := exec.CommandContext(ctx, filepath.Join(bin, name), args...)
				cmd.Stdout, cmd.Stderr = &said[i], &said[i]
				wg.Go(func() {
					if err := cmd.Run(); err != nil {
						t.Errorf("%q: %v", args, err)
					}
				})
				for nic.Session(i) == nil && ctx.Err() == nil { // it numbers functions by arrival
					time.Sleep(time.Millisecond)
				}
			}
			wg.Wait()
			var all strings.Builder
			for i := range said {
				all.Write(said[i].Bytes())
			}
			if !regexp.MustCompile(tc.says).MatchString(all.String()) {
				t.Errorf("no %s in\n%s", tc.says, &all)
			}
		})
	}
}
