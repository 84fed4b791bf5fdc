package run_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/qemu/vhosttest"
	"github.com/falcon-vnic/vnic/qemu/vhostuser"
)

// attacked is a vnic run process with two guests that exchange datagrams on ports of one shard, and
// with a third port, of another tenant, and attachments for a hostile guest.
type attacked struct {
	t      *testing.T
	dir    string
	log    string // path of the process's log
	run    *labkit.Process
	nic    *control.Client
	was    control.NIC
	others [2]*vnictest.PortGuest
}

// attack harms a NIC while two guests exchange datagrams over it. None of their frames is late or
// lost, and neither the process that is the NIC nor the one that supervises it is replaced.
func attack(t *testing.T, harm func(b *attacked)) {
	beside(t, func(b *attacked) {
		b.goesOn()
		harm(b)
		b.goesOn()
	})
}

// beside runs a test beside two guests that can exchange datagrams.
func beside(t *testing.T, f func(b *attacked)) {
	vnictest.RequireRoot(t)
	netns.Run(t, func() {
		dir, err := os.MkdirTemp("", "attacked") // t.TempDir may be too long for a socket
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		more := fmt.Sprintf("attach:\n  - {type: vhost-user, cid: 1001, socket: %[1]s/guest}\n  - {type: unix, name: c, socket: %[1]s/client}\n  - {type: vfio-user, cid: 1002, socket: %[1]s/pci}", dir)
		path := vnictest.PortConfig(t, dir, 1, 3, 2, more)
		text, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, []byte(strings.NewReplacer("nic: {", "nic: {shards: 1, ", "backend: memory, ", "", "vf: 3, tenant: 100", "vf: 3, tenant: 200, guest: {cid: 1002}").Replace(string(text))), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		log := filepath.Join(dir, "log")
		p, err := labkit.Start("nic", log, vnictest.Program(t), "run", "-c", path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			p.Stop(20 * time.Second)
			if t.Failed() {
				said, _ := os.ReadFile(log)
				t.Logf("%s", said)
			}
		}()
		b := &attacked{t: t, dir: dir, log: log, run: p, nic: control.NewClient(filepath.Join(dir, "ctl1"))}
		if err := p.Until(t.Context(), func(ctx context.Context) (err error) {
			b.was, err = b.nic.NIC(ctx)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		for i := range b.others {
			b.others[i] = vnictest.NewPortGuest(t, dir, 1, i+1, vhosttest.NetOptions{Merge: true, EventIdx: true})
		}
		for i, s := range b.others {
			s.Ask(b.others[1-i].IP)
		}
		f(b)
	})
}

// goesOn checks that the two guests can exchange datagrams and that no process was replaced.
func (b *attacked) goesOn() {
	b.t.Helper()
	for i, s := range b.others {
		s.Exchange(b.others[1-i], 50)
	}
	is, err := b.nic.NIC(b.t.Context())
	if err != nil || is.Worker != b.was.Worker || is.PID != b.was.PID || is.Stuck != 0 {
		b.t.Fatalf("the NIC was %+v and is %+v (%v)", b.was, is, err)
	}
}

// maps counts the mappings of a process whose file's name holds text.
func (b *attacked) maps(pid int, text string) (n int) {
	b.t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		b.t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if strings.Contains(s.Text(), text) {
			n++
		}
	}
	return n
}

// TestGuestCannotTakeAllAddressSpace: a front end announces more memory than a process can address,
// in regions of a sparse file. It is refused, other front ends are not, and the supervisor maps
// nothing.
func TestGuestCannotTakeAllAddressSpace(t *testing.T) {
	attack(t, func(b *attacked) {
		fd, err := unix.MemfdCreate("greedy", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.Ftruncate(fd, 1<<46); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
			t.Fatal(err)
		}
		mapped := 0
		for i := range 4 { // a front end may come again and again
			f := b.reach([]string{filepath.Join(b.dir, "guest"), vnictest.PortSocket(b.dir, 1, 3)}[i%2])
			var refused error
			for n := uint64(0); refused == nil && n < 32; n++ {
				r := vhostuser.Region{GPA: n << 40, User: n << 40, Size: 1 << 40, Offset: n << 40}
				if refused = f.Ask(vhostuser.AddMemReg, r.Append(make([]byte, 8)), fd); refused == nil {
					mapped++
				}
			}
			if n := b.maps(b.was.PID, "greedy"); refused == nil || n != 0 {
				t.Errorf("the supervisor has %d mappings of a guest's memory; the front end was refused: %v", n, refused)
			}
			f.Close()
		}
		if mapped == 0 || mapped > 4*4 {
			t.Errorf("four front ends had %d TiB mapped, want up to 4 each", mapped)
		}
		b.goesOn()
		for clients := 0; ; clients++ {
			if status := b.client(fd, 1<<38); status != 0 {
				if clients != 16 {
					t.Errorf("%d clients have 256 GiB each, want 16", clients)
				}
				break
			}
		}
		if c, err := b.nic.Counters(t.Context()); err != nil || c["nic.guest_memory_refused"] < 5 || c["nic.guest_memory"] > 5<<40 {
			t.Errorf("%d refusals, %d bytes mapped, %v", c["nic.guest_memory_refused"], c["nic.guest_memory"], err)
		}
	})
}

// crowd is the largest transmit ring that a guest can have, filled by a hostile driver.
type crowd struct {
	*vhosttest.Frontend
	kick int
}

const (
	crowdSize  = 32768
	crowdAvail = crowdSize * 16
	crowdUsed  = crowdAvail + 1<<17
	crowdTable = 2 << 20
)

// crowd starts to send on the hostile guest's port. desc returns the first descriptor of each
// chain.
func (b *attacked) crowd(desc func(i int) (addr uint64, size uint32, flags, next uint16)) *crowd {
	b.t.Helper()
	c := &crowd{Frontend: b.reach(vnictest.PortSocket(b.dir, 1, 3))}
	var err error
	if c.File, err = unix.MemfdCreate("crowd", unix.MFD_CLOEXEC); err == nil {
		err = unix.Ftruncate(c.File, 4<<20)
	}
	if err == nil {
		c.Mem, err = unix.Mmap(c.File, 0, 4<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err == nil {
		c.kick, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { unix.Close(c.kick) })
	le := binary.LittleEndian
	put := func(at int, addr uint64, size uint32, flags, next uint16) {
		le.PutUint64(c.Mem[at:], addr)
		le.PutUint32(c.Mem[at+8:], size)
		le.PutUint16(c.Mem[at+12:], flags)
		le.PutUint16(c.Mem[at+14:], next)
	}
	for i := range crowdSize {
		addr, size, flags, next := desc(i)
		put(16*i, addr, size, flags, next)
		if i%256 < 255 {
			put(crowdTable+16*i, 0, 0, vhosttest.DescNext, uint16(i+1))
		}
		le.PutUint16(c.Mem[crowdAvail+4+2*i:], uint16(i))
	}
	c.Regions = []vhostuser.Region{{Size: 4 << 20}}
	state := func(n uint32) []byte { return vhostuser.VringState{Index: 1, Num: n}.Append(nil) }
	for _, m := range []struct {
		req     vhostuser.Request
		payload []byte
		fds     []int
	}{
		{vhostuser.SetFeatures, vhosttest.U64(vhostuser.FeatureVersion1 | vhostuser.FeatureProtocol | 1<<28), nil},
		{vhostuser.SetMemTable, vhostuser.AppendMemTable(nil, c.Regions), []int{c.File}},
		{vhostuser.SetVringNum, state(crowdSize), nil},
		{vhostuser.SetVringBase, state(0), nil},
		{vhostuser.SetVringAddr, vhostuser.VringAddr{Index: 1, Avail: crowdAvail, Used: crowdUsed}.Append(nil), nil},
		{vhostuser.SetVringKick, vhosttest.U64(1), []int{c.kick}},
		{vhostuser.SetVringEnable, state(1), nil},
	} {
		if err := c.Ask(m.req, m.payload, m.fds...); err != nil {
			b.t.Fatal(err)
		}
	}
	return c
}

// fill makes all used chains available again.
func (c *crowd) fill() {
	used := binary.LittleEndian.Uint16(c.Mem[crowdUsed+2:])
	binary.LittleEndian.PutUint16(c.Mem[crowdAvail+2:], used+crowdSize)
	_, _ = unix.Write(c.kick, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

// TestCrowdedRingDoesNotHoldUpOthers: a driver fills the largest ring again and again with chains
// that are slow to process and hold no frame. The frames of other guests still arrive.
func TestCrowdedRingDoesNotHoldUpOthers(t *testing.T) {
	attack(t, func(b *attacked) {
		for name, desc := range map[string]func(i int) (uint64, uint32, uint16, uint16){
			"short frames": func(int) (uint64, uint32, uint16, uint16) { return 0, 20, 0, 0 },
			"empty descriptors": func(i int) (uint64, uint32, uint16, uint16) {
				if i%256 == 255 {
					return 0, 0, 0, 0
				}
				return 0, 0, vhosttest.DescNext, uint16(i + 1)
			},
			"chains of all": func(i int) (uint64, uint32, uint16, uint16) {
				return 0, 0, vhosttest.DescNext, uint16((i + 1) % crowdSize)
			},
			"tables": func(int) (uint64, uint32, uint16, uint16) {
				return crowdTable, 16 * 256, vhosttest.DescIndirect, 0
			},
			"large tables": func(int) (uint64, uint32, uint16, uint16) {
				return crowdTable, 16 * crowdSize, vhosttest.DescIndirect, 0
			},
		} {
			c := b.crowd(desc)
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				for {
					select {
					case <-stop:
						return
					default:
						c.fill()
					}
				}
			}()
			b.goesOn()
			close(stop)
			<-stopped
			back := binary.LittleEndian.Uint16(c.Mem[crowdUsed+2:])
			t.Logf("%s: %d chains came back, so far of 65536", name, back)
			c.Close()
		}
	})
}

// reach returns a front end that has sent nothing yet.
func (b *attacked) reach(socket string) *vhosttest.Frontend {
	b.t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		b.t.Fatal(err)
	}
	f := &vhosttest.Frontend{Conn: c, File: -1}
	b.t.Cleanup(func() { f.Close() })
	return f
}

// client passes size bytes of memory as a bare client and returns the status of the answer.
func (b *attacked) client(fd int, size uint64) uint32 {
	b.t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(b.dir, "client"), Net: "unix"})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	le := binary.LittleEndian
	preamble := le.AppendUint32(le.AppendUint32([]byte("VNICMEM1"), 1), 0)
	for _, v := range []uint64{0, size, 0} {
		preamble = le.AppendUint64(preamble, v)
	}
	if _, _, err := c.WriteMsgUnix(preamble, unix.UnixRights(fd), nil); err != nil {
		b.t.Fatal(err)
	}
	var answer [8]byte
	if _, err := io.ReadFull(c, answer[:]); err != nil {
		b.t.Fatal(err)
	}
	return le.Uint32(answer[:])
}
