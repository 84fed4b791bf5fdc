package lab

import (
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
)

// A guest may write to its console without end, and the lab's folder is in memory. So QEMU's output,
// which has the console's, goes through a pipe to a process of the lab that keeps only its end.

// logSize is the size at which a guest's log becomes MACHINE.log.1, in place of the one before.
const logSize = 512 << 10

func keepCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "keep FILE",
		Short:  "write the end of the standard input to a log",
		Hidden: true,
		Args:   cli.Arguments(1, 1),
		RunE:   func(_ *cobra.Command, args []string) error { return keep(os.Stdin, args[0]) },
	}
}

// keep appends what it reads to a log, whose parts are never longer than logSize. It reads on when
// the log cannot be written, because a guest waits for who reads its console.
func keep(in io.Reader, log string) error {
	b := make([]byte, 16<<10)
	for {
		n, err := in.Read(b)
		_ = appendPart(log, b[:n])
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func appendPart(log string, b []byte) error {
	if st, err := os.Stat(log); err == nil && st.Size()+int64(len(b)) > logSize {
		if err := os.Rename(log, log+".1"); err != nil {
			return err
		}
	}
	f, err := openLog(log)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}
