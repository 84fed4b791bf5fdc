package webtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/web"
)

// pretended is a NIC with any number of functions and any names. Its traffic grows each time that it
// is asked.
type pretended struct {
	asked     uint64
	functions int
	name      string // of guests, peers and whatever else has one
	fault     string
}

func (p *pretended) NIC(context.Context) (control.NIC, error) {
	p.asked++
	return control.NIC{
		Name: p.name, Host: 1, Version: "v1", UptimeMS: 61_000, Uplinks: []control.Uplink{{Name: "up1", Addr: "10.0.0.1/24", MTU: 9000}},
		Peers: []control.Peer{
			{Name: "2", Underlay: "10.0.0.2", Identity: p.name, Up: true, PathMTU: 9000},
			{Name: "3", Underlay: "10.0.0.3", Note: p.name},
		},
	}, nil
}

// id names a function of the NIC.
func id(i int) string { return fmt.Sprintf("h1.pf0.vf%d", i+1) }

func (p *pretended) Functions(context.Context) (list []control.Function, err error) {
	for i := range p.functions {
		f := control.Function{ID: id(i), State: "READY", Tenant: 100, Addr: fmt.Sprintf("10.0.%d.%d", i/250, i%250), LinkUp: true, Link: "auto", Weight: 1}
		switch i {
		case 1:
			f.State, f.Fault = "ERROR", p.fault
		case 2:
			f.Guest, f.Attached, f.TxBytes = "unix "+p.name, "unix", 1_000_000*p.asked
			f.Port = &control.Port{Name: p.name, Type: "tap"}
		}
		list = append(list, f)
	}
	return list, nil
}

func (p *pretended) Connections(context.Context) ([]control.Connection, error) {
	return []control.Connection{{Function: id(2), Wire: "falcon", PeerFunction: p.name, State: p.name, LocalCID: 1, PeerName: "2", Note: p.name}}, nil
}

func (p *pretended) Counters(context.Context) (control.Counters, error) {
	return control.Counters{"uplink.tx_bytes": 1_000_000 * p.asked, "shard.tx_packets": 1000 * p.asked, "drop.psp_auth": 5 * p.asked}, nil
}

func (p *pretended) Credits(context.Context) (list []control.CreditNode, err error) {
	for i := range p.functions {
		list = append(list, control.CreditNode{Level: "function", Name: id(i), Limit: map[string]uint32{"req-pkt-tx": 10}, InUse: map[string]uint32{"req-pkt-tx": uint32(i % 10)}})
	}
	return append([]control.CreditNode{{Level: "nic", Limit: map[string]uint32{"req-pkt-tx": 100}, InUse: map[string]uint32{"req-pkt-tx": 25}}}, list...), nil
}

func (p *pretended) QPs(context.Context) (list []control.QP, err error) {
	for i := range p.functions {
		q := control.QP{Function: id(i), QPN: 0x11, Type: "RC", State: "RTS"}
		if i == 2 {
			q.Waits, q.Peer = "credit", p.name
		}
		list = append(list, q)
	}
	return list, nil
}

func (p *pretended) Keys(context.Context) ([]control.Key, error) {
	return []control.Key{{Direction: "tx", PeerName: "2", SPI: 1, Packets: 1000 * p.asked}}, nil
}

func (p *pretended) Capture(ctx context.Context, _ string, _ []string, w io.Writer) error {
	_, err := io.WriteString(w, "packets")
	<-ctx.Done()
	return err
}

func (p *pretended) Trace(_ context.Context, what control.TraceRequest, w io.Writer) error {
	if what.QPN == 0x99 {
		return control.BadRequest{Err: errors.New(p.name)}
	}
	for i := range 3 {
		o := control.Operation{Function: what.Function, Side: "requester", QPN: 0x11, Op: "WRITE", Transport: "falcon", Status: p.name, Steps: []control.Step{
			{Name: "doorbell", At: 1e9}, {Name: "issued", At: 1e9 + 1000, After: 1000}, {Name: "cqe_written", At: 1e9 + 1000 + int64(i)*1e4, After: int64(i) * 1e4},
		}}
		if err := json.NewEncoder(w).Encode(control.TraceLine{Operation: &o}); err != nil {
			return err
		}
	}
	return nil
}

// show serves the page of a pretended NIC until the test ends, at an address ("": any).
func show(t testing.TB, addr string, p *pretended) (v *web.Server, url string) {
	t.Helper()
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	var err error
	vnictest.Eventually(t, "listen", func() error {
		v, err = web.Serve(addr, nil, p)
		return err
	})
	t.Cleanup(func() { _ = v.Close() })
	return v, "http://" + v.Addr().String() + "/"
}

const rowsShown = "document.querySelectorAll('#function-table tbody tr').length"

func TestThePageDrawsTheNICAndGoesOnWithIt(t *testing.T) {
	_, url := show(t, "", &pretended{functions: 4, name: "nic1", fault: "the driver broke a rule"})
	b := open(t, url)
	b.until("document.body.dataset.status === 'live'")
	b.until("(document.querySelector('.line.out').getAttribute('d') || '').split('L').length > 3") // three states
	if got := b.text("header"); !strings.Contains(got, "nic1") || !strings.Contains(got, "host 1 · vnic v1 · up 1 min 1 s · 1 of 2 peers") || !strings.Contains(got, "live") {
		t.Error(got)
	}
	if got := eval[string](b, "document.title"); got != "nic1 · vnic" {
		t.Error(got)
	}
	picture := strings.Join(b.texts(".topology text"), "\n")
	for _, want := range []string{"h1.pf0.vf1", "the driver broke a rule", "peer 2 · 10.0.0.2", "packets/s · no loss", "up1 · 10.0.0.1/24", "Mbit/s"} {
		if !strings.Contains(picture, want) {
			t.Errorf("no %q in the picture:\n%s", want, picture)
		}
	}
	if got := b.texts(".link.down"); len(got) != 2 { // the function in error and the peer that is down
		t.Errorf("%d links are down", len(got))
	}
	if got := b.text("#function-table tbody tr:nth-child(2)"); !strings.Contains(got, "ERROR") {
		t.Error(got)
	}
	if got := b.text("#waits"); !strings.Contains(got, "Of 4 queue pairs wait 1 for credit.") || !strings.Contains(got, "drop.psp_auth") {
		t.Error(got)
	}
	if got := b.text("#nic-credits"); !strings.Contains(got, "req-pkt-tx") || !strings.Contains(got, "25 / 100") {
		t.Error(got)
	}
	if got := b.text("#warnings"); !strings.Contains(got, "peer 3: nic1") {
		t.Error(got)
	}
}

func TestThePageShowsAFunctionWithItsObjectsAndRequests(t *testing.T) {
	_, url := show(t, "", &pretended{functions: 4, name: "somebody"})
	b := open(t, url+"#"+id(2), "400 (Bad Request)")
	b.until("!document.getElementById('function').hidden")
	for selector, want := range map[string]string{
		"#function-title": id(2), "#facts": "unix somebody, attached by unix", "#function-credits": "2 / 10", "#qps": "credit", "#connections": "falcon",
	} {
		if got := b.text(selector); !strings.Contains(got, want) {
			t.Errorf("%s: %s", selector, got)
		}
	}
	b.do(chromedp.Click("#trace-form button"))
	b.until("document.querySelectorAll('#timeline tbody tr').length === 3")
	if got := b.text("#timeline tbody tr"); !strings.Contains(got, "WRITE") || !strings.Contains(got, "21.0 µs") { // the longest first
		t.Error(got)
	}
	if got := eval[string](b, "document.querySelector('#timeline svg').getAttribute('aria-label')"); got != "doorbell, issued +1.00 µs, cqe_written +20.0 µs" {
		t.Error(got)
	}
	b.do(chromedp.SetValue("#trace-qp", "0x99"), chromedp.Click("#trace-form button"))
	b.until("document.getElementById('trace-status').textContent === 'somebody'")
	b.do(chromedp.SetValue("#capture-time", "2s"), chromedp.Click("#capture-form button"))
	b.until("document.getElementById('capture-status').textContent === '7.00B captured'")
}

// TestANICThatGoesAwayAndComesBack: the page says that it is gone, shows the last state, and goes on
// when it is back, with the selected function.
func TestANICThatGoesAwayAndComesBack(t *testing.T) {
	p := &pretended{functions: 4, name: "nic1"}
	v, url := show(t, "", p)
	addr := v.Addr().String()
	b := open(t, url+"#"+id(2), "ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE")
	b.until("document.body.dataset.status === 'live'")
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	b.until("document.body.dataset.status === 'lost'")
	if got := b.text("#status"); !strings.Contains(got, "not reached; this is the state of ") {
		t.Error(got)
	}
	if n := eval[int](b, rowsShown); n != 4 {
		t.Errorf("%d functions are left", n)
	}
	p.functions = 5
	show(t, addr, p)
	b.until("document.body.dataset.status === 'live'")
	b.until(rowsShown + " === 5")
	if got := b.text("#function-title"); got != id(2) {
		t.Error(got)
	}
}

// TestThePageOfAThousandFunctionsStaysUsable: it draws a part of them, what is not shown can be found,
// and the picture has the busiest.
func TestThePageOfAThousandFunctionsStaysUsable(t *testing.T) {
	_, url := show(t, "", &pretended{functions: 1000, name: "nic1"})
	b := open(t, url)
	b.until(rowsShown + " === 100")
	if got := b.text("#functions-count"); got != "1000" {
		t.Error(got)
	}
	b.until("[...document.querySelectorAll('.topology text')].some((e) => e.textContent === '… 990 more functions')")
	b.until("[...document.querySelectorAll('.topology .title')].some((e) => e.textContent === 'h1.pf0.vf3')") // it sends
	b.do(chromedp.Click("#more"))
	b.until(rowsShown + " === 200")
	b.do(chromedp.SendKeys("#filter", "vf777"))
	b.until(rowsShown + " === 1 && document.querySelector('#function-table tbody').textContent.includes('h1.pf0.vf777')")
	b.keys(kb.Escape)
	b.until(rowsShown + " === 100")
	if n := eval[int](b, "document.querySelectorAll('*').length"); n > 3000 {
		t.Errorf("the page has %d elements", n)
	}
}

func TestThePageIsUsedByKeys(t *testing.T) {
	_, url := show(t, "", &pretended{functions: 4, name: "nic1"})
	b := open(t, url)
	b.until(rowsShown + " === 4")
	b.keys("/")
	if got := b.focused(); got != "filter" {
		t.Error("after /: ", got)
	}
	b.keys("v", "f", "3")
	b.until(rowsShown + " === 1")
	b.keys(kb.ArrowDown)
	if got := b.focused(); got != id(2) {
		t.Error("after the arrow: ", got)
	}
	b.keys(kb.Enter)
	b.until("!document.getElementById('function').hidden && document.getElementById('function-title').textContent === '" + id(2) + "'")
	b.keys(kb.Escape)
	b.until("document.getElementById('function').hidden")
	if got := b.focused(); got != id(2) {
		t.Error("after Escape: ", got)
	}
	b.keys("/", kb.Escape)
	b.until(rowsShown + " === 4")
	b.keys(kb.ArrowDown, kb.ArrowDown, kb.ArrowDown, kb.ArrowUp)
	if got := b.focused(); got != id(1) {
		t.Error("after arrows: ", got)
	}
	// Everything else is reached by Tab, in the order of the page.
	b.run("document.activeElement.blur()")
	var seen []string
	for range 60 {
		b.keys(kb.Tab)
		seen = append(seen, b.focused())
	}
	at := 0
	for _, want := range []string{id(0), "filter", "State", "Out", id(0), id(3), "capture-time", "Capture"} {
		i := slices.Index(seen[at:], want)
		if i < 0 {
			t.Fatalf("Tab does not lead to %q after %q", want, seen[:at])
		}
		at += i
	}
	// A sorted table says so.
	b.do(chromedp.Click("#function-table th:last-child button"))
	b.until("document.querySelector('th[aria-sort=descending]')?.textContent === 'Credit used'")
	if got := b.text("#function-table tbody tr"); !strings.HasPrefix(got, id(3)) {
		t.Error(got)
	}
}

// TestThePageIsDarkOrLightAsTheUserWishes: and what is written can be read in both (WCAG 2, 1.4.3:
// a contrast of 4.5).
func TestThePageIsDarkOrLightAsTheUserWishes(t *testing.T) {
	_, url := show(t, "", &pretended{functions: 4, name: "nic1", fault: "a fault"})
	b := open(t, url+"#"+id(2))
	b.until("!document.getElementById('function').hidden")
	var grounds []string
	for _, scheme := range []string{"light", "dark"} {
		b.do(colours(scheme))
		grounds = append(grounds, eval[string](b, "getComputedStyle(document.body).backgroundColor"))
		if faint := eval[[]string](b, contrast); len(faint) > 0 {
			t.Errorf("%s: hard to read: %s", scheme, strings.Join(faint, "; "))
		}
	}
	if grounds[0] == grounds[1] {
		t.Error("dark is as light: ", grounds)
	}
}

// contrast lists the elements with text whose contrast to their background is below 4.5.
const contrast = `(() => {
	const rgb = (s) => s.match(/[\d.]+/g).map(Number);
	const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
		.reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
	const ground = (e) => {
		for (; e; e = e.parentElement) {
			const c = rgb(getComputedStyle(e).backgroundColor);
			if (c.length === 3 || c[3] === 1) return c;
		}
	};
	const list = [];
	for (const e of document.querySelectorAll("body *")) {
		const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
		if (!own || !e.checkVisibility() || e.closest("script, option")) continue;
		const drawn = e instanceof SVGElement;
		const [a, b] = [light(rgb(getComputedStyle(e)[drawn ? "fill" : "color"])), light(ground(e))].sort((x, y) => y - x);
		if ((a + 0.05) / (b + 0.05) < 4.5) list.push(e.tagName + " " + e.textContent.slice(0, 30) + " " + ((a + 0.05) / (b + 0.05)).toFixed(1));
	}
	return list;
})()`

// TestHostileNamesAreTextAndNothingElse: whatever guests, peers and operators call things, the page
// shows it as it is.
func TestHostileNamesAreTextAndNothingElse(t *testing.T) {
	const hostile = `<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>"'>`
	_, url := show(t, "", &pretended{functions: 4, name: hostile, fault: hostile})
	b := open(t, url+"#"+id(2))
	b.until("!document.getElementById('function').hidden")
	b.do(chromedp.Click("#trace-form button"))
	b.until("document.querySelectorAll('#timeline tbody tr').length === 3")
	if got := eval[string](b, "document.title"); got != hostile+" · vnic" {
		t.Error(got)
	}
	if n := eval[int](b, "document.querySelectorAll('main img, body script, main script').length"); n != 0 {
		t.Errorf("%d elements were made of names", n)
	}
	for _, selector := range []string{"#name", "#warnings", "#facts", "#qps", "#connections", "#timeline", "#function-table"} {
		if got := b.text(selector); !strings.Contains(got, hostile) {
			t.Errorf("%s does not show the name: %s", selector, got)
		}
	}
}

// TestABrowserLetsNoOtherPageIn: a page of another site can neither read nor frame the NIC's, nor
// make it record something.
func TestABrowserLetsNoOtherPageIn(t *testing.T) {
	v, url := show(t, "", &pretended{functions: 4, name: "nic1"})
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<title>evil</title><iframe src=%q></iframe><script>
			window.got = [];
			const tell = (what) => (e) => window.got.push(what + ": " + (e.ok !== undefined ? e.status : e.type || e.name));
			fetch(%[1]q + "events").then(tell("fetch"), tell("fetch"));
			fetch(%[1]q + "capture?for=1s", {mode: "no-cors"}).then(async (r) => window.got.push("no-cors: " + r.type + " " + (await r.text()).length), tell("no-cors"));
			const s = new EventSource(%[1]q + "events");
			s.onmessage = s.onopen = s.onerror = (e) => { tell("stream")(e); s.close(); };
			const i = new Image();
			i.onload = i.onerror = tell("image");
			i.src = %[1]q + "icon.svg";
		</script>`, url)
	}))
	defer evil.Close()
	// Another name of the same machine makes it another site.
	_, port, _ := strings.Cut(evil.Listener.Addr().String(), ":")
	b := open(t, "http://localhost:"+port, "403", "CORS", "frame", "ERR_")
	b.until("window.got.length >= 4")
	got := eval[[]string](b, "window.got.sort()")
	for _, bad := range []string{"fetch: 200", "image: load", "stream: open", "stream: message"} {
		if slices.Contains(got, bad) {
			t.Errorf("another site's page has %q", bad)
		}
	}
	if slices.ContainsFunc(got, func(g string) bool { return strings.HasPrefix(g, "no-cors: opaque ") && !strings.HasSuffix(g, " 0") }) {
		t.Error(got)
	}
	if n := eval[int](b, "window.frames.length && (() => { try { return window.frames[0].document.querySelectorAll('#name').length } catch { return 0 } })()"); n != 0 {
		t.Error("the page is in a frame")
	}
	// The NIC's own page still works, by its address.
	resp, err := http.Get("http://" + v.Addr().String())
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Error(resp, err)
	}
	_ = resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
}

// TestAKilledTestLeavesNoBrowser: nor what a browser started.
func TestAKilledTestLeavesNoBrowser(t *testing.T) {
	_, err := exec.LookPath("chromium")
	vnictest.Require(t, err == nil, "chromium is not installed")
	vnictest.KilledLeavesNothing(t, "TestThePageDrawsTheNICAndGoesOnWithIt", "chromium", 3)
}
