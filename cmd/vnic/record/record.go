package record

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
)

// Command returns the command.
func Command() *cobra.Command {
	c := &cobra.Command{
		Use:   "record",
		Short: "save what the recorder of a running NIC has",
	}
	c.AddCommand(saveCommand())
	return c
}

// saved is what vnic record save prints with --json.
type saved struct {
	File  string `json:"file"`
	Bytes int64  `json:"bytes"`
}

func saveCommand() *cobra.Command {
	var o cli.NIC
	cmd := &cobra.Command{
		Use:   "save [FILE]",
		Short: "save what the recorder has in a new file, for vnic replay",
		Long: `Saves what the recorder of the NIC (nic.recorder) has in a new file with mode 0600,
which is vnic-TIME.rec unless it is named. The recorder goes on. If all that
the NIC took from outside since it started has room in nic.recorder.size, vnic
replay FILE runs it again. Otherwise the file has no beginning, and vnic replay
FILE --list prints what is in it. A worker that begins (vnic upgrade) is a
beginning.`,
		Example: `  vnic record save
  vnic record save nic.rec`,
		Args: cli.Arguments(0, 1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			file := "vnic-" + time.Now().Format("20060102-150405") + ".rec"
			if len(args) == 1 {
				file = args[0]
			}
			f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if errors.Is(err, os.ErrExist) {
				return fmt.Errorf("%s exists and is not overwritten: remove it or choose another name", file)
			}
			if err != nil {
				return err
			}
			err = o.Client().Recording(cmd.Context(), f)
			st, failed := f.Stat()
			if err = cmp.Or(err, failed, f.Close()); err != nil {
				return errors.Join(err, os.Remove(file))
			}
			return o.Print(cmd, saved{file, st.Size()}, func(w io.Writer) { fmt.Fprintf(w, "%s: %d bytes\n", file, st.Size()) })
		},
	}
	o.Flags(cmd.Flags())
	return cmd
}
