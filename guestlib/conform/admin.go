package conform

import (
	"encoding/binary"

	"github.com/falcon-vnic/vnic/guestlib/arena"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// adminQueue is the pair of admin queues as the kit drives them.
type adminQueue struct {
	t      *T
	stream *stream // when it ends no more completions come

	sq, cq   *arena.Block
	sqList   *arena.PageList
	cqList   *arena.PageList
	entries  uint32
	commands *ring.Producer
	answers  *ring.CQReader
	id       uint32
	early    map[uint32]abi.AdminCQE // completions of other commands, by ID
}

// structure is a structure of the ABI.
type structure interface {
	Marshal([]byte)
	Unmarshal([]byte)
}

// prepare writes the admin registers with fresh, zeroed areas.
func (c *client) prepare(entries uint32) {
	a := &c.admin
	layout := ring.AdminLayout(entries)
	a.sq, a.cq, a.entries = c.alloc(int(layout.Size())), c.alloc(int(layout.Size())), entries
	a.sqList, a.cqList = c.pages(a.sq), c.pages(a.cq)
	a.commands, a.answers = ring.NewProducer(mem(a.sq), layout), ring.NewCQReader(mem(a.cq), layout)
	a.early = map[uint32]abi.AdminCQE{}
	c.set(abi.RegAdminSQ, a.sqList.Root)
	c.set(abi.RegAdminCQ, a.cqList.Root)
	c.set(abi.RegAdminEntries, uint64(entries))
}

// enable brings the function from RESET to READY.
func (c *client) enable() { c.enableWith(16) }

func (c *client) enableWith(entries uint32) {
	c.prepare(entries)
	if st := c.control(abi.ControlEnable); st != abi.StatusOK {
		c.t.Fatalf("enable: %s", st)
	}
	c.t.until(func() bool {
		s := c.state()
		if s == abi.StateError {
			c.t.Fatalf("enable: the function is in ERROR, %s", abi.Fault(c.register(abi.RegFault)))
		}
		return s == abi.StateReady
	}, "READY")
}

// reset does a function-level reset as a driver does it.
func (c *client) reset() {
	if st := c.control(abi.ControlReset); st != abi.StatusOK {
		c.t.Fatalf("reset: %s", st)
	}
}

// write puts a command into the queue and returns its ID and the index for the doorbell.
func (a *adminQueue) write(op abi.AdminOp, in structure) (id, index uint32) {
	a.id++
	cmd := abi.AdminCmd{Opcode: op, ID: a.id}
	if in != nil {
		in.Marshal(cmd.Params[:])
	}
	return a.id, a.writeRaw(&cmd)
}

// writeRaw is write for a whole entry.
func (a *adminQueue) writeRaw(cmd *abi.AdminCmd) (index uint32) {
	var b [abi.AdminCmdSize]byte
	cmd.Marshal(b[:])
	a.t.noError(a.commands.Push(b[:]))
	index, _, err := a.commands.Publish()
	a.t.noError(err)
	return index
}

// submit writes a command and rings.
func (c *client) submit(op abi.AdminOp, in structure) (id uint32) {
	id, index := c.admin.write(op, in)
	c.ring(abi.Doorbell{Kind: abi.DoorbellAdmin, Index: index})
	return id
}

// poll returns the next completion, if there is one.
func (a *adminQueue) poll() (e abi.AdminCQE, ok bool) {
	var b [abi.AdminCQESize]byte
	ok, err := a.answers.Poll(b[:])
	a.t.noError(err)
	if ok {
		e.Unmarshal(b[:])
		a.t.noError(a.answers.Commit())
	}
	return e, ok
}

// completion waits for the completion of a command.
func (a *adminQueue) completion(id uint32) (e abi.AdminCQE) {
	a.t.until(func() bool {
		for {
			if x, ok := a.early[id]; ok {
				delete(a.early, id)
				e = x
				return true
			}
			x, ok := a.poll()
			if !ok {
				if a.stream.ended() {
					a.t.Fatalf("the device closed the stream")
				}
				return false
			}
			a.early[x.ID] = x
		}
	}, "the completion of command %d", id)
	return e
}

// command executes a command. in and out may be nil.
func (c *client) command(op abi.AdminOp, in, out structure) abi.Status {
	e := c.admin.completion(c.submit(op, in))
	if e.Status == abi.StatusOK && out != nil {
		out.Unmarshal(e.Result[:])
	}
	return e.Status
}

// must executes a command that must succeed.
func (c *client) must(op abi.AdminOp, in, out structure) {
	if st := c.command(op, in, out); st != abi.StatusOK {
		c.t.Fatalf("%s: %s", op, st)
	}
}

// refuse executes a command that must end with one of the statuses want.
func (c *client) refuse(op abi.AdminOp, in structure, want ...abi.Status) {
	st := c.command(op, in, nil)
	for _, w := range want {
		if st == w {
			return
		}
	}
	c.t.Fatalf("%s: %s, want %v", op, st, want)
}

// faulted waits until the function is in ERROR with a fault, and for the event with that fault.
func (c *client) faulted(want abi.Fault) {
	e := c.stream.event(abi.EventFunctionFault)
	if abi.Fault(e.Status) != want {
		c.t.Fatalf("EventFunctionFault with %s, want %s", abi.Fault(e.Status), want)
	}
	if s := c.state(); s != abi.StateError {
		c.t.Fatalf("after the fault RegState is %s", s)
	}
	if f := abi.Fault(c.register(abi.RegFault)); f != want {
		c.t.Fatalf("RegFault is %s, want %s", f, want)
	}
}

// allocPD creates a protection domain.
func (c *client) allocPD() uint32 {
	var r abi.AllocPDResult
	c.must(abi.AdminOpAllocPD, nil, &r)
	return r.PDN
}

// region is registered memory.
type region struct {
	block *arena.Block
	list  *arena.PageList
	iova  uint64
	lkey  uint32
	rkey  uint32
}

// allAccess is every right of a region.
const allAccess = abi.AccessLocalWrite | abi.AccessRemoteWrite | abi.AccessRemoteRead | abi.AccessRemoteAtomic

// regMR registers new memory.
func (c *client) regMR(pdn uint32, n int, access uint32) *region {
	r := &region{block: c.alloc(n), iova: 0x7000_0000_0000}
	r.list = c.pages(r.block)
	var out abi.RegMRResult
	c.must(abi.AdminOpRegMR, &abi.RegMR{PDN: pdn, Access: access, IOVA: r.iova, Length: uint64(n), Pages: r.list.Root, Levels: r.list.Levels}, &out)
	r.lkey, r.rkey = out.LKey, out.RKey
	return r
}

// sge returns the SGE of n bytes at off.
func (r *region) sge(off, n int) abi.SGE {
	return abi.SGE{Addr: r.iova + uint64(off), Length: uint32(n), LKey: r.lkey}
}

func (r *region) bytes() []byte { return r.block.Bytes() }

// load64 reads a word of the region.
func (r *region) load64(off int) uint64 { return binary.LittleEndian.Uint64(r.bytes()[off:]) }

func (r *region) store64(off int, v uint64) { binary.LittleEndian.PutUint64(r.bytes()[off:], v) }
