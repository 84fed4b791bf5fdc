package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/control"
)

// wrong runs a wrong command line. It must end with exit status 2 and print one line.
func wrong(t *testing.T, args ...string) string {
	t.Helper()
	cmd := command()
	cmd.SetArgs(args)
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.ExecuteContext(t.Context())
	if code := cli.ExitStatus(err); code != cli.ExitUsage {
		t.Fatalf("vnic %v: exit status %d, %v", args, code, err)
	}
	text := err.Error()
	if strings.Contains(text, "\n") || out.Len() > 0 {
		t.Errorf("vnic %v: more than a line: %s\n%s", args, text, &out)
	}
	for _, foreign := range []string{"strconv", "parsing", "arg(s)", "invalid argument", "required flag"} {
		if strings.Contains(text, foreign) {
			t.Errorf("vnic %v: %q leaks %q", args, text, foreign)
		}
	}
	return text
}

// eachCommand calls f with every command that the program shows, including completion.
func eachCommand(f func(c *cobra.Command, path []string)) {
	cli.Walk(command(), func(c *cobra.Command) {
		if !c.Hidden {
			f(c, strings.Fields(c.CommandPath())[1:])
		}
	})
}

// TestWrongCommandLines gives every command a misspelt subcommand, a misspelt flag, values of the
// wrong type, no arguments and too many arguments.
func TestWrongCommandLines(t *testing.T) {
	eachCommand(func(c *cobra.Command, path []string) {
		if path == nil {
			path = []string{}
		}
		for _, sub := range c.Commands() {
			if sub.Hidden {
				continue
			}
			name := sub.Name()
			typo := name[:len(name)-1] + "~"
			if text := wrong(t, append(slices.Clone(path), typo)...); !strings.Contains(text, "did you mean") {
				t.Errorf("%v: %s", append(path, typo), text)
			}
			wrong(t, append(slices.Clone(path), "zzzzzzzzzz")...)
		}
		if c.HasSubCommands() && c.HasParent() && c.Annotations[cli.GroupAnnotation] != "" {
			if text := wrong(t, path...); !strings.Contains(text, "a command is missing; use one of ") {
				t.Errorf("%v: %s", path, text)
			}
		}
		if c.HasSubCommands() && c.Annotations[cli.GroupAnnotation] != "" {
			return
		}
		wrong(t, append(slices.Clone(path), "--nosuchflag")...)
		c.InheritedFlags() // merges them
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if len(f.Name) > 3 {
				if text := wrong(t, append(slices.Clone(path), "--"+f.Name+"~")...); !strings.Contains(text, "did you mean --") {
					t.Errorf("%v --%s~: %s", path, f.Name, text)
				}
			}
			if _, ok := cli.Kinds[f.Value.Type()]; ok {
				text := wrong(t, append(slices.Clone(path), "--"+f.Name+"=x=")...)
				if f.Value.Type() == "stringToString" {
					return // which that is
				}
				if !strings.Contains(text, "--"+f.Name) || !strings.Contains(text, "write ") {
					t.Errorf("%v --%s x: %s", path, f.Name, text)
				}
			}
		})
		many := strings.Fields(strings.Repeat("x ", 9))
		if c.Args(c, many) != nil {
			wrong(t, append(slices.Clone(path), many...)...)
		}
		if c.Args(c, nil) != nil {
			wrong(t, path...)
		}
	})
}

// TestAGuestThatIsNoNumberIsRefused: `--guest abc` is refused with the range of numbers.
func TestAGuestThatIsNoNumberIsRefused(t *testing.T) {
	want := `qemu: --guest "abc": write a whole number from 0 to 4294967295`
	if text := wrong(t, "qemu", "--guest", "abc"); text != want {
		t.Errorf("%q, want %q", text, want)
	}
}

// TestTheExitStatusTellsUsageFromFailure: the exit status is 2 for a wrong command line, 1 if the command failed, and
// otherwise 0.
func TestTheExitStatusTellsUsageFromFailure(t *testing.T) {
	for _, tc := range []struct {
		code int
		want string
		args []string
	}{
		{0, "", []string{}},
		{0, "", []string{"show", "--help"}},
		{0, "", []string{"help", "show", "nic"}},
		{2, `show: unknown command "nics"; did you mean "nic"?`, []string{"show", "nics"}},
		{2, `keys: unknown command "rotat"; did you mean "rotate"?`, []string{"keys", "rotat"}},
		{2, `unknown command "shwo"; did you mean "show"?`, []string{"help", "shwo"}},
		{2, `top: unknown flag --jsn; did you mean --json?`, []string{"top", "--jsn"}},
		{2, `guest info: --device: invalid argument: device URL "vsok://2:7000": the scheme`, []string{"guest", "info", "-d", "vsok://2:7000"}},
		{2, `conform: --device: invalid argument: device URL "unix:x": the socket path`, []string{"conform", "-d", "unix:x"}},
		{1, "does not exist", []string{"show", "nic", "-s", "/nonexistent"}},
	} {
		_, stderr, code := vnictest.Run(t, tc.args...)
		if code != tc.code || !strings.Contains(stderr, tc.want) || (code == 0) != (stderr == "") {
			t.Errorf("vnic %v: exit status %d, %q", tc.args, code, stderr)
		}
	}
}

// withoutJSON are the commands that have no --json, and why.
var withoutJSON = map[string]string{
	"capture":        "writes pcapng",
	"demo":           "is to be watched",
	"guest agent":    "serves the lab, and prints nothing",
	"guest workload": "prints JSON lines always",
	"help":           "prints help",
	"lab capture":    "writes pcapng",
	"lab config":     "prints a NIC's configuration",
	"lab console":    "is a guest's console",
	"lab cp":         "prints nothing",
	"lab crash":      "prints what a guest's kernel said",
	"lab down":       "prints nothing",
	"lab exec":       "prints what the command prints",
	"lab gdb":        "is gdb",
	"lab graph":      "draws",
	"lab link":       "prints links as they are told to be",
	"lab reload":     "prints what the guest's kernel says",
	"lab restart":    "prints progress",
	"lab shell":      "is a shell",
	"lab test":       "prints progress; --junit has results",
	"lab up":         "prints progress; vnic lab status --json has the lab",
	"lab validate":   "prints results as they come; --junit has them",
}

// TestEverythingHasJSON: every command has --json, except those of withoutJSON.
func TestEverythingHasJSON(t *testing.T) {
	eachCommand(func(c *cobra.Command, path []string) {
		name := strings.Join(path, " ")
		if c.Annotations[cli.GroupAnnotation] != "" || strings.HasPrefix(name, "completion ") {
			return
		}
		c.InheritedFlags()
		has, why := c.Flags().Lookup("json") != nil, withoutJSON[name]
		if !has && why == "" {
			t.Errorf("vnic %s has no --json", name)
		}
		if has && why != "" {
			t.Errorf("vnic %s has --json now", name)
		}
	})
}

// TestEveryCommandObeysTheSocketVariable: VNIC_SOCKET is the control socket of every command that asks a NIC.
func TestEveryCommandObeysTheSocketVariable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "elsewhere.sock")
	t.Setenv(cli.SocketVariable, path)
	for _, args := range [][]string{
		{"show", "nic"},
		{"show", "counters"},
		{"top"},
		{"upgrade"},
		{"keys", "rotate"},
		{"inject", "list"},
		{"inject", "link", "--clear"},
		{"vf", "show"},
		{"trace", "pf0.vf1"},
		{"capture", "-w", "-"},
		{"wait", "--timeout", "50ms"},
	} {
		if _, err := vnictest.Execute(t, command(), args...); err == nil || !strings.Contains(err.Error(), path+" does not exist") || cli.ExitStatus(err) != cli.ExitFailed {
			t.Errorf("vnic %v: %v", args, err)
		}
	}
}

// TestWrongKindOfSocketIsNamed: commands for a NIC name a guest's socket as the wrong one, and
// commands for guests a control socket.
func TestWrongKindOfSocketIsNamed(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		l.Start(0)
		h := l.Hosts[0]
		ours, theirs := h.Control, h.Socket
		for _, args := range [][]string{
			{"show", "nic"}, {"top"}, {"wait"}, {"upgrade"}, {"keys", "rotate"}, {"vf", "show"}, {"trace", "pf0.vf1"}, {"capture", "-w", "-"}, {"inject", "list"},
		} {
			_, stderr, code := vnictest.Run(t, append(args, "-s", theirs)...)
			if code != cli.ExitFailed || !strings.Contains(stderr, theirs+" is not a control socket") || strings.Count(stderr, "\n") != 1 {
				t.Errorf("vnic %v at a guest's socket: exit status %d, %q", args, code, stderr)
			}
		}
		for _, args := range [][]string{{"guest", "info"}, {"guest", "workload", "--first", "--peer", "192.168.100.12"}, {"guest", "perf", "write_bw"}, {"conform"}} {
			_, stderr, code := vnictest.Run(t, append(args, "-d", "unix://"+ours)...)
			if code != cli.ExitFailed || !strings.Contains(stderr, "this is the control socket of a NIC") || strings.Count(stderr, "\n") != 1 {
				t.Errorf("vnic %v at a control socket: exit status %d, %q", args, code, stderr)
			}
		}
	})
}

// TestSilentSocketIsNamed: a socket that closes every connection, like QEMU's own, is named in the
// error.
func TestSilentSocketIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	_, err = vnictest.Execute(t, command(), "show", "nic", "-s", path)
	if err == nil || !strings.Contains(err.Error(), path+" was closed without an answer") {
		t.Error(err)
	}
}

// nicServer is a NIC that answers with fixed data.
type nicServer struct{ control.Provider }

func (nicServer) NIC(context.Context) (control.NIC, error) {
	return control.NIC{Name: "nic1", Uplinks: []control.Uplink{{Name: "up1"}}}, nil
}

func (nicServer) Functions(context.Context) ([]control.Function, error) {
	return []control.Function{{ID: "h1.pf0"}, {ID: "h1.pf0.vf1", Port: &control.Port{Name: "vp1"}, TxBytes: 1000}}, nil
}

func (nicServer) Counters(context.Context) (control.Counters, error) {
	return control.Counters{"drop.falcon": 0, "drop.psp_auth": 3, "falcon.acks_sent": 2, "falcon.data_sent": 7, "psp.rotations": 0}, nil
}

func (nicServer) Credits(context.Context) ([]control.CreditNode, error) { return nil, nil }

func (nicServer) RotateKeys(context.Context) (control.Rotation, error) {
	return control.Rotation{Generation: 2, Keys: 3}, nil
}

func (nicServer) InjectFault(_ context.Context, c control.FaultChange) ([]control.Fault, error) {
	return []control.Fault{{Function: c.Function, ID: 1}}, nil
}

func (nicServer) InjectLink(context.Context, control.LinkChange) (control.Uplink, error) {
	return control.Uplink{Name: "up1"}, nil
}

func serveControl(t *testing.T) (path string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "vnic-ctl-")
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, "c.sock")
	ln, err := control.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	s := control.ServeOn(ln, nicServer{})
	t.Cleanup(func() {
		_ = s.Close()
		os.RemoveAll(dir)
	})
	return path
}

// TestJSONIsJSON: commands that change something also print JSON.
func TestJSONIsJSON(t *testing.T) {
	socket := serveControl(t)
	for _, tc := range []struct{ args, want string }{
		{"wait", `"name": "nic1"`},
		{"keys rotate", `"generation": 2`},
		{"inject link --loss 1%", `"name": "up1"`},
		{"inject fault pf0.vf1 dma", `"function": "pf0.vf1"`},
		{"inject clear pf0.vf1", `"function": "pf0.vf1"`},
		{"inject profile pf0.vf1 none", `"function": "pf0.vf1"`},
		{"top -i 100ms -n 1", `"functions":[{"id":"h1.pf0"`},
		{"show counters psp_auth", `"drop.psp_auth": 3`},
	} {
		out, err := vnictest.Execute(t, command(), append(strings.Fields(tc.args), "--json", "-s", socket)...)
		if err != nil || !strings.Contains(out, tc.want) || !json.Valid([]byte(out)) {
			t.Errorf("%s: %v, %s", tc.args, err, out)
		}
	}
}

// TestCountersAreSelectedByPatterns: vnic show counters prints the counters that a pattern matches,
// and with --nonzero only those that are not 0.
func TestCountersAreSelectedByPatterns(t *testing.T) {
	socket := serveControl(t)
	for _, tc := range []struct{ args, want string }{
		{"", "drop.falcon drop.psp_auth falcon.acks_sent falcon.data_sent psp.rotations"},
		{"--nonzero", "drop.psp_auth falcon.acks_sent falcon.data_sent"},
		{"drop", "drop.falcon drop.psp_auth"},
		{"drop psp -n", "drop.psp_auth"},
		{"falcon.*", "falcon.acks_sent falcon.data_sent"},
		{"falcon.?a*", "falcon.data_sent"},
		{"rotations --nonzero", ""},
	} {
		out, err := vnictest.Execute(t, command(), append([]string{"show", "counters", "-s", socket}, strings.Fields(tc.args)...)...)
		var names []string
		for line := range strings.Lines(out) {
			names = append(names, strings.Fields(line)[0])
		}
		if got := strings.Join(names, " "); err != nil || got != tc.want {
			t.Errorf("%q: %q, %v; want %q", tc.args, got, err, tc.want)
		}
	}
	if _, err := vnictest.Execute(t, command(), "show", "counters", "-s", socket, "nosuch"); err == nil || !strings.Contains(err.Error(), "no counter matches nosuch") {
		t.Error(err)
	}
	wrong(t, "show", "counters", "[")
}

// TestCompletionOffersWhatThereIs: completion offers functions, ports, keys and other names that
// the NIC or the program knows.
func TestCompletionOffersWhatThereIs(t *testing.T) {
	socket := serveControl(t)
	for _, tc := range []struct{ args, want string }{
		{"vf show", "pf0.vf1"},
		{"vf set", "pf0.vf1"},
		{"vf set pf0.vf1", "max_tx_rate"},
		{"vf set pf0.vf1 trust", "on"},
		{"vf reset", "pf0.vf1"},
		{"trace", "pf0.vf1"},
		{"inject fault", "pf0.vf1"},
		{"inject fault pf0.vf1", "event-lost"},
		{"inject profile pf0", "hostile"},
		{"inject clear", "pf0.vf1"},
		{"inject link", "up1"},
		{"inject link --dir", "tx"},
		{"capture --port", "vp1"},
		{"capture --mode", "sealed"},
		{"show counters", "drop.falcon"},
	} {
		words := strings.Fields(tc.args)
		args := append([]string{"__complete", words[0]}, words[1:]...)
		if strings.HasPrefix(words[len(words)-1], "--") { // it needs its value next
			args = append(args[:len(args)-1], "-s", socket, words[len(words)-1], "")
		} else {
			args = append(args, "-s", socket, "")
		}
		out, err := vnictest.Execute(t, command(), args...)
		if err != nil || !slices.Contains(strings.Split(out, "\n"), tc.want) {
			t.Errorf("%v: %v, %s", args, err, out)
		}
	}
}

// TestBothProcessesLogInTheChosenFormat: supervisor and worker log in the format of the configuration or of the flag.
func TestBothProcessesLogInTheChosenFormat(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		h := l.Hosts[0]
		text, err := os.ReadFile(h.Config)
		if err != nil {
			t.Fatal(err)
		}
		text = regexp.MustCompile(`(?m)^log:.*\n`).ReplaceAll(text, nil)
		for _, tc := range []struct {
			config string
			args   []string
		}{{"log: {level: debug, format: json}\n", nil}, {"log: {level: debug}\n", []string{"--log-format", "json"}}} {
			if err := os.WriteFile(h.Config, append([]byte(tc.config), text...), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(vnictest.Program(t), append([]string{"run", "-c", h.Config}, tc.args...)...)
			var log bytes.Buffer
			cmd.Stderr = &log
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if _, stderr, code := vnictest.Run(t, "wait", "-s", h.Control); code != 0 {
				t.Error(stderr)
			}
			_ = cmd.Process.Signal(syscall.SIGTERM)
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
			if log.Len() == 0 {
				t.Error("nothing was logged")
			}
			for line := range bytes.Lines(log.Bytes()) {
				if !json.Valid(line) {
					t.Errorf("%v: not JSON: %s", tc.args, line)
				}
			}
		}
	})
	wrong(t, "run", "-c", "x", "--log-format", "xml")
}

// TestLastErrorIsJSON: in a JSON log, the error with which the program ends is JSON too.
func TestLastErrorIsJSON(t *testing.T) {
	config := filepath.Join(t.TempDir(), "nic.yaml")
	text := "nic: {host: 1}\nlog: {format: json}\nuplink: {name: v0, address: 10.0.0.1/24}\ncontrol: /nonexistent/sock\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, stderr, code := vnictest.Run(t, "run", "-c", config)
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	var last struct{ Level, Err string }
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || code != cli.ExitFailed || last.Level != "ERROR" || !strings.Contains(last.Err, "/nonexistent") {
		t.Errorf("exit status %d, %v: %s", code, err, stderr)
	}
}
