package vhosttest

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/vhostuser"
	"github.com/falcon-vnic/vnic/queues"
)

// Ring is the driver's side of a split virtqueue in the front end's memory, without indirect
// descriptors and event indices. The caller chooses the descriptors.
type Ring struct {
	RAM               *queues.Memory
	Desc, Avail, Used uint64
	Kick, Call        int // eventfds

	availIdx, usedIdx uint16
}

// ringBytes is the size of the three parts of a ring.
const ringBytes = 0x1000 + 0x1000

// NewRing clears a ring's place at gpa and returns the ring.
func NewRing(ram *queues.Memory, gpa uint64) (*Ring, error) {
	r := &Ring{RAM: ram, Desc: gpa, Avail: gpa + 16*RingSize, Used: gpa + 0x1000, Kick: -1, Call: -1}
	if err := ram.Write(gpa, make([]byte, ringBytes)); err != nil {
		return nil, err
	}
	var err error
	if r.Kick, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, err
	}
	if r.Call, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, err
	}
	return r, nil
}

// Close closes the eventfds.
func (r *Ring) Close() {
	_ = unix.Close(r.Kick)
	_ = unix.Close(r.Call)
}

// Descriptor flags, Virtio §2.7.5.
const (
	DescNext     = 1
	DescWrite    = 2
	DescIndirect = 4
)

// SetDesc writes one descriptor.
func (r *Ring) SetDesc(i uint16, addr uint64, n uint32, flags, next uint16) error {
	b := binary.LittleEndian.AppendUint64(nil, addr)
	b = binary.LittleEndian.AppendUint32(b, n)
	b = binary.LittleEndian.AppendUint16(b, flags)
	b = binary.LittleEndian.AppendUint16(b, next)
	return r.RAM.Write(r.Desc+16*uint64(i), b)
}

// Publish makes the chain at head available.
func (r *Ring) Publish(head uint16) error {
	if err := r.RAM.Write(r.Avail+4+2*uint64(r.availIdx%RingSize), binary.LittleEndian.AppendUint16(nil, head)); err != nil {
		return err
	}
	r.availIdx++
	return r.RAM.Store32(r.Avail, uint32(r.availIdx)<<16)
}

// Notify kicks the device.
func (r *Ring) Notify() { _, _ = unix.Write(r.Kick, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

// TakeUsed takes the next used chain and returns its head and the number of bytes written.
func (r *Ring) TakeUsed() (head uint16, n uint32, ok bool, err error) {
	w, err := r.RAM.Load32(r.Used)
	if err != nil || uint16(w>>16) == r.usedIdx {
		return 0, 0, false, err
	}
	var e [8]byte
	if err := r.RAM.Read(r.Used+4+8*uint64(r.usedIdx%RingSize), e[:]); err != nil {
		return 0, 0, false, err
	}
	r.usedIdx++
	return uint16(binary.LittleEndian.Uint32(e[:])), binary.LittleEndian.Uint32(e[4:]), true, nil
}

// StartRing sends the settings of a new ring i, in QEMU's order, up to the kick descriptor.
func (f *Frontend) StartRing(i uint32, r *Ring) error { return f.startRing(i, r, 0) }

func (f *Frontend) startRing(i uint32, r *Ring, base uint32) error {
	if err := f.Send(vhostuser.SetVringNum, vhostuser.VringState{Index: i, Num: RingSize}.Append(nil)); err != nil {
		return err
	}
	if err := f.Send(vhostuser.SetVringBase, vhostuser.VringState{Index: i, Num: base}.Append(nil)); err != nil {
		return err
	}
	a := vhostuser.VringAddr{Index: i, Desc: UserBase + r.Desc, Used: UserBase + r.Used, Avail: UserBase + r.Avail}
	if err := f.Send(vhostuser.SetVringAddr, a.Append(nil)); err != nil {
		return err
	}
	return f.Send(vhostuser.SetVringKick, U64(uint64(i)), r.Kick)
}

// EnableRing enables or disables ring i.
func (f *Frontend) EnableRing(i, on uint32) error {
	return f.Send(vhostuser.SetVringEnable, vhostuser.VringState{Index: i, Num: on}.Append(nil))
}

// StopRing stops ring i and returns the back end's position.
func (f *Frontend) StopRing(i uint32) (base uint32, err error) {
	b, err := f.Call(vhostuser.GetVringBase, vhostuser.VringState{Index: i}.Append(nil))
	if err != nil {
		return 0, err
	}
	s, err := vhostuser.ParseVringState(b)
	if err == nil && s.Index != i {
		err = fmt.Errorf("base of ring %d for ring %d", s.Index, i)
	}
	return s.Num, err
}
