package tcp

import (
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"github.com/falcon-vnic/vnic/device/handover"
)

// Times of connections.
const (
	lingerTime = 5 * time.Second  // in TIME_WAIT, and in FIN_WAIT_2 after Close
	giveUp     = 30 * time.Second // without an answer to what was sent
	synRetries = 4                // about half a minute
)

// pump is a goroutine between the rings and gVisor's netstack. All of it belongs to this goroutine,
// but for what the locks guard.
type pump struct {
	rings   *rings
	limits  Limits
	wake    func()
	started func()
	counts  counts
	told    uint64   // events
	blocked []served // until events has room

	net       *stack.Stack
	clock     *clock // of net
	faults    int    // netstacks that were given up
	functions map[uint32]*function
	streams   map[uint32]*stream
	number    uint32          // of the last connection that a peer made
	leaving   *time.Timer     // when streams that are over may be gone
	isLeaving bool            // leaving is set: others that are over later do not put it off
	isExpired atomic.Bool     // leaving has expired
	held      []*tcp.Endpoint // for which segments arrived in this turn
	scratch   []byte
	stop      atomic.Bool
	stopped   sync.WaitGroup

	mu    sync.Mutex
	dirty []served // to be served in this turn

	sending sync.Mutex // for the producers of rings.departing
}

// served is what the pump serves: a stream or a listener. It belongs to the pump, and others may mark
// it.
type served interface {
	serve()
	mark() *bool // whether it is in dirty
}

// counts are Stats for any goroutine.
type counts struct{ conns, arrivedFull, departingFull, wrong atomic.Uint64 }

func startPump(r *rings, cfg *Config) *pump {
	silence()
	p := &pump{
		rings: r, limits: cfg.Limits, wake: cfg.Wake, started: cfg.Started, functions: map[uint32]*function{}, streams: map[uint32]*stream{}, scratch: make([]byte, maxPart),
	}
	p.leaving = time.AfterFunc(time.Hour, func() {
		p.isExpired.Store(true)
		p.rings.bell.ring()
	})
	p.leaving.Stop()
	p.begin()
	p.stopped.Go(p.run)
	return p
}

// begin makes a netstack without functions.
func (p *pump) begin() {
	p.clock = &clock{Clock: tcpip.NewStdClock(), p: p}
	p.net = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocolCUBIC},
		Clock:              p.clock,
	})
	buffer := p.limits.Buffer
	send := tcpip.TCPSendBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: buffer, Max: buffer}
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: buffer, Max: buffer}
	grow, linger, wait, retries := tcpip.TCPModerateReceiveBufferOption(false), tcpip.TCPLingerTimeoutOption(lingerTime), tcpip.TCPTimeWaitTimeoutOption(lingerTime), tcpip.TCPSynRetriesOption(synRetries)
	for _, o := range []tcpip.SettableTransportProtocolOption{&send, &receive, &grow, &linger, &wait, &retries} {
		if err := p.net.SetTransportProtocolOption(tcp.ProtocolNumber, o); err != nil {
			panic(fmt.Sprintf("tcp: netstack refuses %T: %s", o, err))
		}
	}
}

// silence switches gVisor's log off, in which peers could write.
var silence = sync.OnceFunc(func() { log.SetTarget(silent{}) })

type silent struct{}

// Emit implements log.Emitter.
func (silent) Emit(int, log.Level, time.Time, string, ...any) {}

func (p *pump) close() {
	p.stop.Store(true)
	p.rings.bell.ring()
	p.stopped.Wait()
	p.rings.bell.close()
}

func (p *pump) run() {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	p.started()
	for !p.stop.Load() {
		if p.isExpired.Swap(false) {
			p.guarded(p.expire)
		}
		p.guarded(p.turn)
		p.rings.bell.wait()
	}
	for _, f := range p.functions {
		f.remove()
	}
	p.net.Destroy()
	p.leaving.Stop()
}

const (
	turnFrames = 256 // the most frames of a ring that the pump takes in a turn
	turnPasses = 16  // how often it serves what serving others has made dirty
)

// turn does what there is to do.
func (p *pump) turn() {
	if why := p.clock.fault.Load(); why != nil {
		p.renew(*why)
	}
	var f handover.Frame
	for n := 0; n < turnFrames && p.rings.orders.Take(&f); n++ {
		p.order(&f)
	}
	p.rings.orders.Done()
	awaited := p.rings.ordersFull.Swap(false)
	for n := 0; n < turnFrames && p.rings.arrived.Take(&f); n++ {
		if to := p.functions[f.Flow]; to != nil {
			to.arrived(f.Data)
		}
	}
	p.rings.arrived.Done()
	for _, ep := range p.held {
		ep.UnlockUser()
		handleConnected(ep)
	}
	p.held = p.held[:0]
	if !p.rings.orders.Empty() || !p.rings.arrived.Empty() {
		p.rings.bell.ring()
	}
	told := p.told
	for _, d := range p.blocked {
		p.again(d)
	}
	clear(p.blocked)
	p.blocked = p.blocked[:0]
	dirty := p.takeDirty()
	for n := 0; len(dirty) > 0 && n < turnPasses; n++ {
		for _, d := range dirty {
			d.serve()
		}
		dirty = p.takeDirty()
	}
	if len(dirty) > 0 {
		for _, d := range dirty {
			p.again(d)
		}
		p.rings.bell.ring()
	}
	if awaited || told != p.told {
		p.wake()
	}
}

// takeDirty returns what is to be served.
func (p *pump) takeDirty() []served {
	p.mu.Lock()
	defer p.mu.Unlock()
	dirty := p.dirty
	p.dirty = nil
	for _, d := range dirty {
		*d.mark() = false
	}
	return dirty
}

// again has something served in this turn. It returns whether that is news.
func (p *pump) again(d served) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if marked := d.mark(); *marked {
		return false
	} else {
		*marked = true
	}
	p.dirty = append(p.dirty, d)
	return true
}

// happened is called by gVisor, under its locks.
func (p *pump) happened(d served) {
	if p.again(d) {
		p.rings.bell.ring()
	}
}

// tell gives the shard an event of from. If the ring is full it returns false, and from is served again
// when there is room.
func (p *pump) tell(from served, h *handover.Header, data []byte) bool {
	if !give(p.rings.events, h, data) {
		p.rings.eventsFull.Store(true)
		if !give(p.rings.events, h, data) { // the shard may have made room before it could know
			p.blocked = append(p.blocked, from)
			return false
		}
	}
	p.told++
	return true
}

// order carries out an order of the shard. What is for a connection that is over is late, and has no
// effect.
func (p *pump) order(o *handover.Frame) {
	f, st := p.functions[o.Flow], p.streams[o.A]
	switch o.Kind {
	case orderAdd:
		if f != nil {
			f.remove()
		}
		addr, _ := netip.AddrFromSlice(o.Data)
		p.add(o.Flow, addr, int(o.B))
	case orderRemove:
		if f != nil {
			f.remove()
		}
	case orderListen:
		p.listen(f, o.Flow, uint16(o.B))
	case orderUnlisten:
		if f != nil && f.listeners[uint16(o.B)] != nil {
			f.listeners[uint16(o.B)].end()
		}
	case orderConnect:
		p.connect(f, o.Flow, o.A, uint16(o.B>>16), netip.AddrPortFrom(netip.AddrFrom16(o.Aux).Unmap(), uint16(o.B)))
	}
	if st == nil || st.last != 0 {
		return
	}
	switch o.Kind {
	case orderWrite:
		st.write(o.Data)
	case orderTaken:
		st.window += int(o.B)
		p.again(st)
	case orderCloseWrite:
		st.shut = true
		p.again(st)
	case orderClose:
		if st.shut, st.ending = true, true; !st.open {
			st.ep.Abort()
			st.finish(eventClosed, "")
		}
		p.again(st)
	case orderReset:
		st.ep.Abort()
		st.finish(eventClosed, "")
	}
}
