package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

// JSONFlag defines the flag --json.
func JSONFlag(f *pflag.FlagSet, v *bool) { f.BoolVar(v, "json", false, "print JSON") }

// PrintJSON writes v as indented JSON.
func PrintJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// PrintTable calls text and aligns the columns that it writes, separated by tabs.
func PrintTable(w io.Writer, text func(io.Writer)) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	text(tw)
	return tw.Flush()
}

// IsTerminal reports whether a stream of this process is a terminal.
func IsTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// UpDown describes the state of a link.
func UpDown(b bool) string {
	if b {
		return "up"
	}
	return "down"
}

// Bytes formats a size with its unit: 1000 B, 64 KiB, 1 MiB.
func Bytes(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}
