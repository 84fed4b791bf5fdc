package lab

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/qemu/guestinit"
)

// A guest may write to its console without end, and the lab's folder is in memory. So QEMU's output,
// which has the console's, goes through a pipe to a process of the lab that keeps only its end. That
// process also notes crashes, and makes a guest that boots again what it was:
//
//	QEMU ── console ─► vnic lab watch ─┬─► MACHINE.log, MACHINE.log.1
//	                                   ├─► MACHINE.crash: a fault of the kernel, with symbols (crash.go)
//	                                   └─► when it has booted again: its names, its exec
//
// What NICs and the commands of exec say is kept in the same way.

// logSize is the size at which a log becomes NAME.log.1, in place of the one before.
const logSize = 512 << 10

// quietTime is after how much silence a crash is complete. A guest that starts again says so.
const quietTime = 2 * time.Second

func watchCommand(lab *string) *cobra.Command {
	first := false
	c := &cobra.Command{
		Use:    "watch LOG [GUEST]",
		Short:  "keep the end of the standard input in a log, and follow what a guest says",
		Hidden: true,
		Args:   cli.Arguments(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			w := watcher{log: args[0], first: first}
			if len(args) == 2 {
				p, err := open(*lab)
				if err != nil {
					return err
				}
				if w.m, err = p.guestNamed(args[1]); err != nil {
					return err
				}
			}
			return w.watch(cmd.Context(), os.Stdin)
		},
	}
	c.Flags().BoolVar(&first, "first", false, "tell the guest its names when it boots first, too")
	return c
}

// watcher follows what a guest, or a NIC, says.
type watcher struct {
	log   string
	m     *machine // nil: no guest's
	line  []byte   // that has not ended yet
	boots int
	first bool   // nobody else tells the guest its names when it boots first
	crash []byte // from its first line; nil: none
	again context.CancelFunc
}

// watch reads to the end. It reads on when the log cannot be written, because a guest waits for the
// reader of its console.
func (w *watcher) watch(ctx context.Context, in io.Reader) error {
	said, ended := make(chan []byte), make(chan error, 1)
	go func() {
		for {
			b := make([]byte, 16<<10)
			n, err := in.Read(b)
			if n > 0 {
				said <- b[:n]
			}
			if err != nil {
				ended <- err
				return
			}
		}
	}()
	var quiet <-chan time.Time
	for {
		select {
		case b := <-said:
			_ = appendPart(w.log, b)
			if w.m != nil {
				w.read(ctx, b)
			}
			if quiet = nil; w.crash != nil {
				quiet = time.After(quietTime)
			}
		case <-quiet:
			w.endCrash(ctx)
		case err := <-ended:
			w.endCrash(ctx)
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return err
		}
	}
}

// read looks for the lines that matter.
func (w *watcher) read(ctx context.Context, b []byte) {
	const longest = 1024
	for _, c := range b {
		if c != '\n' {
			if len(w.line) < longest {
				w.line = append(w.line, c)
			}
			continue
		}
		line := bytes.TrimRight(w.line, "\r")
		switch {
		case bytes.HasSuffix(line, []byte(guestinit.Started)):
			w.endCrash(ctx)
			w.booted(ctx)
		case w.crash != nil || crashBegins.Match(line):
			if len(w.crash) < maxCrash {
				w.crash = append(append(w.crash, line...), '\n')
			}
			if crashEnds.Match(line) {
				w.endCrash(ctx)
			}
		}
		w.line = w.line[:0]
	}
}

func (w *watcher) endCrash(ctx context.Context) {
	if w.crash != nil {
		_ = w.m.noteCrash(ctx, w.crash)
		w.crash = nil
	}
}

// booted does what vnic lab up did after the first boot. The file may have changed since.
func (w *watcher) booted(ctx context.Context) {
	if w.boots++; w.boots == 1 && !w.first {
		return
	}
	if w.again != nil {
		w.again()
	}
	ctx, w.again = context.WithTimeout(ctx, w.m.bootTime())
	go func() {
		for ctx.Err() == nil {
			p, err := open(w.m.Lab)
			if err != nil || p.machine(w.m.Name) == nil {
				return
			}
			m := p.machine(w.m.Name)
			if p.setNames(ctx, m) == nil {
				m.waitForAddress(ctx)
				_ = m.runExec(ctx)
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
}

// logTo starts a vnic lab watch, with these arguments, in a namespace, and returns the writing end of a pipe to it.
// It keeps the end of what is written there, and ends when all copies of the writing end are closed.
func logTo(space string, watch ...string) (*os.File, *daemon, error) {
	in, out, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer in.Close()
	d, err := start(space, in, nil, nil, append([]string{program, "lab"}, watch...)...)
	if err != nil {
		out.Close()
		return nil, nil, err
	}
	return out, d, nil
}

// appendPart appends to a log, whose parts are never longer than logSize.
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
