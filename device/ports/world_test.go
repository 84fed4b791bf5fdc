package ports

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/device/devicetest"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/inbox"
	"github.com/falcon-vnic/vnic/device/shard"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/internal/vtime"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
)

// world is a shard whose functions, from VF 1 in one tenant, have ports in memory, and the set that
// serves them. The test takes the turns and sets the time.
type world struct {
	t     *testing.T
	now   int64
	core  *controller.Core
	shard *shard.Shard
	set   *Set
	ports []*shard.Port
	devs  []*device
	said  []string // calls to devices, in order
	log   bytes.Buffer

	opened []*device // all that were opened
	refuse map[string]error
	polled int // number of devices that are polled; they come first
}

// newWorld creates ports: first polled ones, then ones that signal each frame.
func newWorld(t *testing.T, polled, telling int) *world {
	t.Helper()
	w := describe(t, polled, telling)
	if err := w.open(); err != nil {
		t.Fatal(err)
	}
	w.turn() // the core announces the ports' routes
	w.turn()
	w.said = nil
	return w
}

// describe returns a world without a set.
func describe(t *testing.T, polled, telling int) *world {
	t.Helper()
	text := "nic: {host: 1, shards: 1}\nuplink: {backend: memory, address: 10.99.0.1/24}\ncm: {listen: 127.0.0.1:1, identity: unused}\n" +
		"peers: [{host: 2, underlay: 10.99.0.2, cm: 127.0.0.1:2, identity: vnic://test/host/2, tenants: [7]}]\n" +
		"functions:\n- pf: 0\n"
	for i := range polled + telling {
		if i == 0 {
			text += "  vfs:\n"
		}
		text += fmt.Sprintf("  - {vf: %[1]d, tenant: 7, address: 192.168.100.%[1]d, port: {type: vhost-user, socket: /nowhere/%[1]d}}\n", i+1)
	}
	cfg, err := config.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, now: 1e9, refuse: map[string]error{}, polled: polled}
	w.core, err = controller.NewCore(controller.CoreConfig{
		NIC: cfg, Shards: 1, ShardOf: func(uint32) int { return 0 }, Rand: devicetest.Seeded(1), Log: func(vtime.Time, slog.Level, string, ...any) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	if w.shard, err = shard.New(0, cfg, w.core.ShardLink(0), nil, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	orders := inbox.NewMailbox(w.shard.Inbox(), 0, func(now vtime.Time, o *controller.Order) { (*o)(w.shard.Orders(), now) })
	w.core.ShardLink(0).Serve(orders.Send)
	t.Cleanup(func() {
		for _, d := range w.opened {
			_ = unix.Close(d.fd)
		}
	})
	return w
}

// open creates the set.
func (w *world) open() (err error) {
	set, err := Open(w.shard.Ports(), Sources{Guests: w}, func() int64 { return w.now }, slog.New(slog.NewTextHandler(&w.log, nil)))
	if err != nil {
		return err
	}
	w.set, w.ports = set, slices.Collect(w.shard.Ports().All())
	w.devs = slices.Clone(w.opened)
	w.t.Cleanup(w.close)
	return nil
}

// close closes the set, if it is open.
func (w *world) close() {
	if w.set != nil {
		w.set.Close()
		w.set = nil
	}
}

// OpenPort implements Guests.
func (w *world) OpenPort(c *config.Port, _ func(func()) bool) (Device, error) {
	if err := w.refuse[c.Name]; err != nil {
		return nil, err
	}
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		w.t.Fatal(err)
	}
	d := &device{world: w, name: c.Name, fd: fd, armed: true}
	w.opened = append(w.opened, d)
	if d.looked = len(w.opened) <= w.polled; d.looked {
		return polledDevice{d}, nil
	}
	return d, nil
}

// turn runs the shard on what was read, and the core on the shard's requests.
func (w *world) turn() {
	w.t.Helper()
	var out thread.Output
	w.shard.Step(w.now, &thread.Input{}, &out)
	out.Do()
	var decided controller.CoreOutput
	w.core.Step(w.now, &decided)
	decided.Effects.Do()
}

// read reads the ports and returns the frames: port and size of each.
func (w *world) read() (came string) {
	w.t.Helper()
	some := w.set.Read()
	if some {
		came = w.came()
	}
	if some != (came != "") {
		w.t.Errorf("reported %v, came %q", some, came)
	}
	return came
}

// came returns the frames that the shard was given last.
func (w *world) came() (text string) {
	for _, in := range w.set.in {
		size := len(in.Frame)
		if in.Rest != nil {
			size += in.Rest.Len()
		}
		if text != "" {
			text += " "
		}
		text += fmt.Sprintf("%d:%d", slices.IndexFunc(w.ports, func(p *shard.Port) bool { return p.Endpoint == in.From }), size)
	}
	return text
}

// told reports whether the set's descriptor is readable, because a port has signalled.
func (w *world) told() bool {
	w.t.Helper()
	fds := []unix.PollFd{{Fd: int32(w.set.epoll), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	return n > 0
}

// says returns the calls to devices since the last call.
func (w *world) says() (said []string) {
	said, w.said = w.said, nil
	return said
}

// udp returns a frame with a datagram of n bytes from a port to another address of its tenant.
func (w *world) udp(from int, to netip.Addr, n int) []byte {
	p := w.ports[from]
	f := make([]byte, 14+28+n)
	copy(f, p.Gateway[:])
	copy(f[6:], p.MAC[:])
	f[12] = 8
	ip := f[14:]
	ip[0], ip[6], ip[8], ip[9] = 0x45, 0x40, 64, 17
	binary.BigEndian.PutUint16(ip[2:], uint16(28+n))
	src, dst := p.Addresses[0].As4(), to.As4()
	copy(ip[12:], src[:])
	copy(ip[16:], dst[:])
	devicetest.FinishHeader(ip[:20])
	binary.BigEndian.PutUint16(ip[24:], uint16(8+n))
	return f
}

// address returns the address of a port's function.
func (w *world) address(port int) netip.Addr { return w.ports[port].Addresses[0] }

// occupy keeps the shard busy sealing a frame for a peer: the uplink's queue is full.
func (w *world) occupy(from int) {
	w.t.Helper()
	peer := netip.MustParseAddr("192.168.100.200")
	w.core.ShardLink(0).Routes().Learn(2, []gateway.Address{{Tenant: 7, Addr: peer, Function: uint32(id(w.t, 1)), MTU: 1500}})
	for w.shard.Queue().Slot() != nil {
		w.shard.Queue().Commit(1)
	}
	w.devs[from].put(w.udp(from, peer, 100))
	if w.read() == "" {
		w.t.Fatal("nothing read")
	}
	w.turn()
	if !w.shard.Ports().Busy() {
		w.t.Fatal("the shard is not busy")
	}
}

// id returns the ID of a VF of the PF.
func id(t *testing.T, vf int) pfvf.ID {
	t.Helper()
	id, err := pfvf.NewID(1, 0, uint32(vf))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// device is a port in memory that signals its frames as a TAP does.
type device struct {
	*world
	name    string
	fd      int
	frames  []waiting
	broken  error           // error of Read when there are no more frames
	offload gateway.Offload // offload of its frames
	wrote   []string
	served  int
	gone    error // error of Remove and Close

	looked  bool // it belongs to a polledDevice, and signals while it is armed
	armed   bool
	hurries bool // gets a frame when it is armed
}

// waiting is a frame in a device. The part behind copied stays there.
type waiting struct {
	frame  []byte
	copied int
}

// left is the part that stayed.
type left []byte

func (l left) Len() int  { return len(l) }
func (left) Fetch() bool { return true }

// put adds a frame of the guest.
func (d *device) put(frame []byte) { d.leave(frame, len(frame)) }

// leave adds a frame of the guest of which only the beginning is copied.
func (d *device) leave(frame []byte, copied int) {
	d.frames = append(d.frames, waiting{frame, copied})
	if !d.looked || d.armed {
		d.signal(true)
	}
}

// fill adds frames of these sizes.
func (d *device) fill(sizes ...int) {
	for _, n := range sizes {
		d.put(make([]byte, n))
	}
}

// signal makes the descriptor readable, or not.
func (d *device) signal(on bool) {
	var b [8]byte
	_, _ = unix.Read(d.fd, b[:]) // fails if it was not readable
	if on {
		b = [8]byte{1}
		if _, err := unix.Write(d.fd, b[:]); err != nil {
			d.t.Fatal(err)
		}
	}
}

func (d *device) say(what string) { d.said = append(d.said, what+" "+d.name) }

func (d *device) Read(b []byte) (int, gateway.Rest, gateway.Offload, error) {
	if len(d.frames) == 0 {
		return 0, nil, gateway.Offload{}, d.broken
	}
	f := d.frames[0]
	d.frames = d.frames[1:]
	if len(d.frames) == 0 {
		d.signal(false)
	}
	copy(b, f.frame[:f.copied])
	if f.copied == len(f.frame) {
		return f.copied, nil, d.offload, nil
	}
	return f.copied, left(f.frame[f.copied:]), d.offload, nil
}

func (d *device) Write(parts [][]byte, _ gateway.Offload) bool {
	d.wrote = append(d.wrote, fmt.Sprint(len(bytes.Join(parts, nil))))
	return true
}

func (d *device) FD() int                    { return d.fd }
func (d *device) USO() bool                  { return false }
func (d *device) Takes(gateway.Offload) bool { return true }
func (d *device) SetLink(bool) error         { return nil }
func (d *device) Fault() string              { return "" }
func (d *device) Stats() gateway.PortStats   { return gateway.PortStats{} }
func (d *device) Serve()                     { d.served++ }
func (d *device) Remove() error              { d.say("remove"); return d.gone }
func (d *device) Close() error               { d.say("close"); return d.gone }

// polledDevice is a device that signals a frame only when it was asked to.
type polledDevice struct{ *device }

func (d polledDevice) Wake() {
	d.say("wake")
	d.armed = false
	d.signal(false)
}

func (d polledDevice) Arm() bool {
	if len(d.frames) > 0 || d.hurries {
		return true
	}
	d.say("arm")
	d.armed = true
	return false
}

func (d polledDevice) Return() { d.say("return") }
func (d polledDevice) Settle() { d.say("settle") }

func (d polledDevice) WriteWith(head []byte, rest gateway.Rest, _ gateway.Offload) bool {
	d.wrote = append(d.wrote, fmt.Sprintf("%d+%d", len(head), rest.Len()))
	return true
}
