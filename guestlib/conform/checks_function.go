package conform

import (
	"encoding/binary"

	"github.com/falcon-vnic/vnic/queues/abi"
)

var registerChecks = []check{
	{"registers.values", "DEV-306", 0, registerValues},
	{"registers.access", "DEV-306", 0, registerAccess},
	{"registers.window", "DEV-406", 0, registerWindow},
	{"registers.speed", "DEV-313", 0, registerSpeed},
	{"registers.clock", "DEV-314", 0, registerClock},
	{"function.counters", "DEV-315", 0, functionCounters},
}

func registerValues(t *T) {
	c := t.attach()
	for _, want := range []struct {
		offset uint32
		value  uint64
	}{
		{abi.RegMagic, abi.Magic},
		{abi.RegState, uint64(abi.StateReset)},
		{abi.RegFault, uint64(abi.FaultNone)},
		{abi.RegAdminSQ, 0},
		{abi.RegAdminCQ, 0},
		{abi.RegAdminEntries, 0},
	} {
		if v := c.register(want.offset); v != want.value {
			t.Fatalf("%s is %#x, want %#x", abi.LookupRegister(want.offset).Name, v, want.value)
		}
	}
	if v := c.register(abi.RegVersion); v>>16 != abi.VersionMajor {
		t.Fatalf("RegVersion is %#x, want major version %d", v, abi.VersionMajor)
	}
	if v := c.register(abi.RegMTU); v < 256 || v > 4096 || v&(v-1) != 0 {
		t.Fatalf("RegMTU is %d, want a power of two from 256 to 4096", v)
	}
	typ := abi.FunctionType(c.register(abi.RegFunctionType))
	if vf := c.number&0xfff != 0; vf != (typ == abi.FunctionVF) || !vf != (typ == abi.FunctionPF) {
		t.Fatalf("function %#x has type %s", c.number, typ)
	}
	c.enable()
	var q abi.QueryDeviceResult
	c.must(abi.AdminOpQueryDevice, nil, &q)
	for _, same := range []struct {
		offset uint32
		value  uint64
	}{
		{abi.RegMaxQP, uint64(q.MaxQP)},
		{abi.RegMaxCQ, uint64(q.MaxCQ)},
		{abi.RegMaxMR, uint64(q.MaxMR)},
		{abi.RegMaxPD, uint64(q.MaxPD)},
		{abi.RegMaxSGE, uint64(q.MaxSGE)},
		{abi.RegMaxInline, uint64(q.MaxInline)},
		{abi.RegMaxQPEntries, uint64(q.MaxQPEntries)},
		{abi.RegMaxCQEntries, uint64(q.MaxCQEntries)},
		{abi.RegMaxReadAtomic, uint64(q.MaxReadAtomic)},
		{abi.RegMTU, uint64(q.PathMTU.Bytes())},
	} {
		if v := c.register(same.offset); v != same.value || v == 0 {
			t.Fatalf("%s is %d, QueryDevice says %d", abi.LookupRegister(same.offset).Name, v, same.value)
		}
	}
}

func registerAccess(t *T) {
	c := t.attach()
	expect := func(what string, got, want abi.Status) {
		if got != want {
			t.Fatalf("%s: %s, want %s", what, got, want)
		}
	}
	minor := uint32(c.register(abi.RegVersion)) & 0xffff
	for i := range abi.Registers {
		r := &abi.Registers[i]
		v, st := c.readStatus(r.Offset, r.Width)
		switch {
		case r.Readable && minor >= abi.VersionMinor:
			expect("read of "+r.Name, st, abi.StatusOK)
		case !r.Readable:
			expect("read of "+r.Name+", which cannot be read", st, abi.StatusDenied)
		}
		if st != abi.StatusOK {
			continue
		}
		_, st = c.readStatus(r.Offset, 12-r.Width)
		expect("read of "+r.Name+" with a width that is not its own", st, abi.StatusInvalidArgument)
		if !r.Writable {
			expect("write to "+r.Name+", which cannot be written", c.writeStatus(r.Offset, r.Width, ^uint64(0)>>(64-8*r.Width)), abi.StatusDenied)
		}
		expect("write to "+r.Name+" with a width that is not its own", c.writeStatus(r.Offset, 12-r.Width, 1), abi.StatusInvalidArgument)
		if now := c.register(r.Offset); now != v && r.Offset < abi.RegCreditInUseReqPktTx {
			t.Fatalf("%s was %#x and is %#x after writes that were refused", r.Name, v, now)
		}
	}
	for _, offset := range []uint32{2, 0x24, 0xffc, 0xffff_fffc} {
		_, st := c.readStatus(offset, 4)
		expect("read at an offset that is not a register's", st, abi.StatusNotFound)
		expect("write at an offset that is not a register's", c.writeStatus(offset, 4, 1), abi.StatusNotFound)
	}
	expect("a write of nonsense to RegControl", c.control(77), abi.StatusInvalidArgument)
	if s := c.state(); s != abi.StateReset {
		t.Fatalf("accesses that were refused took the function to %s", s)
	}
}

func registerWindow(t *T) {
	c := t.attach()
	read := func() [2]uint64 { return [2]uint64{c.register(abi.RegDMAWindow), c.register(abi.RegDMAWindowLength)} }
	before := read()
	c.enable()
	if now := read(); now != before {
		t.Fatalf("the DMA window is %#x in RESET and %#x in READY", before, now)
	}
	c.breakDoorbell()
	c.faulted(abi.FaultCommand)
	if now := read(); now != before {
		t.Fatalf("the DMA window is %#x in RESET and %#x in ERROR", before, now)
	}
}

func registerSpeed(t *T) {
	c := t.attach()
	speed, most := c.register(abi.RegSpeed), c.register(abi.RegMaxTxRate)
	if speed == 0 || most != 0 && speed > most {
		t.Fatalf("RegSpeed is %d Mbit/s, and RegMaxTxRate %d", speed, most)
	}
}

// registerClock checks that the timestamps of completions are between two readings of the clock.
func registerClock(t *T) {
	r := t.qpPair()
	last := r.register(abi.RegClock)
	for i := range uint64(4) {
		r.nop(i)
		at := r.cq.want(i, abi.WCSuccess).Timestamp
		now := r.register(abi.RegClock)
		if at < last || at > now {
			t.Fatalf("the clock was %d and is %d, a completion of between has the time %d", last, now, at)
		}
		last = now
	}
}

// functionCounters checks that the function counts its work, and that a reset clears the counters.
func functionCounters(t *T) {
	r := t.qpPair()
	const requests, size = 5, 4096
	before := r.counters()
	for i := range uint64(requests) {
		r.copy(i, 0, 32<<10, size)
		r.cq.want(i, abi.WCSuccess)
	}
	after := r.counters()
	for _, x := range []struct {
		counter abi.Counter
		want    uint64
	}{
		{abi.CounterPosted, requests},
		{abi.CounterCompletions, requests},
		{abi.CounterTxBytes, requests * size},
		{abi.CounterRxBytes, requests * size},
		{abi.CounterCompletionErrors, 0},
		{abi.CounterRefused, 0},
	} {
		if n := after[x.counter] - before[x.counter]; n != x.want {
			t.Fatalf("%s counted %d for %d WRITEs of %d bytes, want %d", x.counter, n, requests, size, x.want)
		}
	}
	r.refuse(abi.AdminOpQueryCounters, &abi.QueryCounters{First: abi.Counter(len(after))}, abi.StatusNotFound)
	r.reset()
	r.enable()
	if n := r.counters()[abi.CounterTxBytes]; n != 0 {
		t.Fatalf("after a reset %s is %d", abi.CounterTxBytes, n)
	}
}

// counters returns the function's counters, or none if the device does not support the query.
func (c *client) counters() (list []uint64) {
	for {
		var r abi.Counters
		switch st := c.command(abi.AdminOpQueryCounters, &abi.QueryCounters{First: abi.Counter(len(list))}, &r); {
		case st == abi.StatusUnknownCommand && len(list) == 0:
			c.t.Skipf("the device has no QueryCounters")
		case st != abi.StatusOK || int(r.Total) <= len(list):
			c.t.Fatalf("QueryCounters from %d: %s, %d in all", len(list), st, r.Total)
		}
		for b := r.Values[:]; len(b) > 0; b = b[8:] {
			if list = append(list, binary.LittleEndian.Uint64(b)); len(list) == int(r.Total) {
				return list
			}
		}
	}
}

// badBell is a doorbell that stops the function. Its queue number is meaningless; it keeps a device
// that merges the doorbells of a queue from merging it with a valid one.
var badBell = abi.Doorbell{Kind: abi.DoorbellAdmin, Queue: 1, Index: 0x12_3456}

// breakDoorbell stops the function by a doorbell.
func (c *client) breakDoorbell() { c.ring(badBell) }

var lifecycleChecks = []check{
	{"lifecycle.enable", "DEV-302", 0, lifecycleEnable},
	{"lifecycle.outside", "DEV-302 DEV-405", 0, lifecycleOutside},
	{"lifecycle.reset", "DEV-303", 0, lifecycleReset},
	{"lifecycle.quiet-reset", "DEV-303", 0, lifecycleQuietReset},
	{"lifecycle.fault", "DEV-304", 0, lifecycleFault},
	{"lifecycle.doorbells", "DEV-305", 0, lifecycleDoorbells},
}

func lifecycleEnable(t *T) {
	c := t.ready()
	if st := c.control(abi.ControlEnable); st != abi.StatusBadState {
		t.Fatalf("enable in READY: %s, want %s", st, abi.StatusBadState)
	}
	for _, r := range []uint32{abi.RegAdminSQ, abi.RegAdminCQ} {
		if st := c.writeStatus(r, 8, 0); st != abi.StatusBadState {
			t.Fatalf("write to %s in READY: %s, want %s", abi.LookupRegister(r).Name, st, abi.StatusBadState)
		}
	}
	c.allocPD() // it still works
	c.breakDoorbell()
	c.faulted(abi.FaultCommand)
	if st := c.control(abi.ControlEnable); st != abi.StatusBadState {
		t.Fatalf("enable in ERROR: %s, want %s", st, abi.StatusBadState)
	}
}

// outside is a device address that no function can access.
const outside = 1 << 62

func lifecycleOutside(t *T) {
	for _, r := range []uint32{abi.RegAdminSQ, abi.RegAdminCQ} {
		c := t.attach()
		c.prepare(4)
		c.set(r, outside)
		if st := c.control(abi.ControlEnable); st != abi.StatusMemoryFault {
			t.Fatalf("enable with %s outside the function's memory: %s, want %s", abi.LookupRegister(r).Name, st, abi.StatusMemoryFault)
		}
		c.faulted(abi.FaultMemory)
		c.stream.goodbye()
	}
}

func lifecycleReset(t *T) {
	r := t.qpPair()
	c := r.client
	if st := c.command(abi.AdminOpCMListen, &abi.CMListen{Service: 77}, nil); st != abi.StatusOK {
		t.Fatalf("CMListen: %s", st)
	}
	for range 2 { // from READY, then from RESET
		c.reset()
		if s := c.state(); s != abi.StateReset {
			t.Fatalf("after ControlReset the function is in %s", s)
		}
	}
	for _, reg := range []uint32{abi.RegAdminSQ, abi.RegAdminCQ, abi.RegAdminEntries, abi.RegFault} {
		if v := c.register(reg); v != 0 {
			t.Fatalf("after ControlReset %s is %#x, want 0", abi.LookupRegister(reg).Name, v)
		}
	}
	c.enable()
	c.refuse(abi.AdminOpDeallocPD, &abi.DeallocPD{PDN: r.pdn}, abi.StatusNotFound)
	c.refuse(abi.AdminOpDeregMR, &abi.DeregMR{LKey: r.mr.lkey}, abi.StatusNotFound)
	c.refuse(abi.AdminOpDestroyCQ, &abi.DestroyCQ{CQN: r.cq.cqn}, abi.StatusNotFound)
	c.refuse(abi.AdminOpDestroyQP, &abi.DestroyQP{QPN: r.a.qpn}, abi.StatusNotFound)
	c.refuse(abi.AdminOpCMUnlisten, &abi.CMUnlisten{Service: 77}, abi.StatusNotFound)
	again := c.qpPair(nil)
	again.copy(9, 0, 4096, 100)
	again.cq.want(9, abi.WCSuccess)
	c.breakDoorbell()
	c.faulted(abi.FaultCommand)
	c.reset() // from ERROR
	if s, f := c.state(), c.register(abi.RegFault); s != abi.StateReset || f != 0 {
		t.Fatalf("after ControlReset in ERROR the function is in %s, RegFault %d", s, f)
	}
	c.enable()
}

// lifecycleQuietReset resets the function while work, an armed CQ and a command are outstanding.
// After the reply to the reset nothing of them may arrive any more.
func lifecycleQuietReset(t *T) {
	r := t.qpPair()
	for i := range uint64(8) {
		r.copy(i, 0, 32<<10, 16<<10)
	}
	r.cq.arm(0, 0)
	r.submit(abi.AdminOpAllocPD, nil)
	r.reset()
	r.stream.takeAll() // of before the reply
	memory := append([]byte(nil), r.mr.bytes()...)
	entries := append([]byte(nil), r.cq.block.Bytes()...)
	r.stream.never("an event from before the reset", func(m *message) bool { return m.Type == abi.MsgCQEvent || m.Type == abi.MsgAsyncEvent })
	if string(memory) != string(r.mr.bytes()) || string(entries) != string(r.cq.block.Bytes()) {
		t.Fatalf("the device wrote to memory after the reset")
	}
}

func lifecycleFault(t *T) {
	r := t.qpPair()
	r.ring(abi.Doorbell{Kind: abi.DoorbellAdmin, Index: r.admin.commands.Next() + 1}) // ahead of memory
	r.faulted(abi.FaultCommand)
	r.a.sq.ring.Push(entry(&abi.SendWQE{WRID: 3, Opcode: abi.OpWrite, Flags: abi.SendSignaled, RKey: r.mr.rkey, RemoteAddr: r.mr.iova}, r.mr.sge(0, 8)))
	r.a.publish(r.a.sq)
	r.breakDoorbell()
	r.cq.empty()
	if f := abi.Fault(r.register(abi.RegFault)); f != abi.FaultCommand {
		t.Fatalf("RegFault is %s after a second fault, want the first one", f)
	}
	r.stream.never("a second EventFunctionFault", isEvent(abi.EventFunctionFault))
	r.reset()
	r.enable()
}

func lifecycleDoorbells(t *T) {
	c := t.attach()
	c.prepare(4)
	c.admin.write(abi.AdminOpAllocPD, nil)
	c.ring(abi.Doorbell{Kind: abi.DoorbellAdmin, Index: 1}, abi.Doorbell{Kind: abi.DoorbellSQ, Queue: 9, Index: 9}, abi.Doorbell{Kind: 200})
	if s := c.state(); s != abi.StateReset {
		t.Fatalf("doorbells in RESET took the function to %s", s)
	}
	t.never(func() bool { _, ok := c.admin.poll(); return ok }, "a doorbell in RESET made the device carry out a command")
}
