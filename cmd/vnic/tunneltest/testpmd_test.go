package tunneltest_test

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/fabric"
)

// pmd is a DPDK testpmd on one port: an independent virtio-net driver over vhost-user, without a
// virtual machine.
type pmd struct {
	t   testing.TB
	in  io.WriteCloser
	end func()

	mu   sync.Mutex
	said strings.Builder
}

// pmdOptions say what a testpmd does.
type pmdOptions struct {
	socket string
	mac    [6]byte
	peer   [6]byte // where it sends to
	from   string  // addresses of what it sends
	to     string
	size   int         // bytes of a frame it sends, without checksum
	more   string      // parameters of the device, as packed_vq=1
	mode   string      // txonly, rxonly or 5tswap
	server bool        // it listens at the socket
	cpu    string      // its processors; "": all
	twin   *pmdOptions // of a second port; what comes by a port leaves by the same
}

// device returns DPDK's argument for port number n.
func (o *pmdOptions) device(n int) string {
	d := fmt.Sprintf("net_virtio_user%d,path=%s,queues=1,queue_size=1024,mac=%s", n, o.socket, macText(o.mac))
	if o.server {
		d += ",server=1"
	}
	if o.more != "" {
		d += "," + o.more
	}
	return d
}

func requirePMD(t testing.TB) {
	t.Helper()
	vnictest.Require(t, hasPMD(), "dpdk-testpmd is not installed (make deps: dpdk-dev)")
}

func hasPMD() bool {
	_, err := exec.LookPath("dpdk-testpmd")
	return err == nil
}

func macText(m [6]byte) string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

func startPMD(t testing.TB, o pmdOptions) *pmd {
	t.Helper()
	runtime := t.TempDir()
	devices := []string{"--vdev", o.device(0)}
	peers := []string{"--eth-peer=0," + macText(o.peer)}
	if o.twin != nil {
		devices, peers = append(devices, "--vdev", o.twin.device(1)), append(peers, "--eth-peer=1,"+macText(o.twin.peer))
	}
	args := append([]string{"-oL", "dpdk-testpmd", "--no-huge", "--no-pci", "-m", "256", "--no-telemetry", "--lcores", "(0,1)@(" + cmp.Or(o.cpu, processors(t)) + ")"}, devices...)
	args = append(append(args, "--", "-i"), peers...)
	args = append(args, "--forward-mode="+o.mode, "--port-topology=loop", "--tx-ip="+o.from+","+o.to, fmt.Sprintf("--txpkts=%d", max(o.size, 60)), "--nb-cores=1", "--total-num-mbufs=8192", "--no-flush-rx")
	cmd := exec.Command("stdbuf", args...)
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+runtime, "RUNTIME_DIRECTORY="+runtime)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &pmd{t: t, in: in}
	read := make(chan struct{})
	go func() {
		defer close(read)
		r := bufio.NewReader(out)
		for {
			b, err := r.ReadByte()
			if err != nil {
				return
			}
			p.mu.Lock()
			p.said.WriteByte(b)
			p.mu.Unlock()
		}
	}()
	p.end = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		<-read
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("testpmd at %s:\n%s", filepath.Base(o.socket), p.text())
		}
	})
	t.Cleanup(p.end)
	p.await("testpmd> ", 0)
	return p
}

func (p *pmd) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.String()
}

// await waits for a text in the output after position from.
func (p *pmd) await(what string, from int) {
	p.t.Helper()
	vnictest.Eventually(p.t, "testpmd says "+what, func() error {
		if !strings.Contains(p.text()[from:], what) {
			return fmt.Errorf("not yet")
		}
		return nil
	})
}

// do runs a command and returns its output once it contains a text.
func (p *pmd) do(command, await string) string {
	p.t.Helper()
	from := len(p.text())
	if _, err := io.WriteString(p.in, command+"\n"); err != nil {
		p.t.Fatal(err)
	}
	p.await(await, from)
	return p.text()[from:]
}

var pmdCounter = regexp.MustCompile(`([RT]X-packets|[RT]X-bytes): +(\d+)`)

// counts returns the counters of the port, such as RX-packets.
func (p *pmd) counts() map[string]int {
	p.t.Helper()
	m := map[string]int{}
	for _, f := range pmdCounter.FindAllStringSubmatch(p.do("show port stats 0", "Tx-pps"), -1) {
		m[f[1]], _ = strconv.Atoi(f[2])
	}
	return m
}

var pmdDropped = regexp.MustCompile(`TX-dropped: (\d+)`)

// dropsOf returns how many frames the ports could not send, as testpmd reports when it stops.
func dropsOf(said string) (n int) {
	for _, f := range pmdDropped.FindAllStringSubmatch(said, -1) {
		k, _ := strconv.Atoi(f[1])
		n += k
	}
	return n
}

// processors returns the processors that this process may use, in DPDK's form.
func processors(t testing.TB) string {
	t.Helper()
	var list []string
	for _, cpu := range own(t) {
		list = append(list, strconv.Itoa(cpu))
	}
	return strings.Join(list, ",")
}

func gatewayOf(mac [6]byte) [6]byte {
	mac[2] = 0x4f // docs/tunnel.md
	return mac
}

// TestDPDKFramesArriveUnchanged: DPDK's driver, with rings of each kind, sends frames to another one through a NIC, and
// they arrive unchanged.
func TestDPDKFramesArriveUnchanged(t *testing.T) { throughPMD(t, "packed_vq=1") }

// TestLongDPDKFramesArriveUnchanged is TestDPDKFramesArriveUnchanged with other kinds of rings.
func TestLongDPDKFramesArriveUnchanged(t *testing.T) {
	throughPMD(t, "packed_vq=0", "packed_vq=1,mrg_rxbuf=0,in_order=0", "mrg_rxbuf=0,in_order=0,vectorized=0")
}

func throughPMD(t *testing.T, kinds ...string) {
	requirePMD(t)
	for _, more := range kinds {
		t.Run(more, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "pmd")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			vnictest.ServeOn(t, fabric.New(4500), vnictest.PortConfig(t, dir, 1, 2, 1, ""))
			a, b := vnictest.MACOf(1, 1), vnictest.MACOf(1, 2)
			rx := startPMD(t, pmdOptions{socket: vnictest.PortSocket(dir, 1, 2), mac: b, peer: gatewayOf(b), from: "192.168.100.12", to: "192.168.100.11", mode: "rxonly", more: more})
			tx := startPMD(t, pmdOptions{socket: vnictest.PortSocket(dir, 1, 1), mac: a, peer: gatewayOf(a), from: "192.168.100.11", to: "192.168.100.12", mode: "txonly", more: more, size: 200})
			rx.do("start", "packet forwarding")
			tx.do("start", "packet forwarding")
			vnictest.Eventually(t, "frames through the NIC", func() error {
				if n := rx.counts()["RX-packets"]; n < 20_000 {
					return fmt.Errorf("%d so far", n)
				}
				return nil
			})
			tx.do("stop", "Done.")
			rx.do("stop", "Done.") // or its packets and bytes are counts of two moments
			got, sent := rx.counts(), tx.counts()
			if got["RX-bytes"] != 200*got["RX-packets"] || sent["TX-packets"] < got["RX-packets"] {
				t.Errorf("sent %v, received %v", sent, got)
			}
			t.Logf("%v sent, %v received", sent, got)
		})
	}
}
