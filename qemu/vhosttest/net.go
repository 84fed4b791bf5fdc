package vhosttest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/vhostuser"
)

// NetOptions are the ways in which the guests of NetGuest differ.
type NetOptions struct {
	Queues   int    // number of queue pairs; 0: 1
	Size     uint16 // entries of each ring; 0: 256
	SendSize uint16 // entries of each transmit ring; 0: Size
	Packed   bool
	Indirect bool
	EventIdx bool
	Merge    bool   // receive buffers have 2 KiB and frames may span them; otherwise they have 64 KiB
	Offloads bool   // the driver accepts and sends GSO frames and partial checksums
	Split    int    // bytes of a sent frame in each of its buffers; 0: header and frame share one buffer
	MTU      uint64 // sent to the back end; 0: none
}

// Features of a network device, Virtio §5.1.3.
const (
	netOffloads = 1<<0 | 1<<1 | 1<<7 | 1<<8 | 1<<9 | 1<<11 | 1<<12 | 1<<13 | 1<<54 | 1<<55 | 1<<56
	netMerge    = 1 << 15
	netMQ       = 1 << 22
	netIndirect = 1 << 28
	netEventIdx = 1 << 29

	netHeader = 12
)

func (o *NetOptions) features() uint64 {
	f := vhostuser.FeatureVersion1 | vhostuser.FeatureProtocol
	for _, x := range []struct {
		on   bool
		bits uint64
	}{{o.Packed, vhostuser.FeaturePacked}, {o.Indirect, netIndirect}, {o.EventIdx, netEventIdx}, {o.Merge, netMerge}, {o.Offloads, netOffloads}, {o.Queues > 1, netMQ}} {
		if x.on {
			f |= x.bits
		}
	}
	return f
}

// NetGuest is a guest with a virtio-net device: QEMU's end of the conversation and the driver. It
// has one owner.
type NetGuest struct {
	*Frontend
	opt    NetOptions
	rx, tx []*netQueue
	free   uint64 // next free address
}

type netQueue struct {
	*Queue
	kick, call int
	slot       uint64   // bytes of a buffer
	at         []uint64 // addresses of the buffers that the device has, by chain id; 0: the driver has it
	spare      []uint64 // addresses of the other buffers
	frame      []byte
	missing    int
}

// ConnectNet connects a guest to the back end at path and boots it.
func ConnectNet(path string, opt NetOptions) (*NetGuest, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	return NewNet(c, opt)
}

// NewNet is like ConnectNet, over an existing connection.
func NewNet(c *net.UnixConn, opt NetOptions) (*NetGuest, error) {
	if opt.Queues == 0 {
		opt.Queues = 1
	}
	if opt.Size == 0 {
		opt.Size = 256
	}
	if opt.SendSize == 0 {
		opt.SendSize = opt.Size
	}
	g := &NetGuest{Frontend: &Frontend{Conn: c, File: -1}, opt: opt, free: 0x100000}
	size := int(g.free)
	for _, r := range []struct {
		size uint16
		slot uint64
	}{{opt.Size, g.rxSlot()}, {opt.SendSize, txSlot}} {
		size += opt.Queues * int(page(QueueBytes(r.size))+uint64(r.size)*r.slot)
	}
	if err := g.allocate(size); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	if err := errors.Join(g.greet(), g.Boot()); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

const txSlot = 1 << 16

func (g *NetGuest) rxSlot() uint64 {
	if g.opt.Merge {
		return 2048
	}
	return 1 << 16
}

// greet sends what QEMU sends when it creates the device.
func (g *NetGuest) greet() error {
	offered, err := g.Call(vhostuser.GetFeatures, nil)
	if err != nil {
		return err
	}
	if missing := g.opt.features() &^ binary.LittleEndian.Uint64(offered); missing != 0 {
		return fmt.Errorf("features %#x are not offered", missing)
	}
	pf, err := g.Call(vhostuser.GetProtocolFeatures, nil)
	if err != nil {
		return err
	}
	if err := g.Send(vhostuser.SetProtocolFeatures, pf); err != nil {
		return err
	}
	n, err := g.Call(vhostuser.GetQueueNum, nil)
	if err != nil {
		return err
	}
	if have := binary.LittleEndian.Uint64(n); have < uint64(g.opt.Queues) {
		return fmt.Errorf("%d pairs of queues, want %d", have, g.opt.Queues)
	}
	if err := g.Send(vhostuser.SetOwner, nil); err != nil {
		return err
	}
	if g.opt.MTU != 0 {
		return g.Ask(vhostuser.NetSetMTU, U64(g.opt.MTU))
	}
	return nil
}

// Boot starts the rings, as QEMU does when the driver sets DRIVER_OK.
func (g *NetGuest) Boot() error {
	g.free = 0x100000
	g.closeQueues()
	if err := g.Send(vhostuser.SetFeatures, U64(g.opt.features())); err != nil {
		return err
	}
	if err := g.ShareMemory(false); err != nil {
		return err
	}
	for i := range 2 * g.opt.Queues {
		q, err := g.newQueue(i%2 == 0)
		if err != nil {
			return err
		}
		if i%2 == 0 {
			g.rx = append(g.rx, q)
			q.refill()
		} else {
			g.tx = append(g.tx, q)
		}
		if err := g.start(uint32(i), q, q.Base()); err != nil {
			return err
		}
	}
	return nil
}

func (g *NetGuest) newQueue(rx bool) (*netQueue, error) {
	size, slot := g.opt.SendSize, uint64(txSlot)
	if rx {
		size, slot = g.opt.Size, g.rxSlot()
	}
	q := &netQueue{kick: -1, call: -1, slot: slot, at: make([]uint64, size)}
	q.Queue = NewQueue(g.Mem, QueueConfig{At: g.free, Size: size, Packed: g.opt.Packed, Indirect: g.opt.Indirect, EventIdx: g.opt.EventIdx})
	g.free += page(QueueBytes(size))
	for range size {
		q.spare = append(q.spare, g.free)
		g.free += q.slot
	}
	var err error
	for _, fd := range []*int{&q.kick, &q.call} {
		if *fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
			return nil, err
		}
	}
	return q, nil
}

// start starts a ring, with messages in QEMU's order.
func (g *NetGuest) start(i uint32, q *netQueue, base uint32) error {
	desc, driver, device := q.Parts()
	num := vhostuser.VringState{Index: i, Num: uint32(q.Size)}
	a := vhostuser.VringAddr{Index: i, Desc: UserBase + desc, Used: UserBase + device, Avail: UserBase + driver}
	return errors.Join(
		g.Ask(vhostuser.SetVringNum, num.Append(nil)),
		g.Ask(vhostuser.SetVringBase, vhostuser.VringState{Index: i, Num: base}.Append(nil)),
		g.Ask(vhostuser.SetVringAddr, a.Append(nil)),
		g.Ask(vhostuser.SetVringCall, U64(uint64(i)), q.call),
		g.Ask(vhostuser.SetVringKick, U64(uint64(i)), q.kick),
		g.Ask(vhostuser.SetVringEnable, vhostuser.VringState{Index: i, Num: 1}.Append(nil)))
}

// Reconnect continues over another connection with the rings as they are, at their used indices.
// QEMU does so when its back end was replaced.
func (g *NetGuest) Reconnect(c *net.UnixConn) error {
	_ = g.Conn.Close()
	g.Conn = c
	if err := errors.Join(g.greet(), g.Send(vhostuser.SetFeatures, U64(g.opt.features())), g.ShareMemory(false)); err != nil {
		return err
	}
	for i := range uint32(2 * g.opt.Queues) {
		q := g.queue(i)
		if err := g.start(i, q, uint32(load32(q.dev)>>16)); err != nil {
			return err
		}
	}
	return nil
}

func (g *NetGuest) queue(i uint32) *netQueue {
	if i%2 == 0 {
		return g.rx[i/2]
	}
	return g.tx[i/2]
}

// Stop stops all rings, as QEMU does for a reset, and returns the back end's position in each.
func (g *NetGuest) Stop() (bases []uint32, err error) {
	for i := range uint32(2 * g.opt.Queues) {
		base, err := g.StopRing(i)
		if err != nil {
			return nil, err
		}
		bases = append(bases, base)
	}
	return bases, nil
}

// refill gives the device all receive buffers that the driver has.
func (q *netQueue) refill() {
	for len(q.spare) > 0 {
		at := q.spare[len(q.spare)-1]
		id, ok := q.Add(Buffer{Addr: at, Len: uint32(q.slot), Write: true})
		if !ok {
			break
		}
		q.spare = q.spare[:len(q.spare)-1]
		q.at[id] = at
	}
	q.notify()
}

func (q *netQueue) notify() {
	if q.Show() {
		_, _ = unix.Write(q.kick, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

// Header is the header in front of a frame.
type Header [netHeader]byte

// Transmit sends a frame by a queue. It returns false if there is no room.
func (g *NetGuest) Transmit(queue int, h Header, frame []byte) bool {
	if !g.Post(queue, h, frame) {
		return false
	}
	g.tx[queue].notify()
	return true
}

// Post is like Transmit, but does not notify the device.
func (g *NetGuest) Post(queue int, h Header, frame []byte) bool {
	q := g.tx[queue]
	q.reap()
	if len(q.spare) == 0 {
		return false
	}
	at := q.spare[len(q.spare)-1]
	copy(g.Mem[at:], h[:])
	copy(g.Mem[at+netHeader:], frame)
	bufs := []Buffer{{Addr: at, Len: uint32(netHeader + len(frame))}}
	if n := g.opt.Split; n > 0 {
		bufs[0].Len = netHeader
		for rest, from := len(frame), at+netHeader; rest > 0; rest -= n {
			bufs = append(bufs, Buffer{Addr: from, Len: uint32(min(n, rest))})
			from += uint64(n)
		}
	}
	id, ok := q.Add(bufs...)
	if !ok {
		return false
	}
	q.spare = q.spare[:len(q.spare)-1]
	q.at[id] = at
	return true
}

// Notify notifies the device of posted frames.
func (g *NetGuest) Notify(queue int) { g.tx[queue].notify() }

// Idle reports whether the device has given back all sent buffers.
func (g *NetGuest) Idle(queue int) bool {
	g.tx[queue].reap()
	return g.tx[queue].had() == 0
}

// reap takes back used buffers and returns their number. It panics if the device gives back a
// buffer that it did not have.
func (q *netQueue) reap() (frames int) {
	for {
		id, _, ok := q.Used()
		if !ok {
			return frames
		}
		at := q.at[id]
		if at == 0 {
			panic(fmt.Sprintf("the device gave chain %d back, which it did not have", id))
		}
		q.spare = append(q.spare, at)
		q.at[id] = 0
		frames++
	}
}

// Receive returns the next frame of a queue, or nil if there is none. The frame is valid until the
// next call.
func (g *NetGuest) Receive(queue int) (h Header, frame []byte, err error) {
	q := g.rx[queue]
	for {
		id, n, ok := q.Used()
		if !ok && q.missing > 0 { // Virtio §5.1.6.4: all buffers of a frame appear together
			return h, nil, fmt.Errorf("%d buffers of a frame are missing", q.missing)
		}
		if !ok {
			return h, nil, nil
		}
		at := q.at[id]
		if at == 0 || uint64(n) > q.slot {
			return h, nil, fmt.Errorf("buffer %d came back with %d bytes: the device had it: %v", id, n, at != 0)
		}
		q.at[id] = 0
		q.spare = append(q.spare, at)
		if q.missing == 0 {
			q.frame = q.frame[:0]
			q.missing = int(binary.LittleEndian.Uint16(g.Mem[at+10:]))
			if q.missing == 0 || q.missing > 1 && !g.opt.Merge {
				return h, nil, fmt.Errorf("a frame in %d buffers", q.missing)
			}
		}
		q.frame = append(q.frame, g.Mem[at:at+uint64(n)]...)
		if q.missing--; q.missing == 0 {
			copy(h[:], q.frame)
			q.refill()
			return h, q.frame[netHeader:], nil
		}
	}
}

// Discard gives the buffers of all received frames of a queue back to the device, and returns their
// number.
func (g *NetGuest) Discard(queue int) (frames int) {
	q := g.rx[queue]
	if frames = q.reap(); frames > 0 {
		q.refill()
	}
	return frames
}

// Interrupted reports whether the device has interrupted for a queue since the last call.
func (g *NetGuest) Interrupted(rx bool, queue int) bool {
	q := g.tx[queue]
	if rx {
		q = g.rx[queue]
	}
	var b [8]byte
	n, _ := unix.Read(q.call, b[:])
	return n == 8
}

// Interrupts asks the device for interrupts of a queue, or for none. With event indices it asks for
// one. It returns true if used chains are waiting already.
func (g *NetGuest) Interrupts(rx bool, queue int, on bool) (waiting bool) {
	if rx {
		return g.rx[queue].Interrupts(on)
	}
	return g.tx[queue].Interrupts(on)
}

// Kill ends the guest as kill -9 of QEMU does.
func (g *NetGuest) Kill() error {
	g.closeQueues()
	return g.Close()
}

func (g *NetGuest) closeQueues() {
	for _, q := range append(g.rx, g.tx...) {
		_ = unix.Close(q.kick)
		_ = unix.Close(q.call)
	}
	g.rx, g.tx = nil, nil
}

// Break sets the available index of a transmit queue to an impossible value.
func (g *NetGuest) Break(queue int) {
	q := g.tx[queue]
	store32(q.drv, load32(q.drv)+uint32(q.Size+9)<<16)
}

// Kick kicks a transmit queue.
func (g *NetGuest) Kick(queue int) {
	_, _ = unix.Write(g.tx[queue].kick, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

// Whole discards waiting frames and reports whether the device has all receive buffers afterwards.
func (g *NetGuest) Whole() bool {
	for i, q := range g.rx {
		g.Discard(i)
		if q.had() != int(q.Size) {
			return false
		}
	}
	return true
}

// had returns the number of buffers that the device has.
func (q *netQueue) had() (n int) {
	for _, at := range q.at {
		if at != 0 {
			n++
		}
	}
	return n
}
