package run

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/cmd/vnic/run/supervisor"
	"github.com/falcon-vnic/vnic/device"
	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/record"
	"github.com/falcon-vnic/vnic/internal/tape"
)

// options are the flags of `vnic run`.
type options struct {
	path     string
	check    string
	single   bool
	worker   bool
	protocol int
	json     bool
	format   string
	record   string
	payload  string
	keep     tape.Payload // of --record-payload
}

// Values of --check.
const (
	checkAll  = "all"
	checkFile = "file"
)

func Command() *cobra.Command {
	var o options
	run := &cobra.Command{
		Use:   "run -c FILE",
		Short: "run one NIC until it is stopped",
		Long: `Runs the NIC in a worker process, and holds what must survive the worker: the
sockets, the connections to QEMU, and the TAPs. If the worker ends, a new one is
started. Guests need no reboot; their functions are reset. SIGHUP, or vnic
reload, reads the configuration again; SIGUSR2, or vnic upgrade, replaces the
worker by the program on disk.`,
		Args: cli.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var known bool
			if o.keep, known = tape.ParsePayload(o.payload); !known {
				return cli.Usagef("--record-payload %q: write digest, whole or none", o.payload)
			}
			if o.worker {
				return runWorker(&o)
			}
			if o.json && o.check == "" {
				return cli.Usagef("--json is for --check; --log-format json is for the log")
			}
			if o.format != "" && o.format != config.LogText && o.format != config.LogJSON {
				return cli.Usagef("--log-format %q: write text or json", o.format)
			}
			if o.check != "" && o.check != checkAll && o.check != checkFile {
				return cli.Usagef("--check=%s: write --check, or --check=%s for the file alone", o.check, checkFile)
			}
			cfg, err := config.Load(o.path)
			if err != nil {
				return err
			}
			cfg.Log.Format = cmp.Or(o.format, cfg.Log.Format)
			if o.check != "" {
				if o.protocol != 0 && o.protocol != supervisor.Protocol {
					return fmt.Errorf("the running vnic run speaks version %d to its worker, and this program version %d: stop and start vnic run", o.protocol, supervisor.Protocol)
				}
				if o.check == checkAll {
					if err := CheckMachine(cfg); err != nil {
						return fmt.Errorf("configuration %s is valid, but not for this machine:\n%w", o.path, err)
					}
				}
				if o.json {
					return cli.PrintJSON(cmd.OutOrStdout(), checked{o.path, cfg.NIC.Host, len(cfg.AllFunctions()), len(cfg.Peers)})
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s: good: host %d, %d functions, %d peers\n", o.path, cfg.NIC.Host, len(cfg.AllFunctions()), len(cfg.Peers))
				return nil
			}
			if o.record != "" {
				if o.record, err = filepath.Abs(o.record); err != nil {
					return err
				}
			}
			if o.single {
				return runNIC(cmd.Context(), cfg, &o)
			}
			return supervise(cmd.Context(), cfg, &o)
		},
	}
	f := run.Flags()
	f.StringVarP(&o.path, "config", "c", "", "configuration `file` (see docs/vnic.example.yaml)")
	f.StringVar(&o.check, "check", "", "only check the configuration and that this machine has what it names; --check=file: only the file")
	f.Lookup("check").NoOptDefVal = checkAll
	_ = run.RegisterFlagCompletionFunc("check", cli.Words(checkAll, checkFile))
	f.BoolVar(&o.json, "json", false, "print what --check found as JSON")
	f.StringVar(&o.format, "log-format", "", "text or json, instead of log.format in the configuration")
	_ = run.RegisterFlagCompletionFunc("log-format", cli.Words(config.LogText, config.LogJSON))
	f.StringVar(&o.record, "record", "", "record what the NIC takes from outside in a new `file`, for vnic replay; a worker that is started again records in FILE.2, or the next that is not there")
	f.StringVar(&o.payload, "record-payload", tape.Digest.String(), "what --record keeps of payload: digest, whole or none")
	_ = run.RegisterFlagCompletionFunc("record-payload", cli.Words(tape.Digest.String(), tape.Whole.String(), tape.None.String()))
	f.BoolVar(&o.single, "single", false, "all in one process: guests do not survive its end")
	f.BoolVar(&o.worker, "worker", false, "")
	f.IntVar(&o.protocol, "protocol", 0, "")
	_ = f.MarkHidden("worker")
	_ = f.MarkHidden("protocol")
	_ = run.MarkFlagRequired("config")
	return run
}

// checked is the output of `vnic run --check --json` for a valid configuration.
type checked struct {
	File      string `json:"file"`
	Host      uint8  `json:"host"`
	Functions int    `json:"functions"`
	Peers     int    `json:"peers"`
}

// runNIC runs a NIC in this process, without a supervisor.
func runNIC(ctx context.Context, cfg *config.Config, o *options) error {
	var nic *device.NIC // set before it serves
	deps := device.Deps{Log: newLog(cfg.Log), LogLevel: level.Set}
	deps.Reload = func(context.Context) error {
		is, err := config.Load(o.path)
		if err == nil {
			is.Log.Format = cmp.Or(o.format, is.Log.Format)
			err = device.CheckMachine(is, func(check func() error) error { return check() })
		}
		if err != nil {
			return err
		}
		return nic.Reconfigure(is)
	}
	text, err := os.ReadFile(o.path)
	if err != nil {
		return err
	}
	deps.Record = recordTo(o, 1, string(text))
	if err := OpenGuests(cfg, &deps); err != nil {
		return err
	}
	return serve(ctx, cfg, deps, notify, func(n *device.NIC) {
		nic = n
		go reloadOnHangup(ctx, n, deps.Log)
	})
}

// recordLimit is the most that vnic run --record records.
const recordLimit = 4 << 30

// recordTo returns what makes a NIC record to the file of --record, if there is one. Each worker of it has
// a file of its own, which no earlier NIC has left there.
func recordTo(o *options, generation int, text string) record.Config {
	file := o.record
	for n := generation; file != "" && n > 1; n++ {
		file = fmt.Sprintf("%s.%d", o.record, n)
		if _, err := os.Lstat(file); err != nil {
			break
		}
	}
	return record.Config{File: file, Later: generation > 1, Keep: o.keep, Limit: recordLimit, Text: text}
}

// reloadOnHangup reads the configuration again whenever SIGHUP comes, until ctx is done.
func reloadOnHangup(ctx context.Context, n *device.NIC, log *slog.Logger) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	for {
		select {
		case <-hup:
			if _, err := n.Reload(ctx); err != nil {
				log.Error("configuration not reloaded, the NIC continues as before", "err", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// serve runs a NIC and reports its state to the service manager. It reports that the NIC is ready
// before the NIC answers any request. So a client that got an answer knows that a service manager
// already keeps the NIC running.
func serve(ctx context.Context, cfg *config.Config, deps device.Deps, notify func(string) error, made func(*device.NIC)) error {
	tell := func(state string) {
		if err := notify(state); err != nil {
			deps.Log.Warn("service manager not notified", "state", state, "err", err)
		}
	}
	var told sync.WaitGroup
	deps.Begin = func() {
		tell(stateReady)
		told.Go(func() {
			<-ctx.Done() // Run does not return before that
			tell(stateStopping)
		})
	}
	nic, err := device.NewNIC(cfg, deps)
	if err != nil {
		return err
	}
	made(nic)
	err = nic.Run(ctx)
	told.Wait()
	return err
}

// States reported to the service manager, as named by sd_notify(3).
const (
	stateReady    = "READY=1"
	stateStopping = "STOPPING=1"
)

// level is the level of the process's log, which a reload may change.
var level slog.LevelVar

func newLog(c config.Log) *slog.Logger {
	level.Set(c.SlogLevel())
	handler := func(w io.Writer) slog.Handler {
		o := &slog.HandlerOptions{Level: &level}
		if c.Format == config.LogJSON {
			return slog.NewJSONHandler(w, o)
		}
		return slog.NewTextHandler(w, o)
	}
	cli.Stderr.Use(handler, c.Format == config.LogJSON)
	log := slog.New(handler(cli.Stderr))
	slog.SetDefault(log) // also for users of package log, which must not block either
	return log
}

// notify reports a change of state to the service manager like sd_notify(3): by a datagram to the
// socket in NOTIFY_SOCKET. Without a service manager it does nothing.
func notify(state string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	// A leading @ means the abstract namespace, both to systemd and to package net.
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("NOTIFY_SOCKET: %w", err)
	}
	defer c.Close()
	_ = c.SetWriteDeadline(time.Now().Add(time.Second)) // in case the service manager does not read
	if _, err := c.Write([]byte(state)); err != nil {
		return fmt.Errorf("NOTIFY_SOCKET %s: %w", path, err)
	}
	return nil
}
