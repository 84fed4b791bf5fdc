package show

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/device/control"
)

func CaptureCommand() *cobra.Command {
	var o cli.NIC
	var file, mode string
	var ports []string
	var duration time.Duration
	var limit int64
	cmd := &cobra.Command{
		Use:   "capture -w FILE|-",
		Short: "capture what a running NIC sends and receives, as pcapng",
		Long: `Captures until interrupted, or until --for or --limit. "sealed" means the Ethernet
frames of the uplink. "clear" means the decrypted packets, with the function, queue
pair and work request that they belong to. Clear captures contain the guests' data.
docs/wireshark/vnic.lua shows Falcon and RDMA in Wireshark.

--port adds the Ethernet frames of functions' ports, as the guests send and receive
them. Each port is an interface of its own in the file. Without --mode it captures
nothing else. Large frames that the kernel has not split are shown unsplit.

tcpdump reads files with one type of packet: sealed and ports, or clear alone.`,
		Example: `  vnic capture -w nic.pcapng --for 10s
  vnic capture -w port.pcapng --port pf0.vf1
  vnic capture --mode clear -w - | wireshark -k -i -`,
		Args: cli.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := cmd.Context(), context.CancelFunc(func() {})
			if duration > 0 {
				ctx, cancel = context.WithTimeout(ctx, duration)
			}
			defer cancel()
			out, done, err := captureFile(file, cmd.OutOrStdout())
			if err != nil {
				return err
			}
			if len(ports) > 0 && !cmd.Flags().Changed("mode") {
				mode = ""
			}
			n := &limited{w: out, left: limit}
			err = o.Client().Capture(ctx, mode, ports, n)
			if errors.Is(err, errLimit) {
				err = nil
			}
			if err = errors.Join(err, done()); err == nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "%d bytes captured\n", n.written)
			}
			return err
		},
	}
	f := cmd.Flags()
	o.SocketFlag(f)
	f.StringVarP(&file, "write", "w", "", "`file` to make, with mode 0600; - for standard output")
	f.StringVar(&mode, "mode", "both", "sealed, clear or both")
	f.StringSliceVar(&ports, "port", nil, "frames of these functions' ports, by device or function; any: of all")
	f.DurationVar(&duration, "for", 0, "how long; 0: until interrupted")
	f.Int64Var(&limit, "limit", 1<<30, "bytes to write at most")
	_ = cmd.MarkFlagRequired("write")
	_ = cmd.RegisterFlagCompletionFunc("mode", cli.Words("sealed", "clear", "both"))
	_ = cmd.RegisterFlagCompletionFunc("port", completePorts)
	return cmd
}

// captureFile opens a new file. It refuses to overwrite one, because captures are evidence.
func captureFile(path string, stdout io.Writer) (w io.Writer, done func() error, err error) {
	if path == "-" {
		return stdout, func() error { return nil }, nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil, nil, fmt.Errorf("%s exists and is not overwritten: remove it or choose another name", path)
	}
	if err != nil {
		return nil, nil, err
	}
	return f, f.Close, nil
}

var errLimit = errors.New("as much captured as asked for")

// limited writes only whole pcapng blocks, so that the file is valid wherever it ends.
type limited struct {
	w             io.Writer
	left, written int64
	part          []byte // of an incomplete block
}

// A block begins with its type and the length of the whole block.
const (
	blockHeader = 8
	maxBlock    = 1 << 20
)

func (l *limited) Write(b []byte) (int, error) {
	l.part = append(l.part, b...)
	for len(l.part) >= blockHeader {
		n := int(binary.LittleEndian.Uint32(l.part[4:]))
		switch {
		case n < blockHeader || n > maxBlock:
			return 0, fmt.Errorf("a block of %d bytes is not pcapng", n)
		case len(l.part) < n:
			return len(b), nil
		case int64(n) > l.left:
			return 0, errLimit
		}
		if _, err := l.w.Write(l.part[:n]); err != nil {
			return 0, err
		}
		l.part = l.part[:copy(l.part, l.part[n:])]
		l.left -= int64(n)
		l.written += int64(n)
	}
	return len(b), nil
}

// completePorts offers the ports of the NIC.
var completePorts = cli.FromNIC(func(ctx context.Context, c *control.Client) []string {
	names := []string{"any"}
	fs, _ := c.Functions(ctx)
	for _, f := range fs {
		if f.Port != nil {
			names = append(names, f.Port.Name)
		}
	}
	return names
})
