package web

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// fake is a NIC whose counters grow.
type fake struct {
	asked  atomic.Uint64
	err    atomic.Pointer[error]
	record func(ctx context.Context, w io.Writer) error
}

func (f *fake) NIC(context.Context) (control.NIC, error) {
	f.asked.Add(1)
	if err := f.err.Load(); err != nil {
		return control.NIC{}, *err
	}
	return control.NIC{Name: "nic1", Host: 1, Peers: []control.Peer{{Name: "rack2", Up: true}, {Name: "rack3"}}}, nil
}

func (f *fake) Functions(context.Context) ([]control.Function, error) {
	n := f.asked.Load()
	return []control.Function{
		{ID: "h1.pf0.vf1", State: "READY", TxBytes: 1000 * n, RxBytes: 10 * n},
		{ID: "h1.pf0.vf2", State: "READY", Port: &control.Port{Name: "vp2", Up: true}},
	}, nil
}

func (f *fake) Counters(context.Context) (control.Counters, error) {
	n := f.asked.Load()
	return control.Counters{
		"uplink.tx_bytes": 500 * n, "port.vp2.rx_bytes": 100 * n, "falcon.early_retransmits": n, "falcon.timeout_retransmits": n,
		"drop.psp_auth": 3 * n, "gateway.drop_no_route": 5 * n, "port.vp2.drop_no_route": 5 * n, "rdma.posted": n,
	}, nil
}

func (f *fake) Credits(context.Context) ([]control.CreditNode, error) {
	n := f.asked.Load()
	use := func(in, limit uint32) (map[string]uint32, map[string]uint32) {
		return map[string]uint32{"req-pkt-tx": in, "data-pkt-tx": 1}, map[string]uint32{"req-pkt-tx": limit, "data-pkt-tx": 100}
	}
	nic, function := control.CreditNode{Level: "nic"}, control.CreditNode{Level: "function", Name: "h1.pf0.vf1", Refused: 7 * n}
	nic.InUse, nic.Limit = use(1, 2)
	function.InUse, function.Limit = use(3, 4)
	return []control.CreditNode{nic, function, {Level: "connection", Name: "h1.pf0.vf1/1"}}, nil
}

func (f *fake) QPs(context.Context) (list []control.QP, err error) {
	for i := range 300 {
		q := control.QP{Function: "h1.pf0.vf1", QPN: uint32(i)}
		if i%3 == 0 {
			q.Waits = "credit"
		}
		list = append(list, q)
	}
	return list, nil
}

func (f *fake) Connections(context.Context) ([]control.Connection, error) {
	return []control.Connection{{Function: "h1.pf0.vf1", LocalCID: 1, PeerName: "rack2", Retransmits: 2 * f.asked.Load()}}, nil
}

func (f *fake) Keys(context.Context) ([]control.Key, error) {
	n := f.asked.Load()
	return []control.Key{{Direction: "tx", PeerName: "rack2", SPI: 9, Packets: 100 * n}, {Direction: "tx", PeerName: "rack2", SPI: 9, Packets: 50 * n}, {Direction: "rx", PeerName: "rack3", SPI: 9}}, nil
}

func (f *fake) Capture(ctx context.Context, mode string, ports []string, w io.Writer) error {
	if mode != "sealed" || len(ports) > 0 {
		return control.BadRequest{Err: fmt.Errorf("mode %q, ports %q", mode, ports)}
	}
	return f.record(ctx, w)
}

func (f *fake) Trace(ctx context.Context, what control.TraceRequest, w io.Writer) error {
	if what.Function != "h1.pf0.vf1" {
		return control.BadRequest{Err: errors.New("no such function")}
	}
	fmt.Fprintf(w, "qp %d for %v\n", what.QPN, what.For)
	return f.record(ctx, w)
}

func serve(t *testing.T, s Source) string {
	t.Helper()
	v, err := Serve("127.0.0.1:0", []string{"nic1.lab.example"}, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return "http://" + v.Addr().String()
}

func get(t *testing.T, url string, change func(*http.Request)) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(r)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

func body(t *testing.T, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return string(b)
}

// stream reads events.
type stream struct {
	t     *testing.T
	resp  *http.Response
	lines *bufio.Scanner
}

func watching(t *testing.T, url string) *stream {
	t.Helper()
	resp := get(t, url, nil)
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%s: %s", resp.Status, body(t, resp))
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	return &stream{t, resp, lines}
}

// next reads the next event of a kind into v.
func (s *stream) next(kind string, v any) {
	s.t.Helper()
	for s.lines.Scan() {
		if s.lines.Text() != "event: "+kind {
			continue
		}
		s.lines.Scan()
		data, ok := strings.CutPrefix(s.lines.Text(), "data: ")
		if !ok {
			break
		}
		if err := json.Unmarshal([]byte(data), v); err != nil {
			s.t.Fatal(err)
		}
		return
	}
	s.t.Fatalf("no event %s: %v", kind, s.lines.Err())
}

func TestAStateHasTheRatesSinceTheOneBefore(t *testing.T) {
	s := watching(t, serve(t, &fake{})+"/events?function=h1.pf0.vf1")
	var first, second state
	var f focus
	s.next("state", &first)
	s.next("function", &f)
	s.next("state", &second)
	if first.Seconds != 0 || first.Rates != (rates{}) || first.Functions[0].Out != 0 {
		t.Errorf("rates in the first state: %+v", first)
	}
	near := func(what string, got, want float64) {
		t.Helper()
		if got *= second.Seconds; got < 0.99*want || got > 1.01*want {
			t.Errorf("%s: %v in the time between, not %v", what, got, want)
		}
	}
	near("uplink", second.Rates.UplinkOut, 8*500)
	near("sent again", second.Rates.Again, 2)
	near("dropped", second.Rates.Dropped, 8) // a port's drops are among the gateway's
	near("out", second.Functions[0].Out, 8*1000)
	near("in", second.Functions[0].In, 8*10)
	near("out of a port", second.Functions[1].Out, 8*100)
	near("refused", second.Functions[0].Refused, 7)
	near("sent to the peer", second.Peers[0].Sent, 150)
	near("sent to it again", second.Peers[0].Again, 2)
	if second.Peers[1].Sent != 0 || len(second.Drops) != 2 || second.Drops[0].Counter != "gateway.drop_no_route" {
		t.Errorf("%+v, %+v", second.Peers[1], second.Drops)
	}
	if second.Functions[0].Credit != 0.75 || second.Functions[0].Waiting != 100 || second.Waits["credit"] != 100 || len(second.Waiting) != maxWaits || len(second.Credits) != 1 {
		t.Errorf("%+v", second)
	}
	if f.Function.ID != "h1.pf0.vf1" || len(f.QPs) != maxRows || f.Omitted != 300-maxRows || f.Credits.InUse["req-pkt-tx"] != 3 || len(f.Connections) != 1 {
		t.Errorf("%+v", f)
	}
}

func TestAFunctionThatIsNotThereIsToldAsSuch(t *testing.T) {
	f := focus{Function: &control.Function{}}
	watching(t, serve(t, &fake{})+"/events?function=h1.pf0.vf9").next("function", &f)
	if f.Function != nil || len(f.QPs) != 0 {
		t.Errorf("%+v", f)
	}
}

func TestANICThatDoesNotAnswerIsToldAsSuchAndAskedAgain(t *testing.T) {
	var f fake
	gone := errors.New("the NIC has stopped")
	f.err.Store(&gone)
	s := watching(t, serve(t, &f)+"/events")
	var why string
	if s.next("trouble", &why); why != gone.Error() {
		t.Error(why)
	}
	f.err.Store(nil)
	var is state
	if s.next("state", &is); is.NIC.Name != "nic1" {
		t.Errorf("%+v", is)
	}
}

// TestAllStreamsShareTheirSamples: pages cost the NIC no more than one page does, and nothing if
// there is none.
func TestAllStreamsShareTheirSamples(t *testing.T) {
	var f fake
	url := serve(t, &f)
	if time.Sleep(50 * time.Millisecond); f.asked.Load() != 0 {
		t.Error("asked while nobody looks")
	}
	begun := time.Now()
	var all []*stream
	for range maxStreams {
		all = append(all, watching(t, url+"/events"))
	}
	var is state
	for _, s := range all {
		for range 3 {
			s.next("state", &is)
		}
	}
	if n, most := f.asked.Load(), uint64(2+time.Since(begun)/least); n > most {
		t.Errorf("%d samples in %v", n, time.Since(begun))
	}
}

func TestThereAreAtMostSoManyStreams(t *testing.T) {
	url := serve(t, &fake{})
	var all []*stream
	for range maxStreams {
		all = append(all, watching(t, url+"/events"))
	}
	resp := get(t, url+"/events", nil)
	if b := body(t, resp); resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(b, "close one") {
		t.Error(resp.Status, b)
	}
	_ = all[0].resp.Body.Close()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if resp := get(t, url+"/events", nil); resp.StatusCode == http.StatusOK {
			break
		} else if time.Now().After(end) {
			t.Fatal("no stream after one was closed: ", resp.Status)
		}
	}
}

// TestABrowserThatDoesNotReadHoldsNobodyUp: its stream waits, the others do not.
func TestABrowserThatDoesNotReadHoldsNobodyUp(t *testing.T) {
	url := serve(t, &fake{})
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.(*net.TCPConn).SetReadBuffer(1); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "GET /events?function=h1.pf0.vf1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
	s := watching(t, url+"/events")
	var is state
	for range 3 {
		s.next("state", &is)
	}
}

// TestMuchWorkMakesStatesRarer: taking samples takes at most a twentieth of the time, and streams
// at most 2 MiB a second together.
func TestMuchWorkMakesStatesRarer(t *testing.T) {
	for _, c := range []struct {
		took          time.Duration
		size, streams int
		want          time.Duration
	}{
		{time.Millisecond, 10_000, 1, time.Second},
		{50 * time.Millisecond, 10_000, 1, time.Second},
		{200 * time.Millisecond, 10_000, 1, 4 * time.Second},
		{time.Millisecond, 1 << 20, 8, 4 * time.Second},
	} {
		if got := pause(c.took, c.size, c.streams); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestRecordingsEndAtTheirTimeOrSize(t *testing.T) {
	part := bytes.Repeat([]byte("x"), 1<<20)
	endless := func(ctx context.Context, w io.Writer) error {
		for ctx.Err() == nil {
			if _, err := w.Write(part); err != nil {
				return err
			}
		}
		_, err := w.Write(part) // what was queued
		return err
	}
	f := &fake{record: endless}
	url := serve(t, f)
	resp := get(t, url+"/capture?for=1m", nil)
	if n := len(body(t, resp)); n < maxCaptureBytes || n > maxCaptureBytes+maxQueued || resp.Header.Get("Content-Disposition") != `attachment; filename="vnic.pcapng"` {
		t.Error("capture: ", n, resp.Header)
	}
	if n := len(body(t, get(t, url+"/trace?function=h1.pf0.vf1&for=10s", nil))); n < maxTraceBytes || n > maxTraceBytes+maxQueued {
		t.Error("trace: ", n)
	}
	f.record = func(ctx context.Context, w io.Writer) error {
		<-ctx.Done()
		_, err := w.Write([]byte("the end"))
		return err
	}
	if b := body(t, get(t, url+"/capture?for=10ms", nil)); b != "the end" {
		t.Error(b)
	}
	f.record = func(context.Context, io.Writer) error { return nil }
	if b := body(t, get(t, url+"/trace?function=h1.pf0.vf1&for=2s&qp=0x11", nil)); b != "qp 17 for 2s\n" {
		t.Error(b)
	}
}

func TestARecordingThatCannotBeIsRefused(t *testing.T) {
	begun := make(chan struct{})
	f := &fake{record: func(ctx context.Context, _ io.Writer) error {
		close(begun)
		<-ctx.Done()
		return nil
	}}
	url := serve(t, f)
	for path, want := range map[string]string{
		"/capture":                    `400 for="": write a time up to 1m0s, as 5s`,
		"/capture?for=2m":             `400 for="2m": write a time up to 1m0s`,
		"/capture?for=-1s":            `400 for="-1s": write`,
		"/trace?function=x&for=11s":   `400 for="11s": write a time up to 10s`,
		"/trace?function=x&for=1s":    "400 no such function",
		"/trace?for=1s&qp=0x1000000":  `400 qp "0x1000000": write a queue pair's number`,
		"/trace?for=1s&qp=%3Cscript>": `400 qp "<script>": write`,
	} {
		resp := get(t, url+path, nil)
		if got := fmt.Sprint(resp.StatusCode, " ", body(t, resp)); !strings.HasPrefix(got, want) || resp.Header.Get("Content-Disposition") != "" {
			t.Errorf("%s: %s", path, got)
		}
	}
	go func() {
		if resp, err := http.Get(url + "/capture?for=30s"); err == nil {
			_ = resp.Body.Close()
		}
	}()
	<-begun
	resp := get(t, url+"/capture?for=1s", nil)
	if b := body(t, resp); resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(b, "a capture is being made already") {
		t.Error(resp.Status, b)
	}
}

// TestPagesOfOtherSitesGetNothing: neither by a name that they make resolve to this server, nor by
// asking from a browser.
func TestPagesOfOtherSitesGetNothing(t *testing.T) {
	f := &fake{record: func(context.Context, io.Writer) error { return nil }}
	url := serve(t, f)
	header := func(pairs ...string) func(*http.Request) {
		return func(r *http.Request) {
			for i := 0; i < len(pairs); i += 2 {
				r.Header.Set(pairs[i], pairs[i+1])
			}
		}
	}
	host := func(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }
	for _, c := range []struct {
		path   string
		change func(*http.Request)
		want   int
	}{
		{"/", nil, 200},
		{"/", host("localhost:9480"), 200},
		{"/", host("nic1.lab.example"), 200},
		{"/", host("evil.example"), 403},
		{"/events", host("evil.example:80"), 403},
		{"/capture?for=1ms", host("127.0.0.1.evil.example"), 403},
		{"/capture?for=1ms", header("Origin", url), 200},
		{"/capture?for=1ms", header("Origin", "http://evil.example"), 403},
		{"/capture?for=1ms", header("Origin", "https"+strings.TrimPrefix(url, "http")), 403},
		{"/capture?for=1ms", header("Origin", "null"), 403},
		{"/capture?for=1ms", header("Sec-Fetch-Site", "same-origin"), 200},
		{"/capture?for=1ms", header("Sec-Fetch-Site", "none", "Sec-Fetch-Dest", "document"), 200},
		{"/capture?for=1ms", header("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "document"), 403},
		{"/events", header("Sec-Fetch-Site", "same-site", "Sec-Fetch-Dest", "empty"), 403}, // another port of this machine
		{"/page.js", header("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "script"), 403},
		{"/", header("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "iframe"), 403},
		{"/", header("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "document"), 200}, // a link
	} {
		resp := get(t, url+c.path, c.change)
		if b := body(t, resp); resp.StatusCode != c.want || resp.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: %s: %.100s", c.path, resp.Status, b)
		}
	}
}

func TestNothingCanBeChangedByThePage(t *testing.T) {
	url := serve(t, &fake{})
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch} {
		for _, path := range []string{"/", "/events", "/v1/functions/change"} {
			r, err := http.NewRequestWithContext(t.Context(), method, url+path, strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			if body(t, resp); resp.StatusCode != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %s", method, path, resp.Status)
			}
		}
	}
}

// TestThePageLoadsItsOwnFilesOnly: the browser is told so, and the page needs no more.
func TestThePageLoadsItsOwnFilesOnly(t *testing.T) {
	url := serve(t, &fake{})
	entries, err := files.ReadDir("page")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		resp := get(t, url+"/"+strings.TrimSuffix(e.Name(), "index.html"), nil)
		policy, text := resp.Header.Get("Content-Security-Policy"), body(t, resp)
		if resp.StatusCode != http.StatusOK || !strings.HasPrefix(policy, "default-src 'none'; script-src 'self';") || strings.Contains(policy, "unsafe") || !strings.Contains(policy, "frame-ancestors 'none'") {
			t.Errorf("%s: %s, %s", e.Name(), resp.Status, policy)
		}
		for _, never := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", " style=", "onclick=", "https://"} {
			if strings.Contains(text, never) {
				t.Errorf("%s has %q", e.Name(), never)
			}
		}
	}
}
