package vfiouser

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/internal/sockettest"
)

// fake is a device that remembers what was done to it: region 0 of 4 KiB, region 2 with a file,
// the configuration space read-only, four vectors of MSI-X.
type fake struct {
	mu     sync.Mutex
	mem    [4096]byte
	file   int
	maps   map[uint64]Map
	files  map[uint64]int
	irqs   [4]int
	raised [4]int
	resets int
	refuse error
}

func newFake(t *testing.T) *fake {
	f := &fake{maps: map[uint64]Map{}, files: map[uint64]int{}, irqs: [4]int{-1, -1, -1, -1}, file: memfd(t, 8192)}
	t.Cleanup(func() { _ = unix.Close(f.file) })
	return f
}

func memfd(t testing.TB, size int64) int {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(fd, size)
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func (f *fake) Region(index uint32) (RegionInfo, int) {
	switch index {
	case 0:
		return RegionInfo{Flags: RegionReadable | RegionWritable, Size: 4096}, -1
	case 2:
		return RegionInfo{Flags: RegionReadable | RegionWritable | RegionMappable, Size: 8192}, f.file
	case RegionConfig:
		return RegionInfo{Flags: RegionReadable, Size: 256}, -1
	}
	return RegionInfo{}, f.file // no region: its file is not passed
}

func (f *fake) Read(_ uint32, off uint64, b []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if off < 4096 {
		copy(b, f.mem[off:])
	}
}

func (f *fake) Write(_ uint32, off uint64, b []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if off < 4096 {
		copy(f.mem[off:], b)
	}
}

func (f *fake) Vectors(irq uint32) uint32 {
	if irq == IRQMSIX {
		return 4
	}
	return 0
}

func (f *fake) SetIRQs(irq, start uint32, fds []int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, fd := range fds {
		at := int(start) + i
		if f.irqs[at] >= 0 {
			_ = unix.Close(f.irqs[at])
		}
		f.irqs[at] = fd
	}
	return f.refuse
}

func (f *fake) Trigger(_, vector uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.raised[vector]++
}

func (f *fake) Map(m Map, file int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse != nil {
		if file >= 0 {
			_ = unix.Close(file)
		}
		return f.refuse
	}
	f.maps[m.Addr], f.files[m.Addr] = m, file
	return nil
}

func (f *fake) Unmap(r Range) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for at, m := range maps.Clone(f.maps) {
		if !m.Overlaps(r) {
			continue
		}
		fd := f.files[at]
		delete(f.maps, at)
		delete(f.files, at)
		for _, left := range m.Without(r) {
			part := m
			part.Range, part.Offset = left, m.Offset+left.Addr-at
			f.maps[left.Addr], f.files[left.Addr] = part, -1
			if fd >= 0 {
				f.files[left.Addr], _ = unix.Dup(fd)
			}
		}
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

func (f *fake) Reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.resets++
}

// clean checks that nothing of a client is left.
func (f *fake) clean(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.maps) != 0 || f.irqs != [4]int{-1, -1, -1, -1} {
		t.Errorf("left behind: %v, interrupts %v", f.maps, f.irqs)
	}
}

// serve serves dev to the other end of the connection it returns; ended has how that ended.
func serve(t testing.TB, dev Device) (client *net.UnixConn, ended <-chan error) {
	t.Helper()
	client, server := sockettest.Pair(t)
	done := make(chan error, 1)
	var all sync.WaitGroup
	all.Go(func() {
		err := Serve(server, dev)
		_ = server.Close()
		done <- err
	})
	t.Cleanup(func() {
		_ = client.Close()
		all.Wait()
	})
	return client, done
}

func dial(t testing.TB, dev Device) (*Client, <-chan error) {
	t.Helper()
	conn, ended := serve(t, dev)
	c, err := NewClient(conn, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return c, ended
}

func await(t testing.TB, ended <-chan error) error {
	t.Helper()
	select {
	case err := <-ended:
		return err
	case <-time.After(time.Minute):
		t.Fatal("the server does not end")
		return nil
	}
}

// TestConversationOfQEMU: the server answers everything that QEMU sends to a device from start to
// end.
func TestConversationOfQEMU(t *testing.T) {
	dev := newFake(t)
	c, ended := dial(t, dev)
	if c.Server.MaxFDs != MaxFDs || c.Server.MaxTransfer != MaxTransfer {
		t.Errorf("the server says %+v", c.Server)
	}
	ask := Info{}
	body, err := c.Call(GetInfo, ask.Append(nil))
	if err != nil {
		t.Fatal(err)
	}
	if i, size, err := ParseInfo(body); err != nil || size != infoSize || i != (Info{InfoReset | InfoPCI, NumRegions, NumIRQs}) {
		t.Errorf("%+v, %d bytes, %v", i, size, err)
	}
	r, file, err := c.Region(2)
	if err != nil || r.Size != 8192 || r.Flags != 7 || file < 0 {
		t.Errorf("region 2: %+v, file %d, %v", r, file, err)
	}
	_ = unix.Close(file)
	if r, file, err := c.Region(1); err != nil || r != (RegionInfo{Index: 1}) || file >= 0 {
		t.Errorf("region 1: %+v, file %d, %v", r, file, err)
	}
	irq := IRQInfo{Index: IRQMSIX}
	if body, err = c.Call(GetIRQInfo, irq.Append(nil)); err != nil {
		t.Fatal(err)
	}
	if i, _, err := ParseIRQInfo(body); err != nil || i.Count != 4 || i.Flags&IRQEventfd == 0 {
		t.Errorf("%+v, %v", i, err)
	}
	if err := c.Write(0, 12, []byte{1, 2, 3, 4}, true); err != nil {
		t.Fatal(err)
	}
	if v, err := c.Read32(0, 12); err != nil || v != 0x04030201 { // never before the posted write
		t.Errorf("%#x, %v", v, err)
	}
	ram := memfd(t, 1<<20)
	defer unix.Close(ram)
	if err := errors.Join(
		c.Map(Map{3, 0, Range{0, 0xa0000}}, ram),
		c.Map(Map{1, 0, Range{0xfffc0000, 0x40000}}, -1),
		c.Map(Map{3, 0xc0000, Range{0xc0000, 0x40000}}, ram),
		c.SetIRQs(IRQMSIX, 0, 2, ram, ram),
		c.Unmap(Range{0, 0xa0000}),
		c.Reset(),
	); err != nil {
		t.Fatal(err)
	}
	q := IRQSet{IRQDataNone | IRQTrigger, IRQMSIX, 3, 1}
	if _, err := c.Call(SetIRQs, q.Append(nil)); err != nil {
		t.Error(err)
	}
	dev.mu.Lock()
	if dev.resets != 1 || len(dev.maps) != 2 || dev.maps[0xc0000].Offset != 0xc0000 || dev.files[0xfffc0000] != -1 || dev.irqs[1] < 0 || dev.irqs[2] >= 0 || dev.raised != [4]int{3: 1} {
		t.Errorf("%v, files %v, interrupts %v, raised %v, %d resets", dev.maps, dev.files, dev.irqs, dev.raised, dev.resets)
	}
	dev.mu.Unlock()
	_ = c.Close()
	if err := await(t, ended); err != nil {
		t.Error(err)
	}
	dev.clean(t)
}

// TestInvalidRequestsGetAnErrno: a well-formed request with invalid values is refused and changes
// nothing, and the connection stays.
func TestInvalidRequestsGetAnErrno(t *testing.T) {
	dev := newFake(t)
	c, _ := dial(t, dev)
	ram := memfd(t, 1<<20)
	defer unix.Close(ram)
	if err := c.Map(Map{3, 0, Range{0x10000, 0x10000}}, ram); err != nil {
		t.Fatal(err)
	}
	access := func(a Access, data int) []byte { return append(a.Append(nil), make([]byte, data)...) }
	irqs := func(q IRQSet) []byte { return q.Append(nil) }
	dma := func(m Map) []byte { return m.Append(nil) }
	small := (&RegionInfo{}).Append(nil)
	small[0] = regionSize - 1
	for name, tc := range map[string]struct {
		cmd  Command
		body []byte
		fds  []int
		want unix.Errno
	}{
		"no such command":        {14, nil, nil, unix.ENOSYS},
		"DMA_READ to the server": {11, nil, nil, unix.ENOSYS},
		"read past the end":      {RegionRead, access(Access{4094, 0, 4}, 0), nil, unix.EINVAL},
		"read that wraps":        {RegionRead, access(Access{^uint64(0), 0, 4}, 0), nil, unix.EINVAL},
		"read of no region":      {RegionRead, access(Access{0, 1, 4}, 0), nil, unix.EINVAL},
		"read of region 99":      {RegionRead, access(Access{0, 99, 4}, 0), nil, unix.EINVAL},
		"endless read":           {RegionRead, access(Access{0, 0, ^uint32(0)}, 0), nil, unix.EINVAL},
		"write past the end":     {RegionWrite, access(Access{4094, 0, 4}, 4), nil, unix.EINVAL},
		"write of less":          {RegionWrite, access(Access{0, 0, 8}, 4), nil, unix.EINVAL},
		"write of more":          {RegionWrite, access(Access{0, 0, 4}, 8), nil, unix.EINVAL},
		"write where none may":   {RegionWrite, access(Access{0, RegionConfig, 4}, 4), nil, unix.EINVAL},
		"half an access":         {RegionRead, make([]byte, 15), nil, unix.EINVAL},
		"region 9":               {GetRegionInfo, (&RegionInfo{Index: 9}).Append(nil), nil, unix.EINVAL},
		"no room for the answer": {GetRegionInfo, small, nil, unix.EINVAL},
		"interrupts of kind 5":   {GetIRQInfo, (&IRQInfo{Index: 5}).Append(nil), nil, unix.EINVAL},
		"half an info":           {GetInfo, make([]byte, 15), nil, unix.EINVAL},
		"the same again":         {DMAMap, dma(Map{3, 0, Range{0x10000, 0x10000}}), nil, unix.EEXIST},
		"overlap in front":       {DMAMap, dma(Map{3, 0, Range{0xf000, 0x1001}}), nil, unix.EEXIST},
		"overlap behind":         {DMAMap, dma(Map{3, 0, Range{0x1ffff, 1}}), nil, unix.EEXIST},
		"overlap around":         {DMAMap, dma(Map{3, 0, Range{0, 1 << 40}}), nil, unix.EEXIST},
		"two files":              {DMAMap, dma(Map{3, 0, Range{0x40000, 0x1000}}), []int{ram, ram}, unix.EINVAL},
		"nothing":                {DMAMap, dma(Map{}), nil, unix.EINVAL},
		"vector 4":               {SetIRQs, irqs(IRQSet{IRQDataEventfd | IRQTrigger, IRQMSIX, 4, 1}), []int{ram}, unix.EINVAL},
		"INTx":                   {SetIRQs, irqs(IRQSet{IRQDataEventfd | IRQTrigger, IRQINTx, 0, 1}), []int{ram}, unix.EINVAL},
		"descriptors too few":    {SetIRQs, irqs(IRQSet{IRQDataEventfd | IRQTrigger, IRQMSIX, 0, 2}), []int{ram}, unix.EINVAL},
		"descriptors too many":   {SetIRQs, irqs(IRQSet{IRQDataEventfd | IRQTrigger, IRQMSIX, 0, 1}), []int{ram, ram}, unix.EINVAL},
		"masking":                {SetIRQs, irqs(IRQSet{IRQDataNone | IRQMask, IRQMSIX, 0, 1}), nil, unix.EINVAL},
		"half a set":             {SetIRQs, make([]byte, 19), nil, unix.EINVAL},
	} {
		if _, err := c.Call(tc.cmd, tc.body, tc.fds...); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
	dev.mu.Lock()
	if len(dev.maps) != 1 || dev.irqs != [4]int{-1, -1, -1, -1} {
		t.Errorf("something changed: %v, %v", dev.maps, dev.irqs)
	}
	dev.refuse = errors.New("no memory of a kind that can be mapped")
	dev.mu.Unlock()
	if err := c.Map(Map{3, 0, Range{0x80000, 0x1000}}, ram); !errors.Is(err, unix.EINVAL) {
		t.Error(err)
	}
	dev.mu.Lock()
	dev.refuse = nil
	dev.mu.Unlock()
	if err := c.Map(Map{3, 0, Range{0x80000, 0x1000}}, ram); err != nil { // the refused one is forgotten
		t.Error(err)
	}
	upper := Unmap{Range: Range{1 << 63, 1 << 63}} // half of all there is, as QEMU says it
	if _, err := c.Call(DMAUnmap, upper.Append(nil)); err != nil {
		t.Error(err)
	}
	all := Unmap{Flags: UnmapAll}
	if _, err := c.Call(DMAUnmap, all.Append(nil)); err != nil {
		t.Error(err)
	}
	dev.mu.Lock()
	defer dev.mu.Unlock()
	if len(dev.maps) != 0 {
		t.Errorf("left: %v", dev.maps)
	}
}

// TestBrokenFramingDisconnects: a breach of the framing ends the conversation, and leaves nothing
// behind.
func TestBrokenFramingDisconnects(t *testing.T) {
	hello := func() []byte {
		body := (&Greeting{}).Append(nil)
		h := Header{ID: 1, Command: Version, Size: uint32(HeaderSize + len(body))}
		return append(h.Append(nil), body...)
	}
	header := func(h Header) []byte { return h.Append(nil) }
	for name, sent := range map[string][]byte{
		"no greeting":         header(Header{Command: GetInfo, Size: 16}),
		"greeting twice":      append(hello(), hello()...),
		"another version":     append(header(Header{Command: Version, Size: 20}), 1, 0, 0, 0),
		"half a version":      append(header(Header{Command: Version, Size: 18}), 0, 0),
		"version is no JSON":  append(header(Header{Command: Version, Size: 22}), 0, 0, 0, 0, '[', 0),
		"a reply":             append(hello(), header(Header{Command: GetInfo, Size: 16, Flags: FlagReply})...),
		"less than a header":  append(hello(), header(Header{Command: GetInfo, Size: 8})...),
		"gigabytes":           append(hello(), header(Header{Command: GetInfo, Size: 1 << 31})...),
		"message of type 7":   append(hello(), header(Header{Command: GetInfo, Size: 16, Flags: 7})...),
		"gone in the header":  hello()[:9],
		"gone in the message": append(hello(), header(Header{Command: RegionWrite, Size: 36})...),
	} {
		dev := newFake(t)
		conn, ended := serve(t, dev)
		if _, err := conn.Write(sent); err != nil {
			t.Fatal(err)
		}
		_ = conn.CloseWrite()
		_, _ = io.Copy(io.Discard, conn)
		if err := await(t, ended); err == nil || errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: ended with %v", name, err)
		}
		dev.clean(t)
	}
}

// TestLeavingClientLeavesNothing: a client that leaves in the middle, with mappings and interrupts,
// leaves nothing behind; the next begins as the first did.
func TestLeavingClientLeavesNothing(t *testing.T) {
	dev := newFake(t)
	ram := memfd(t, 1<<20)
	defer unix.Close(ram)
	for range 3 {
		c, ended := dial(t, dev)
		if err := errors.Join(c.Map(Map{3, 0, Range{0, 1 << 20}}, ram), c.SetIRQs(IRQMSIX, 0, 4, ram, ram, ram, ram)); err != nil {
			t.Fatal(err)
		}
		_, _ = c.conn.Write([]byte{1, 2, 3})
		_ = c.Close()
		if err := await(t, ended); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Error(err)
		}
		dev.clean(t)
	}
}

// TestTooManyDescriptorsDisconnect: more descriptors than a message may have end the connection,
// and none stays open.
func TestTooManyDescriptorsDisconnect(t *testing.T) {
	dev := newFake(t)
	c, ended := dial(t, dev)
	ram := memfd(t, 4096)
	defer unix.Close(ram)
	m := Map{3, 0, Range{0, 4096}}
	if _, err := c.Call(DMAMap, m.Append(nil), slices.Repeat([]int{ram}, MaxFDs+1)...); err == nil {
		t.Error("taken")
	}
	if err := await(t, ended); err == nil {
		t.Error("the server left without a word")
	}
	dev.clean(t)
}

// TestMappingsDoNotOverlap compares the list with a map of addresses.
func TestMappingsDoNotOverlap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var m mappings
	owner := map[uint64]Range{} // of each page
	for range 20000 {
		r := Range{uint64(rng.IntN(64)), uint64(1 + rng.IntN(8))}
		free := true
		for a := r.Addr; a < r.Addr+r.Size; a++ {
			free = free && owner[a] == Range{}
		}
		if rng.IntN(2) == 0 {
			if err := m.add(r); (err == nil) != free {
				t.Fatalf("add %v: %v, free %v", r, err, free)
			}
			if free {
				for a := r.Addr; a < r.Addr+r.Size; a++ {
					owner[a] = r
				}
			}
			continue
		}
		lost, before := map[Range]bool{}, maps.Clone(owner)
		for a := r.Addr; a < r.Addr+r.Size; a++ {
			if o := owner[a]; o != (Range{}) {
				lost[o] = true
			}
		}
		if n, err := m.remove(r); err != nil || n != len(lost) {
			t.Fatalf("remove %v: %v, %v; %v have lost", r, n, err, lost)
		}
		clear(owner)
		for _, o := range m.list {
			for a := o.Addr; a < o.Addr+o.Size; a++ {
				if before[a] == (Range{}) || r.Contains(Range{a, 1}) {
					t.Fatalf("remove %v: %v is there", r, o)
				}
				owner[a] = o
				delete(before, a)
			}
		}
		for a := range before {
			if !r.Contains(Range{a, 1}) {
				t.Fatalf("remove %v: %#x is gone", r, a)
			}
		}
	}
}

// FuzzServer sends anything after the greeting: the server ends, and leaves nothing behind.
func FuzzServer(f *testing.F) {
	message := func(cmd Command, body []byte) []byte {
		h := Header{ID: 7, Command: cmd, Size: uint32(HeaderSize + len(body))}
		return append(h.Append(nil), body...)
	}
	f.Add(message(GetInfo, (&Info{}).Append(nil)))
	f.Add(message(DMAMap, (&Map{3, 0, Range{4096, 4096}}).Append(nil)))
	f.Add(bytes.Join([][]byte{message(RegionWrite, append((&Access{0, 0, 4}).Append(nil), 1, 2, 3, 4)), message(Reset, nil)}, nil))
	f.Add(message(SetIRQs, (&IRQSet{IRQDataEventfd | IRQTrigger, IRQMSIX, 0, 4}).Append(nil)))
	f.Fuzz(func(t *testing.T, b []byte) {
		dev := &fake{maps: map[uint64]Map{}, files: map[uint64]int{}, irqs: [4]int{-1, -1, -1, -1}, file: -1}
		conn, ended := serve(t, dev)
		go func() {
			_, _ = conn.Write(message(Version, (&Greeting{}).Append(nil)))
			_, _ = conn.Write(b)
			_ = conn.CloseWrite()
		}()
		_, _ = io.Copy(io.Discard, conn)
		_ = await(t, ended)
		dev.clean(t)
		_ = conn.Close()
	})
}

// TestPartsOfRangesAreUnmapped: a client may unmap any part of a range; the rest stays mapped.
func TestPartsOfRangesAreUnmapped(t *testing.T) {
	dev := newFake(t)
	c, ended := dial(t, dev)
	ram := memfd(t, 1<<20)
	defer unix.Close(ram)
	for _, at := range []uint64{0x10000, 0x20000, 0x30000} {
		if err := c.Map(Map{3, at, Range{at, 0x10000}}, ram); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		unmap Range
		left  []Map
	}{
		{Range{0x14000, 0x1000}, []Map{{3, 0x10000, Range{0x10000, 0x4000}}, {3, 0x15000, Range{0x15000, 0xb000}}, {3, 0x20000, Range{0x20000, 0x10000}}, {3, 0x30000, Range{0x30000, 0x10000}}}},
		{Range{0x15000, 0x1000}, []Map{{3, 0x10000, Range{0x10000, 0x4000}}, {3, 0x16000, Range{0x16000, 0xa000}}, {3, 0x20000, Range{0x20000, 0x10000}}, {3, 0x30000, Range{0x30000, 0x10000}}}},
		{Range{0x18000, 0x20000}, []Map{{3, 0x10000, Range{0x10000, 0x4000}}, {3, 0x16000, Range{0x16000, 0x2000}}, {3, 0x38000, Range{0x38000, 0x8000}}}},
		{Range{0x3f000, 1 << 40}, []Map{{3, 0x10000, Range{0x10000, 0x4000}}, {3, 0x16000, Range{0x16000, 0x2000}}, {3, 0x38000, Range{0x38000, 0x7000}}}},
		{Range{0, 0x38000}, []Map{{3, 0x38000, Range{0x38000, 0x7000}}}},
	} {
		if err := c.Unmap(tc.unmap); err != nil {
			t.Fatalf("%s: %v", tc.unmap, err)
		}
		dev.mu.Lock()
		got := slices.SortedFunc(maps.Values(dev.maps), func(a, b Map) int { return cmp.Compare(a.Addr, b.Addr) })
		dev.mu.Unlock()
		if !slices.Equal(got, tc.left) {
			t.Errorf("without %s: %v, want %v", tc.unmap, got, tc.left)
		}
	}
	if err := c.Map(Map{3, 0, Range{0x10000, 0x28000}}, ram); err != nil { // the gap is free, to the byte
		t.Error(err)
	}
	if err := c.Map(Map{3, 0, Range{0x3efff, 0x1000}}, ram); !errors.Is(err, unix.EEXIST) {
		t.Error(err)
	}
	_ = c.Close()
	if err := await(t, ended); err != nil {
		t.Error(err)
	}
	dev.clean(t)
}

// TestUnmapThatSplitsMayBeTooMuch: an unmap that splits a range is refused if there would be one
// mapping too many.
func TestUnmapThatSplitsMayBeTooMuch(t *testing.T) {
	var m mappings
	for i := range uint64(MaxMaps) {
		m.list = append(m.list, Range{i << 16, 0x3000})
	}
	if _, err := m.remove(Range{0x1000, 0x1000}); err != unix.ENOSPC || len(m.list) != MaxMaps || m.list[0] != (Range{0, 0x3000}) {
		t.Errorf("%v, %d, %v", err, len(m.list), m.list[0])
	}
	if _, err := m.remove(Range{100<<16 + 0x1000, 0x1000}); err != unix.ENOSPC || len(m.list) != MaxMaps {
		t.Errorf("in the middle: %v, %d", err, len(m.list))
	}
	if lost, err := m.remove(Range{0x1000, 0x11000}); lost != 2 || err != nil || len(m.list) != MaxMaps {
		t.Errorf("%d, %v, %d", lost, err, len(m.list))
	}
}

// vectors is a Device with so many of each kind, that says what it is told.
type vectors struct {
	Device
	n    uint32
	told string
}

func (v *vectors) Vectors(uint32) uint32 { return v.n }

func (v *vectors) SetIRQs(irq, start uint32, fds []int) error {
	v.told += fmt.Sprintf("set %d from %d: %d ", irq, start, fds)
	return nil
}

func (v *vectors) Trigger(irq, vector uint32) {
	v.told += fmt.Sprintf("trigger %d of %d ", vector, irq)
}

// TestVectorsOutsideTheirKindAreRefused: vectors beyond the number of their kind are refused, and
// so are kinds that do not exist, even in a request that would do nothing.
func TestVectorsOutsideTheirKindAreRefused(t *testing.T) {
	const none, signal = IRQTrigger | IRQDataNone, IRQTrigger | IRQDataEventfd
	for _, c := range []struct {
		set  IRQSet
		told string // "": refused
	}{
		{IRQSet{Flags: none, Index: 2, Start: 0, Count: 3}, "trigger 0 of 2 trigger 1 of 2 trigger 2 of 2 "},
		{IRQSet{Flags: none, Index: 2, Start: 2, Count: 1}, "trigger 2 of 2 "},
		{IRQSet{Flags: none, Index: 2, Start: 1, Count: 2}, "trigger 1 of 2 trigger 2 of 2 "},
		{IRQSet{Flags: none, Index: NumIRQs - 1, Start: 0, Count: 0}, fmt.Sprintf("set %d from 0: [-1 -1 -1] ", NumIRQs-1)},
		{IRQSet{Flags: none, Index: NumIRQs, Start: 0, Count: 0}, ""},
		{IRQSet{Flags: none, Index: NumIRQs + 1, Start: 0, Count: 0}, ""},
		{IRQSet{Flags: none, Index: 2, Start: 0, Count: 4}, ""},
		{IRQSet{Flags: none, Index: 2, Start: 3, Count: 1}, ""},
		{IRQSet{Flags: none, Index: 2, Start: 4, Count: 0}, ""},
		{IRQSet{Flags: signal, Index: 2, Start: 1, Count: 2}, "set 2 from 1: [-1 -1] "},
		{IRQSet{Flags: signal, Index: 2, Start: 1, Count: 3}, ""},
		{IRQSet{Flags: IRQDataNone, Index: 2, Start: 0, Count: 1}, ""},
		{IRQSet{Flags: signal | IRQDataNone, Index: 2, Start: 0, Count: 1}, ""},
	} {
		v := &vectors{n: 3}
		s := &server{dev: v}
		err := s.setIRQs(&message{body: c.set.Append(nil)})
		if v.told != c.told || (err == nil) != (c.told != "") || err != nil && !errors.Is(err, unix.EINVAL) {
			t.Errorf("%+v: told %q, %v", c.set, v.told, err)
		}
	}
}

// TestAccessesEndWithTheirRegion: an access may end at the end of its region, and one of no bytes
// may begin there.
func TestAccessesEndWithTheirRegion(t *testing.T) {
	c, _ := dial(t, newFake(t))
	for _, tt := range []struct {
		off uint64
		n   int
		ok  bool
	}{
		{0, 4096, true},
		{0, 4097, false},
		{4092, 4, true},
		{4093, 4, false},
		{4095, 1, true},
		{4096, 0, true},
		{4096, 1, false},
		{4097, 0, false},
		{1<<64 - 1, 0, false},
	} {
		for _, write := range []bool{false, true} {
			err := c.Read(0, tt.off, make([]byte, tt.n))
			if write {
				err = c.Write(0, tt.off, make([]byte, tt.n), false)
			}
			if tt.ok && err != nil || !tt.ok && !errors.Is(err, unix.EINVAL) {
				t.Errorf("%d bytes at %d, write %t: %v", tt.n, tt.off, write, err)
			}
		}
	}
}

// TestRepliesFitTheClientsRoom: a reply is cut to the length for which the client has room, which
// must be at least its fixed part.
func TestRepliesFitTheClientsRoom(t *testing.T) {
	body := []byte("head and tail")
	for argsz, want := range map[uint32]string{
		0: "", 3: "", 4: "head", 8: "head and", 13: "head and tail", 14: "head and tail",
		1<<32 - 1: "head and tail",
	} {
		if got, err := fits(body, 4, argsz); string(got) != want || (err != nil) != (want == "") {
			t.Errorf("room for %d: %q, %v", argsz, got, err)
		}
	}
}

// told is a Device that counts what it is told to unmap.
type told struct {
	Device
	unmapped []Range
}

func (d *told) Unmap(r Range)      { d.unmapped = append(d.unmapped, r) }
func (d *told) Map(Map, int) error { return nil }

// TestUnmapOfNothingIsNotTold: the device is not told of an unmap of addresses at which nothing was
// mapped, because its work for an unmap may have to wait for others.
func TestUnmapOfNothingIsNotTold(t *testing.T) {
	d := &told{}
	s := &server{dev: d}
	unmap := func(u Unmap) {
		t.Helper()
		if _, err := s.unmapDMA(&message{body: u.Append(nil)}); err != nil {
			t.Error(err)
		}
	}
	some := Unmap{Range: Range{0x1000, 0x1000}}
	unmap(some)
	unmap(Unmap{Flags: UnmapAll})
	if len(d.unmapped) != 0 {
		t.Errorf("told of %v", d.unmapped)
	}
	m := Map{Range: Range{0x1000, 0x1000}}
	for _, u := range []Unmap{some, {Flags: UnmapAll}} {
		if err := s.mapDMA(&message{body: m.Append(nil)}); err != nil {
			t.Fatal(err)
		}
		unmap(u)
		unmap(u)
	}
	if want := []Range{some.Range, everything}; !slices.Equal(d.unmapped, want) {
		t.Errorf("told of %v, want %v", d.unmapped, want)
	}
}

// TestMessagesMayComeInPieces: bytes of a message that the socket does not take at once are sent
// afterwards.
func TestMessagesMayComeInPieces(t *testing.T) {
	near, far := sockettest.Pair(t)
	if err := near.SetWriteBuffer(1); err != nil { // the kernel has a least size
		t.Fatal(err)
	}
	body := bytes.Repeat([]byte{1, 2, 3, 4, 5, 6, 7, 8}, MaxTransfer/8)
	sent := make(chan error, 1)
	go func() {
		sent <- writeMessage(near, Header{Command: RegionRead}, body)
		near.Close()
	}()
	for waiting := 0; waiting == 0; runtime.Gosched() { // until it has taken what it takes
		raw, err := far.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		_ = raw.Control(func(fd uintptr) { waiting, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
		if err != nil {
			t.Fatal(err)
		}
	}
	m, err := readMessage(far, make([]byte, maxMessage))
	if err != nil || !bytes.Equal(m.body, body) {
		t.Errorf("%d bytes, %v", len(m.body), err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// many is a Device with so many vectors, which notes those that were set.
type many struct {
	*fake
	n    uint32
	sets []int // first vector and number, of each time
}

func (d *many) Vectors(uint32) uint32 { return d.n }

func (d *many) SetIRQs(_, start uint32, fds []int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sets = append(d.sets, int(start), len(fds))
	for _, fd := range fds {
		if fd != NoFile {
			_ = unix.Close(fd)
		}
	}
	return nil
}

// TestManyVectorsAreSetInPieces: more descriptors than fit into one message are sent in several.
func TestManyVectorsAreSetInPieces(t *testing.T) {
	for n, want := range map[int][]int{
		1:            {1, 1},
		MaxFDs:       {1, MaxFDs},
		MaxFDs + 1:   {1, MaxFDs, 1 + MaxFDs, 1},
		2 * MaxFDs:   {1, MaxFDs, 1 + MaxFDs, MaxFDs},
		2*MaxFDs + 3: {1, MaxFDs, 1 + MaxFDs, MaxFDs, 1 + 2*MaxFDs, 3},
	} {
		dev := &many{fake: newFake(t), n: uint32(n) + 1}
		c, _ := dial(t, dev)
		fd := memfd(t, 1)
		if err := c.SetIRQs(IRQMSIX, 1, uint32(n), slices.Repeat([]int{fd}, n)...); err != nil {
			t.Errorf("%d vectors: %v", n, err)
		}
		_ = unix.Close(fd)
		dev.mu.Lock()
		if !slices.Equal(dev.sets, want) {
			t.Errorf("%d vectors: set %v, want %v", n, dev.sets, want)
		}
		dev.mu.Unlock()
	}
}
