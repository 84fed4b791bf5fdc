package conform

import (
	"bytes"
	"encoding/binary"

	"github.com/falcon-vnic/vnic/queues/abi"
)

var memoryChecks = []check{
	{"memory.outside", "DEV-401 DEV-405", 0, memoryOutside},
	{"memory.lists", "DEV-404", 0, memoryLists},
	{"memory.ranges", "DEV-406", 0, memoryRanges},
	{"memory.page-sizes", "DEV-407", 0, memoryPageSizes},
	{"memory.foreign", "DEV-906", 0, memoryForeign},
	{"objects.counts", "DEV-312", abi.FeatureExtendedVerbs, objectCounts},
	{"memory.reserved", "DEV-934", abi.FeatureExtendedVerbs, memoryReserved},
	{"memory.fast", "DEV-935", abi.FeatureExtendedVerbs, memoryFast},
}

// memoryOutside checks addresses without memory: very high ones, and ones past the end of the
// stream's memory.
func memoryOutside(t *T) {
	c := t.ready()
	pdn := c.allocPD()
	list := c.alloc(abi.PageSize)
	root := list.Pages()[0]
	for _, addr := range []uint64{outside, ^uint64(0) &^ 4095} {
		for _, pages := range []uint64{addr, root} { // the list itself, and a page in it
			binary.LittleEndian.PutUint64(list.Bytes(), addr)
			c.refuse(abi.AdminOpRegMR, &abi.RegMR{PDN: pdn, Access: abi.AccessLocalWrite, Length: 100, Pages: pages, Levels: 1}, abi.StatusMemoryFault, abi.StatusInvalidArgument)
			c.refuse(abi.AdminOpCreateCQ, &abi.CreateCQ{Log2Entries: 2, Pages: pages, Levels: 1}, abi.StatusMemoryFault, abi.StatusInvalidArgument)
		}
	}
	if s := c.state(); s != abi.StateReady {
		t.Fatalf("commands with addresses outside took the function to %s", s)
	}
}

func memoryLists(t *T) {
	r := t.qpPair()
	other := &region{block: r.alloc(3 * abi.PageSize), iova: 0x1000}
	list := r.alloc(abi.PageSize)
	for i, a := range other.block.Pages() {
		binary.LittleEndian.PutUint64(list.Bytes()[8*i:], a)
	}
	var out abi.RegMRResult
	r.must(abi.AdminOpRegMR, &abi.RegMR{PDN: r.pdn, Access: allAccess, IOVA: other.iova, Length: 3 * abi.PageSize, Pages: list.Pages()[0], Levels: 1}, &out)
	copy(list.Bytes(), bytes.Repeat([]byte{0x5a}, abi.PageSize))
	copy(r.mr.bytes(), bytes.Repeat([]byte("page list"), 1000))
	r.a.post(abi.SendWQE{WRID: 1, Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: other.iova, RKey: out.RKey}, r.mr.sge(0, 9000))
	r.cq.want(1, abi.WCSuccess)
	if !bytes.Equal(other.bytes()[:9000], r.mr.bytes()[:9000]) {
		t.Fatalf("a WRITE went elsewhere after the page list was overwritten, which the device has to have copied")
	}
}

// memoryPageSizes registers one page of 4 KiB as a part of larger ones, of which the guest may not
// have the rest.
func memoryPageSizes(t *T) {
	r := t.qpPair()
	block, list := r.alloc(abi.PageSize), r.alloc(abi.PageSize)
	at := block.Pages()[0]
	for shift := uint8(abi.MinPageShift); shift <= abi.MaxPageShift; shift++ {
		size := uint64(1) << shift
		binary.LittleEndian.PutUint64(list.Bytes(), at&^(size-1))
		p := abi.RegMR{
			PDN: r.pdn, Access: allAccess, IOVA: 0x7000, Length: abi.PageSize - 100,
			Pages: list.Pages()[0], Levels: 1, PageShift: shift, Offset: uint32(at&(size-1)) + 100,
		}
		var out abi.RegMRResult
		r.must(abi.AdminOpRegMR, &p, &out)
		r.mr.bytes()[0] = shift
		r.a.post(abi.SendWQE{WRID: 1, Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: p.IOVA + 7, RKey: out.RKey}, r.mr.sge(0, 1))
		if r.cq.want(1, abi.WCSuccess); block.Bytes()[107] != shift {
			t.Fatalf("a WRITE to a region of pages of 2^%d bytes went elsewhere", shift)
		}
		r.must(abi.AdminOpDeregMR, &abi.DeregMR{LKey: out.LKey}, nil)
	}
	for _, p := range []abi.RegMR{{PageShift: abi.MinPageShift - 1}, {PageShift: abi.MaxPageShift + 1}, {PageShift: 64}, {PageShift: 13, Offset: 1 << 13}} {
		p.PDN, p.Length, p.Pages, p.Levels = r.pdn, 1, list.Pages()[0], 1
		r.refuse(abi.AdminOpRegMR, &p, abi.StatusInvalidArgument)
	}
}

func memoryRanges(t *T) {
	c := t.ready()
	type rng struct{ first, n uint64 }
	var all []rng
	for {
		var r abi.QueryMemoryResult
		st := c.command(abi.AdminOpQueryMemory, &abi.QueryMemory{Index: uint32(len(all))}, &r)
		if st == abi.StatusUnknownCommand {
			t.Skipf("the device has no QueryMemory")
		}
		if st == abi.StatusNotFound {
			break
		}
		if st != abi.StatusOK || r.Length == 0 || r.Address+r.Length < r.Address {
			t.Fatalf("QueryMemory %d: %s, %#x bytes at %#x", len(all), st, r.Length, r.Address)
		}
		if n := len(all); n > 0 && all[n-1].first+all[n-1].n >= r.Address {
			t.Fatalf("range %d at %#x touches or precedes the one before, %#x bytes at %#x", n, r.Address, all[n-1].n, all[n-1].first)
		}
		if all = append(all, rng{r.Address, r.Length}); len(all) > int(r.Ranges) || len(all) > 1<<16 {
			t.Fatalf("range %d of %d", len(all), r.Ranges)
		}
	}
	has := func(a uint64) bool {
		for _, r := range all {
			if a >= r.first && a-r.first < r.n {
				return true
			}
		}
		return false
	}
	for _, a := range c.admin.sq.Pages() {
		if !has(a) {
			t.Fatalf("the admin queue at %#x works and is in none of %d ranges", a, len(all))
		}
	}
	if w := c.register(abi.RegDMAWindowLength); w != 0 {
		first := c.register(abi.RegDMAWindow)
		for _, r := range all {
			if r.first < first || r.first-first > w || r.n > w-(r.first-first) {
				t.Fatalf("%#x bytes at %#x reach beyond the DMA window", r.n, r.first)
			}
		}
	}
	pdn, list := c.allocPD(), c.alloc(abi.PageSize)
	end := (all[len(all)-1].first + all[len(all)-1].n) &^ 4095
	binary.LittleEndian.PutUint64(list.Bytes(), end)
	c.refuse(abi.AdminOpRegMR, &abi.RegMR{PDN: pdn, Length: 1, Pages: list.Pages()[0], Levels: 1}, abi.StatusMemoryFault)
}

// memoryForeign checks numbers and keys that do not exist in this function.
func memoryForeign(t *T) {
	r := t.qpPair()
	for _, n := range []uint32{0, r.a.qpn ^ 0x40_0000, 0xffff_ffff} {
		r.refuse(abi.AdminOpQueryQP, &abi.QueryQP{QPN: n}, abi.StatusNotFound)
		r.refuse(abi.AdminOpDestroyCQ, &abi.DestroyCQ{CQN: n}, abi.StatusNotFound)
		r.refuse(abi.AdminOpDeregMR, &abi.DeregMR{LKey: n}, abi.StatusNotFound)
		r.refuse(abi.AdminOpDeallocPD, &abi.DeallocPD{PDN: n}, abi.StatusNotFound)
		r.refuse(abi.AdminOpCMAccept, &abi.CMAccept{CMID: n, QPN: r.a.qpn}, abi.StatusNotFound, abi.StatusBadState)
		r.refuse(abi.AdminOpCMDisconnect, &abi.CMDisconnect{CMID: n}, abi.StatusNotFound)
	}
	r.a.post(abi.SendWQE{WRID: 1, Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: r.mr.iova, RKey: r.mr.rkey ^ 0x55_5500}, r.mr.sge(0, 8))
	r.cq.want(1, abi.WCRemAccessErr)
}

// objectCounts checks that each kind of object is counted and has its own limit: with the largest
// number of PDs there is still room for other objects.
func objectCounts(t *T) {
	c := t.ready()
	query := func(part abi.CreditPart) (n abi.ObjectCounts) {
		c.must(abi.AdminOpQueryObjects, &abi.QueryObjects{Part: part}, &n)
		return n
	}
	limit := query(abi.CreditLimit)
	for offset, n := range map[uint32]uint32{abi.RegMaxQP: limit.QPs, abi.RegMaxCQ: limit.CQs, abi.RegMaxMR: limit.MRs, abi.RegMaxPD: limit.PDs} {
		if v := c.register(offset); v != uint64(n) {
			t.Fatalf("QueryObjects says %d, %s %d", n, abi.LookupRegister(offset).Name, v)
		}
	}
	if n := query(abi.CreditInUse); n != (abi.ObjectCounts{}) {
		t.Fatalf("a function without objects has %+v", n)
	}
	r := c.qpPair(nil)
	if n := query(abi.CreditInUse); n != (abi.ObjectCounts{QPs: 2, CQs: 2, MRs: 1, PDs: 1}) {
		t.Fatalf("a function with 2 QPs, 2 CQs, an MR and a PD has %+v", n)
	}
	if limit.PDs <= 1<<14 {
		for range limit.PDs - 1 {
			c.allocPD()
		}
		c.refuse(abi.AdminOpAllocPD, nil, abi.StatusNoResources)
		c.newQP(r.pdn, r.cq, r.rcq, nil)
	}
}

// memoryReserved uses memory by device address, in a queue pair that is allowed to and in one that
// is not.
func memoryReserved(t *T) {
	c := t.ready()
	for _, flags := range []uint8{abi.QPPrivileged, 0} {
		r := c.qpPair(func(q *abi.CreateQP) { q.Flags = flags })
		page := r.mr.block.Pages()[0]
		r.mr.bytes()[0] = 0x5a
		r.a.post(abi.SendWQE{WRID: 1, Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: r.mr.iova + 64, RKey: r.mr.rkey}, abi.SGE{Addr: page, Length: 8, LKey: abi.ReservedLKey})
		if flags == 0 {
			r.cq.want(1, abi.WCLocProtErr)
			continue
		}
		if r.cq.want(1, abi.WCSuccess); r.mr.bytes()[64] != 0x5a {
			t.Fatalf("a WRITE of memory by its device address wrote something else")
		}
	}
}

// memoryFast registers memory by a work request, uses the region, and invalidates its key.
func memoryFast(t *T) {
	r := t.ready().qpPair(func(q *abi.CreateQP) { q.Flags = abi.QPPrivileged })
	var keys abi.RegMRResult
	r.must(abi.AdminOpAllocMR, &abi.AllocMR{PDN: r.pdn, MaxPages: 2}, &keys)
	block := r.alloc(2 * abi.PageSize)
	list := r.pages(block)
	for i := range uint32(3) {
		key := keys.RKey&^0xff | (keys.RKey+i+1)&0xff
		b := make([]byte, abi.SendWQEHeader+abi.FastRegSize)
		(&abi.SendWQE{WRID: 1, Opcode: abi.OpRegMR, Flags: abi.SendSignaled, RKey: key}).Marshal(b)
		(&abi.FastReg{IOVA: 0x9000, Length: 5000, Pages: list.Root, Access: allAccess}).Marshal(b[abi.SendWQEHeader:])
		r.a.push(r.a.sq, b)
		if e := r.cq.want(1, abi.WCSuccess); e.Opcode != abi.WCOpRegMR {
			t.Fatalf("RegMR completes as %s", e.Opcode)
		}
		r.mr.bytes()[0] = byte(i + 1)
		r.b.post(abi.SendWQE{WRID: 2, Opcode: abi.OpWrite, Flags: abi.SendSignaled, RemoteAddr: 0x9000 + 4999, RKey: key}, r.mr.sge(0, 1))
		if r.cq.want(2, abi.WCSuccess); block.Bytes()[4999] != byte(i+1) {
			t.Fatalf("a WRITE to the region wrote something else")
		}
		r.a.post(abi.SendWQE{WRID: 3, Opcode: abi.OpLocalInv, Flags: abi.SendSignaled, Imm: key})
		r.cq.want(3, abi.WCSuccess)
		keys.RKey = key
	}
	r.must(abi.AdminOpDeregMR, &abi.DeregMR{LKey: keys.RKey}, nil)
}

var adminChecks = []check{
	{"admin.index", "DEV-502 DEV-503", 0, adminIndex},
	{"admin.outstanding", "DEV-501", 0, adminOutstanding},
	{"admin.unknown", "DEV-504", 0, adminUnknown},
	{"admin.completions", "DEV-504 DEV-505 DEV-507 DEV-702", 0, adminCompletions},
	{"admin.event-after-completion", "DEV-505", 0, adminEvents},
	{"admin.refused", "DEV-504", 0, adminRefused},
}

func adminIndex(t *T) {
	c := t.ready()
	broken := func(what func()) {
		c.allocPD()
		c.allocPD()
		c.ring(abi.Doorbell{Kind: abi.DoorbellAdmin, Index: 1}) // an old one
		if s := c.state(); s != abi.StateReady {
			t.Fatalf("after an old doorbell RegState is %s", s)
		}
		what()
		c.faulted(abi.FaultCommand)
		c.reset()
		c.enable()
	}
	for _, ahead := range []uint32{3, 0x8000_0001} {
		broken(func() { c.ring(abi.Doorbell{Kind: abi.DoorbellAdmin, Index: ahead}) })
	}
	for _, producer := range []uint32{1, 0xffff_ffff, 2 + c.admin.entries + 1, 0x8000_0000} {
		broken(func() {
			t.noError(mem(c.admin.sq).Store32(abi.QueueHeaderProducer, producer))
			c.ring(abi.Doorbell{Kind: abi.DoorbellAdmin, Index: 2})
		})
	}
	for _, consumer := range []uint32{1000, 0xffff_ffff} {
		broken(func() { // which the device looks at when it has to
			t.noError(mem(c.admin.cq).Store32(abi.CQHeaderConsumer, consumer))
			for range c.admin.entries {
				c.submit(abi.AdminOpAllocPD, nil)
				c.register(abi.RegState)
			}
		})
	}
}

// adminOutstanding checks that as many commands may be outstanding as the queues have entries, and
// no more.
func adminOutstanding(t *T) {
	c := t.ready()
	ids := map[uint32]bool{}
	for range c.admin.entries {
		ids[c.submit(abi.AdminOpAllocPD, nil)] = true
	}
	c.stream.wait("MsgCQEvent for the admin queue", isCQEvent(abi.AdminCQ))
	for len(ids) > 0 {
		t.until(func() bool {
			e, ok := c.admin.poll()
			delete(ids, e.ID)
			return ok
		}, "the completions of %d commands sent at once", len(ids))
	}
	for range c.admin.entries + 1 { // of which it takes no completions
		c.submit(abi.AdminOpAllocPD, nil)
		c.register(abi.RegState)
	}
	c.faulted(abi.FaultCommand)
}

func adminUnknown(t *T) {
	c := t.ready()
	for _, op := range []abi.AdminOp{0, 999, 0xffff} {
		e := c.admin.completion(c.submit(op, nil))
		if e.Status != abi.StatusUnknownCommand || e.Result != [len(e.Result)]byte{} {
			t.Fatalf("command %d: %s, result %x", op, e.Status, e.Result)
		}
	}
	c.allocPD()
}

// adminCompletions makes three passes over a small queue that is always full, with IDs that follow
// no pattern. Each command must have one completion, in the order of the commands.
func adminCompletions(t *T) {
	c := t.attach()
	c.enableWith(4)
	id, next := uint32(0xffff_fff0), uint32(0xffff_fff0)
	for sent, taken := 0, 0; taken < 40; {
		for ; sent < 40 && sent-taken < 4; sent++ {
			index := c.admin.writeRaw(&abi.AdminCmd{Opcode: abi.AdminOpAllocPD, ID: id})
			id += 7
			c.ring(abi.Doorbell{Kind: abi.DoorbellAdmin, Index: index})
		}
		c.stream.wait("MsgCQEvent for the admin queue", isCQEvent(abi.AdminCQ))
		for {
			e, ok := c.admin.poll()
			if !ok {
				break
			}
			if e.ID != next || e.Status != abi.StatusOK {
				t.Fatalf("completion %d has ID %#x and %s, want %#x: commands are carried out in order, each once", taken, e.ID, e.Status, next)
			}
			if e.Tail&^abi.Phase != 0 {
				t.Fatalf("the tail word is %#x, want nothing but the phase", e.Tail)
			}
			next += 7
			taken++
		}
	}
	t.never(func() bool { _, ok := c.admin.poll(); return ok }, "one completion more than commands")
}

func adminEvents(t *T) {
	c := t.ready()
	pdn, q := c.allocPD(), c.newCQ(4)
	a := c.newQP(pdn, q, q, nil)
	a.connect(a.qpn)
	m := a.step(abi.QPStateErr, 0)
	m.QPN = a.qpn
	a.postRecv(5)
	q.arm(0, 0)
	c.register(abi.RegState) // it is armed
	early := true
	slot := mem(c.admin.cq)[abi.QueueHeaderSize+uint64(c.admin.answers.Next()%c.admin.entries)*abi.AdminCQESize:]
	c.stream.onMessage(func(m *message) {
		if isCQEvent(q.cqn)(m) {
			tail, _ := slot.Load64(abi.AdminCQETailOffset)
			early = tail&abi.Phase == 0 // the first pass
		}
	})
	id := c.submit(abi.AdminOpModifyQP, &m)
	q.event()
	c.stream.onMessage(nil)
	if early {
		t.Fatalf("the event that a command causes came before the command's completion was written")
	}
	if e, ok := c.admin.poll(); !ok || e.ID != id || e.Status != abi.StatusOK {
		t.Fatalf("the command's completion is %+v", e)
	}
	q.want(5, abi.WCWRFlushErr)
}

// adminRefused checks that a refused command changes nothing and has no result.
func adminRefused(t *T) {
	c := t.ready()
	pdn, q := c.allocPD(), c.newCQ(4)
	a := c.newQP(pdn, q, q, nil)
	for _, x := range []struct {
		op   abi.AdminOp
		in   structure
		want abi.Status
	}{
		{abi.AdminOpDeallocPD, &abi.DeallocPD{PDN: pdn}, abi.StatusBusy},
		{abi.AdminOpDestroyCQ, &abi.DestroyCQ{CQN: q.cqn}, abi.StatusBusy},
		{abi.AdminOpModifyQP, &abi.ModifyQP{QPN: a.qpn, State: abi.QPStateRTS, Mask: abi.QPAttrState}, abi.StatusBadState},
		{abi.AdminOpRegMR, &abi.RegMR{PDN: pdn, Access: abi.AccessRemoteWrite, Length: 8, Pages: c.pages(c.alloc(8)).Root, Levels: 1}, abi.StatusInvalidArgument},
	} {
		e := c.admin.completion(c.submit(x.op, x.in))
		if e.Status != x.want || e.Result != [len(e.Result)]byte{} {
			t.Fatalf("%s: %s with result %x, want %s without", x.op, e.Status, e.Result, x.want)
		}
	}
	a.wantState(abi.QPStateReset)
}
