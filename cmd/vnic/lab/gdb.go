package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/cmd/vnic/lab/labfile"
	"github.com/falcon-vnic/vnic/device/files"
)

// sections prints where a guest's kernel has the sections of its modules, as
// /sys/module/NAME/sections/.text:0xffffffffc0000000. There may be no modules.
const sections = `grep -H . /sys/module/*/sections/.[a-z]* || true`

var sectionLine = regexp.MustCompile(`(?m)^/sys/module/(\w+)/sections/(\.[\w.]+):(0x[0-9a-f]{1,16})$`)

// askTime is how long a guest has to tell its modules. One that hangs does not answer.
const askTime = 20 * time.Second

func gdbCommand(lab *string) *cobra.Command {
	c := &cobra.Command{
		Use:   "gdb GUEST [GDB'S ARGUMENT …]",
		Short: "gdb on a guest's kernel, with the symbols of its modules",
		Long: `Becomes gdb, connected to the guest's processors through QEMU. The guest stands still
while gdb has it, and goes on when gdb ends. Symbols are loaded of the kernel and of
each module in the guest, where "vnic lab crash" finds them.`,
		Example: `  vnic lab gdb dev
  vnic lab gdb dev -batch -ex 'info line boom_init'`,
		Args: cli.Arguments(1, -1), ValidArgsFunction: completePlaces(lab),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := openGuest(*lab, args[0])
			if err != nil {
				return err
			}
			if err := checkGDB(true); err != nil {
				return err
			}
			said, err := m.loaded(cmd.Context())
			if err != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "guest %s does not tell its modules, so gdb has none of their symbols: %v\n", m.Name, err)
			}
			return m.gdb(said, args[1:]...)
		},
	}
	c.Flags().SetInterspersed(false) // gdb's flags are its own
	return c
}

// checkGDB returns an error if gdb is wanted and not there.
func checkGDB(wanted bool) error {
	if _, err := exec.LookPath("gdb"); wanted && err != nil {
		return errors.New("the program gdb is missing: apt-get install gdb")
	}
	return nil
}

// gdb replaces this process by gdb on a guest that has said what it has loaded.
func (m *machine) gdb(loaded string, args ...string) error {
	script := m.File(".gdb-commands")
	if err := os.WriteFile(script, []byte(m.gdbCommands(loaded)), 0o644); err != nil {
		return err
	}
	return become(exec.Command("gdb", append([]string{"-q", "-x", script}, args...)...))
}

// debugging is what the developer of a driver wants of a guest besides what the file says.
type debugging struct {
	kernel string
	gdb    bool
}

func (d *debugging) flags(c *cobra.Command) {
	c.Flags().StringVar(&d.kernel, "kernel", "", "another kernel: the `folder` in which you built it, one as the file's key kernel takes, its image, or debug")
	c.Flags().BoolVar(&d.gdb, "gdb", false, "pause the guest at its start, and become gdb with its kernel's symbols")
}

// change returns the change of a lab's file by which a guest boots another kernel.
func (d *debugging) change(guest string) (string, error) {
	path := d.kernel
	if path != labfile.KernelDebug {
		var err error
		if path, err = filepath.Abs(path); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("machines: {%s: {guest: {kernel: %q}}}", guest, path), nil
}

// changesFor returns what changes in a lab's file, and the guest that is paused.
func (d *debugging) changesFor(file string) (changes []string, paused string, err error) {
	if *d == (debugging{}) {
		return nil, "", nil
	}
	l, _, err := labfile.Load(file)
	if err != nil {
		return nil, "", err
	}
	var guests []string
	for _, m := range l.Machines {
		if m.Guest == nil {
			continue
		}
		guests = append(guests, m.Name)
		if d.kernel != "" && m.Guest.Disk == "" && m.Guest.Image == "" { // those have theirs
			change, err := d.change(m.Name)
			if err != nil {
				return nil, "", err
			}
			changes = append(changes, change)
		}
	}
	switch {
	case d.kernel != "" && len(changes) == 0:
		return nil, "", fmt.Errorf("lab %s has no guest that boots a kernel of its own", l.Name)
	case d.gdb && len(guests) != 1:
		return nil, "", fmt.Errorf("--gdb: lab %s has %d guests: leave it out, and say vnic lab restart GUEST --gdb", l.Name, len(guests))
	case d.gdb:
		paused = guests[0]
	}
	return changes, paused, checkGDB(d.gdb)
}

// withKernel returns the plan of a lab in which a guest boots another kernel, and keeps it.
func (p *plan) withKernel(m *machine, kernel string) (*plan, error) {
	change, err := (&debugging{kernel: kernel}).change(m.Name)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(folder(p.Name), labFile)
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if text, err = labfile.Change(text, change); err != nil {
		return nil, err
	}
	l, err := labfile.Parse(text)
	if err != nil {
		return nil, err
	}
	is, err := newPlan(l, p.state)
	if err == nil {
		err = is.checkGuests()
	}
	if err != nil {
		return nil, err
	}
	return is, files.Replace(file, text, 0o644)
}

// loaded returns what a guest says of its modules.
func (m *machine) loaded(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return m.ask(ctx, "", "/bin/sh", "-c", sections)
}

// gdbCommands returns what gdb does first.
func (m *machine) gdbCommands(loaded string) string {
	at := map[string][]string{} // module → its sections, .text first
	for _, s := range sectionLine.FindAllStringSubmatch(loaded, -1) {
		switch module, name, address := s[1], s[2], s[3]; {
		case name == ".text":
			at[module] = slices.Insert(at[module], 0, address)
		case !strings.HasPrefix(name, ".init"): // the kernel has given those back
			at[module] = append(at[module], "-s "+name+" "+address)
		}
	}
	var b strings.Builder
	b.WriteString("set confirm off\nset architecture i386:x86-64\n")
	if files := m.symbols(""); len(files) > 0 {
		fmt.Fprintf(&b, "file %s\n", gdbWord(files[0]))
	}
	fmt.Fprintf(&b, "target remote %s\n", m.File(".gdb"))
	for _, module := range slices.Sorted(maps.Keys(at)) {
		files := m.symbols(module)
		if len(files) == 0 || strings.HasPrefix(at[module][0], "-") {
			continue
		}
		fmt.Fprintf(&b, "add-symbol-file %s %s\n", gdbWord(files[0]), strings.Join(at[module], " "))
	}
	return b.String()
}

// gdbWord quotes a path for gdb.
func gdbWord(path string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(path) + `"`
}
