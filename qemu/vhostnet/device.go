package vhostnet

import (
	"fmt"
	"runtime/debug"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/eventfd"
	"github.com/falcon-vnic/vnic/qemu/vhostuser"
	"github.com/falcon-vnic/vnic/qemu/virtqueue"
	"github.com/falcon-vnic/vnic/queues"
)

var (
	_ vhostuser.Device   = (*Port)(nil)
	_ vhostuser.MTUTaker = (*Port)(nil)
)

// Layout implements vhostuser.Device.
func (p *Port) Layout() vhostuser.Layout { return Layout(p.cfg.Queues) }

// Features implements vhostuser.Device.
func (p *Port) Features() uint64 { return Features(p.cfg.Queues) }

// Config implements vhostuser.Device. It reports false: QEMU serves the configuration space itself.
func (p *Port) Config(uint32, []byte) bool { return false }

// SetMTU implements vhostuser.MTUTaker.
func (p *Port) SetMTU(mtu uint64) error { return CheckMTU(mtu, p.cfg.MTU) }

// CheckMTU returns an error if the MTU that QEMU shows to the guest is larger than the port's.
func CheckMTU(told uint64, mtu int) error {
	if told > uint64(mtu) {
		return fmt.Errorf("the guest's MTU is to be %d, and the port's is %d: give the device host_mtu=%[2]d", told, mtu)
	}
	return nil
}

// SetMemory implements vhostuser.Device.
func (p *Port) SetMemory(st *vhostuser.State, maps []*vhostuser.Mapping) error {
	regions := make([]queues.Region, 0, len(maps))
	for _, m := range maps {
		regions = append(regions, queues.Region{Addr: m.GPA, Mem: m.Mem})
	}
	p.do(func() {
		p.Settle()
		p.mem.Set(regions)
		for i, q := range p.rings {
			if q == nil || q.ring == nil {
				continue
			}
			c, err := p.ringConfig(st, i)
			if err == nil {
				err = q.ring.Rebind(&p.mem, c)
			}
			if err != nil {
				p.fail(fmt.Errorf("ring %d: %w", i, err))
				return
			}
		}
	})
	return nil
}

func (p *Port) ringConfig(st *vhostuser.State, i int) (virtqueue.Config, error) {
	desc, avail, used, err := st.RingGPA(i)
	v := &st.Vrings[i]
	return virtqueue.Config{
		Size: v.Num, Desc: desc, Driver: avail, Device: used, Base: v.Base, Resume: v.NoBase, Ledger: ledgerOf(p.cfg.Ledger, i),
		Packed: st.Packed(), Indirect: st.Features&featIndirect != 0, EventIdx: st.Features&featEventIdx != 0,
	}, err
}

// StartVring implements vhostuser.Device. If the driver placed the ring wrongly, the port fails but
// the connection stays, because some front ends never reconnect.
func (p *Port) StartVring(st *vhostuser.State, i int, kick, call, errfd int) error {
	c, err := p.ringConfig(st, i)
	if err == nil {
		err = p.setEvents(i, call, errfd)
	}
	if err != nil {
		return err
	}
	p.do(func() { err = p.start(i, c, st.Features) })
	if err != nil {
		p.do(func() { p.fail(fmt.Errorf("ring %d: %w", i, err)) })
		return nil
	}
	if i%2 == 1 {
		e := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(i)} // reports at once if the guest has kicked already
		if err := unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, kick, &e); err != nil {
			return fmt.Errorf("ring %d: kick descriptor: %w", i, err)
		}
		p.do(func() { p.rings[i].kick = kick })
	}
	return nil
}

// start starts a ring; it runs on the port's thread. After a failure no ring runs until the driver
// has stopped all rings: the first ring that starts after that clears the reason of the failure.
func (p *Port) start(i int, c virtqueue.Config, features uint64) (err error) {
	if !slices.ContainsFunc(p.rings, func(q *queue) bool { return q != nil }) {
		p.reason.Store(nil)
	}
	q := &queue{number: i, kick: eventfd.None, base: c.Base}
	p.rings[i] = q
	if p.Reason() != "" {
		return nil
	}
	if guarded := virtqueue.Guard(func() { q.ring, err = virtqueue.New(&p.mem, c) }); guarded != nil {
		err = guarded
	}
	if err != nil {
		q.ring = nil
		return err
	}
	p.features = features
	p.takes.Store(features)
	p.header = headerLen
	if features&(featMerge|vhostuser.FeatureVersion1) == 0 {
		p.header = shortHeaderLen
	}
	p.sort()
	defer p.survive(debug.SetPanicOnFault(true))
	switch {
	case i%2 == 0:
		q.ring.Quiet() // the port looks for buffers when it has a frame
	case p.awake:
		q.ring.Quiet()
	default:
		q.ring.Arm()
	}
	return nil
}

// sort rebuilds the lists of running rings by direction.
func (p *Port) sort() {
	p.tx, p.rx, p.at, p.burst = p.tx[:0], p.rx[:0], 0, 0
	for i, q := range p.rings {
		switch {
		case q == nil || q.ring == nil:
		case i%2 == 0:
			p.rx = append(p.rx, q)
		default:
			p.tx = append(p.tx, q)
		}
	}
}

// SetCall implements vhostuser.Device.
func (p *Port) SetCall(i, call, errfd int) {
	_ = p.setEvents(i, call, errfd) // if it fails the guest gets no interrupts, as if it had passed no descriptor
	p.call(i).Signal()              // an interrupt for completed chains may have been lost
}

// StopVring implements vhostuser.Device.
func (p *Port) StopVring(i int) (base uint32) {
	kick := eventfd.None
	p.do(func() {
		p.Settle()
		q := p.rings[i]
		if q == nil {
			return
		}
		base = q.base
		if q.ring != nil {
			base = q.ring.Base()
		}
		kick = q.kick
		p.rings[i] = nil
		p.sort()
	})
	if kick != eventfd.None { // not on the thread: EPOLL_CTL_DEL may block on others that watch the kick
		_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, kick, nil)
	}
	_ = p.setEvents(i, eventfd.None, eventfd.None)
	return base
}
