package lab

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/device/files"
)

// What a kernel says when it crashes names functions and offsets. With the debug symbols of the module
// or kernel, addr2line (binutils) tells the lines of the source code. That is what scripts/decode_stacktrace.sh
// of the kernel does, too, which needs the kernel's sources.

// crashBegins matches the first line of what a kernel says of a fault in itself or in a driver.
var crashBegins = regexp.MustCompile(`BUG: |Oops: |kernel BUG at |general protection fault|stack segment: |Kernel panic - not syncing|Unable to handle kernel`)

// crashEnds matches the last line of a crash that ends the kernel. Other faults end with silence.
var crashEnds = regexp.MustCompile(`Kernel Offset: |end Kernel panic|Rebooting in `)

// maxCrash is how much of a crash is kept.
const maxCrash = 64 << 10

// spot is a place in a function, as the kernel prints it: boom_init+0x15/0x1000 [boom].
type spot struct {
	function     string
	offset, size uint64
	module       string // "": the kernel itself
}

var spotText = regexp.MustCompile(`([A-Za-z_][\w.]*)\+0x([0-9a-f]{1,8})/0x([0-9a-f]{1,8})(?: \[(\w+)\])?`)

// spotIn returns the place that a line names. Lines of a call trace name where calls return to, which is
// behind the call; only RIP is where it happened.
func spotIn(line string) (s spot, ok bool) {
	m := spotText.FindStringSubmatch(line)
	if m == nil {
		return s, false
	}
	s = spot{function: m[1], module: m[4]}
	s.offset, _ = strconv.ParseUint(m[2], 16, 64)
	s.size, _ = strconv.ParseUint(m[3], 16, 64)
	if s.offset > 0 && !strings.Contains(line, "RIP:") {
		s.offset--
	}
	return s, true
}

// withSymbols adds to what a kernel says where in the source code its places are. symbols lists files
// that may have the debug symbols of a module; of the kernel itself, if the name is empty. The text is a
// guest's: what is not printable is left out.
func withSymbols(ctx context.Context, text string, symbols func(module string) []string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	asked := map[spot]bool{}
	for i, line := range lines {
		lines[i] = printable(line)
		if s, ok := spotIn(lines[i]); ok {
			asked[s] = true
		}
	}
	found := locate(ctx, asked, symbols)
	var b strings.Builder
	for _, line := range lines {
		b.WriteString(line)
		if s, ok := spotIn(line); ok && found[s] != "" {
			b.WriteString("   at " + found[s])
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func printable(line string) string {
	return strings.Map(func(r rune) rune {
		if r == '\t' || r >= ' ' && r != 0x7f && (r < 0x80 || r > 0x9f) {
			return r
		}
		return -1
	}, line)
}

// section is part of a file with code: addresses in a module count from the beginning of their section.
type section struct{ file, name string }

// locate returns the lines of source code of places, as "a.c:3 in inner, inlined at a.c:20". Each file is asked
// once for all its places.
func locate(ctx context.Context, asked map[spot]bool, symbols func(module string) []string) map[spot]string {
	at := map[section]map[spot]uint64{}
	tables := map[string][]elf.Symbol{}
	for s := range asked {
		for _, file := range symbols(s.module) {
			where, address, ok := find(file, s, tables)
			if !ok {
				continue
			}
			if at[where] == nil {
				at[where] = map[spot]uint64{}
			}
			at[where][s] = address
			break
		}
	}
	found := map[spot]string{}
	for where, places := range at {
		addr2line(ctx, where, places, found)
	}
	return found
}

// find returns where a file has a place. Its function must have the size that the kernel tells: else the
// file is of another build.
func find(file string, s spot, tables map[string][]elf.Symbol) (where section, address uint64, ok bool) {
	f, err := elf.Open(file)
	if err != nil {
		return where, 0, false
	}
	defer f.Close()
	table, read := tables[file]
	if !read {
		table, _ = f.Symbols()
		tables[file] = table
	}
	for _, y := range table {
		if y.Name != s.function || elf.ST_TYPE(y.Info) != elf.STT_FUNC || int(y.Section) >= len(f.Sections) || y.Section == elf.SHN_UNDEF {
			continue
		}
		// The kernel counts a function up to the next symbol, so with what the compiler puts between them.
		if s.offset >= y.Size || y.Size > s.size {
			continue
		}
		where.file = file
		if f.Type == elf.ET_REL {
			where.name = f.Sections[y.Section].Name
		}
		return where, y.Value + s.offset, true
	}
	return where, 0, false
}

// addr2line asks binutils for lines. It prints for each address the address, then the function and the
// line of it, and of the functions that it was inlined into.
func addr2line(ctx context.Context, where section, places map[spot]uint64, found map[spot]string) {
	args := []string{"-a", "-i", "-f", "-e", where.file}
	if where.name != "" {
		args = append(args, "-j", where.name)
	}
	by := map[uint64][]spot{}
	for s, a := range places {
		if by[a] == nil {
			args = append(args, fmt.Sprintf("%#x", a))
		}
		by[a] = append(by[a], s)
	}
	out, err := exec.CommandContext(ctx, "addr2line", args...).Output()
	if err != nil {
		return
	}
	var of []spot
	function := ""
	for line := range strings.Lines(string(out)) {
		line = strings.TrimRight(line, "\n")
		if hex, ok := strings.CutPrefix(line, "0x"); ok {
			a, _ := strconv.ParseUint(hex, 16, 64)
			of, function = by[a], ""
			continue
		}
		if function == "" {
			function = line
			continue
		}
		source, _, _ := strings.Cut(line, " (discriminator")
		if !strings.HasPrefix(source, "??") {
			for _, s := range of {
				if found[s] != "" {
					found[s] += ", inlined at "
				}
				found[s] += source
				if function != s.function {
					found[s] += " in " + function
				}
			}
		}
		function = ""
	}
}

// symbols lists files that may have the debug symbols of a module of a guest, or, "", of its kernel:
// what vnic lab reload put there, the driver, the shared folder, and the usual places of a kernel.
func (m *machine) symbols(module string) (files []string) {
	glob := func(patterns ...string) {
		for _, p := range patterns {
			more, _ := filepath.Glob(p)
			files = append(files, more...)
		}
	}
	if module == "" {
		if k, err := m.kernel(); err == nil && k != "" {
			glob(k+"/vmlinux", k+"/usr/lib/debug/boot/vmlinux-*", k+"/usr/src/linux/vmlinux", k+"/lib/modules/*/build/vmlinux", k+"/boot/vmlinux-*")
		}
		glob("/usr/lib/debug/boot/vmlinux-*")
		return files
	}
	names := []string{module + ".ko"}
	if dashed := strings.ReplaceAll(module, "_", "-"); dashed != module {
		names = append(names, dashed+".ko")
	}
	for _, name := range names {
		glob(filepath.Join(m.File(".modules"), name))
		if m.Guest.Driver != "" {
			glob(filepath.Join(m.Guest.Driver, "*", name))
		}
		if s := m.Guest.Share; s != "" {
			glob(filepath.Join(s, name), filepath.Join(s, "*", name), filepath.Join(s, "*", "*", name))
		}
	}
	return slices.DeleteFunc(files, func(f string) bool { st, err := os.Stat(f); return err != nil || !st.Mode().IsRegular() })
}

// noteCrash keeps a guest's last crash, with symbols, in MACHINE.crash.
func (m *machine) noteCrash(ctx context.Context, text []byte) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	said := withSymbols(ctx, string(bytes.ToValidUTF8(text, nil)), m.symbols)
	return files.Replace(m.File(".crash"), []byte(said), 0o644)
}

// noteTime bounds the wait for the note of a guest's crash, once the guest is up again.
const noteTime = 10 * time.Second

// lost explains why the connection to a guest ended with err. If the guest has crashed since begun, it
// waits until the guest is up again, and the error quotes the guest's kernel.
func (m *machine) lost(ctx context.Context, begun time.Time, err error) error {
	broken := time.Now()
	ctx, cancel := context.WithTimeout(ctx, m.bootTime())
	defer cancel()
	crashed := func() bool {
		st, err := os.Stat(m.File(".crash"))
		return err == nil && st.ModTime().After(begun)
	}
	for answers := (time.Time{}); !crashed(); time.Sleep(50 * time.Millisecond) {
		switch {
		case len(qemus(m.host, m.Name)) == 0:
			return fmt.Errorf("guest %s has ended: vnic lab restart %[1]s starts it", m.Name)
		case ctx.Err() != nil || !answers.IsZero() && time.Since(answers) > noteTime:
			return err
		case answers.IsZero():
			asking, cancel := context.WithTimeout(ctx, 5*time.Second) // one that hangs may have crashed
			if c, err := m.dial(asking); err == nil {
				c.Close()
				answers = time.Now()
			}
			cancel()
		}
	}
	said, rerr := os.ReadFile(m.File(".crash"))
	if rerr != nil {
		return errors.Join(err, rerr)
	}
	for {
		c, err := m.dial(ctx)
		if err == nil {
			c.Close()
			return fmt.Errorf("guest %s has crashed, and was up again after %.1f s:\n%s", m.Name, time.Since(broken).Seconds(), said)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("guest %s has crashed, and is not up again: %w:\n%s", m.Name, err, said)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func crashCommand(lab *string) *cobra.Command {
	return &cobra.Command{
		Use:   "crash GUEST",
		Short: "what a guest's kernel said when it crashed last, with lines of source code",
		Long: `Prints what the guest's kernel said of its last fault. Where the module that it names
was loaded by "vnic lab reload", is the lab's driver or is in the shared folder, and was
built with debug information, it says which line of the source code that is. Of the
kernel itself it does so if there is a vmlinux with debug information: in the folder
that the file names as kernel, or Debian's linux-image-…-dbg on this machine. It needs
binutils.`,
		Args: cli.Arguments(1, 1), ValidArgsFunction: completePlaces(lab),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := openGuest(*lab, args[0])
			if err != nil {
				return err
			}
			said, err := os.ReadFile(m.File(".crash"))
			if errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("guest %s has not crashed", m.Name)
			}
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(said)
			return err
		},
	}
}
