package vhosttest

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/vhostuser"
	"github.com/falcon-vnic/vnic/qemu/vsock"
)

// Guest-physical addresses of the driver's rings and buffers. The driver does not use the memory
// from FreeBase on.
const (
	rxRingAt = 0x100000
	txRingAt = 0x110000
	rxBufAt  = 0x200000
	txBufAt  = 0x300000
	FreeBase = 0x400000

	rxBufSize = 3776 // Linux 6.1: one page less its own header
	txBufSize = 8192
	txSlots   = RingSize / 2 // each slot owns two descriptors
)

// Options are the ways in which guests differ.
type Options struct {
	Size  int  // bytes of guest memory, default 8 MiB
	Slots bool // announce memory by ADD_MEM_REG, not by SET_MEM_TABLE
}

// Guest is a running guest: the guest's end of the vsock flows over the back end's rings.
type Guest struct {
	*Frontend
	*vsock.Transport
	opt    Options
	rx, tx *Ring
	wg     sync.WaitGroup
	link   *txLink
	calls  []*os.File
}

// Start connects a guest to the back end at path and boots it.
func Start(path string, opt Options) (*Guest, error) {
	if opt.Size == 0 {
		opt.Size = 8 << 20
	}
	f, err := Connect(path, opt.Size)
	if err != nil {
		return nil, err
	}
	g := &Guest{Frontend: f, opt: opt}
	if err := g.Boot(); err != nil {
		return nil, errors.Join(err, g.Kill())
	}
	return g, nil
}

// Boot starts the rings, as QEMU does when the driver sets DRIVER_OK.
func (g *Guest) Boot() (err error) {
	g.Transport = vsock.NewTransport(uint32(g.CID), vsock.HostCID)
	if g.rx, err = NewRing(g.RAM(), rxRingAt); err != nil {
		return err
	}
	if g.tx, err = NewRing(g.RAM(), txRingAt); err != nil {
		return err
	}
	if err := g.Send(vhostuser.SetFeatures, U64(vhostuser.FeatureVersion1|vhostuser.FeatureProtocol)); err != nil {
		return err
	}
	if err := g.ShareMemory(g.opt.Slots); err != nil {
		return err
	}
	for i := range uint16(RingSize) {
		if err := g.rx.SetDesc(i, rxBufAt+uint64(i)*rxBufSize, rxBufSize, DescWrite, 0); err != nil {
			return err
		}
		if err := g.rx.Publish(i); err != nil {
			return err
		}
	}
	g.link = &txLink{r: g.tx}
	for i := range uint16(txSlots) {
		g.link.free = append(g.link.free, 2*i)
	}
	for i, r := range []*Ring{g.rx, g.tx} {
		if err := g.StartRing(uint32(i), r); err != nil {
			return err
		}
	}
	for i, r := range []*Ring{g.rx, g.tx} {
		if err := g.EnableRing(uint32(i), 1); err != nil {
			return err
		}
		if err := g.Send(vhostuser.SetVringCall, U64(uint64(i)), r.Call); err != nil {
			return err
		}
	}
	g.listen(g.rx, g.receive)
	g.listen(g.tx, g.Pump)
	g.SetLink(g.link)
	g.rx.Notify()
	return nil
}

// Halt stops the rings as QEMU does for a reset. The driver's flows are gone afterwards.
func (g *Guest) Halt() error {
	if _, err := g.stop(); err != nil {
		return err
	}
	g.stopDriver()
	return nil
}

// stop stops the rings and returns the back end's positions.
func (g *Guest) stop() (bases [2]uint32, err error) {
	for i := range uint32(2) {
		if err := g.EnableRing(i, 0); err != nil {
			return bases, err
		}
	}
	for i := range uint32(2) {
		if bases[i], err = g.StopRing(i); err != nil {
			return bases, err
		}
	}
	return bases, nil
}

// Pause stops the rings, and starts them where they were, as QEMU does when it stops the guest's
// processors and lets them go on. The driver does not notice.
func (g *Guest) Pause() error {
	bases, err := g.stop()
	if err != nil {
		return err
	}
	for i, r := range []*Ring{g.rx, g.tx} {
		i := uint32(i)
		if err := errors.Join(g.startRing(i, r, bases[i]), g.EnableRing(i, 1), g.Send(vhostuser.SetVringCall, U64(uint64(i)), r.Call)); err != nil {
			return err
		}
	}
	return nil
}

// Reboot resets the guest on the same connection.
func (g *Guest) Reboot() error {
	if err := g.Halt(); err != nil {
		return err
	}
	if g.opt.Slots {
		for _, r := range g.Regions {
			if err := g.Ask(vhostuser.RemMemReg, r.Append(make([]byte, 8)), g.File); err != nil {
				return err
			}
		}
	}
	return g.Boot()
}

// Kill ends the guest as kill -9 of QEMU does.
func (g *Guest) Kill() error {
	g.stopDriver()
	return g.Frontend.Close()
}

func (g *Guest) stopDriver() {
	if g.Transport != nil {
		g.Transport.Close()
	}
	for _, f := range g.calls {
		_ = f.Close()
	}
	g.wg.Wait()
	g.calls = nil
	for _, r := range []*Ring{g.rx, g.tx} {
		if r != nil {
			r.Close()
		}
	}
	g.rx, g.tx = nil, nil
}

// listen calls f for each interrupt of a ring.
func (g *Guest) listen(r *Ring, f func()) {
	fd, err := unix.FcntlInt(uintptr(r.Call), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		panic(err) // a test without descriptors left
	}
	file := os.NewFile(uintptr(fd), "call")
	g.calls = append(g.calls, file)
	g.wg.Add(1)
	go func() {
		defer g.wg.Done()
		var b [8]byte
		for {
			if _, err := file.Read(b[:]); err != nil {
				return
			}
			f()
		}
	}()
}

// receive takes packets from the receive ring and gives the buffers back.
func (g *Guest) receive() {
	buf := make([]byte, rxBufSize)
	for taken := false; ; taken = true {
		head, n, ok, err := g.rx.TakeUsed()
		if err != nil || !ok {
			if taken {
				g.rx.Notify()
			}
			return
		}
		if n > rxBufSize {
			panic(fmt.Sprintf("back end wrote %d bytes into a buffer of %d", n, rxBufSize))
		}
		if g.rx.RAM.Read(rxBufAt+uint64(head)*rxBufSize, buf[:n]) == nil {
			g.Input(buf[:n])
		}
		if g.rx.Publish(head) != nil {
			return
		}
	}
}

// txLink is the guest's vsock.Link: the transmit ring, with header and payload in two descriptors
// as Linux does it.
type txLink struct {
	r    *Ring
	free []uint16
}

func (l *txLink) Room() int {
	for {
		head, _, ok, err := l.r.TakeUsed()
		if err != nil || !ok {
			break
		}
		l.free = append(l.free, head)
	}
	if len(l.free) == 0 {
		return 0
	}
	return txBufSize
}

func (l *txLink) Put(pkt []byte) {
	head := l.free[0]
	l.free = l.free[1:]
	at := txBufAt + uint64(head/2)*txBufSize
	err := l.r.RAM.Write(at, pkt)
	if n := uint32(len(pkt)); n > vsock.HeaderSize {
		err = errors.Join(err,
			l.r.SetDesc(head, at, vsock.HeaderSize, DescNext, head+1),
			l.r.SetDesc(head+1, at+vsock.HeaderSize, n-vsock.HeaderSize, 0, 0))
	} else {
		err = errors.Join(err, l.r.SetDesc(head, at, n, 0, 0))
	}
	if err = errors.Join(err, l.r.Publish(head)); err != nil {
		panic(err)
	}
}

func (l *txLink) Flush() { l.r.Notify() }

// Inject sends one packet with any header through the transmit ring. It returns false if the ring
// is full.
func (g *Guest) Inject(h vsock.Header, payload []byte) (sent bool) {
	g.Locked(func() {
		if sent = g.link.Room() > 0; sent {
			g.link.Put(append(h.Append(nil), payload...))
			g.link.Flush()
		}
	})
	return sent
}

// BreakTX makes a chain available in the transmit ring that points to itself.
func (g *Guest) BreakTX() (err error) {
	g.Locked(func() {
		err = errors.Join(g.tx.SetDesc(0, txBufAt, 1, DescNext, 0), g.tx.Publish(0))
		g.tx.Notify()
	})
	return err
}

// Used returns the used index of ring i.
func (g *Guest) Used(i int) (uint16, error) {
	w, err := g.RAM().Load32([]*Ring{g.rx, g.tx}[i].Used)
	return uint16(w >> 16), err
}
