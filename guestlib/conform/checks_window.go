package conform

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/falcon-vnic/vnic/guestlib/window"
	"github.com/falcon-vnic/vnic/queues/abi"
)

var windowChecks = []check{
	{"window.header", "DEV-1001 DEV-1002", 0, windowHeader},
	{"window.doorbells", "DEV-1003 DEV-1004", 0, windowDoorbells},
	{"window.events", "DEV-1008 DEV-1009 DEV-1010", abi.FeatureVectors, windowEvents},
	{"window.vector", "DEV-1011", 0, windowVector},
	{"window.memory", "DEV-1006", 0, windowMemory},
}

// window maps the function's window, or skips the check if there is none. The second result unmaps
// the window before the check ends.
func (c *client) window() (*window.Window, func()) {
	if c.t.device != nil {
		w := c.t.device.Window()
		done := sync.OnceFunc(w.Close)
		c.t.cleanup(done)
		return w, done
	}
	w, err := window.Open(c.number)
	if errors.Is(err, window.ErrNone) {
		c.t.Skipf("the function has no window here")
	}
	if err != nil {
		c.t.Skipf("the function's window cannot be used here: %v", err)
	}
	done := sync.OnceFunc(w.Close)
	c.t.cleanup(done)
	return w, done
}

// Open checks magic, version, function and the chain of capabilities. Twice with work between:
// nothing of the header changes, and each stream begins with producer 0, which the device would
// take as moved back if it had not zeroed the ring.
func windowHeader(t *T) {
	for range 2 {
		c := t.attach()
		w, done := c.window()
		c.enable()
		for range 3 {
			c.byWindow(w, abi.AdminOpAllocPD, nil)
		}
		done()
		c.stream.goodbye()
	}
}

// byWindow executes a command with its doorbell in the window.
func (c *client) byWindow(w *window.Window, op abi.AdminOp, in structure) {
	id, index := c.admin.write(op, in)
	c.t.noError(w.Ring(&abi.Doorbell{Kind: abi.DoorbellAdmin, Index: index}))
	if e := c.admin.completion(id); e.Status != abi.StatusOK {
		c.t.Fatalf("%s by the window: %s", op, e.Status)
	}
}

func windowDoorbells(t *T) {
	c := t.attach()
	w, _ := c.window()
	c.enable()
	for i := range 40 { // the device is awake, and asleep
		c.byWindow(w, abi.AdminOpAllocPD, nil)
		if i%10 == 9 {
			time.Sleep(quiet)
		}
	}
	t.until(func() bool { ok, _ := w.Taken(); return ok }, "the device to take all records")
	// In the order of the ring: after the doorbell that stops the function the command is not
	// carried out.
	_, index := c.admin.write(abi.AdminOpAllocPD, nil)
	t.noError(w.Ring(&badBell))
	t.noError(w.Ring(&abi.Doorbell{Kind: abi.DoorbellAdmin, Index: index}))
	c.faulted(abi.FaultCommand)
	t.never(func() bool { _, ok := c.admin.poll(); return ok }, "a record had an effect before one that stood earlier")
}

func windowEvents(t *T) {
	c := t.attach()
	w, _ := c.window()
	if n, err := w.Vectors(); n == 0 {
		t.Skipf("no interrupts here: %v", err)
	}
	c.enable()
	pdn := c.allocPD()
	q := &cq{c: c}
	q.area(6)
	var r abi.CreateCQResult
	c.must(abi.AdminOpCreateCQ, &abi.CreateCQ{Log2Entries: 6, Levels: q.list.Levels, Pages: q.list.Root, Vector: 1}, &r)
	q.cqn = r.CQN
	news := make(chan uint32, 100)
	w.Listen(func(cqn uint32, err error) {
		if err == nil {
			news <- cqn
		}
	})
	mr := c.regMR(pdn, 4096, allAccess)
	a := c.newQP(pdn, q, q, nil)
	a.connect(a.qpn)
	for i := range uint64(20) {
		q.arm(uint32(i), 0)
		a.post(abi.SendWQE{WRID: i, Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: mr.iova, RKey: mr.rkey}, mr.sge(8, 8))
		select {
		case cqn := <-news:
			if cqn != q.cqn {
				t.Fatalf("a record of CQ %#x, want %#x", cqn, q.cqn)
			}
		case <-time.After(t.cfg.Wait):
			t.Fatalf("no interrupt for entry %d", i)
		}
		if e, ok := q.poll(); !ok || e.WRID != i {
			t.Fatalf("the record of entry %d came before the entry", i)
		}
	}
	c.stream.never("MsgCQEvent of a CQ whose events go by the window", isCQEvent(q.cqn))
}

// windowMemory tries to register the windows themselves, at the addresses where the guest sees
// them.
func windowMemory(t *T) {
	c := t.ready()
	c.window()
	pdn, list := c.allocPD(), c.alloc(abi.PageSize)
	found, _ := filepath.Glob("/sys/bus/pci/devices/*/resource")
	for _, f := range found {
		vendor, _ := os.ReadFile(filepath.Join(filepath.Dir(f), "vendor"))
		text, err := os.ReadFile(f)
		lines := strings.Split(string(text), "\n")
		if err != nil || strings.TrimSpace(string(vendor)) != "0x1af4" || len(lines) < 3 {
			continue
		}
		var first uint64
		if _, err := fmt.Sscanf(lines[2], "0x%x", &first); err != nil || first == 0 { // BAR2
			continue
		}
		binary.LittleEndian.PutUint64(list.Bytes(), first)
		c.refuse(abi.AdminOpRegMR, &abi.RegMR{PDN: pdn, Access: abi.AccessLocalWrite, Length: 8, Pages: list.Pages()[0], Levels: 1}, abi.StatusMemoryFault)
	}
}

func windowVector(t *T) {
	c := t.readyWith(features &^ abi.FeatureVectors)
	b := c.alloc(4096)
	c.refuse(abi.AdminOpCreateCQ, &abi.CreateCQ{Log2Entries: 2, Levels: 1, Pages: c.pages(b).Root, Vector: 1}, abi.StatusInvalidArgument)
	c.stream.goodbye()
	c = t.ready()
	b = c.alloc(4096)
	c.refuse(abi.AdminOpCreateCQ, &abi.CreateCQ{Log2Entries: 2, Levels: 1, Pages: c.pages(b).Root, Vector: 0xffff}, abi.StatusInvalidArgument)
}
