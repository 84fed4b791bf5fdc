package qemu

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/falcon-vnic/vnic/qemu/guestmem"
	"github.com/falcon-vnic/vnic/qemu/vfiouser"
	"github.com/falcon-vnic/vnic/qemu/vhosttest"
	"github.com/falcon-vnic/vnic/qemu/vhostuser"
)

// sparse returns a file as long as a process's address space, which takes no memory.
func sparse(t *testing.T) int { return memfd(t, 1<<46, unix.F_SEAL_SHRINK) }

// TestMemoryOverBudget: in whichever way a hypervisor or a client passes the NIC more memory than
// may be mapped for it, that is refused, reported to it and counted. Nothing stays mapped after it
// has left, and others keep their memory.
func TestMemoryOverBudget(t *testing.T) {
	nic := guestmem.NewBudget("the NIC", guestmem.NIC)
	part := func(name string) *guestmem.Budget { return nic.Part(name, guestmem.Attachment) }
	file := sparse(t)
	gone := func(what string, b *guestmem.Budget) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); b.Usage().Limit != (guestmem.Limit{}); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: %+v is still mapped", what, b.Usage())
			}
		}
		if b.Usage().Refused == 0 {
			t.Errorf("%s: no refusal was counted", what)
		}
	}

	others := part("others")
	opt := quiet()
	opt.Memory = others
	v, err := ListenVhostUser(filepath.Join(t.TempDir(), "s"), testCID, opt)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	a, err := v.Listen(testPort)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	v.Serve()
	other := startGuest(t, v, vhosttest.Options{})

	budget := part("a vhost-user guest")
	opt.Memory = budget
	hostile, err := ListenVhostUser(filepath.Join(t.TempDir(), "s"), testCID+1, opt)
	if err != nil {
		t.Fatal(err)
	}
	defer hostile.Close()
	hostile.Serve()
	f, err := vhosttest.Connect(hostile.Path(), 4<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i := uint64(0); err == nil; i++ {
		r := vhostuser.Region{GPA: i << 41, User: i << 41, Size: 1 << 41, Offset: i << 12}
		err = f.Ask(vhostuser.AddMemReg, r.Append(make([]byte, 8)), file)
		if i > 3 {
			t.Fatal("8 TiB were mapped")
		}
	}
	gone("the vhost-user guest", budget)

	budget = part("clients")
	path := filepath.Join(t.TempDir(), "u.sock")
	clients, err := ListenUnix(path, budget)
	if err != nil {
		t.Fatal(err)
	}
	defer clients.Close()
	if _, status, reason := attachClient(t, path, preambleOf(1, clientRegion{0, 1 << 40, 0}), file); status == 0 || !strings.Contains(reason, "a client of") || !strings.Contains(reason, "nic.guest_memory") {
		t.Errorf("a client: status %d, %q", status, reason)
	}
	gone("the client", budget)

	budget = part("a vfio-user guest")
	opt.Memory = budget
	vfio, q := oneVfioFunctionOf(t, opt)
	defer vfio.Close()
	var no error
	for i := uint64(1); no == nil && i < 4; i++ {
		no = q.Map(vfiouser.Map{Flags: vfiouser.MapRead, Offset: i << 41, Range: vfiouser.Range{Addr: i << 41, Size: 1 << 41}}, file)
	}
	if !errors.Is(no, unix.ENOSPC) {
		t.Errorf("vfio-user: %v", no)
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
	gone("the vfio-user guest", budget)

	if u := nic.Usage(); u.Limit != others.Usage().Limit || u.Maps == 0 || u.Refused < 3 {
		t.Errorf("%+v is charged to the NIC, and %+v to the others", u, others.Usage())
	}
	c, s := dialGuest(t, other, a)
	c.Close()
	s.Close()
}

// TestScatteredPagesShareMappings: a guest with a vIOMMU maps single pages all over its memory. The
// number of mappings in the NIC depends on the size of that memory only, not on the number of
// pages.
func TestScatteredPagesShareMappings(t *testing.T) {
	budget := guestmem.NewBudget("test", guestmem.Attachment)
	opt := quiet()
	opt.Memory = budget
	v, q := oneVfioFunctionOf(t, opt)
	defer v.Close()
	before := budget.Usage().Maps
	file := memfd(t, 3*extentUnit+8192, unix.F_SEAL_SHRINK)
	for i := range uint64(3000) {
		m := vfiouser.Map{Flags: vfiouser.MapRead, Offset: i << 20, Range: vfiouser.Range{Addr: 1<<45 + i<<13, Size: 4096}}
		if err := q.Map(m, file); err != nil {
			t.Fatal(err)
		}
	}
	if u := budget.Usage(); u.Maps != before+3 {
		t.Errorf("%d pieces are mapped for 3000 pages in 3 GiB", u.Maps-before)
	}
}
