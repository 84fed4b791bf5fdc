package record

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/internal/tape"
)

// Command returns the command.
func Command() *cobra.Command {
	c := &cobra.Command{
		Use:   "record",
		Short: "record what a running NIC takes from outside",
	}
	c.AddCommand(startCommand(), stopCommand(), saveCommand())
	return c
}

func startCommand() *cobra.Command {
	var o cli.NIC
	var payload string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "start FILE",
		Short: "record all that the NIC takes from outside in a new file, for vnic replay",
		Long: `Replaces the worker of the NIC by one that records all that it takes from outside
in a new file with mode 0600, from its beginning on. Program and configuration stay
what they are. Guests see what they see of vnic upgrade: they keep running, their
functions are reset, and their drivers start again; RDMA connections end, plain IP
goes on after a pause. The recording ends with vnic record stop, with the worker, or
after 4 GiB. vnic run --record FILE records from the NIC's first worker on.`,
		Example: `  vnic record start nic.rec
  vnic record stop`,
		Args: cli.Arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, err := filepath.Abs(args[0])
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			is, err := start(ctx, o.Client(), control.RecordingStart{File: file, Payload: payload})
			if err != nil {
				return err
			}
			return o.Print(cmd, is, func(w io.Writer) {
				fmt.Fprintf(w, "%s: worker %d records, from its start on\n", file, is.Worker)
			})
		},
	}
	o.Flags(cmd.Flags())
	cmd.Flags().StringVar(&payload, "payload", tape.Digest.String(), "what is kept of payload: digest, whole or none")
	_ = cmd.RegisterFlagCompletionFunc("payload", cli.Words(tape.Digest.String(), tape.Whole.String(), tape.None.String()))
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "give up waiting for the worker after this long")
	return cmd
}

// start begins a recording, and returns the NIC with the worker that records.
func start(ctx context.Context, c *control.Client, s control.RecordingStart) (is control.NIC, err error) {
	before, err := c.StartRecording(ctx, s)
	if err != nil {
		return is, err
	}
	for {
		is, err = c.NIC(ctx)
		switch {
		case err != nil || is.Worker == before.Worker:
		case is.Recording != s.File:
			return is, errors.New("the worker was replaced, but does not record: vnic show nic and the log of vnic run say why")
		default:
			return is, nil
		}
		select {
		case <-ctx.Done():
			return is, errors.Join(errors.New("no worker records yet: the log of vnic run says why"), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func stopCommand() *cobra.Command {
	var o cli.NIC
	cmd := &cobra.Command{
		Use:   "stop",
		Short: "end the recording in a file",
		Long: `Ends the recording that vnic record start or vnic run --record began, and says which
file has it. The NIC goes on, and guests notice nothing.`,
		Args: cli.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			is, err := o.Client().StopRecording(cmd.Context())
			if err != nil {
				return err
			}
			return o.Print(cmd, is, func(w io.Writer) {
				fmt.Fprint(w, is.File)
				if is.Ended != "" {
					fmt.Fprintf(w, ": the recording had ended before: %s", is.Ended)
				}
				fmt.Fprintln(w)
			})
		},
	}
	o.Flags(cmd.Flags())
	return cmd
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
by default vnic-TIME.rec. The recorder goes on.

If all that the NIC's worker took from outside since it started has room in
nic.recorder.size, vnic replay FILE runs it again. Otherwise the file has no beginning,
and vnic replay FILE --list prints what is in it. vnic upgrade starts a new worker.`,
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
