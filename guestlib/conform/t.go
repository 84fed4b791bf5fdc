package conform

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/arena"
)

// T is one check at work: it ends the check and owns what it opened.
type T struct {
	ctx      context.Context
	cfg      *Config
	function uint32 // that the URL names, or FunctionAssigned
	clients  []*client
	cleanups []func()
	device   *pciDevice // by which all streams of the check go, nil: each has its own way
}

// ending is how a check ends before its last line; it is thrown.
type ending struct {
	outcome Outcome
	text    string
}

func newT(ctx context.Context, cfg *Config) *T { return &T{ctx: ctx, cfg: cfg} }

// protect runs f and returns how it ended, nil if at its last line.
func (t *T) protect(f func()) (end *ending) {
	defer func() {
		switch e := recover().(type) {
		case nil:
		case *ending:
			end = e
		default:
			panic(e)
		}
	}()
	f()
	return nil
}

// Fatalf ends the check: the device failed it.
func (t *T) Fatalf(format string, args ...any) {
	panic(&ending{Failed, fmt.Sprintf(format, args...)})
}

// Skipf ends the check: there is nothing to check here.
func (t *T) Skipf(format string, args ...any) {
	panic(&ending{Skipped, fmt.Sprintf(format, args...)})
}

// ok ends the check on an error of this side.
func (t *T) ok(err error) {
	if err != nil {
		t.Fatalf("%v", err)
	}
}

// until waits until done, and fails saying what for.
func (t *T) until(done func() bool, format string, args ...any) {
	for end := time.Now().Add(t.cfg.Wait); !done(); {
		if time.Now().After(end) || t.ctx.Err() != nil {
			t.Fatalf("waited in vain for "+format, args...)
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// never makes sure that something does not happen for a moment.
func (t *T) never(happened func() bool, format string, args ...any) {
	for end := time.Now().Add(quiet); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if happened() {
			t.Fatalf(format, args...)
		}
	}
}

func (t *T) cleanup(f func()) { t.cleanups = append(t.cleanups, f) }

// close ends all streams and gives the memory back when the device is done with it (DRV-208).
func (t *T) close() {
	for i := len(t.cleanups) - 1; i >= 0; i-- {
		t.protect(t.cleanups[i])
	}
	for _, c := range t.clients {
		t.protect(c.stream.leave)
	}
	for _, c := range t.clients {
		c.pool.Close()
	}
	t.clients = nil
	if t.device != nil {
		t.ok(t.device.memory.Close())
		t.device = nil
	}
}

// dial opens a stream and says nothing.
func (t *T) dial() *client {
	if t.device != nil {
		return t.redial()
	}
	conn, src, function, err := guestlib.Dial(t.ctx, t.cfg.URL, t.memory())
	t.ok(err)
	t.function = uint32(function)
	if pci := guestlib.PCIOf(src); pci != nil {
		t.device = &pciDevice{pci, src}
		src = borrowed{src}
	}
	return t.client(conn, src)
}

func (t *T) client(conn net.Conn, src arena.Source) *client {
	c := newClient(t, conn, src)
	t.clients = append(t.clients, c)
	return c
}
