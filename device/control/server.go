package control

import (
	"cmp"
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
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// maxPath is the longest path that fits a unix socket address (sun_path) with its terminating
	// zero.
	maxPath = 107
	// answerTime is the most time that a Provider gets for one request.
	answerTime = 5 * time.Second
	// maxClients is the maximum number of connections at a time.
	maxClients = 64
)

// Server answers on a unix socket.
type Server struct {
	http *http.Server
	end  context.CancelFunc // ends the requests that last as long as the server
	done chan struct{}
	once sync.Once
	err  error
}

// Listener is a control socket.
type Listener struct {
	*net.UnixListener
	path string
	stat os.FileInfo // of the socket, so that no other process's socket is removed
}

// Listen makes a control socket with mode 0600. It replaces a socket left behind by a process that
// has ended. A socket that still answers, and any other file, is an error.
func Listen(path string) (*Listener, error) {
	ln, err := listen(path)
	if err != nil {
		return nil, fmt.Errorf("control socket %s: %w", path, err)
	}
	stat, err := os.Lstat(path)
	if err != nil {
		_ = ln.Close()
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return &Listener{ln, path, stat}, nil
}

// Close removes the socket if it is still ours.
func (l *Listener) Close() error {
	err := l.UnixListener.Close()
	if errors.Is(err, net.ErrClosed) {
		return err
	}
	if st, serr := os.Lstat(l.path); serr == nil && os.SameFile(st, l.stat) {
		err = errors.Join(err, os.Remove(l.path))
	}
	return err
}

// ServeOn serves requests on a control socket. The server's Close closes the socket.
func ServeOn(ln net.Listener, p Provider) *Server {
	life, end := context.WithCancel(context.Background())
	s := &Server{
		end: end, done: make(chan struct{}),
		http: &http.Server{
			ReadTimeout:       answerTime,
			ReadHeaderTimeout: answerTime,
			WriteTimeout:      2 * answerTime,
			IdleTimeout:       time.Minute,
			MaxHeaderBytes:    1 << 14,
		},
	}
	clients, h := BoundClients(s.http, maxClients), handler(life, p)
	s.http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer clients.Busy(r)()
		h.ServeHTTP(w, r)
	})
	go func() {
		defer close(s.done)
		_ = s.http.Serve(ln) // ends by Close
	}()
	return s
}

// listen binds under another name and renames the socket, so that it never has the wrong mode or
// does not answer.
func listen(path string) (*net.UnixListener, error) {
	temp := fmt.Sprintf("%s.%d", path, os.Getpid())
	if len(temp) > maxPath {
		return nil, fmt.Errorf("%d bytes long, at most %d: choose a shorter path", len(path), maxPath-len(temp)+len(path))
	}
	if err := vacate(path); err != nil {
		return nil, err
	}
	_ = os.Remove(temp) // left by a process with the same number
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: temp, Net: "unix"})
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("no folder %s: make it, or choose another path", filepath.Dir(path))
		}
		return nil, err
	}
	ln.SetUnlinkOnClose(false) // Close removes it
	if err = os.Chmod(temp, 0o600); err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_ = errors.Join(ln.Close(), os.Remove(temp))
		return nil, err
	}
	return ln, nil
}

// vacate returns an error if a process listens at path, or if another kind of file is there.
func vacate(path string) error {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case st.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("a file that is not a socket is there: remove it or choose another path")
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = conn.Close()
		return errors.New("another process answers there: is `vnic run` running already with this configuration?")
	}
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
		return nil // its process has ended; Rename replaces the socket
	}
	return err
}

// Close stops serving and removes the socket if it is still ours.
func (s *Server) Close() error {
	s.once.Do(func() {
		s.end()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := s.http.Shutdown(ctx); err != nil {
			s.err = s.http.Close()
		}
		<-s.done
	})
	return s.err
}

func handler(life context.Context, p Provider) http.Handler {
	mux := http.NewServeMux()
	var paths []string
	handle := func(method, path, allow string, f func(context.Context, *http.Request) (any, error)) {
		paths = append(paths, path)
		mux.HandleFunc(method+" "+path, func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), answerTime)
			defer cancel()
			v, err := f(ctx, r)
			switch bad := (BadRequest{}); {
			case errors.As(err, &bad):
				reply(w, http.StatusBadRequest, failure{err.Error()})
			case err != nil:
				reply(w, http.StatusServiceUnavailable, failure{err.Error()})
			default:
				reply(w, http.StatusOK, v)
			}
		})
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", allow)
			reply(w, http.StatusMethodNotAllowed, failure{fmt.Sprintf("%s %s: only %s is possible", r.Method, path, method)})
		})
	}
	get := func(path string, f func(context.Context) (any, error)) {
		handle("GET", path, "GET, HEAD", func(ctx context.Context, _ *http.Request) (any, error) { return f(ctx) })
	}
	get("/v1/nic", func(ctx context.Context) (any, error) { return p.NIC(ctx) })
	get("/v1/peers", func(ctx context.Context) (any, error) { return list(p.Peers(ctx)) })
	get("/v1/directory", func(ctx context.Context) (any, error) { return p.Directory(ctx) })
	get("/v1/functions", func(ctx context.Context) (any, error) { return list(p.Functions(ctx)) })
	get("/v1/connections", func(ctx context.Context) (any, error) { return list(p.Connections(ctx)) })
	get("/v1/routes", func(ctx context.Context) (any, error) { return list(p.Routes(ctx)) })
	get("/v1/counters", func(ctx context.Context) (any, error) { return p.Counters(ctx) })
	get("/v1/credits", func(ctx context.Context) (any, error) { return list(p.Credits(ctx)) })
	get("/v1/qps", func(ctx context.Context) (any, error) { return list(p.QPs(ctx)) })
	get("/v1/queues", func(ctx context.Context) (any, error) { return list(p.Queues(ctx)) })
	get("/v1/violations", func(ctx context.Context) (any, error) { return list(p.Violations(ctx)) })
	get("/v1/keys", func(ctx context.Context) (any, error) { return list(p.Keys(ctx)) })
	handle("POST", "/v1/functions/change", "POST", with(p.ChangeFunction))
	handle("POST", "/v1/reload", "POST", func(ctx context.Context, _ *http.Request) (any, error) { return p.Reload(ctx) })
	handle("POST", "/v1/recording/start", "POST", with(p.StartRecording))
	handle("POST", "/v1/recording/stop", "POST", func(ctx context.Context, _ *http.Request) (any, error) { return p.StopRecording(ctx) })
	handle("POST", "/v1/peers/change", "POST", with(func(ctx context.Context, c PeerChange) (any, error) { return list(p.ChangePeer(ctx, c)) }))
	handle("POST", "/v1/violations/clear", "POST", func(ctx context.Context, _ *http.Request) (any, error) { return list(p.ClearViolations(ctx)) })
	handle("POST", "/v1/keys/rotate", "POST", func(ctx context.Context, _ *http.Request) (any, error) { return p.RotateKeys(ctx) })
	handle("POST", "/v1/inject/link", "POST", with(p.InjectLink))
	handle("POST", "/v1/inject/fault", "POST", with(func(ctx context.Context, c FaultChange) (any, error) { return list(p.InjectFault(ctx, c)) }))
	get("/v1/faults", func(ctx context.Context) (any, error) { return list(p.Faults(ctx)) })
	paths = append(paths, capturePath, tracePath, recordingPath)
	mux.HandleFunc("GET "+recordingPath, func(w http.ResponseWriter, r *http.Request) {
		stream(life, w, r, "application/octet-stream", p.Recording)
	})
	mux.HandleFunc("GET "+capturePath, func(w http.ResponseWriter, r *http.Request) {
		stream(life, w, r, "application/x-pcapng", func(ctx context.Context, out io.Writer) error {
			q := r.URL.Query()
			return p.Capture(ctx, q.Get("mode"), q["port"], out)
		})
	})
	mux.HandleFunc("GET "+tracePath, func(w http.ResponseWriter, r *http.Request) {
		stream(life, w, r, "application/jsonl", func(ctx context.Context, out io.Writer) error {
			t, err := traceRequest(r.URL.Query())
			if err != nil {
				return err
			}
			return p.Trace(ctx, t, out)
		})
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		reply(w, http.StatusNotFound, failure{fmt.Sprintf("%s: unknown path; use one of %s", r.URL.Path, strings.Join(paths, ", "))})
	})
	return mux
}

// with returns a handler that decodes the request's body and calls f with it.
func with[C, R any](f func(context.Context, C) (R, error)) func(context.Context, *http.Request) (any, error) {
	return func(ctx context.Context, r *http.Request) (any, error) {
		var c C
		if err := body(r, &c); err != nil {
			return nil, err
		}
		return f(ctx, c)
	}
}

func traceRequest(q url.Values) (t TraceRequest, err error) {
	qpn, err := strconv.ParseUint(cmp.Or(q.Get("qp"), "0"), 0, 24)
	if err != nil {
		return t, BadRequest{fmt.Errorf("qp %q: write a queue pair's number, as 0x11", q.Get("qp"))}
	}
	duration, err := time.ParseDuration(cmp.Or(q.Get("for"), "0s"))
	if err != nil || duration < 0 {
		return t, BadRequest{fmt.Errorf("for %q: write a time, as 5s", q.Get("for"))}
	}
	return TraceRequest{Function: q.Get("function"), QPN: uint32(qpn), For: duration}, nil
}

// Answers that last until the client disconnects, or are long.
const (
	capturePath   = "/v1/capture"
	tracePath     = "/v1/trace"
	recordingPath = "/v1/recording"
)

// stream sends what f writes until the client disconnects or the server ends.
func stream(life context.Context, w http.ResponseWriter, r *http.Request, kind string, f func(context.Context, io.Writer) error) {
	c := http.NewResponseController(w)
	if err := errors.Join(c.SetWriteDeadline(time.Time{}), c.SetReadDeadline(time.Time{})); err != nil {
		reply(w, http.StatusInternalServerError, failure{err.Error()})
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(life, cancel)()
	out := &flushing{w: w, c: c, kind: kind}
	err := f(ctx, out)
	switch bad := (BadRequest{}); {
	case err == nil || out.begun: // it is too late to report an error
	case errors.As(err, &bad):
		reply(w, http.StatusBadRequest, failure{err.Error()})
	default:
		reply(w, http.StatusServiceUnavailable, failure{err.Error()})
	}
}

// flushing sends every write at once: the writer has its own buffer.
type flushing struct {
	w     http.ResponseWriter
	c     *http.ResponseController
	kind  string // of content
	begun bool
}

func (f *flushing) Write(b []byte) (int, error) {
	if !f.begun {
		f.begun = true
		f.w.Header().Set("Content-Type", f.kind)
	}
	n, err := f.w.Write(b)
	if err == nil {
		err = f.c.Flush()
	}
	return n, err
}

// maxBody bounds the length of a request's body.
const maxBody = 1 << 16

// body reads the JSON of a request into v.
func body(r *http.Request, v any) error {
	dec := json.NewDecoder(http.MaxBytesReader(nil, r.Body, maxBody))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return BadRequest{fmt.Errorf("the body is not what is expected: %w; give a JSON object", err)}
	}
	return nil
}

// list makes an empty list [] in JSON, not null.
func list[T any](v []T, err error) ([]T, error) {
	if v == nil {
		v = []T{}
	}
	return v, err
}

type failure struct {
	Error string `json:"error"`
}

func reply(w http.ResponseWriter, status int, v any) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil { // the types are ours, so this is a defect that must be visible
		status, body = http.StatusInternalServerError, []byte(`{"error": "the answer cannot be written as JSON"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}
