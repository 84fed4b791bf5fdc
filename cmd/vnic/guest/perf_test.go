package guest_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/cmd/vnic/cli"
	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/guestlib/perf"
)

// TestPerfMeasuresBetweenTwoNICs: vnic guest perf measures between two NICs, with the command lines of perftest.
func TestPerfMeasuresBetweenTwoNICs(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		l.Start(0)
		l.Start(1)
		l.Joined()
		perf := func(host int, args ...string) []string {
			return append([]string{"guest", "perf", "-d", "unix://" + l.Hosts[host].Socket}, args...)
		}
		measure := func(test string, args ...string) (server, client string) {
			t.Helper()
			var out bytes.Buffer
			cmd := exec.Command(vnictest.Program(t), perf(0, test)...)
			cmd.Stdout, cmd.Stderr = &out, &out
			p, err := labkit.StartCommand("server", cmd)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Stop(time.Second)
			text, stderr, code := vnictest.Run(t, perf(1, append([]string{test, l.Hosts[0].TenantIP}, args...)...)...)
			if code != 0 {
				t.Fatalf("%s: exit status %d, %s", test, code, stderr)
			}
			<-p.Done
			if p.Err != nil {
				t.Fatalf("%s: server: %v\n%s", test, p.Err, &out)
			}
			return out.String(), text
		}
		server, client := measure("write_bw", "-s", "65536", "-n", "200", "-q", "2", "--report_gbits")
		row := regexp.MustCompile(`#bytes +#iterations +BW peak\[Gb/sec\] +BW average\[Gb/sec\] +MsgRate\[Mpps\]\n 65536 +400 +[\d.]+ +[\d.]+\s+[\d.]+\n`)
		if !row.MatchString(client) || !strings.Contains(client, "Number of qps   : 2") || !strings.Contains(server, " 65536      400 ") {
			t.Errorf("client:\n%s\nserver:\n%s", client, server)
		}
		_, client = measure("write_lat", "-n", "100", "-s", "64")
		if !regexp.MustCompile(`#bytes #iterations +t_min\[usec\].*99.9% percentile\[usec\] \n 64 +100 +[\d.]+ `).MatchString(client) {
			t.Errorf("client:\n%s", client)
		}
		_, client = measure("atomic_lat", "-n", "50", "-A", "CMP_AND_SWAP", "--json")
		var rows []measured
		if err := json.Unmarshal([]byte(client), &rows); err != nil || len(rows) != 1 || rows[0].Bytes != 8 || rows[0].TTypical <= 0 {
			t.Errorf("%v, %+v\n%s", err, rows, client)
		}
		// Datagrams, in perftest's columns; the server takes the connection type from the client.
		server, client = measure("send_bw", "-c", "UD", "-n", "300", "-q", "2", "--tclass", "184")
		row = regexp.MustCompile(`#bytes +#iterations +BW peak\[MB/sec\] +BW average\[MB/sec\] +MsgRate\[Mpps\]\n 4096 +600 +[\d.]+ +[\d.]+\s+[\d.]+\n`)
		if !row.MatchString(client) || !strings.Contains(client, "Connection type: UD") || !strings.Contains(server, " 4096       600 ") {
			t.Errorf("client:\n%s\nserver:\n%s", client, server)
		}
		_, client = measure("send_bw", "-c", "UD", "-n", "200", "-b", "--json")
		if err := json.Unmarshal([]byte(client), &rows); err != nil || len(rows) != 1 || rows[0].Bytes != 4096 || rows[0].Iterations != 400 || rows[0].Lost < 0 || rows[0].Lost > 400 {
			t.Errorf("%v, %+v\n%s", err, rows, client)
		}
		_, client = measure("send_lat", "-c", "UD", "-n", "50", "--json")
		if err := json.Unmarshal([]byte(client), &rows); err != nil || len(rows) != 1 || rows[0].Bytes != 2 || rows[0].TTypical <= 0 {
			t.Errorf("%v, %+v\n%s", err, rows, client)
		}
		for want, c := range map[string]struct {
			code int // 2: the command line cannot be right
			args []string
		}{
			"--atomic_type XOR: write FETCH_AND_ADD or CMP_AND_SWAP": {2, []string{"atomic_bw", "-A", "XOR"}},
			"--connection UC: write RC or UD":                        {2, []string{"send_lat", "-c", "UC"}},
			"datagram carries one path MTU":                          {1, []string{"send_bw", "-c", "UD", "-s", "5000"}},
			"unknown flag -c":                                        {2, []string{"write_bw", "-c", "UD"}},
			`peer "nobody": `:                                        {2, []string{"send_lat", "nobody"}},
			"read_lat: iterations: 1 is out of range":                {1, []string{"read_lat", "-n", "1"}},
			"unknown flag -q":                                        {2, []string{"write_lat", "-q", "2"}},
		} {
			if _, stderr, code := vnictest.Run(t, perf(0, c.args...)...); code != c.code || !strings.Contains(stderr, want) {
				t.Errorf("%v: exit status %d, %q, want %d, %q", c.args, code, stderr, c.code, want)
			}
		}
	})
}

type measured = perf.Row

// TestPerfWithoutServer: a client without a server prints at once what it waits for, and when it
// gives up, what to do.
func TestPerfWithoutServer(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		l.Start(0)
		l.Start(1)
		_, stderr, code := vnictest.Run(t, "guest", "perf", "write_bw", "--wait", "1s", "-d", "unix://"+l.Hosts[0].Socket, l.Hosts[0].PeerGI)
		waiting, end, _ := strings.Cut(stderr, "\n")
		if code != cli.ExitFailed || !strings.HasPrefix(waiting, "waiting for the server at ") || !strings.Contains(waiting, "up to 1s") {
			t.Errorf("exit status %d, %q", code, stderr)
		}
		if !strings.HasPrefix(end, "vnic: write_bw: no server at ") || !strings.Contains(end, "start the same test there first") {
			t.Errorf("%q", end)
		}
		// The other way round: a client of perftest gets an answer, and ends.
		server := exec.CommandContext(t.Context(), vnictest.Program(t), "guest", "perf", "write_bw", "-d", "unix://"+l.Hosts[0].Socket)
		var said bytes.Buffer
		server.Stderr = &said
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		vnictest.Eventually(t, "the server answers", func() error {
			c, err := net.Dial("tcp", "127.0.0.1:18515")
			if err != nil {
				return err
			}
			answer := make([]byte, 16)
			_, err = c.Write(append([]byte("6.10"), make([]byte, 12)...))
			if err == nil {
				_, err = io.ReadFull(c, answer)
			}
			if err == nil && !bytes.HasPrefix(answer, []byte("6.06\x00")) {
				t.Errorf("the server answers %q", answer)
			}
			return errors.Join(err, c.Close())
		})
		if err := server.Wait(); err == nil || !strings.Contains(said.String(), "vnic: write_bw: the program of perftest at 127.0.0.1:") {
			t.Errorf("%v: %s", err, &said)
		}
	})
}
