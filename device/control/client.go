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
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// maxAnswer bounds the length of an answer.
const maxAnswer = 64 << 20

// Client queries and changes a running `vnic run`.
type Client struct {
	path string
	http *http.Client
}

// NewClient returns a client for the socket at path. It does not connect yet.
func NewClient(path string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
		if err != nil {
			return nil, err
		}
		return &wary{Conn: conn}, nil
	}
	return &Client{path: path, http: &http.Client{
		Timeout:   2 * answerTime,
		Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true, ResponseHeaderTimeout: 2 * answerTime},
	}}
}

// NIC describes the NIC, its uplinks and its peers.
func (c *Client) NIC(ctx context.Context) (v NIC, err error) {
	err = c.get(ctx, "/v1/nic", &v)
	return v, err
}

// Peers describes the peers.
func (c *Client) Peers(ctx context.Context) (v []Peer, err error) {
	err = c.get(ctx, "/v1/peers", &v)
	return v, err
}

// Directory asks where the NIC's peers come from.
func (c *Client) Directory(ctx context.Context) (v Directory, err error) {
	err = c.get(ctx, "/v1/directory", &v)
	return v, err
}

// ChangePeer adds, changes or removes a peer, and returns the peers that there are then.
func (c *Client) ChangePeer(ctx context.Context, change PeerChange) (v []Peer, err error) {
	err = c.do(ctx, http.MethodPost, "/v1/peers/change", change, &v)
	return v, err
}

// Reload makes the NIC read its configuration again.
func (c *Client) Reload(ctx context.Context) (v Reloaded, err error) {
	err = c.do(ctx, http.MethodPost, "/v1/reload", nil, &v)
	return v, err
}

// StartRecording has the worker replaced by one that records to a new file, and returns the NIC as it is before that.
func (c *Client) StartRecording(ctx context.Context, s RecordingStart) (v NIC, err error) {
	err = c.do(ctx, http.MethodPost, "/v1/recording/start", s, &v)
	return v, err
}

// StopRecording ends the recording in a file.
func (c *Client) StopRecording(ctx context.Context) (v Recorded, err error) {
	err = c.do(ctx, http.MethodPost, "/v1/recording/stop", nil, &v)
	return v, err
}

// Functions describes the PFs and VFs.
func (c *Client) Functions(ctx context.Context) (v []Function, err error) {
	err = c.get(ctx, "/v1/functions", &v)
	return v, err
}

// Connections describes the connections.
func (c *Client) Connections(ctx context.Context) (v []Connection, err error) {
	err = c.get(ctx, "/v1/connections", &v)
	return v, err
}

// Routes lists the routes of plain IP.
func (c *Client) Routes(ctx context.Context) (v []Route, err error) {
	err = c.get(ctx, "/v1/routes", &v)
	return v, err
}

// Counters returns all counters.
func (c *Client) Counters(ctx context.Context) (v Counters, err error) {
	err = c.get(ctx, "/v1/counters", &v)
	return v, err
}

// Credits lists the nodes of the credit tree, from the NIC down.
func (c *Client) Credits(ctx context.Context) (v []CreditNode, err error) {
	err = c.get(ctx, "/v1/credits", &v)
	return v, err
}

// QPs describes the queue pairs.
func (c *Client) QPs(ctx context.Context) (v []QP, err error) {
	err = c.get(ctx, "/v1/qps", &v)
	return v, err
}

// Queues describes the rings in guests' memory.
func (c *Client) Queues(ctx context.Context) (v []Queue, err error) {
	err = c.get(ctx, "/v1/queues", &v)
	return v, err
}

// Keys describes the security associations.
func (c *Client) Keys(ctx context.Context) (v []Key, err error) {
	err = c.get(ctx, "/v1/keys", &v)
	return v, err
}

// Violations lists the rules of docs/abi that drivers broke.
func (c *Client) Violations(ctx context.Context) (v []Violation, err error) {
	err = c.get(ctx, "/v1/violations", &v)
	return v, err
}

// ClearViolations makes the NIC forget its violations, and returns them.
func (c *Client) ClearViolations(ctx context.Context) (v []Violation, err error) {
	err = c.do(ctx, http.MethodPost, "/v1/violations/clear", nil, &v)
	return v, err
}

// ChangeFunction sets, enables, disables or resets a function and returns its new state.
func (c *Client) ChangeFunction(ctx context.Context, change FunctionChange) (v Function, err error) {
	err = c.do(ctx, http.MethodPost, "/v1/functions/change", change, &v)
	return v, err
}

// RotateKeys makes the NIC replace its PSP keys. It returns when the rotation has begun; traffic
// continues.
func (c *Client) RotateKeys(ctx context.Context) (v Rotation, err error) {
	err = c.do(ctx, http.MethodPost, "/v1/keys/rotate", nil, &v)
	return v, err
}

// InjectLink changes the faults that an uplink injects.
func (c *Client) InjectLink(ctx context.Context, change LinkChange) (v Uplink, err error) {
	err = c.do(ctx, http.MethodPost, "/v1/inject/link", change, &v)
	return v, err
}

// InjectFault adds a fault rule or a profile to a function, or clears them.
func (c *Client) InjectFault(ctx context.Context, change FaultChange) (v []Fault, err error) {
	err = c.do(ctx, http.MethodPost, "/v1/inject/fault", change, &v)
	return v, err
}

// Faults lists the injected faults.
func (c *Client) Faults(ctx context.Context) (v []Fault, err error) {
	err = c.get(ctx, "/v1/faults", &v)
	return v, err
}

// Wait returns when the NIC answers and ready, if not nil, accepts the answer; or with the reason
// when ctx ends or no NIC can ever answer there. later, if not nil, is called once with the reason
// if the first attempt fails.
func (c *Client) Wait(ctx context.Context, ready func(NIC) error, later func(error)) (NIC, error) {
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	var reason error
	for {
		nic, err := c.NIC(ctx)
		if err == nil && ready != nil {
			err = ready(nic)
		}
		if err == nil || errors.Is(err, fs.ErrPermission) || errors.Is(err, ErrNoControl) {
			return nic, err
		}
		if reason == nil && later != nil && ctx.Err() == nil {
			later(err)
		}
		if reason == nil || ctx.Err() == nil { // an attempt that ctx interrupted gives no reason
			reason = err
		}
		select {
		case <-ctx.Done():
			return nic, fmt.Errorf("waited for the NIC: %w", reason)
		case <-t.C:
		}
	}
}

// Capture copies the NIC's captured packets to w until ctx ends: by mode sealed, clear, both or "",
// and those of the named ports.
func (c *Client) Capture(ctx context.Context, mode string, ports []string, w io.Writer) error {
	return c.stream(ctx, capturePath, url.Values{"mode": {mode}, "port": ports}, w)
}

// Trace copies the JSON TraceLines of a function to w until ctx ends, or for the requested time.
func (c *Client) Trace(ctx context.Context, what TraceRequest, w io.Writer) error {
	query := url.Values{"function": {what.Function}, "qp": {strconv.FormatUint(uint64(what.QPN), 10)}, "for": {what.For.String()}}
	return c.stream(ctx, tracePath, query, w)
}

// Recording copies what the NIC's recorder has to w.
func (c *Client) Recording(ctx context.Context, w io.Writer) error {
	return c.stream(ctx, recordingPath, nil, w)
}

// stream copies an endless answer to w.
func (c *Client) stream(ctx context.Context, path string, query url.Values, w io.Writer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://vnic"+path+"?"+query.Encode(), nil)
	if err != nil {
		return fmt.Errorf("control socket %s: %w", c.path, err)
	}
	resp, err := (&http.Client{Transport: c.http.Transport}).Do(req) // without the time limit
	if err != nil {
		return c.explain(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		answer, _ := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		return c.refused(resp, answer)
	}
	if _, err := io.Copy(w, resp.Body); err != nil && ctx.Err() == nil {
		return c.explain(err)
	}
	return nil
}

// refused returns the NIC's reason.
func (c *Client) refused(resp *http.Response, answer []byte) error {
	var f failure
	if resp.StatusCode == http.StatusNotFound || json.Unmarshal(answer, &f) != nil || f.Error == "" {
		return c.stranger(fmt.Errorf("%s %s: %s", resp.Request.Method, resp.Request.URL.Path, resp.Status))
	}
	return errors.New(f.Error)
}

// stranger returns the error for an answer that this program does not understand.
func (c *Client) stranger(err error) error {
	return fmt.Errorf("the NIC at control socket %s is of another version than this program, and does not know this command or answers it otherwise: use the vnic that it runs (%w)", c.path, err)
}

func (c *Client) get(ctx context.Context, path string, v any) error {
	return c.do(ctx, http.MethodGet, path, nil, v)
}

// do sends a request with a body, if there is one, and decodes the answer into v.
func (c *Client) do(ctx context.Context, method, path string, body, v any) error {
	var content io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://vnic"+path, content)
	if err != nil {
		return fmt.Errorf("control socket %s: %w", c.path, err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.explain(err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return c.explain(err)
	}
	if resp.StatusCode != http.StatusOK {
		return c.refused(resp, answer)
	}
	if err := json.Unmarshal(answer, v); err != nil {
		return c.stranger(err)
	}
	return nil
}

// explain adds the remedy to an error.
func (c *Client) explain(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("control socket %s does not exist: is `vnic run` running, and is its `control` this path? (%w)", c.path, fs.ErrNotExist)
	case errors.Is(err, syscall.ECONNREFUSED) && !c.isSocket():
		return fmt.Errorf("%s is %w, nor any other socket; name the one that `control` in the configuration of `vnic run` gives", c.path, ErrNoControl)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("nobody answers at control socket %s: the `vnic run` that made it is gone, start it again (%w)", c.path, syscall.ECONNREFUSED)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("control socket %s: only the user that runs `vnic run` may open it, use that user or root (%w)", c.path, fs.ErrPermission)
	case errors.Is(err, ErrNoControl):
		return fmt.Errorf("%s is %w: guests' sockets are under `attach` in the configuration of `vnic run`, this command needs the one that `control` names", c.path, ErrNoControl)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("control socket %s: interrupted (%w)", c.path, context.Canceled)
	case errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("control socket %s: no answer in time: `vnic run` is busy or starts its worker again, its log says which (%w)", c.path, context.DeadlineExceeded)
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE),
		errors.Is(err, net.ErrClosed),                                   // net/http noticed the end first, and closed our side before the request read it
		strings.HasSuffix(err.Error(), "server closed idle connection"): // net/http has no error value for it
		return fmt.Errorf("%s was closed without an answer: either `vnic run` ended just now, or this is a guest's socket (attach: in the config) and not the one that `control` names", c.path)
	}
	return fmt.Errorf("control socket %s: %w", c.path, err)
}

func (c *Client) isSocket() bool {
	st, err := os.Stat(c.path)
	return err != nil || st.Mode().Type() == fs.ModeSocket
}

// ErrNoControl means that something else than a NIC's control API answers at the socket.
var ErrNoControl = errors.New("not a control socket")

// wary is a connection whose answer must be HTTP.
type wary struct {
	net.Conn
	seen int // number of bytes of httpBegins that were seen
}

const httpBegins = "HTTP/"

func (w *wary) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	begin := b[:min(n, len(httpBegins)-w.seen)]
	if string(begin) != httpBegins[w.seen:w.seen+len(begin)] {
		return 0, ErrNoControl
	}
	w.seen += len(begin)
	return n, err
}
