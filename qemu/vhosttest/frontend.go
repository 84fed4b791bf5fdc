package vhosttest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/vhostuser"
	"github.com/falcon-vnic/vnic/queues"
)

// UserBase is added to a guest-physical address to get the front end's virtual address.
const UserBase = 0x7f0000000000

// RingSize is QEMU's VHOST_VSOCK_QUEUE_SIZE.
const RingSize = 128

// Frontend is QEMU's end of the conversation.
type Frontend struct {
	Conn    *net.UnixConn
	File    int    // memfd of the guest's memory
	Mem     []byte // the whole file; guest-physical address = offset
	Regions []vhostuser.Region
	CID     uint64 // of the guest, from the configuration space
}

// Connect creates size bytes of guest memory, connects to the back end at path and sends what QEMU
// sends until it has created its device.
func Connect(path string, size int) (*Frontend, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	f := &Frontend{Conn: c, File: -1}
	if err := errors.Join(f.allocate(size)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if err := f.realize(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (f *Frontend) allocate(size int) (err error) {
	if f.File, err = unix.MemfdCreate("guest", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING); err != nil {
		return err
	}
	if err := unix.Ftruncate(f.File, int64(size)); err != nil {
		return err
	}
	if _, err := unix.FcntlInt(uintptr(f.File), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		return err
	}
	if f.Mem, err = unix.Mmap(f.File, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return err
	}
	const low, high = 0xa0000, 0xc0000
	f.Regions = []vhostuser.Region{
		{GPA: 0, Size: low, User: UserBase},
		{GPA: high, Size: uint64(size) - high, User: UserBase + high, Offset: high},
	}
	return nil
}

// RAM returns the memory by guest-physical address. It is for one goroutine.
func (f *Frontend) RAM() *queues.Memory {
	var rs []queues.Region
	for _, r := range f.Regions {
		rs = append(rs, queues.Region{Addr: r.GPA, Mem: f.Mem[r.Offset : r.Offset+r.Size]})
	}
	return queues.NewMemory(rs)
}

// realize sends what QEMU sends when it creates the device.
func (f *Frontend) realize() error {
	if _, err := f.Call(vhostuser.GetFeatures, nil); err != nil {
		return err
	}
	pf, err := f.Call(vhostuser.GetProtocolFeatures, nil)
	if err != nil {
		return err
	}
	if err := f.Send(vhostuser.SetProtocolFeatures, pf); err != nil {
		return err
	}
	if _, err := f.Call(vhostuser.GetQueueNum, nil); err != nil {
		return err
	}
	if err := f.Send(vhostuser.SetOwner, nil); err != nil {
		return err
	}
	if _, err := f.Call(vhostuser.GetFeatures, nil); err != nil {
		return err
	}
	cfg, err := f.Call(vhostuser.GetConfig, ConfigRequest(0, 8))
	if err != nil {
		return err
	}
	if len(cfg) != 20 {
		return fmt.Errorf("configuration reply of %d bytes, want 20", len(cfg))
	}
	f.CID = binary.LittleEndian.Uint64(cfg[12:])
	return nil
}

// ConfigRequest returns the payload of GET_CONFIG: offset, size, flags and room for the answer.
func ConfigRequest(off, size uint32) []byte {
	b := binary.LittleEndian.AppendUint32(nil, off)
	b = binary.LittleEndian.AppendUint32(b, size)
	b = binary.LittleEndian.AppendUint32(b, 0)
	return append(b, make([]byte, size)...)
}

// U64 returns the payload of messages that carry one number.
func U64(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }

// Send sends a message and asks for no answer.
func (f *Frontend) Send(req vhostuser.Request, payload []byte, fds ...int) error {
	return vhostuser.WriteMessage(f.Conn, req, 0, payload, fds...)
}

// Call sends a message that has an answer of its own, and returns the answer.
func (f *Frontend) Call(req vhostuser.Request, payload []byte) ([]byte, error) {
	if err := f.Send(req, payload); err != nil {
		return nil, err
	}
	return f.answer(req)
}

// Ask sends a message with the need-reply bit and checks the acknowledgement.
func (f *Frontend) Ask(req vhostuser.Request, payload []byte, fds ...int) error {
	if err := vhostuser.WriteMessage(f.Conn, req, vhostuser.FlagNeedReply, payload, fds...); err != nil {
		return err
	}
	b, err := f.answer(req)
	if err != nil {
		return err
	}
	if len(b) != 8 {
		return fmt.Errorf("%v: acknowledgement of %d bytes", req, len(b))
	}
	if v := binary.LittleEndian.Uint64(b); v != 0 {
		return fmt.Errorf("%v: refused with %d", req, v)
	}
	return nil
}

func (f *Frontend) answer(req vhostuser.Request) ([]byte, error) {
	m, err := vhostuser.ReadMessage(f.Conn)
	if err != nil {
		return nil, fmt.Errorf("%v: answer: %w", req, err)
	}
	defer m.Close()
	if m.Request != req || m.Flags != vhostuser.FlagVersion|vhostuser.FlagReply {
		return nil, fmt.Errorf("%v: answered by %v with flags %#x", req, m.Request, m.Flags)
	}
	return m.Payload, nil
}

// ShareMemory announces the regions in one table, or one by one (slots).
func (f *Frontend) ShareMemory(slots bool) error {
	if !slots {
		fds := make([]int, len(f.Regions))
		for i := range fds {
			fds[i] = f.File
		}
		return f.Ask(vhostuser.SetMemTable, vhostuser.AppendMemTable(nil, f.Regions), fds...)
	}
	for _, r := range f.Regions {
		if err := f.Ask(vhostuser.AddMemReg, r.Append(make([]byte, 8)), f.File); err != nil {
			return err
		}
	}
	return nil
}

// Close disconnects without a message, as a killed QEMU does, and frees the memory.
func (f *Frontend) Close() error {
	err := f.Conn.Close()
	if f.Mem != nil {
		err = errors.Join(err, unix.Munmap(f.Mem))
		f.Mem = nil
	}
	if f.File >= 0 {
		err = errors.Join(err, unix.Close(f.File))
		f.File = -1
	}
	return err
}
