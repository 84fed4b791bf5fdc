package qemu

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/guestmem"
	"github.com/falcon-vnic/vnic/qemu/vhostuser"
	"github.com/falcon-vnic/vnic/qemu/virtqueue"
	"github.com/falcon-vnic/vnic/qemu/vsock"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// VhostOptions are the optional parts of a vhost-user attachment.
type VhostOptions struct {
	Log *slog.Logger // default: slog.Default()
	// Ledger is where a worker records the guest's flows, so that the next worker can reset them.
	// default: none
	Ledger *vsock.Ledger
	// Known is closed when this process has received what QEMU told its predecessor. Until then,
	// sessions that drivers open by windows wait, since the device would not find their memory.
	// default: no predecessor, nothing to wait for
	Known <-chan struct{}
	// Memory bounds how much of the guest's memory is mapped.
	// default: guestmem.Attachment
	Memory *guestmem.Budget
}

// VhostUser is the vsock device of one guest, served to its QEMU over a unix
// socket:
//
//	-object memory-backend-memfd,id=m0,size=…,share=on -machine …,memory-backend=m0
//	-chardev socket,id=vs,path=PATH -device vhost-user-vsock-pci,chardev=vs
//
// It serves one QEMU at a time. When that QEMU exits, all sessions end and the next QEMU may
// connect to the same socket; ports stay open meanwhile.
//
// It serves none before Serve. A guest that runs already, as when a worker takes over from one that
// died, may connect to a port with the first that is served, and its QEMU announces the windows that
// the guest has. So ports and windows that are not new are there before Serve.
type VhostUser struct {
	cid    uint32
	path   string
	log    *slog.Logger
	server *server
	dev    *vsock.Device
	mem    *guestmem.Budget

	mu      sync.Mutex
	windows map[uint32]*guestWindow // by function number
	ram     *ram                    // of the current or last guest; each guest has its own, so no session sees a later one's
	forward *forward                // nil: none
	closed  bool
	here    presence

	opened    chan *windowSession // sessions by windows, not accepted yet
	done      chan struct{}       // closed by Close
	accepting sync.WaitGroup
}

// ListenVhostUser returns the device of the guest with context ID cid, on a unix socket at path.
// It must be called before QEMU starts: QEMU refuses to start without the socket
// and never reconnects. The socket belongs to the caller's user and, if the umask allows it, to its
// group, because any process that connects is treated as the guest. QEMU must run as that user, in
// that group, or as root.
func ListenVhostUser(path string, cid uint32, opt VhostOptions) (*VhostUser, error) {
	if err := checkCID(path, cid); err != nil {
		return nil, err
	}
	sock, err := listenUnixSocket(path)
	if err != nil {
		return nil, fmt.Errorf("vhost-user: %w", err)
	}
	return NewVhostUser(sock, path, cid, opt)
}

// NewVhostUser is like ListenVhostUser, but accepts connections from in (those of a VhostRelay),
// which it closes. path is the socket that QEMU connects to.
func NewVhostUser(in Acceptor, path string, cid uint32, opt VhostOptions) (*VhostUser, error) {
	if err := checkCID(path, cid); err != nil {
		return nil, errors.Join(err, in.Close())
	}
	log := opt.logger().With("socket", path, "guest_cid", cid)
	v := &VhostUser{cid: cid, path: path, log: log, mem: opt.memory(path), dev: vsock.NewDevice(cid, log), ram: &ram{}, opened: make(chan *windowSession), done: make(chan struct{}), here: newPresence(opt.Known)}
	if opt.Ledger != nil {
		v.dev.Flows.UseLedger(opt.Ledger)
	}
	v.server = newServer(in, log, v.serve)
	return v, nil
}

// Serve begins to serve QEMUs. It is called once.
func (v *VhostUser) Serve() { v.server.start() }

func checkCID(path string, cid uint32) error {
	if cid <= vsock.HostCID || cid == 0xffffffff {
		return fmt.Errorf("vhost-user %s: context ID %d is reserved, use 3 to 4294967294", path, cid)
	}
	return nil
}

func (o *VhostOptions) logger() *slog.Logger {
	if o.Log == nil {
		return slog.Default()
	}
	return o.Log
}

func (o *VhostOptions) memory(of string) *guestmem.Budget {
	if o.Memory == nil {
		return guestmem.NewBudget(of, guestmem.Attachment)
	}
	return o.Memory
}

// Path returns the socket's path.
func (v *VhostUser) Path() string { return v.path }

// CID returns the guest's context ID.
func (v *VhostUser) CID() uint32 { return v.cid }

// Stats returns the counters of the guest's flows.
func (v *VhostUser) Stats() vsock.Stats { return v.dev.Flows.Stats() }

// Dial connects to a vsock port on which the guest listens.
func (v *VhostUser) Dial(port uint32, timeout time.Duration) (net.Conn, error) {
	c, err := v.dev.Flows.Dial(port, timeout)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Listen accepts the guest's connections to a vsock port of the host.
func (v *VhostUser) Listen(port uint32) (queues.Attachment, error) {
	l, err := v.dev.Flows.Listen(port)
	if err != nil {
		return nil, fmt.Errorf("vhost-user %s: %w", v.path, err)
	}
	p := &vhostPort{v: v, l: l, port: port, came: make(chan vhostCame), done: make(chan struct{})}
	if port == abi.Port {
		p.opened = v.opened
	}
	go p.run()
	return p, nil
}

// Close disconnects QEMU, ends all sessions, removes the socket file and waits until no memory of
// the guest is mapped. A session that uses a window for its doorbells keeps the window until it
// ends. The guest keeps running without its vsock.
func (v *VhostUser) Close() error {
	v.mu.Lock()
	if v.closed {
		v.mu.Unlock()
		return nil
	}
	v.closed = true
	forward := v.forward
	v.mu.Unlock()
	close(v.done)
	err := v.server.close()
	v.dev.Close() // ends the guest's side of what is forwarded
	if forward != nil {
		err = errors.Join(err, forward.close())
	}
	for _, w := range v.windows { // closed: no window is added any more
		err = errors.Join(err, w.end())
	}
	v.accepting.Wait()
	return err
}

// serve serves a QEMU until it disconnects.
func (v *VhostUser) serve(conn *net.UnixConn) error {
	v.mu.Lock()
	v.ram = &ram{}
	g := &vhostGuest{dev: v.dev, ram: v.ram, isWindow: v.isWindow}
	v.mu.Unlock()
	v.here.begin()
	err := vhostuser.Serve(conn, g, v.mem)
	v.here.end()
	v.dev.Flows.Reset()
	v.hangUp()
	return err
}

// vhostPort is one port of a VhostUser; it implements queues.Attachment. The port of docs/abi
// (abi.Port) also accepts the sessions of the guest's windows, whose drivers use the control block
// instead of a vsock connection.
type vhostPort struct {
	v      *VhostUser
	l      *vsock.Listener
	port   uint32
	came   chan vhostCame        // closed when the listener is closed
	opened <-chan *windowSession // nil unless the port is abi.Port
	done   chan struct{}         // closed by Close
	once   sync.Once
}

// vhostCame is a result of the listener's AcceptConn.
type vhostCame struct {
	conn *vsock.Conn
	err  error
}

// run accepts connections to the port until it is closed.
func (p *vhostPort) run() {
	defer close(p.came)
	for {
		c, err := p.l.AcceptConn()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		select {
		case p.came <- vhostCame{c, err}:
		case <-p.done:
			if err == nil {
				_ = c.Close()
			}
			return
		}
	}
}

func (p *vhostPort) Accept() (queues.Session, error) {
	select {
	case c, ok := <-p.came:
		switch {
		case !ok:
			return nil, net.ErrClosed
		case c.err != nil:
			return nil, c.err
		}
		p.v.mu.Lock()
		defer p.v.mu.Unlock()
		return &vhostSession{c.conn, p.v, p.v.ram}, nil
	case s := <-p.opened:
		return s, nil
	}
}

func (p *vhostPort) Addr() string { return fmt.Sprintf("vhost-user:%s#%d", p.v.path, p.port) }

func (p *vhostPort) Close() error {
	p.once.Do(func() { close(p.done) })
	return p.l.Close()
}

type vhostSession struct {
	*vsock.Conn
	v   *VhostUser
	ram *ram
}

func (s *vhostSession) Identity() queues.Identity { return s.v.peer() }

func (s *vhostSession) Watch(f func(queues.Regions)) (stop func()) { return s.ram.watch(f) }

// Bell implements queues.Ringer.
func (s *vhostSession) Bell(function uint32) (queues.Bell, error) { return s.v.bell(function) }

func (v *VhostUser) peer() queues.Identity {
	return queues.Identity{Transport: "vhost-user", CID: v.cid}
}

// vhostGuest is the device of one QEMU. It connects the protocol (vhostuser), the rings and flows
// (vsock.Device) and the watchers of the guest's memory.
type vhostGuest struct {
	dev     *vsock.Device
	ram     *ram
	regions []queues.Region
	// isWindow recognizes the NIC's own windows, which QEMU announces with the guest's memory.
	isWindow func(dev, ino uint64) bool
	kicks    [2]*kickReader // by ring
}

// vhostFeatures are the virtio features of the device.
const vhostFeatures = vhostuser.FeatureVersion1

func (g *vhostGuest) Layout() vhostuser.Layout { return vhostuser.VsockLayout }

func (g *vhostGuest) Features() uint64 { return vhostFeatures }

func (g *vhostGuest) Config(off uint32, b []byte) bool { return g.dev.Config(off, b) }

func (g *vhostGuest) SetMemory(st *vhostuser.State, maps []*vhostuser.Mapping) error {
	regions := make([]queues.Region, 0, len(maps))
	for _, m := range maps {
		if g.isWindow(m.Dev, m.Ino) {
			continue // never a target of DMA
		}
		regions = append(regions, queues.Region{Addr: m.GPA, Mem: m.Mem})
	}
	g.regions = regions
	err := g.dev.Rebind(func(i int, q virtqueue.Ring) error {
		cfg, err := ringConfig(st, i)
		if err != nil {
			return err
		}
		return q.Rebind(g.memory(), cfg)
	})
	g.ram.set(queues.NewRegions(regions))
	return err
}

// memory returns the guest's memory for one ring: a virtqueue.RAM has one owner, and the two rings
// are used under different locks.
func (g *vhostGuest) memory() *virtqueue.RAM {
	var m virtqueue.RAM
	m.Set(g.regions)
	return &m
}

func ringConfig(st *vhostuser.State, i int) (virtqueue.Config, error) {
	desc, avail, used, err := st.RingGPA(i)
	r := &st.Vrings[i]
	return virtqueue.Config{Size: r.Num, Desc: desc, Driver: avail, Device: used, Base: r.Base, Resume: r.NoBase}, err
}

// StartVring starts a ring. If the driver placed the ring wrongly, the ring does not start, but the
// connection stays: QEMU does not reconnect, so closing it would cost the guest its device for
// good.
func (g *vhostGuest) StartVring(st *vhostuser.State, i int, kick, call, errfd int) error {
	cfg, err := ringConfig(st, i)
	if err != nil {
		return err
	}
	var q virtqueue.Ring
	fault := virtqueue.Guard(func() { q, err = virtqueue.New(g.memory(), cfg) })
	if err = errors.Join(err, fault); err != nil { // all that can be wrong is the driver's
		g.dev.Refuse(i, err, errfd)
		return nil
	}
	k, err := newKickReader(kick, func() { g.dev.Kick(i) })
	if err != nil {
		return err
	}
	g.dev.Start(i, q, call, errfd)
	g.kicks[i] = k
	go k.run()
	return nil
}

func (g *vhostGuest) SetCall(i, call, errfd int) { g.dev.SetCall(i, call, errfd) }

func (g *vhostGuest) StopVring(i int) (base uint32) {
	base = uint32(g.dev.Stop(i))
	if k := g.kicks[i]; k != nil {
		k.stop()
		g.kicks[i] = nil
	}
	return base
}

// kickReader calls f for each notification of an eventfd. It never reads the eventfd: QEMU may make
// it blocking, and then a read could not be interrupted. Reading is not needed, since the runtime's
// poller reports each write to the eventfd, whatever its counter is.
type kickReader struct {
	file *os.File
	raw  syscall.RawConn
	f    func()
	done chan struct{}
}

func newKickReader(fd int, f func()) (*kickReader, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("kick descriptor: %w", err)
	}
	if err := unix.SetNonblock(own, true); err != nil { // the runtime polls only nonblocking descriptors
		return nil, errors.Join(fmt.Errorf("kick descriptor: %w", err), unix.Close(own))
	}
	k := &kickReader{file: os.NewFile(uintptr(own), "kick"), f: f, done: make(chan struct{})}
	if err := k.file.SetReadDeadline(time.Time{}); err != nil {
		return nil, errors.Join(fmt.Errorf("kick descriptor cannot be polled: %w", err), k.file.Close())
	}
	if k.raw, err = k.file.SyscallConn(); err != nil {
		return nil, errors.Join(fmt.Errorf("kick descriptor: %w", err), k.file.Close())
	}
	return k, nil
}

func (k *kickReader) run() {
	defer close(k.done)
	_ = k.raw.Read(func(uintptr) (done bool) { // called at once, then for each event
		k.f()
		return false
	})
}

func (k *kickReader) stop() {
	_ = k.file.Close()
	<-k.done
}
