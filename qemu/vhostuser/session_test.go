package vhostuser_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/guestmem"
	"github.com/falcon-vnic/vnic/qemu/vhosttest"
	"github.com/falcon-vnic/vnic/qemu/vhostuser"
)

// recorder is a Device that records its calls.
type recorder struct {
	mu    sync.Mutex
	log   []string
	state vhostuser.State
	base  uint32
}

func (r *recorder) note(st *vhostuser.State, format string, a ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, fmt.Sprintf(format, a...))
	if st != nil {
		r.state = *st
		r.state.Vrings = slices.Clone(st.Vrings)
	}
}

// take returns what was noted since the last take, and the state. Call it when
// the last message was answered.
func (r *recorder) take() (log []string, st vhostuser.State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	log, r.log = r.log, nil
	return log, r.state
}

func (r *recorder) regions() int {
	_, st := r.take()
	return len(st.Regions)
}

func (r *recorder) Layout() vhostuser.Layout { return vhostuser.VsockLayout }

func (r *recorder) Features() uint64 { return vhostuser.FeatureVersion1 }

func (r *recorder) Config(off uint32, b []byte) bool {
	space := []byte{42, 0, 0, 0, 0, 0, 0, 0}
	if int(off)+len(b) > len(space) {
		return false
	}
	copy(b, space[off:])
	return true
}

func (r *recorder) SetMemory(st *vhostuser.State, maps []*vhostuser.Mapping) error {
	for _, m := range maps {
		if uint64(len(m.Mem)) != m.Size {
			return fmt.Errorf("mapping of %d bytes for a region of %d", len(m.Mem), m.Size)
		}
		m.Mem[0]++
	}
	r.note(st, "memory %d", len(maps))
	return nil
}

func (r *recorder) StartVring(st *vhostuser.State, i int, kick, call, errfd int) error {
	_, _, _, err := st.RingGPA(i)
	r.note(st, "start %d", i)
	return err
}

func (r *recorder) SetCall(i, call, errfd int) { r.note(nil, "call %d", i) }

func (r *recorder) StopVring(i int) uint32 {
	r.note(nil, "stop %d", i)
	return r.base
}

// serve runs a back end and returns how its session ended.
func serve(t *testing.T, dev vhostuser.Device) (path string, ended <-chan error) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ch := make(chan error, 1)
	go func() {
		c, err := l.AcceptUnix()
		if err == nil {
			err = vhostuser.Serve(c, dev, guestmem.NewBudget("test", guestmem.Attachment))
			c.Close()
		}
		l.Close()
		ch <- err
	}()
	return path, ch
}

func attach(t *testing.T, dev vhostuser.Device) (*vhosttest.Frontend, <-chan error) {
	t.Helper()
	path, ended := serve(t, dev)
	f, err := vhosttest.Connect(path, 4<<20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, ended
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func ring(t *testing.T, f *vhosttest.Frontend, at uint64) *vhosttest.Ring {
	t.Helper()
	r, err := vhosttest.NewRing(f.RAM(), at)
	must(t, err)
	t.Cleanup(r.Close)
	return r
}

func TestRingsStartStopAndStartAgain(t *testing.T) {
	dev := &recorder{base: 77}
	f, ended := attach(t, dev)
	if f.CID != 42 {
		t.Errorf("CID %d", f.CID)
	}
	must(t, f.Send(vhostuser.SetFeatures, vhosttest.U64(vhostuser.FeatureVersion1|vhostuser.FeatureProtocol)))
	rings := [2]*vhosttest.Ring{ring(t, f, 0x100000), ring(t, f, 0x110000)}
	for range 3 {
		must(t, f.ShareMemory(false))
		for i, r := range rings {
			must(t, f.StartRing(uint32(i), r))
		}
		for i := range uint32(2) {
			must(t, f.EnableRing(i, 1))
		}
		for i, r := range rings {
			must(t, f.Ask(vhostuser.SetVringCall, vhosttest.U64(uint64(i)), r.Call))
		}
		must(t, f.EnableRing(1, 0))
		for i := range uint32(2) {
			if base, err := f.StopRing(i); err != nil || base != 77 {
				t.Fatalf("base %d, %v", base, err)
			}
		}
		want := []string{"memory 2", "start 0", "start 1", "call 0", "call 1", "stop 1", "stop 0"}
		got, _ := dev.take()
		if d := cmp.Diff(want, got); d != "" {
			t.Fatal(d)
		}
	}
	must(t, f.Conn.Close())
	must(t, <-ended)
	if log, _ := dev.take(); len(log) != 1 || log[0] != "memory 0" {
		t.Errorf("the memory was not taken back: %v", log)
	}
}

// TestEveryMessageMayAskForAReply asks for an answer to every message: QEMU 11 does for most.
func TestEveryMessageMayAskForAReply(t *testing.T) {
	f, ended := attach(t, &recorder{})
	r := ring(t, f, 0x100000)
	u64 := vhosttest.U64
	state := vhostuser.VringState{Index: 0, Num: 128}.Append(nil)
	addr := vhostuser.VringAddr{Desc: vhosttest.UserBase + r.Desc, Used: vhosttest.UserBase + r.Used, Avail: vhosttest.UserBase + r.Avail}
	must(t, f.Ask(vhostuser.SetOwner, nil))
	must(t, f.Ask(vhostuser.ResetOwner, nil))
	must(t, f.Ask(vhostuser.SetFeatures, u64(vhostuser.FeatureVersion1|vhostuser.FeatureProtocol)))
	must(t, f.Ask(vhostuser.SetProtocolFeatures, u64(vhostuser.ProtocolReplyAck|vhostuser.ProtocolConfig)))
	must(t, f.ShareMemory(false))
	must(t, f.Ask(vhostuser.SetVringNum, state))
	must(t, f.Ask(vhostuser.SetVringBase, vhostuser.VringState{}.Append(nil)))
	must(t, f.Ask(vhostuser.SetVringAddr, addr.Append(nil)))
	must(t, f.Ask(vhostuser.SetVringErr, u64(0), r.Call))
	must(t, f.Ask(vhostuser.SetVringCall, u64(0), r.Call))
	must(t, f.Ask(vhostuser.SetVringCall, u64(1<<8)))
	must(t, f.Ask(vhostuser.SetVringKick, u64(0), r.Kick))
	must(t, f.Ask(vhostuser.SetVringEnable, state))
	for _, req := range []vhostuser.Request{vhostuser.SetLogBase, vhostuser.SetConfig, 19, 20, 26, 34, 40} {
		if err := f.Ask(req, u64(0)); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%v: %v", req, err)
		}
		must(t, f.Send(req, u64(0))) // without asking: ignored
	}
	// The answer about a configuration space that does not exist is empty.
	if b, err := f.Call(vhostuser.GetConfig, vhosttest.ConfigRequest(1, 8)); err != nil || len(b) != 0 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	must(t, f.Conn.Close())
	must(t, <-ended)
}

func TestMemoryMayComeInSlots(t *testing.T) {
	dev := &recorder{}
	f, ended := attach(t, dev)
	b, err := f.Call(vhostuser.GetMaxMemSlots, nil)
	must(t, err)
	if n := binary.LittleEndian.Uint64(b); n != vhostuser.MaxMemSlots {
		t.Errorf("%d slots", n)
	}
	f.Mem[0], f.Mem[0xc0000] = 10, 20
	must(t, f.ShareMemory(true))
	if n := dev.regions(); n != 2 || f.Mem[0] != 12 || f.Mem[0xc0000] != 21 { // the recorder counts up per announcement
		t.Fatalf("%d regions, %d, %d", n, f.Mem[0], f.Mem[0xc0000])
	}
	gone := f.Regions[0]
	gone.Offset = 0xdead000 // not compared
	must(t, f.Ask(vhostuser.RemMemReg, gone.Append(make([]byte, 8)), f.File))
	if n := dev.regions(); n != 1 {
		t.Errorf("%d regions", n)
	}
	must(t, f.Conn.Close())
	must(t, <-ended)
}

// TestRepeatedSlotsAreAcknowledged: QEMU before 8.0 adds and removes each slot once for each pair
// of a port's queues. A repeated message is acknowledged and not passed on to the device; another
// region, or another file, in the place of a slot is refused.
func TestRepeatedSlotsAreAcknowledged(t *testing.T) {
	dev := &recorder{}
	f, ended := attach(t, dev)
	must(t, f.ShareMemory(true))
	slot := func(i int) []byte { return f.Regions[i].Append(make([]byte, 8)) }
	must(t, f.Ask(vhostuser.RemMemReg, slot(1)))
	must(t, f.Ask(vhostuser.RemMemReg, slot(1)))
	told, fds := f.Mem[0], openFiles(t)
	for range 3 {
		must(t, f.Ask(vhostuser.AddMemReg, slot(0), f.File))
		must(t, f.Ask(vhostuser.RemMemReg, slot(1)))
	}
	must(t, f.Send(vhostuser.SetMemTable, vhostuser.AppendMemTable(nil, f.Regions[:1]), f.File))
	must(t, f.Ask(vhostuser.SetOwner, nil)) // answered in order
	if n := dev.regions(); n != 1 || f.Mem[0] != told+1 {
		t.Errorf("%d regions, and the device was told %d times, want only of the table", n, f.Mem[0]-told)
	}
	if n := openFiles(t); n > fds {
		t.Errorf("%d descriptors became %d", fds, n)
	}
	other, err := unix.MemfdCreate("other", unix.MFD_CLOEXEC)
	must(t, err)
	defer unix.Close(other)
	must(t, unix.Ftruncate(other, int64(len(f.Mem))))
	if err := f.Ask(vhostuser.AddMemReg, slot(0), other); err == nil {
		t.Error("another file was taken for the same")
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "overlap") {
		t.Errorf("ended with %v", err)
	}
}

// openFiles is how many descriptors this process has.
func openFiles(t *testing.T) int {
	t.Helper()
	ds, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	return len(ds)
}

// TestManySlotsAreAccepted: a front end may add MaxMemSlots regions one by one, and not one more.
func TestManySlotsAreAccepted(t *testing.T) {
	dev := &recorder{}
	f, _ := attach(t, dev)
	for i := range uint64(vhostuser.MaxMemSlots) {
		r := vhostuser.Region{GPA: i << 13, Size: 4096, User: vhosttest.UserBase + i<<13, Offset: i << 12}
		must(t, f.Ask(vhostuser.AddMemReg, r.Append(make([]byte, 8)), f.File))
	}
	if n := dev.regions(); n != vhostuser.MaxMemSlots {
		t.Errorf("%d regions", n)
	}
	if err := f.Ask(vhostuser.AddMemReg, vhostuser.Region{GPA: 1 << 40, Size: 4096}.Append(make([]byte, 8)), f.File); err == nil {
		t.Error("one more was taken")
	}
}

// TestAnInvalidMessageEndsTheSession: an invalid message ends the session, with a reason.
func TestAnInvalidMessageEndsTheSession(t *testing.T) {
	file := func(f *vhosttest.Frontend) int { return f.File }
	u64 := vhosttest.U64
	slot := func(r vhostuser.Region) []byte { return r.Append(make([]byte, 8)) }
	for _, tt := range []struct {
		name    string
		req     vhostuser.Request
		payload []byte
		fd      func(*vhosttest.Frontend) int
		want    string
	}{
		{"request 0", 0, nil, nil, "outside the protocol"},
		{"request 1000", 1000, nil, nil, "outside the protocol"},
		{"oversized", vhostuser.SetConfig, make([]byte, 5000), nil, "5000 bytes"},
		{"unoffered feature", vhostuser.SetFeatures, u64(1 << 29), nil, "not offered"},
		{"unoffered protocol feature", vhostuser.SetProtocolFeatures, u64(1<<2 | 1), nil, "protocol features 0x4 were not offered"},
		{"short", vhostuser.SetFeatures, make([]byte, 7), nil, "7 bytes"},
		{"short table", vhostuser.SetMemTable, make([]byte, 4), nil, "4 bytes"},
		{"table without descriptors", vhostuser.SetMemTable, vhostuser.AppendMemTable(nil, []vhostuser.Region{{Size: 4096}}), nil, "0 descriptors"},
		{"table that lies", vhostuser.SetMemTable, []byte{255, 255, 255, 255, 0, 0, 0, 0}, nil, "claims"},
		{"slot without descriptor", vhostuser.AddMemReg, slot(vhostuser.Region{Size: 4096}), nil, "no descriptor"},
		{"empty slot", vhostuser.AddMemReg, slot(vhostuser.Region{}), file, "empty"},
		{"slot behind the file", vhostuser.AddMemReg, slot(vhostuser.Region{Size: 4096, Offset: 4 << 20}), file, "only"},
		{"wrapping slot", vhostuser.AddMemReg, slot(vhostuser.Region{GPA: ^uint64(0) - 10, Size: 4096}), file, "wraps"},
		{"wrapping offset", vhostuser.AddMemReg, slot(vhostuser.Region{Size: 4096, Offset: ^uint64(0) - 10}), file, "wraps"},
		{"huge slot", vhostuser.AddMemReg, slot(vhostuser.Region{Size: 1 << 63}), file, "wraps"},
		{"ring 2", vhostuser.SetVringNum, vhostuser.VringState{Index: 2, Num: 128}.Append(nil), nil, "ring 2"},
		{"ring size", vhostuser.SetVringNum, vhostuser.VringState{Num: 100}.Append(nil), nil, "power of two"},
		{"ring base", vhostuser.SetVringBase, vhostuser.VringState{Num: 1 << 16}.Append(nil), nil, "65535"},
		{"kick without descriptor", vhostuser.SetVringKick, u64(1 << 8), nil, "not offered"},
		{"kick that is a file", vhostuser.SetVringKick, u64(0), file, "eventfd"},
		{"call that is missing", vhostuser.SetVringCall, u64(0), nil, "missing"},
		{"configuration", vhostuser.GetConfig, []byte{0, 0, 0, 0, 200, 0, 0, 0, 0, 0, 0, 0}, nil, "size 200 exceeds the payload of 0 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, ended := attach(t, &recorder{})
			var fds []int
			if tt.fd != nil {
				fds = append(fds, tt.fd(f))
			}
			must(t, f.Send(tt.req, tt.payload, fds...))
			if err := <-ended; err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("ended with %v, want %q in it", err, tt.want)
			}
		})
	}
}

func TestOverlappingRegionsAreRefused(t *testing.T) {
	f, ended := attach(t, &recorder{})
	rs := []vhostuser.Region{{GPA: 0, Size: 8192}, {GPA: 4096, Size: 4096, User: 1 << 40}}
	if err := f.Ask(vhostuser.SetMemTable, vhostuser.AppendMemTable(nil, rs), f.File, f.File); err == nil || !strings.Contains(err.Error(), "refused with 1") {
		t.Errorf("front end sees %v", err)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "overlap") {
		t.Errorf("ended with %v", err)
	}
}

func TestRingOutsideMemoryIsRefused(t *testing.T) {
	f, ended := attach(t, &recorder{})
	must(t, f.Send(vhostuser.SetFeatures, vhosttest.U64(vhostuser.FeatureVersion1|vhostuser.FeatureProtocol)))
	must(t, f.ShareMemory(false))
	r := ring(t, f, 0x100000)
	r.Used = 4<<20 - 64
	must(t, f.StartRing(0, r))
	must(t, f.EnableRing(0, 1))
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "used ring") {
		t.Errorf("ended with %v", err)
	}
}

func TestTruncatedStreamIsAnError(t *testing.T) {
	whole := vhostuser.Header{Request: vhostuser.SetFeatures, Flags: 1, Size: 8}.Append(nil)
	whole = append(whole, make([]byte, 8)...)
	for n := range len(whole) {
		f, ended := attach(t, &recorder{})
		if _, err := f.Conn.Write(whole[:n]); err != nil {
			t.Fatal(err)
		}
		f.Conn.Close()
		if err := <-ended; (err == nil) != (n == 0) {
			t.Errorf("after %d bytes: %v", n, err)
		}
	}
}

// TestNoDescriptorIsLeaked: no descriptor stays open when all messages with descriptors are
// repeated and replaced.
func TestNoDescriptorIsLeaked(t *testing.T) {
	open := func() int {
		ds, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(ds)
	}
	round := func(end func(*vhosttest.Frontend)) {
		f, ended := attach(t, &recorder{})
		r, err := vhosttest.NewRing(f.RAM(), 0x100000)
		must(t, err)
		defer r.Close()
		for range 3 {
			must(t, f.ShareMemory(false))
			for range 3 {
				must(t, f.Ask(vhostuser.SetVringCall, vhosttest.U64(0), r.Call))
				must(t, f.Ask(vhostuser.SetVringErr, vhosttest.U64(0), r.Call))
				must(t, f.Ask(vhostuser.SetVringKick, vhosttest.U64(0), r.Kick))
			}
			must(t, f.Send(vhostuser.SetLogFD, vhosttest.U64(0), f.File)) // refused, with a descriptor
			must(t, f.Send(vhostuser.SetOwner, nil, f.File, f.File))      // descriptors nobody wants
		}
		end(f)
		<-ended
		f.Close()
	}
	ends := []func(*vhosttest.Frontend){
		func(f *vhosttest.Frontend) { f.Conn.Close() },
		func(f *vhosttest.Frontend) { _ = f.Send(0, nil, f.File) },
		func(f *vhosttest.Frontend) { _ = f.Send(vhostuser.SetVringKick, vhosttest.U64(7), f.File) },
		func(f *vhosttest.Frontend) {
			_ = f.Send(vhostuser.SetMemTable, vhostuser.AppendMemTable(nil, f.Regions[:1]), f.File, f.File)
		},
		func(f *vhosttest.Frontend) { // more than a message may carry
			fds := make([]int, 40)
			for i := range fds {
				fds[i] = f.File
			}
			_ = f.Send(vhostuser.SetOwner, nil, fds...)
		},
	}
	for _, end := range ends {
		round(end)
	}
	before := open()
	for _, end := range ends {
		round(end)
	}
	if after := open(); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func TestStateSurvivesJSON(t *testing.T) {
	dev := &recorder{}
	f, _ := attach(t, dev)
	must(t, f.Send(vhostuser.SetFeatures, vhosttest.U64(vhostuser.FeatureVersion1|vhostuser.FeatureProtocol)))
	must(t, f.ShareMemory(true))
	must(t, f.StartRing(1, ring(t, f, 0x100000)))
	must(t, f.EnableRing(1, 1))
	must(t, f.Ask(vhostuser.SetOwner, nil))
	_, state := dev.take()
	b, err := json.Marshal(state)
	must(t, err)
	var back vhostuser.State
	must(t, json.Unmarshal(b, &back))
	if d := cmp.Diff(state, back); d != "" {
		t.Error(d)
	}
	if desc, _, _, err := back.RingGPA(1); err != nil || desc != 0x100000 {
		t.Errorf("ring at %#x, %v", desc, err)
	}
}

func TestMessagesAreReadAsWritten(t *testing.T) {
	a := vhostuser.VringAddr{Index: 1, Flags: 2, Desc: 3, Used: 4, Avail: 5, Log: 6}
	b := a.Append(nil)
	for n := range b {
		if _, err := vhostuser.ParseVringAddr(b[:n]); err == nil {
			t.Errorf("addresses of %d bytes", n)
		}
	}
	if got, err := vhostuser.ParseVringAddr(b); err != nil || got != a {
		t.Errorf("%+v, %v", got, err)
	}
	rs := []vhostuser.Region{{1, 2, 3, 4}, {5, 6, 7, 8}}
	b = vhostuser.AppendMemTable(nil, rs)
	for n := range b {
		if _, err := vhostuser.ParseMemTable(b[:n]); err == nil {
			t.Errorf("table of %d bytes", n)
		}
	}
	got, err := vhostuser.ParseMemTable(b)
	if d := cmp.Diff(rs, got); err != nil || d != "" {
		t.Error(err, d)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(vhostuser.Header{Request: vhostuser.SetOwner, Flags: 9, Size: 12}.Append(nil))
	f.Add(vhostuser.AppendMemTable(nil, []vhostuser.Region{{1, 2, 3, 4}}))
	f.Add(vhostuser.VringAddr{Index: 1}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := vhostuser.ParseHeader(b); err == nil && !bytes.Equal(h.Append(nil), b[:vhostuser.HeaderSize]) {
			t.Error("header")
		}
		if a, err := vhostuser.ParseVringAddr(b); err == nil && !bytes.Equal(a.Append(nil), b[:vhostuser.VringAddrSize]) {
			t.Error("addresses")
		}
		_, _ = vhostuser.ParseMemTable(b)
		_, _ = vhostuser.ParseVringState(b)
	})
}

// TestMemoryOnDiskIsRefused: memory from a file on a disk, or on FUSE, is refused, because somebody
// else provides its pages.
func TestMemoryOnDiskIsRefused(t *testing.T) {
	for _, slots := range []bool{false, true} {
		f, ended := attach(t, &recorder{})
		file := diskFile(t, len(f.Mem))
		memory := f.File
		f.File = int(file.Fd())
		if err := f.ShareMemory(slots); err == nil {
			t.Error("memory on a disk was taken")
		}
		f.File = memory
		if err := <-ended; err == nil || !strings.Contains(err.Error(), "memory-backend-memfd") {
			t.Error(err)
		}
	}
}

// diskFile makes a file that is not on tmpfs.
func diskFile(t *testing.T, size int) *os.File {
	t.Helper()
	for _, dir := range []string{"", "."} {
		f, err := os.CreateTemp(dir, "ram-")
		must(t, err)
		t.Cleanup(func() {
			_ = f.Close()
			_ = os.Remove(f.Name())
		})
		must(t, f.Truncate(int64(size)))
		var st unix.Statfs_t
		must(t, unix.Fstatfs(int(f.Fd()), &st))
		if st.Type != unix.TMPFS_MAGIC {
			return f
		}
	}
	t.Skip("there is no disk: every folder is on tmpfs")
	return nil
}

// TestRangeEndsWithItsRegion: a range may end where its region ends, and not a byte later.
func TestRangeEndsWithItsRegion(t *testing.T) {
	s := vhostuser.State{Regions: []vhostuser.Region{
		{GPA: 0, User: 0x7000_0000, Size: 0x1000},
		{GPA: 0x8000, User: 0x7000_2000, Size: 0x1000},
	}}
	for _, tc := range []struct {
		user, n, gpa uint64
		ok           bool
	}{
		{0x7000_0000, 0x1000, 0, true},
		{0x7000_0000, 0x1001, 0, false},
		{0x7000_0fff, 1, 0xfff, true},
		{0x7000_0fff, 2, 0, false},
		{0x7000_1000, 1, 0, false}, // the hole between them
		{0x7000_2000, 0x1000, 0x8000, true},
		{0x7000_2fff, 2, 0, false},
		{0x6fff_ffff, 1, 0, false},
		{0x7000_2800, ^uint64(0), 0, false},
	} {
		gpa, err := s.GPA(tc.user, tc.n)
		if gpa != tc.gpa || (err == nil) != tc.ok {
			t.Errorf("%#x+%#x: %#x, %v; want %#x, valid %v", tc.user, tc.n, gpa, err, tc.gpa, tc.ok)
		}
	}
}
