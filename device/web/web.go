package web

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"time"

	"github.com/falcon-vnic/vnic/device/control"
)

// Source is what the page shows. control.Provider has it, and so has control.Client.
type Source interface {
	NIC(ctx context.Context) (control.NIC, error)
	Functions(ctx context.Context) ([]control.Function, error)
	Connections(ctx context.Context) ([]control.Connection, error)
	Counters(ctx context.Context) (control.Counters, error)
	Credits(ctx context.Context) ([]control.CreditNode, error)
	QPs(ctx context.Context) ([]control.QP, error)
	Keys(ctx context.Context) ([]control.Key, error)
	Capture(ctx context.Context, mode string, ports []string, w io.Writer) error
	Trace(ctx context.Context, what control.TraceRequest, w io.Writer) error
}

const (
	maxClients = 32 // connections at a time
	maxStreams = 8  // of them with events
	askTime    = 5 * time.Second
	writeTime  = 10 * time.Second // for a browser to take what was written
)

//go:embed page
var files embed.FS

// Server serves the page.
type Server struct {
	http *http.Server
	addr net.Addr
	end  context.CancelFunc // ends events, traces and captures
	done chan struct{}
}

// Serve listens on a TCP address. A browser must address the server by an IP address, by localhost,
// by the machine's name, or by one of names.
func Serve(addr string, names []string, s Source) (*Server, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	life, end := context.WithCancel(context.Background())
	v := &Server{addr: ln.Addr(), end: end, done: make(chan struct{}), http: &http.Server{
		ReadTimeout: askTime, WriteTimeout: writeTime, IdleTimeout: time.Minute, MaxHeaderBytes: 1 << 14,
		BaseContext: func(net.Listener) context.Context { return life },
	}}
	clients := control.BoundClients(v.http, maxClients)
	h := guard(names, handler(s))
	v.http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer clients.Busy(r)()
		h.ServeHTTP(w, r)
	})
	go func() {
		defer close(v.done)
		_ = v.http.Serve(ln) // ends by Close
	}()
	return v, nil
}

// Addr returns the address it listens on.
func (v *Server) Addr() net.Addr { return v.addr }

// Close ends what is being sent, and stops the server.
func (v *Server) Close() error {
	v.end()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := v.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, v.http.Close())
	}
	<-v.done
	return err
}

func handler(s Source) http.Handler {
	page, err := fs.Sub(files, "page")
	if err != nil {
		panic(err) // the folder is embedded
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(page))
	mux.HandleFunc("GET /events", newWatch(s).events)
	mux.HandleFunc("GET /trace", newRecorder("a trace", s).trace)
	mux.HandleFunc("GET /capture", newRecorder("a capture", s).capture)
	return mux
}

// guard refuses requests that pages of other sites may have caused, and tells the browser what this
// page may do: load its own files, and nothing else.
func guard(names []string, h http.Handler) http.Handler {
	known := control.KnownHosts(names)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head := w.Header()
		head.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "+
			"base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		head.Set("Cross-Origin-Opener-Policy", "same-origin")
		head.Set("Cross-Origin-Resource-Policy", "same-origin")
		head.Set("Referrer-Policy", "no-referrer")
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("Cache-Control", "no-cache")
		switch origin := r.Header.Get("Origin"); {
		case !known(r.Host):
			http.Error(w, fmt.Sprintf("%q is not a name of this NIC: ask by address, or list the name under web.hosts", r.Host), http.StatusForbidden)
		case origin != "" && origin != "http://"+r.Host, foreign(r):
			http.Error(w, "pages of other sites may not ask this NIC: open its own page", http.StatusForbidden)
		default:
			h.ServeHTTP(w, r)
		}
	})
}

// foreign reports whether a page of another site caused the request (Fetch Metadata). A link there
// may lead to our page, but not to what is recorded for it.
func foreign(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none": // "": a program, or an old browser
		return false
	}
	return r.URL.Path != "/" || r.Header.Get("Sec-Fetch-Dest") != "document"
}
