package webtest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/falcon-vnic/vnic/cmd/vnic/keys"
	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/fabric"
)

// lab runs two NICs with traffic between their functions, and a network that loses packets. A third
// peer is never reached. It returns the address of the first one's page.
func lab(t *testing.T) (url string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "vnic-web-") // t.TempDir is too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	folder := filepath.Join(dir, "keys")
	if out, err := vnictest.Here(t, keys.Command(), "init", "--dir", folder, "--domain", "lab", "1", "2", "3"); err != nil {
		t.Fatal(err, out)
	}
	ports, err := labkit.FreePorts()
	if err != nil {
		t.Fatal(err)
	}
	segment := fabric.New(4500)
	for host := 1; host <= 2; host++ {
		var c strings.Builder
		fmt.Fprintf(&c, `
nic: {host: %[1]d, name: rack7-host%[1]d, shards: 1}
control: %[2]s/ctl%[1]d
uplink: {backend: memory, name: up%[1]d, mtu: 4500, address: 10.99.0.%[1]d/24, impair: {tx: {loss: 0.2%%}}}
rdma: {mtu: 4096}
cm: {listen: 127.0.0.1:%[3]d, identity: %[4]s}
peers:
`, host, dir, ports[host-1], folder)
		for peer, cm := range []int{ports[0], ports[1], 1} {
			tenants := "100, 200"
			if peer == 2 {
				tenants = "300"
			}
			if peer+1 != host {
				fmt.Fprintf(&c, "  - {host: %[1]d, underlay: 10.99.0.%[1]d, cm: 127.0.0.1:%[2]d, identity: vnic://lab/host/%[1]d, tenants: [%[3]s]}\n", peer+1, cm, tenants)
			}
		}
		if host == 1 {
			fmt.Fprintf(&c, "web: {listen: 127.0.0.1:%d}\n", ports[2])
		}
		fmt.Fprintf(&c, "functions:\n  - pf: 0\n    vf_count: 8\n    vfs:\n")
		for vf := 1; vf <= 6; vf++ {
			fmt.Fprintf(&c, "      - {vf: %d, tenant: %d, address: 192.168.100.%d, guest: {unix: guest%d}, max_tx_rate: %d}\n", vf, 100*(1+vf/5), 10*host+vf, vf, 50*vf)
		}
		fmt.Fprintf(&c, "attach:\n")
		for vf := 1; vf <= 6; vf++ {
			fmt.Fprintf(&c, "  - {type: unix, name: guest%d, socket: %s/g%d.%d}\n", vf, dir, host, vf)
		}
		vnictest.ServeOn(t, segment, vnictest.WriteConfig(t, c.String()))
	}
	url = fmt.Sprintf("http://127.0.0.1:%d/", ports[2])
	client := func(host, vf int, args ...string) {
		// One that gives up, as on a busy machine, begins again.
		again := `trap 'trap - TERM; kill 0' TERM; while :; do "$@" & wait $!; sleep 0.1; done`
		args = append([]string{"-c", again, "sh", vnictest.Program(t), "guest", "perf", "-d", fmt.Sprintf("unix://%s/g%d.%d", dir, host, vf)}, args...)
		p, err := labkit.StartCommand("client", exec.Command("sh", args...))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Stop(time.Second) })
	}
	for vf := 1; vf <= 4; vf++ { // out of the first NIC, and into it
		server, first := 2, 1
		if vf == 4 {
			server, first = 1, 2
		}
		client(server, vf, "write_bw", "-e")
		client(first, vf, "write_bw", "-e", "-q", fmt.Sprint(vf), "-t", "16", "-s", fmt.Sprint(8192*vf), "-D", "3600", fmt.Sprintf("192.168.100.%d", 10*server+vf))
	}
	return url
}

// TestThePageOfANICWithTraffic: what the page shows of real NICs is what passes between them. With
// VNIC_PICTURES, a folder, it also takes the pictures of docs.
func TestThePageOfANICWithTraffic(t *testing.T) {
	url := lab(t)
	b := open(t, url)
	b.until("document.body.dataset.status === 'live'")
	b.until("[...document.querySelectorAll('.topology text')].some((e) => /packets\\/s · .*again/.test(e.textContent))") // losses of the link
	b.until("document.querySelectorAll('.link.busy, .link.lossy').length >= 5")
	b.until("[...document.querySelectorAll('#function-table td:nth-child(7)')].some((e) => /Mbit/.test(e.textContent))")
	if got := b.text("#warnings"); !strings.Contains(got, "peer 3") {
		t.Error(got)
	}
	b.do(chromedp.Click(`#function-table a[href="#h1.pf0.vf3"]`))
	b.until("document.querySelectorAll('#qps tbody tr').length >= 3 && document.querySelectorAll('#connections tbody tr').length >= 3")
	if got := b.text("#connections"); !strings.Contains(got, "h2.pf0.vf3") || !strings.Contains(got, "ESTABLISHED") {
		t.Error(got)
	}
	b.do(chromedp.SetValue("#trace-time", "1s"))
	b.until(`document.querySelectorAll('#timeline tbody tr').length > 10 ||
		(document.querySelector('#trace-status').textContent.startsWith('tracing') || document.querySelector('#trace-form button').click(), false)`)
	if got := b.text("#timeline"); !strings.Contains(got, "WRITE") || !strings.Contains(got, "falcon") {
		t.Error(got)
	}
	vnictest.Eventually(t, "captured packets", func() error { return captures(url, 10) })
	if folder := os.Getenv("VNIC_PICTURES"); folder != "" {
		pictures(b, folder)
	}
}

// captures returns nil if a capture of a second has as many packets.
func captures(url string, least int) error {
	resp, err := http.Get(url + "capture?for=1s")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	packets, err := pcapgo.NewNgReader(resp.Body, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		if _, _, err := packets.ReadPacketData(); err == io.EOF && n >= least {
			return nil
		} else if err != nil {
			return fmt.Errorf("%w behind %d packets", err, n)
		}
	}
}

// pictures takes the pictures of the page, light and dark, after it has watched for a while.
func pictures(b *browser, folder string) {
	b.t.Helper()
	b.until("(document.querySelector('.line.out').getAttribute('d') || '').split('L').length > 40")
	take := func(name, scheme string, high int64) {
		b.do(colours(scheme), chromedp.EmulateViewport(1360, high), chromedp.Sleep(2*time.Second))
		b.run("window.scrollTo(0, 0)")
		png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
		if err != nil {
			b.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, name), png, 0o644); err != nil {
			b.t.Fatal(err)
		}
	}
	take("page-function.png", "light", 1900)
	b.keys(kb.Escape)
	take("page.png", "light", 1000)
	take("page-dark.png", "dark", 1000)
}

// TestTheWorkerServesThePage: with the rights that a worker keeps, and so does the next one.
func TestTheWorkerServesThePage(t *testing.T) {
	vnictest.InLab(t, false, func(l *vnictest.Lab) {
		l.Rewrite(0, "nic: {", "web: {listen: 127.0.0.1:9480}\nnic: {")
		l.Start(0)
		n := l.NIC(0, 0)
		state := func() (string, error) {
			c, err := net.Dial("tcp", "127.0.0.1:9480") // by this thread, which is in the lab's namespace
			if err != nil {
				return "", err
			}
			defer c.Close()
			fmt.Fprint(c, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
			lines := bufio.NewScanner(c)
			lines.Buffer(nil, 1<<20)
			for lines.Scan() {
				if strings.HasPrefix(lines.Text(), "data: ") {
					return lines.Text(), nil
				}
			}
			return "", fmt.Errorf("no state: %w", lines.Err())
		}
		for start := 1; start <= 2; start++ {
			vnictest.Eventually(t, "the page", func() error {
				text, err := state()
				if err == nil && !strings.Contains(text, fmt.Sprintf(`"starts":%d`, start)) {
					err = fmt.Errorf("%.300s", text)
				}
				return err
			})
			if start == 1 {
				if err := syscall.Kill(n.Worker, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}
