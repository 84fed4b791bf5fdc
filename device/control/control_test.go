package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/falcon-vnic/vnic/device/fault"
	"github.com/falcon-vnic/vnic/internal/leak"
)

// serveAt serves on its own socket.
func serveAt(path string, p Provider) (*Server, error) {
	ln, err := Listen(path)
	if err != nil {
		return nil, err
	}
	return ServeOn(ln, p), nil
}

func TestMain(m *testing.M) { leak.Main(m) }

type fake struct {
	nic   NIC
	funcs []Function
	conns []Connection

	creds    []CreditNode
	qps      []QP
	queues   []Queue
	keys     []Key
	count    Counters
	err      error
	captured chan struct{} // closed when Capture ended because it was told to
	block    chan struct{} // Counters waits for it, or for its context
	cleared  bool          // ClearViolations was asked for
}

func (f *fake) NIC(context.Context) (NIC, error) { return f.nic, f.err }

func (f *fake) Functions(context.Context) ([]Function, error) { return f.funcs, f.err }

func (f *fake) Connections(context.Context) ([]Connection, error) { return f.conns, f.err }

func (f *fake) Credits(context.Context) ([]CreditNode, error) { return f.creds, f.err }

func (f *fake) QPs(context.Context) ([]QP, error) { return f.qps, f.err }

func (f *fake) Queues(context.Context) ([]Queue, error) { return f.queues, f.err }

func (f *fake) Keys(context.Context) ([]Key, error) { return f.keys, f.err }

func (f *fake) Routes(context.Context) ([]Route, error) { return []Route{{Tenant: 7}}, f.err }

func (f *fake) Violations(context.Context) ([]Violation, error) {
	return []Violation{{Function: "h1.pf0", Clause: "DRV-602", Count: 3}}, f.err
}

func (f *fake) ClearViolations(ctx context.Context) ([]Violation, error) {
	f.cleared = true
	return f.Violations(ctx)
}

func (f *fake) ChangeFunction(_ context.Context, c FunctionChange) (Function, error) {
	if c.Function == "" {
		return Function{}, BadRequest{errors.New("which function?")}
	}
	return Function{ID: c.Function, Guest: c.Set["guest"], State: c.Action}, f.err
}

func (f *fake) Directory(context.Context) (Directory, error) {
	return Directory{Kind: "static", Refused: []Refusal{}, Problems: []string{}}, f.err
}
func (f *fake) Peers(context.Context) ([]Peer, error) { return f.nic.Peers, f.err }

func (f *fake) ChangePeer(_ context.Context, c PeerChange) ([]Peer, error) {
	if c.Name == "" {
		return nil, BadRequest{errors.New("which peer?")}
	}
	return []Peer{{Name: c.Name, Underlay: *c.Underlay}}, f.err
}

func (f *fake) Reload(context.Context) (Reloaded, error) {
	return Reloaded{[]string{"peer 2 removed"}}, f.err
}

func (f *fake) RotateKeys(context.Context) (Rotation, error) {
	return Rotation{Generation: 3, Keys: 2}, f.err
}

// Capture writes until ctx ends.
func (f *fake) Capture(ctx context.Context, mode string, ports []string, w io.Writer) error {
	if mode != "both" || len(ports) > 0 && ports[0] != "any" {
		return BadRequest{errors.New("what mode?")}
	}
	for ctx.Err() == nil {
		if _, err := w.Write([]byte("captured ")); err != nil {
			<-ctx.Done() // the reader went away, which ends the request, too
			break
		}
		time.Sleep(time.Millisecond)
	}
	close(f.captured)
	return nil
}

func (*fake) Recording(_ context.Context, w io.Writer) error {
	_, err := io.WriteString(w, "a recording")
	return err
}

func (f *fake) StartRecording(_ context.Context, s RecordingStart) (NIC, error) {
	return NIC{Name: s.File + s.Payload}, f.err
}

func (f *fake) StopRecording(context.Context) (Recorded, error) { return Recorded{File: "a"}, f.err }

// Trace writes two lines and ends.
func (f *fake) Trace(_ context.Context, what TraceRequest, w io.Writer) error {
	if what.Function == "" {
		return BadRequest{errors.New("which function?")}
	}
	for _, l := range []TraceLine{{Tracing: what.Function}, {Operation: &Operation{QPN: what.QPN, Bytes: uint32(what.For.Seconds())}}} {
		if err := json.NewEncoder(w).Encode(&l); err != nil {
			return err
		}
	}
	return f.err
}

// InjectFault returns its argument.
func (f *fake) InjectFault(_ context.Context, c FaultChange) ([]Fault, error) {
	if c.Add == nil {
		return nil, BadRequest{errors.New("nothing to change")}
	}
	return []Fault{{Function: c.Function, ID: 1, Rule: *c.Add}}, nil
}

func (f *fake) Faults(context.Context) ([]Fault, error) { return nil, nil }

// InjectLink returns its argument.
func (f *fake) InjectLink(_ context.Context, c LinkChange) (Uplink, error) {
	var u Uplink
	u.Name = c.Uplink
	if err := json.Unmarshal(c.Set, &u.TX.Impairment); err != nil {
		return u, BadRequest{err}
	}
	return u, f.err
}

func (f *fake) Counters(ctx context.Context) (Counters, error) {
	if f.block != nil {
		select {
		case <-f.block:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return f.count, f.err
}

func sample() *fake {
	return &fake{
		nic: NIC{
			Host: 1, Name: "a", Version: "v0", PID: 7, UptimeMS: 5,
			Uplinks: []Uplink{{Name: "up0", MAC: "02:00:00:00:00:01", Addr: "192.0.2.1/24", MTU: 1500, TX: Direction{Impairment: Impairment{Loss: 0.5}}}},
			Peers:   []Peer{{Name: "2", Host: 2, Underlay: "192.0.2.2", Identity: "vnic://lab/host/2", Tenants: []uint32{7}, Up: true, Functions: 5, Connections: 1, PathMTU: 1500}},
		},
		funcs:  []Function{{ID: "h1.pf0.vf1", Number: 0x10001, Type: "vf", State: "READY", Tenant: 7, Addr: "10.0.0.1", Guest: "cid 3", Objects: Objects{QPs: 2}}},
		conns:  []Connection{{ID: 9, Function: "h1.pf0.vf1", State: "ESTABLISHED", LocalCID: 5, TxSPI: 1 << 31}},
		creds:  []CreditNode{{Level: "nic", Name: "nic", Limit: map[string]uint32{"req-pkt-tx": 4}, Guarantee: map[string]uint32{}, InUse: map[string]uint32{}, Charged: map[string]uint32{}}},
		qps:    []QP{{Function: "h1.pf0.vf1", QPN: 5, State: "RTS"}},
		queues: []Queue{{Function: "h1.pf0.vf1", Kind: "sq", Number: 5, Entries: 64}},
		keys:   []Key{{Direction: "tx", Peer: 2, SPI: 9}},
		count:  Counters{"falcon.tx_packets": 1 << 60},
	}
}

func serve(t *testing.T, p Provider) (*Server, *Client, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "c.sock")
	s, err := serveAt(path, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, NewClient(path), path
}

func TestAClientGetsTheProvidersAnswers(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	f := sample()
	s, c, path := serve(t, f)
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	ctx := t.Context()
	nic, err1 := c.NIC(ctx)
	funcs, err2 := c.Functions(ctx)
	conns, err3 := c.Connections(ctx)
	count, err4 := c.Counters(ctx)
	creds, err5 := c.Credits(ctx)
	qps, err6 := c.QPs(ctx)
	queues, err7 := c.Queues(ctx)
	keys, err8 := c.Keys(ctx)
	if routes, err := c.Routes(ctx); err != nil || len(routes) != 1 || routes[0].Tenant != 7 {
		t.Errorf("%+v, %v", routes, err)
	}
	_, err9 := c.Wait(ctx, nil, nil)
	if err := errors.Join(err1, err2, err3, err4, err5, err6, err7, err8, err9); err != nil {
		t.Fatal(err)
	}
	if list, err := c.ClearViolations(ctx); err != nil || len(list) != 1 || !f.cleared {
		t.Errorf("%+v, %v", list, err)
	}
	f.cleared = false
	if fn, err := c.ChangeFunction(ctx, FunctionChange{Function: "pf0.vf1", Action: "reset", Set: map[string]string{"guest": "x"}}); err != nil || fn.ID != "pf0.vf1" || fn.State != "reset" || fn.Guest != "x" {
		t.Errorf("%+v, %v", fn, err)
	}
	if _, err := c.ChangeFunction(ctx, FunctionChange{}); err == nil || !strings.Contains(err.Error(), "which function?") {
		t.Error(err)
	}
	got := &fake{nic: nic, funcs: funcs, conns: conns, count: count, creds: creds, qps: qps, queues: queues, keys: keys}
	if d := cmp.Diff(f, got, cmp.AllowUnexported(fake{})); d != "" {
		t.Errorf("answers differ (-want +got):\n%s", d)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	if names, _ := os.ReadDir(filepath.Dir(path)); len(names) != 0 {
		t.Errorf("left over: %v", names)
	}
}

// TestEachCommandOfAClientReachesTheNIC: with what it says, and the answer is the NIC's. If the NIC refuses
// it, its reason is the client's error.
func TestEachCommandOfAClientReachesTheNIC(t *testing.T) {
	f := sample()
	_, c, _ := serve(t, f)
	at := "10.0.0.2"
	var saved bytes.Buffer
	for name, call := range map[string]func(ctx context.Context) (any, error){
		"[{Tenant:7":     func(ctx context.Context) (any, error) { return c.Routes(ctx) },
		"Kind:static":    func(ctx context.Context) (any, error) { return c.Directory(ctx) },
		"Name:b":         func(ctx context.Context) (any, error) { return c.ChangePeer(ctx, PeerChange{Name: "b", Underlay: &at}) },
		"peer 2 removed": func(ctx context.Context) (any, error) { return c.Reload(ctx) },
		"Generation:3":   func(ctx context.Context) (any, error) { return c.RotateKeys(ctx) },
		"Name:/file,none": func(ctx context.Context) (any, error) {
			return c.StartRecording(ctx, RecordingStart{File: "/file", Payload: ",none"})
		},
		"File:a":                        func(ctx context.Context) (any, error) { return c.StopRecording(ctx) },
		"DRV-602":                       func(ctx context.Context) (any, error) { return c.Violations(ctx) },
		fmt.Sprintf("%+v", f.nic.Peers): func(ctx context.Context) (any, error) { return c.Peers(ctx) },
	} {
		f.err = nil
		if v, err := call(t.Context()); err != nil || !strings.Contains(fmt.Sprintf("%+v", v), name) {
			t.Errorf("%s: %+v, %v", name, v, err)
		}
		f.err = BadRequest{errors.New("not now")}
		if v, err := call(t.Context()); err == nil || err.Error() != "not now" {
			t.Errorf("%s: refused, %+v, %v", name, v, err)
		}
	}
	if list, err := c.InjectFault(t.Context(), FaultChange{Function: "pf0.vf1", Add: &fault.Rule{}}); err != nil || len(list) != 1 || list[0].Function != "pf0.vf1" {
		t.Errorf("%+v, %v", list, err)
	}
	if list, err := c.Faults(t.Context()); err != nil || list == nil || len(list) != 0 {
		t.Errorf("no faults: %#v, %v", list, err)
	}
	if err := c.Recording(t.Context(), &saved); err != nil || saved.String() != "a recording" {
		t.Errorf("%q, %v", saved.String(), err)
	}
}

// raw sends a request without a Client.
func raw(t *testing.T, path, method, target string) (int, string) {
	t.Helper()
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", path) }}
	req, err := http.NewRequestWithContext(t.Context(), method, "http://vnic"+target, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, _ := io.ReadAll(resp.Body)
	if ct := resp.Header.Get("Content-Type"); ct != "application/json" {
		t.Errorf("%s %s: content type %q", method, target, ct)
	}
	return resp.StatusCode, string(body)
}

func TestEachRequestGetsItsStatusCode(t *testing.T) {
	f := &fake{}
	_, c, path := serve(t, f)
	for _, tt := range []struct {
		method, target string
		status         int
		body           string
	}{
		{"GET", "/v1/functions", 200, "[]"},
		{"GET", "/v1/connections", 200, "[]"},
		{"GET", "/v1/nothing", 404, "/v1/counters"},
		{"GET", "/", 404, "unknown path"},
		{"POST", "/v1/nic", 405, "only GET"},
		{"DELETE", "/v1/counters", 405, "only GET"},
		{"GET", "/v1/keys/rotate", 405, "only POST"},
		{"POST", "/v1/keys/rotate", 200, "\"generation\": 3"},
	} {
		if status, body := raw(t, path, tt.method, tt.target); status != tt.status || !strings.Contains(body, tt.body) {
			t.Errorf("%s %s: %d %s", tt.method, tt.target, status, body)
		}
	}
	f.err = errors.New("the shard is stopping")
	if _, err := c.NIC(t.Context()); err == nil || !strings.Contains(err.Error(), "the shard is stopping") {
		t.Errorf("error of the provider: %v", err)
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.sock")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = ln.Close() // as after kill -9
	c := NewClient(path)
	if _, err := c.NIC(t.Context()); err == nil || !strings.Contains(err.Error(), "is gone") || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("stale socket: %v", err)
	}
	s, err := serveAt(path, sample())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.NIC(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestAServerRefusesABadSocketPath(t *testing.T) {
	_, c, path := serve(t, sample())
	if _, err := serveAt(path, sample()); err == nil || !strings.Contains(err.Error(), "another process answers") {
		t.Errorf("a second server: %v", err)
	}
	if _, err := c.NIC(t.Context()); err != nil {
		t.Errorf("the first one is harmed: %v", err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "notes.txt")
	if err := os.WriteFile(file, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := serveAt(file, sample()); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("on a file: %v", err)
	}
	if b, _ := os.ReadFile(file); string(b) != "keep" {
		t.Error("the file was changed")
	}
	if _, err := serveAt(filepath.Join(dir, "missing", "c.sock"), sample()); err == nil || !strings.Contains(err.Error(), "make it") {
		t.Errorf("in a missing folder: %v", err)
	}
	if _, err := serveAt(filepath.Join(dir, strings.Repeat("x", 120)), sample()); err == nil || !strings.Contains(err.Error(), "shorter path") {
		t.Errorf("a long path: %v", err)
	}
}

func TestSocketOfAnotherIsNotRemoved(t *testing.T) {
	s, _, path := serve(t, sample())
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	other, err := serveAt(path, sample())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := NewClient(path).NIC(t.Context()); err != nil {
		t.Errorf("the other's socket is gone: %v", err)
	}
	_ = other.Close()
}

// TestPathsAreExplained: docs/control-api.md contains every request.
func TestPathsAreExplained(t *testing.T) {
	page, err := os.ReadFile("../../docs/control-api.md")
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	handler(t.Context(), sample()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/nothing", nil))
	paths := regexp.MustCompile(`/v1/[a-z/]+[a-z]`).FindAllString(w.Body.String(), -1)
	if len(paths) < 15 {
		t.Fatalf("%s", w.Body)
	}
	for _, p := range paths[1:] { // the first is the one that was asked for
		if !bytes.Contains(page, []byte(" "+p+"`")) {
			t.Errorf("docs/control-api.md says nothing of %s", p)
		}
	}
}

func TestAMissingSocketIsExplained(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none.sock")
	_, err := NewClient(path).NIC(t.Context())
	if err == nil || !strings.Contains(err.Error(), "is `vnic run` running") || !strings.Contains(err.Error(), path) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := NewClient(path).Wait(ctx, nil, nil); err == nil {
		t.Error("Wait for nothing ends well")
	}
}

// TestWaitEndsWhenTheNICIsReady: Wait asks until the NIC is ready, reports once why it waits, and gives up at once if
// waiting cannot help. When its time is over, it returns the latest reason that is not just the end
// of the time.
func TestWaitEndsWhenTheNICIsReady(t *testing.T) {
	_, c, _ := serve(t, sample())
	no := func(text string) error { return errors.New(text) }
	denied, foreign := fmt.Errorf("x: %w", fs.ErrPermission), fmt.Errorf("x: %w", ErrNoControl)
	for name, x := range map[string]struct {
		says     []error // what is wrong with the NIC, attempt by attempt
		ends     int     // the attempt during which the caller gives up; 0: it does not
		attempts int
		told     string
		want     string // the error; "": none
	}{
		"good at once":           {[]error{nil}, 0, 1, "", ""},
		"good later":             {[]error{no("a"), no("b"), no("c"), nil}, 0, 4, "a", ""},
		"nobody may ask":         {[]error{denied}, 0, 1, "", denied.Error()},
		"no NIC":                 {[]error{foreign}, 0, 1, "", foreign.Error()},
		"no NIC any more":        {[]error{no("a"), foreign}, 0, 2, "a", foreign.Error()},
		"given up":               {[]error{no("a"), no("b")}, 1, 1, "", "waited for the NIC: a"},
		"given up later":         {[]error{no("a"), no("b"), no("c")}, 3, 3, "a", "waited for the NIC: b"},
		"good when it was ended": {[]error{no("a"), nil}, 2, 2, "a", ""},
	} {
		for _, tell := range []bool{true, false} {
			ctx, cancel := context.WithCancel(t.Context())
			attempts := 0
			ready := func(n NIC) error {
				if n.Name == "" {
					t.Errorf("%s: %+v", name, n)
				}
				if attempts++; attempts == x.ends {
					cancel()
				}
				return x.says[min(attempts, len(x.says))-1]
			}
			var told []string
			later := func(err error) { told = append(told, err.Error()) }
			want := x.told
			if !tell {
				later, want = nil, ""
			}
			_, err := c.Wait(ctx, ready, later)
			cancel()
			if x.want == "" && err != nil || x.want != "" && (err == nil || err.Error() != x.want) || attempts != x.attempts {
				t.Errorf("%s: %v after %d attempts, want %q after %d", name, err, attempts, x.want, x.attempts)
			}
			if got := strings.Join(told, ", "); got != want {
				t.Errorf("%s: told %q, want %q", name, got, want)
			}
		}
	}
}

func TestABadAnswerIsExplained(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.sock")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/nic" {
			_, _ = io.WriteString(w, `{"host": "not a number"}`)
			return
		}
		http.Error(w, "plain text", http.StatusTeapot)
	})}
	go func() { _ = srv.Serve(ln) }()
	defer func() { _ = srv.Close() }()
	c := NewClient(path)
	if _, err := c.NIC(t.Context()); err == nil || !strings.Contains(err.Error(), "another version") {
		t.Errorf("wrong type: %v", err)
	}
	if _, err := c.Counters(t.Context()); err == nil || !strings.Contains(err.Error(), "418") {
		t.Errorf("plain text: %v", err)
	}
}

// TestCloseWithManyClients opens more connections than there are places, and then closes the
// server.
func TestCloseWithManyClients(t *testing.T) {
	f := sample()
	f.block = make(chan struct{})
	s, c, path := serve(t, f)
	var conns []net.Conn
	for range maxClients {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for range 4 {
		wg.Go(func() { _, _ = c.Counters(ctx) })
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	cancel()
	wg.Wait()
	for _, conn := range conns {
		_ = conn.Close()
	}
}

func TestALinkChangeIsAppliedOrRefused(t *testing.T) {
	_, c, path := serve(t, sample())
	u, err := c.InjectLink(t.Context(), LinkChange{Uplink: "up0", Set: []byte(`{"loss": 0.25}`)})
	if err != nil || u.Name != "up0" || u.TX.Impairment.Loss != 0.25 {
		t.Errorf("%+v, %v", u, err)
	}
	if _, err := c.InjectLink(t.Context(), LinkChange{Set: []byte(`[]`)}); err == nil || !strings.Contains(err.Error(), "json:") {
		t.Errorf("what the provider refuses: %v", err)
	}
	for _, body := range []string{"", "[]", `{"los": 1}`, strings.Repeat(" ", maxBody) + "{}"} {
		resp, err := (&http.Client{Transport: c.http.Transport}).Post("http://vnic/v1/inject/link", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: body of %d bytes: %s", path, len(body), resp.Status)
		}
	}
}

// TestFileIsNoSocket: for a file that is not a socket, the error says so, and does not say that a
// NIC left it behind. A NIC's error is shown without protocol terms.
func TestFileIsNoSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "passwd")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := NewClient(path).NIC(t.Context()); err == nil || !strings.Contains(err.Error(), path+" is not a control socket, nor any other socket") || strings.Contains(err.Error(), "is gone") {
		t.Error(err)
	}
	_, c, _ := serve(t, sample())
	if _, err := c.InjectLink(t.Context(), LinkChange{Set: []byte(`[]`)}); err == nil || strings.Contains(err.Error(), "/v1/") {
		t.Error(err)
	}
	var v any
	if err := c.get(t.Context(), "/v1/tomorrow", &v); err == nil || !strings.Contains(err.Error(), "is of another version than this program") {
		t.Error(err)
	}
}

// TestATraceOfAnUnknownQueuePairNumberIsRefused: a queue pair number has 24 bits; without a
// duration the trace has no end.
func TestATraceOfAnUnknownQueuePairNumberIsRefused(t *testing.T) {
	for query, want := range map[string]string{
		"function=pf0": "pf0 0 0s", "function=pf0&qp=0x11&for=5s": "pf0 17 5s", "qp=16777215&for=0s": " 16777215 0s", "for=1ns": " 0 1ns",
		"qp=16777216": "qp", "qp=-1": "qp", "qp=x": "qp", "for=-1ns": "for", "for=5": "for",
	} {
		q, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		r, err := traceRequest(q)
		got := fmt.Sprint(r.Function, " ", r.QPN, " ", r.For)
		if bad := (BadRequest{}); errors.As(err, &bad) {
			got, _, _ = strings.Cut(err.Error(), " ")
		}
		if got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
}
