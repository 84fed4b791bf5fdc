package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/agent"
	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
)

// sections prints where a guest's kernel has the sections of its modules, as
// /sys/module/NAME/sections/.text:0xffffffffc0000000.
const sections = `grep -H . /sys/module/*/sections/.[a-z]*`

var sectionLine = regexp.MustCompile(`(?m)^/sys/module/(\w+)/sections/(\.[\w.]+):(0x[0-9a-f]{1,16})$`)

// askTime is how long a guest has to tell its modules. One that hangs does not answer.
const askTime = 5 * time.Second

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
			if _, err := exec.LookPath("gdb"); err != nil {
				return errors.New("the program gdb is missing: apt-get install gdb")
			}
			said, err := m.loaded(cmd.Context())
			if err != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "guest %s does not tell its modules, so gdb has none of their symbols: %v\n", m.Name, err)
			}
			script := m.File(".gdb-commands")
			if err := os.WriteFile(script, []byte(m.gdbCommands(said)), 0o644); err != nil {
				return err
			}
			return become(exec.Command("gdb", append([]string{"-q", "-x", script}, args[1:]...)...))
		},
	}
	c.Flags().SetInterspersed(false) // gdb's flags are its own
	return c
}

// loaded returns what a guest says of its modules.
func (m *machine) loaded(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	c, err := m.dial(ctx)
	if err != nil {
		return "", err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	var out bytes.Buffer
	_, err = agent.Run(c, []string{"/bin/sh", "-c", sections}, nil, &out, &out)
	return out.String(), err
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
