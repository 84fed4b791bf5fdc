package conform

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
	"github.com/falcon-vnic/vnic/guestlib/arena"
)

// T is one run of a check. It ends the check, and owns everything that the check opened.
type T struct {
	ctx      context.Context
	cfg      *Config
	function uint32 // the function that the URL names, or FunctionAssigned
	clients  []*client
	cleanups []func()
	device   *pciDevice // through which all streams of the check go; nil: each has a connection of its own
}

// ending is the panic value with which a check ends before its last line.
type ending struct {
	outcome Outcome
	text    string
}

func newT(ctx context.Context, cfg *Config) *T { return &T{ctx: ctx, cfg: cfg} }

// protect runs f. It returns nil if f ran to its end, otherwise why it did not.
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

// Fatalf ends the check because the device failed it.
func (t *T) Fatalf(format string, args ...any) {
	panic(&ending{Failed, fmt.Sprintf(format, args...)})
}

// Skipf ends the check because it does not apply to this device.
func (t *T) Skipf(format string, args ...any) {
	panic(&ending{Skipped, fmt.Sprintf(format, args...)})
}

// noError ends the check if err is an error.
func (t *T) noError(err error) {
	if err != nil {
		t.Fatalf("%v", err)
	}
}

// until waits until done returns true. If that takes too long the check fails; the format says what
// it waited for.
func (t *T) until(done func() bool, format string, args ...any) {
	for end := time.Now().Add(t.cfg.Wait); !done(); {
		if time.Now().After(end) || t.ctx.Err() != nil {
			t.Fatalf("waited in vain for "+format, args...)
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// never fails the check if something happens within a short time.
func (t *T) never(happened func() bool, format string, args ...any) {
	for end := time.Now().Add(quiet); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if happened() {
			t.Fatalf(format, args...)
		}
	}
}

func (t *T) cleanup(f func()) { t.cleanups = append(t.cleanups, f) }

// close ends all streams, and frees the memory when the device no longer uses it (DRV-208).
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
		t.noError(t.device.memory.Close())
		t.device = nil
	}
}

// dial opens a stream and sends nothing.
func (t *T) dial() *client {
	if t.device != nil {
		return t.redial()
	}
	conn, src, function, err := guestlib.Dial(t.ctx, t.cfg.URL, t.memory())
	t.noError(err)
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
