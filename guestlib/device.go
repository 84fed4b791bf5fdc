package guestlib

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/falcon-vnic/vnic/guestlib/arena"
	"github.com/falcon-vnic/vnic/guestlib/window"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Options are the options of Open. The zero value is good for most uses.
type Options struct {
	// Driver is the driver's name in the NIC's logs, at most 32 bytes; "" means "guestlib".
	Driver string
	// Memory limits the memory that the device can access, in bytes. Over vsock 0 means all memory
	// of the guest. Over unix 0 means 256 MiB, which take up space only as they are used.
	Memory int
	// Heartbeat is the interval of heartbeats; 0 means 2 s.
	Heartbeat time.Duration
	// HeartbeatTimeout is how long the device may be silent before it counts as lost; 0 means 20 s.
	HeartbeatTimeout time.Duration
	// CommandTimeout is the time limit for the device's answer to a command; 0 means 30 s.
	CommandTimeout time.Duration
	// RingAlways makes each post send a doorbell, also to a device that polls. It is for measuring
	// the benefit of polling.
	RingAlways bool
	// NoRecovery disables the recovery of a lost device. It stays lost until Reset or Close.
	NoRecovery bool
	// Connect, if not nil, connects to the NIC in place of the socket that a unix URL names: for a
	// driver in the NIC's own process.
	Connect func(context.Context) (*net.UnixConn, error)
	// NoWindow disables the function's window: doorbells and events are messages. It is for
	// measuring the benefit of a window.
	NoWindow bool
}

// features are the features that the driver can use.
const features = abi.FeatureEventIndex | abi.FeatureExtendedVerbs | abi.FeatureDatagrams | abi.FeatureArmWord | abi.FeatureSourceMAC | abi.FeatureFunctionEvents | abi.FeatureVectors

const (
	defaultMemfd = 256 << 20
	// byeTimeout is how long Close waits until the device no longer uses the memory.
	byeTimeout = 5 * time.Second
)

// Info describes a function.
type Info struct {
	Function FunctionID
	Type     abi.FunctionType
	MAC      net.HardwareAddr
	GID      GID
	Tenant   uint32
	MTU      int    // largest path MTU in bytes
	Speed    uint32 // of the port when the device was opened, in Mbit/s
	Features uint64 // abi.Feature bits in use
}

// Limits are the limits of a function. SRQs have at most MaxQPEntries entries of MaxSGE elements.
type Limits struct {
	abi.QueryDeviceResult
	MaxAH, MaxSRQ, MaxMW, MaxXRCD, MaxMCG uint32
}

// ObjectCounts are numbers of objects by kind.
type ObjectCounts = abi.ObjectCounts

// Device is an attached and enabled function. It is safe for concurrent use.
type Device struct {
	target target
	opts   Options
	src    arena.Source
	pool   *arena.Pool

	stream     atomic.Pointer[stream]     // replaced when a lost device is back
	learned    atomic.Pointer[attributes] // never nil
	nextVector atomic.Uint32              // for the next CQ
	admin      atomic.Pointer[admin]      // of the current life of the function
	cm         cm

	objects objects
	events  events

	resetting   sync.Mutex
	memoryInUse bool // the device may still use the memory: a stream ended without its confirmation, with no reset since; guarded by resetting
	survivor    survivor
	closeOnce   sync.Once
	closeErr    error
}

// attributes holds what the driver has learned about a device when it attached.
type attributes struct {
	info    Info
	limits  Limits
	path    string
	winErr  error // why there is no better path
	vectors int   // number of the window's event queues; 0: events are messages
}

// Open attaches to a function and enables it. In a guest the url is vsock://2:7000 or pci://. For a
// process on the NIC's own host it is unix:///path, or vsock://1:7000?memory=/dev/shm/FILE over the
// kernel's vsock loopback with memory in a file that the NIC's configuration names. If several
// functions are assigned to the caller, ?function=pf0.vf1 selects one.
func Open(ctx context.Context, url string, opts Options) (*Device, error) {
	t, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	opts.defaults(t.scheme)
	conn, src, err := dial(ctx, t, opts.Memory, opts.Connect)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", url, err)
	}
	d := &Device{
		target: t,
		opts:   opts,
		src:    src,
		pool:   arena.NewPool(src),
		events: events{c: make(chan Event, eventBacklog)},
	}
	d.cm.init()
	d.survivor.init()
	d.learned.Store(&attributes{path: t.scheme})
	// The admin queue exists before the reader starts, so that the reader can handle messages that
	// a hostile device sends too early.
	s := newStream(conn)
	a, err := newAdmin(s, d.pool, opts.CommandTimeout)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", url, err), conn.Close(), d.pool.Close())
	}
	actx, cancel := context.WithTimeout(ctx, opts.CommandTimeout)
	defer cancel()
	if err := d.begin(actx, s, a); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", url, err), d.Close())
	}
	if !opts.NoRecovery {
		d.survivor.wg.Go(d.survive)
	}
	return d, nil
}

// begin attaches by a new stream and its admin queue.
func (d *Device) begin(ctx context.Context, s *stream, a *admin) error {
	s.handler, s.memory = d.handle, d.pool
	d.stream.Store(s)
	d.admin.Store(a)
	s.start(d.opts.Heartbeat, d.opts.HeartbeatTimeout)
	s.wg.Go(a.watch)
	return d.attach(ctx)
}

func (o *Options) defaults(scheme string) {
	if o.Driver == "" {
		o.Driver = "guestlib"
	}
	if o.Memory == 0 && scheme == "unix" {
		o.Memory = defaultMemfd
	}
	for _, v := range []struct {
		d     *time.Duration
		value time.Duration
	}{{&o.Heartbeat, 2 * time.Second}, {&o.HeartbeatTimeout, 20 * time.Second}, {&o.CommandTimeout, 30 * time.Second}} {
		if *v.d <= 0 {
			*v.d = v.value
		}
	}
}

// attach sends the hello and brings the function to READY.
func (d *Device) attach(ctx context.Context) error {
	fn, opts := d.target.function, &d.opts
	hello := abi.Hello{Major: abi.VersionMajor, Minor: abi.VersionMinor, Function: uint32(fn), Features: features}
	if opts.RingAlways {
		hello.Features &^= abi.FeatureEventIndex
	}
	abi.PutText(hello.Driver[:], opts.Driver)
	body, err := d.stream.Load().call(ctx, &hello)
	if err != nil {
		return err
	}
	var reply abi.HelloReply
	if err := abi.Decode(body, &reply); err != nil {
		return protocolError("%v", err)
	}
	if reply.Status != abi.StatusOK {
		return d.stream.Load().refused(ctx, "hello for function "+fn.String(), reply.Status)
	}
	if reply.Major != abi.VersionMajor {
		return fmt.Errorf("%w: the device speaks ABI version %d, this driver %d: update the older one", ErrUnsupported, reply.Major, abi.VersionMajor)
	}
	if extra := reply.Features &^ hello.Features; extra != 0 {
		return protocolError("the device turned on features %#x, which the driver did not offer", extra)
	}
	at := &attributes{path: d.target.scheme}
	at.info.Features = reply.Features
	if opts.NoWindow {
		at.winErr = errors.New("the program wants none")
	} else {
		d.openWindow(at, reply.Function)
	}
	if err := d.enable(ctx); err != nil {
		return err
	}
	if err := (registers{d.stream.Load()}).identify(ctx, &at.info); err != nil {
		return err
	}
	d.learned.Store(at) // Query needs the features
	limits, err := d.Query(ctx)
	if err != nil {
		return err
	}
	all := *at
	all.limits = limits
	d.learned.Store(&all)
	return nil
}

// enable resets the function if an earlier driver left it in use, sets up the admin queue and waits
// for READY.
func (d *Device) enable(ctx context.Context) error {
	regs := registers{d.stream.Load()}
	state, err := regs.state(ctx)
	if err != nil {
		return err
	}
	switch state {
	case abi.StateReset:
	case abi.StateDisabled:
		return fmt.Errorf("%w: the function is %s: enable it on the host", ErrState, state)
	default:
		if err := regs.control(ctx, abi.ControlReset, abi.StateReset); err != nil {
			return err
		}
	}
	a := d.admin.Load()
	a.clear()
	for _, w := range []abi.RegWrite{
		{Offset: abi.RegAdminSQ, Width: 8, Value: a.sq.list.Root},
		{Offset: abi.RegAdminCQ, Width: 8, Value: a.cq.list.Root},
		{Offset: abi.RegAdminEntries, Width: 4, Value: abi.MaxAdminEntries},
	} {
		if err := regs.write(ctx, w); err != nil {
			return err
		}
	}
	if err := regs.control(ctx, abi.ControlEnable, abi.StateReady); err != nil {
		return regs.outside(ctx, err, slices.Concat(a.sq.block.Pages(), a.cq.block.Pages(), []uint64{a.sq.list.Root, a.cq.list.Root}))
	}
	a.open()
	return nil
}

// openWindow makes the stream use the function's window for doorbells, if the guest has one.
func (d *Device) openWindow(at *attributes, function uint32) {
	var w *window.Window
	switch m, ok := d.src.(*pciMemory); {
	case ok:
		w = m.pci.Window()
	case at.path == "vsock":
		if w, at.winErr = window.Open(function); at.winErr != nil {
			return
		}
		at.path = "ivshmem"
	default:
		return
	}
	s := d.stream.Load()
	s.useWindow(w)
	if at.info.Features&abi.FeatureVectors == 0 {
		at.winErr = errors.New("the device knows no vectors")
		return
	}
	if at.vectors, at.winErr = w.Vectors(); at.vectors == 0 {
		return
	}
	at.path += "-msix"
	w.Listen(func(cqn uint32, err error) {
		if err != nil {
			s.fail(protocolError("%v", err), false)
			return
		}
		d.objects.news(cqn)
	})
}

// Path returns how doorbells and events are sent: "ivshmem-msix" or "pci-msix" (window and
// interrupts), "ivshmem" or "pci" (window, and messages for events), "vsock" or "unix" (messages).
// In a guest the error says why a better path is not used.
func (d *Device) Path() (string, error) {
	at := d.learned.Load()
	return at.path, at.winErr
}

// Info returns the description of the function. It does not ask the device.
func (d *Device) Info() Info { return d.learned.Load().info }

// GID returns the function's address in its tenant.
func (d *Device) GID() GID { return d.learned.Load().info.GID }

// Limits returns the limits that the device reported when it was opened. It does not ask the
// device.
func (d *Device) Limits() Limits { return d.learned.Load().limits }

// Query asks the device for its limits.
func (d *Device) Query(ctx context.Context) (Limits, error) {
	var l Limits
	if err := d.admin.Load().do(ctx, abi.AdminOpQueryDevice, nil, &l.QueryDeviceResult, nil); err != nil {
		return l, err
	}
	o, err := d.count(ctx, abi.CreditLimit)
	if errors.Is(err, ErrUnsupported) {
		return l, nil
	}
	l.MaxAH, l.MaxSRQ, l.MaxMW, l.MaxXRCD, l.MaxMCG = o.AHs, o.SRQs, o.MWs, o.XRCDs, o.MCGs
	return l, err
}

// InUse asks the device for the number of the function's objects of each kind.
func (d *Device) InUse(ctx context.Context) (ObjectCounts, error) {
	return d.count(ctx, abi.CreditInUse)
}

func (d *Device) count(ctx context.Context, part abi.CreditPart) (o ObjectCounts, err error) {
	err = d.admin.Load().do(ctx, abi.AdminOpQueryObjects, &abi.QueryObjects{Part: part}, &o, nil)
	return o, err
}

// Done returns a channel that is closed when the function has stopped by a fault or a reset, or the
// device is lost or closed; Err then returns the reason. After a successful Reset, Done returns a
// new channel.
func (d *Device) Done() <-chan struct{} { return d.admin.Load().ended }

// Err returns nil while the device works, otherwise an ErrDeviceLost or ErrClosed.
func (d *Device) Err() error {
	if err := d.stream.Load().failure(); err != nil {
		return err
	}
	if lost := d.survivor.lost.Load(); lost != nil { // the new stream is not fully set up yet
		return *lost
	}
	return d.admin.Load().failure()
}

// Close detaches from the function and frees everything that was created from the device, whatever
// its state. Memory of Buffers must not be accessed any more. If the device does not confirm that
// it no longer uses the memory, the memory stays mapped until the process ends, and Close returns
// an error. A second call returns the result of the first.
func (d *Device) Close() error {
	d.closeOnce.Do(func() {
		d.survivor.stop()
		d.leave()
		d.survivor.wg.Wait()
		d.resetting.Lock() // a Reset in progress fails now
		defer d.resetting.Unlock()
		d.leave() // a Reset may have opened another stream since
		d.stream.Load().wg.Wait()
		d.retire()
		if d.memoryInUse || !d.stream.Load().released {
			d.closeErr = fmt.Errorf("close: %w: the device did not confirm that it is done with %d bytes of memory; they stay mapped until the process ends", ErrTimeout, d.pool.InUse())
			return
		}
		d.closeErr = d.pool.Close()
	})
	return d.closeErr
}

// leave sends a goodbye and waits until the stream has ended.
func (d *Device) leave() {
	s := d.stream.Load()
	s.goodbye()
	select {
	case <-s.done: // best of all, the device closed the stream: the function is reset
	case <-time.After(byeTimeout):
		s.fail(ErrClosed, false)
	}
}

// retire makes sure that no object accesses its memory any more.
func (d *Device) retire() {
	d.admin.Load().close()
	d.stream.Load().useWindow(nil)
	d.objects.stopAll(d.stream.Load(), errClosedDevice)
}
