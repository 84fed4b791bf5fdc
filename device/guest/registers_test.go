package guest

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/falcon-vnic/vnic/device/effect"
	"github.com/falcon-vnic/vnic/falcon"
	"github.com/falcon-vnic/vnic/falcon/credit"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// home is a fake owner and fake connections of a function. It records the calls to it.
type home struct {
	abi.ConnectionHandler
	possible, enabled int
	said              []string
}

func (h *home) say(format string, args ...any) { h.said = append(h.said, fmt.Sprintf(format, args...)) }

func (h *home) VF(falcon.Time, uint16, func() abi.Ticket) (abi.VFHandler, abi.Status) {
	return nil, abi.StatusNotFound
}

func (h *home) VFs() (possible, enabled int)                                  { return h.possible, h.enabled }
func (h *home) TakeVFsDown(falcon.Time)                                       { h.say("VFs down") }
func (h *home) Announce(_, _ [16]byte, _ func(abi.Status))                    {}
func (h *home) Withdraw()                                                     { h.say("withdraw") }
func (h *home) LinkMoved(falcon.Time)                                         {}
func (h *home) CreditsChanged()                                               {}
func (h *home) Left(_ falcon.Time, n uint64)                                  { h.say("left %d", n) }
func (h *home) Commands(falcon.Time, func() abi.Ticket) abi.ConnectionHandler { return h }
func (h *home) Wire(falcon.Time, uint32)                                      {}
func (h *home) EndQP(falcon.Time, uint32)                                     {}
func (h *home) Start(*rdma.Function, *queues.Memory)                          { h.say("start") }
func (h *home) Stop()                                                         { h.say("stop") }
func (h *home) Stopped(falcon.Time)                                           {}

func (h *home) QueryObjects(abi.CreditPart) (abi.ObjectCounts, abi.Status) {
	return abi.ObjectCounts{}, abi.StatusOK
}

// boxed is a channel whose End does nothing.
type boxed struct{ *outbox }

func (boxed) End() {}

// newFunction returns a function in a set of its own.
func newFunction(t *testing.T, id pfvf.ID) (*Function, *home) {
	t.Helper()
	s := NewSet(SetConfig{
		Engine: rdma.NewEngine(rdma.Config{}), MTU: 4096, Speed: 100_000, Effects: &effect.List{}, Roused: &atomic.Bool{},
		Log: func(falcon.Time, slog.Level, string, ...any) {},
	})
	h := &home{}
	f := s.Add(&pfvf.Function{
		ID: id, Tenant: 7, Addr: netip.MustParseAddr("192.168.100.11"), MAC: [6]byte{2, 0x56, 0x4e, 1, 0, 1},
		Credits: credit.New(nil, credit.Cost{11, 12, 13, 14, 15, 16, 17, 18}),
	}, h)
	f.Connect(h)
	return f, h
}

// TestRegistersTell checks that the registers show what the function is, what it may have and what
// it has.
func TestRegistersTell(t *testing.T) {
	f, h := newFunction(t, 0x01_1000)
	var l verbs.Limits
	l.Objects[abi.ObjectQP], l.Objects[abi.ObjectCQ], l.Objects[abi.ObjectMR], l.Objects[abi.ObjectPD] = 21, 22, 23, 24
	l.SGEs, l.Inline, l.QPEntries, l.CQEntries, l.ReadAtomic = 25, 26, 27, 28, 29
	f.Adopt(0, Settings{Limits: l, Window: queues.Window{Addr: 0x10000, Size: 0x20000}, MaxTxRate: 5000})
	f.set.now, h.possible, h.enabled = 12345, 9, 4
	if err := f.Credits.Guarantee(credit.Cost{1, 2, 3, 4, 5, 6, 7, 8}); err != nil {
		t.Fatal(err)
	}
	if !f.Credits.Take(&credit.Cost{1, 0, 2, 0, 3, 0, 4, 0}) {
		t.Fatal("no credits")
	}
	gid := f.GID()
	want := map[uint32]uint64{
		abi.RegMagic: abi.Magic, abi.RegVersion: abi.VersionMajor<<16 | abi.VersionMinor, abi.RegFeatures: Features, abi.RegFunction: 0x01_1000,
		abi.RegFunctionType: uint64(abi.FunctionPF), abi.RegState: uint64(abi.StateReset), abi.RegFault: 0, abi.RegMAC: 0x01_00_01_4e_56_02,
		abi.RegTenant: 7, abi.RegMTU: 4096, abi.RegGIDHi: binary.BigEndian.Uint64(gid[:8]), abi.RegGIDLo: binary.BigEndian.Uint64(gid[8:]),
		abi.RegDMAWindow: 0x10000, abi.RegDMAWindowLength: 0x20000, abi.RegMaxQP: 21, abi.RegMaxCQ: 22, abi.RegMaxMR: 23, abi.RegMaxPD: 24,
		abi.RegMaxSGE: 25, abi.RegMaxInline: 26, abi.RegMaxQPEntries: 27, abi.RegMaxCQEntries: 28, abi.RegMaxReadAtomic: 29,
		abi.RegLinkUp: 0, abi.RegMaxTxRate: 5000, abi.RegSpeed: 5000, abi.RegClock: 12345, abi.RegTotalVF: 9, abi.RegNumVF: 4,
	}
	for i := range uint64(credit.NumCounters) {
		want[abi.RegCreditLimitReqPktTx+4*uint32(i)] = 11 + i
		want[abi.RegCreditGuaranteeReqPktTx+4*uint32(i)] = 1 + i
		want[abi.RegCreditInUseReqPktTx+4*uint32(i)] = []uint64{1, 0, 2, 0, 3, 0, 4, 0}[i]
	}
	for offset, v := range want {
		r := abi.LookupRegister(offset)
		if got, st := f.Registers().Read(offset, r.Width); st != abi.StatusOK || got != v {
			t.Errorf("register %#x: %#x, %v; want %#x", offset, got, st, v)
		}
		if _, st := f.Registers().Read(offset, 12-r.Width); st != abi.StatusInvalidArgument {
			t.Errorf("register %#x in another width: %v", offset, st)
		}
	}
	for i := range abi.Registers { // the test covers every read-only register
		if r := &abi.Registers[i]; r.Readable && !r.Writable {
			if _, told := want[r.Offset]; !told {
				t.Errorf("register %#x is not tried", r.Offset)
			}
		}
	}
	if _, st := f.Registers().Read(abi.RegControl, 4); st != abi.StatusDenied {
		t.Errorf("a register that can only be written: %v", st)
	}
	if _, st := f.Registers().Read(0x9000, 4); st != abi.StatusNotFound {
		t.Errorf("no register: %v", st)
	}
	value := func(offset uint32, want uint64) {
		t.Helper()
		if v := f.Registers().Value(offset); v != want {
			t.Errorf("register %#x: %d, want %d", offset, v, want)
		}
	}
	f.LinkUp = true
	value(abi.RegLinkUp, 1)
	for _, c := range []struct{ rate, told, speed uint64 }{
		{0, 0, 100_000}, {1, 1, 1}, {99_999, 99_999, 99_999}, {100_001, 100_001, 100_000}, {1<<32 - 1, 1<<32 - 1, 100_000}, {1 << 32, 1<<32 - 1, 100_000},
	} {
		f.Adopt(0, Settings{MaxTxRate: c.rate})
		value(abi.RegMaxTxRate, c.told)
		value(abi.RegSpeed, c.speed)
	}
	f.Addr = netip.Addr{}
	value(abi.RegGIDHi, 0)
	value(abi.RegGIDLo, 0)
	vf, _ := newFunction(t, 0x01_1003)
	if v := vf.Registers().Value(abi.RegFunctionType); v != uint64(abi.FunctionVF) {
		t.Errorf("a VF is of type %d", v)
	}
}

// TestRateInBytes checks that the transmit rate is set in megabits and applied in bytes.
func TestRateInBytes(t *testing.T) {
	f, _ := newFunction(t, 0x01_1001)
	for mbits, want := range map[uint64]uint64{0: 0, 8: 1_000_000, 1: 125_000, 100_000: 12_500_000_000} {
		if f.Adopt(0, Settings{MaxTxRate: mbits}); f.Rate.Rate() != want {
			t.Errorf("%d Mbit/s: %d bytes per second, want %d", mbits, f.Rate.Rate(), want)
		}
	}
}

// TestRegistersTakeWhatTheyMay checks that a register takes only valid values, and only in the
// right state.
func TestRegistersTakeWhatTheyMay(t *testing.T) {
	f, _ := newFunction(t, 0x01_1001)
	r := f.Registers()
	for _, c := range []struct {
		offset, width uint32
		v             uint64
		want          abi.Status
		reads         uint64
	}{
		{abi.RegAdminSQ, 8, 1 << 40, abi.StatusOK, 1 << 40},
		{abi.RegAdminSQ, 8, abi.PageSize + 1, abi.StatusInvalidArgument, 1 << 40},
		{abi.RegAdminSQ, 4, abi.PageSize, abi.StatusInvalidArgument, 1 << 40},
		{abi.RegAdminSQ, 8, abi.PageSize, abi.StatusOK, abi.PageSize},
		{abi.RegAdminCQ, 8, 2 * abi.PageSize, abi.StatusOK, 2 * abi.PageSize},
		{abi.RegAdminCQ, 8, abi.PageSize - 1, abi.StatusInvalidArgument, 2 * abi.PageSize},
		{abi.RegAdminSQ, 8, 0, abi.StatusOK, 0},
		{abi.RegAdminEntries, 4, 0, abi.StatusInvalidArgument, 0},
		{abi.RegAdminEntries, 4, 1, abi.StatusInvalidArgument, 0},
		{abi.RegAdminEntries, 4, 2, abi.StatusOK, 2},
		{abi.RegAdminEntries, 4, 3, abi.StatusInvalidArgument, 2},
		{abi.RegAdminEntries, 4, 4, abi.StatusOK, 4},
		{abi.RegAdminEntries, 4, 6, abi.StatusInvalidArgument, 4},
		{abi.RegAdminEntries, 4, abi.MaxAdminEntries, abi.StatusOK, abi.MaxAdminEntries},
		{abi.RegAdminEntries, 4, 2 * abi.MaxAdminEntries, abi.StatusInvalidArgument, abi.MaxAdminEntries},
		{abi.RegAdminEntries, 4, 1<<32 | 2, abi.StatusInvalidArgument, abi.MaxAdminEntries},
		{abi.RegAdminEntries, 8, 2, abi.StatusInvalidArgument, abi.MaxAdminEntries},
		{abi.RegMTU, 4, 256, abi.StatusDenied, 4096},
		{0x9000, 4, 0, abi.StatusNotFound, 0},
	} {
		if st := r.Write(0, c.offset, c.width, c.v); st != c.want {
			t.Errorf("register %#x: %#x is %v, want %v", c.offset, c.v, st, c.want)
		}
		if v := r.Value(c.offset); v != c.reads {
			t.Errorf("register %#x: reads %#x after %#x was written, want %#x", c.offset, v, c.v, c.reads)
		}
	}
	for _, c := range []struct {
		v    uint64
		want abi.Status
	}{{0, abi.StatusInvalidArgument}, {3, abi.StatusInvalidArgument}, {1 << 32, abi.StatusInvalidArgument}, {2, abi.StatusOK}} {
		if st := r.Write(0, abi.RegControl, 4, c.v); st != c.want {
			t.Errorf("control %#x: %v, want %v", c.v, st, c.want)
		}
	}
	if v := r.Value(abi.RegAdminEntries); v != 0 {
		t.Errorf("%d entries after a reset", v)
	}
}

// TestLifeOfAFunction checks that a driver must set queues before it enables its function, can
// enable it once, and can reset it in every state but DISABLED.
func TestLifeOfAFunction(t *testing.T) {
	f, h := newFunction(t, 0x01_1000)
	r := f.Registers()
	mem := make([]byte, 4*abi.PageSize)
	binary.LittleEndian.PutUint64(mem[3*abi.PageSize:], abi.PageSize)
	b := f.set.Bind(&Binding{Memory: queues.NewMemory([]queues.Region{{Mem: mem}}), Channel: boxed{newOutbox()}}, nil)
	if st := f.Attach(b); st != abi.StatusOK || f.Driver() != b {
		t.Fatal(st)
	}
	if st := f.Attach(b); st != abi.StatusBusy {
		t.Errorf("a second driver: %v", st)
	}
	control := func(c abi.Control, want abi.Status, state abi.State) {
		t.Helper()
		if st := r.Write(0, abi.RegControl, 4, uint64(c)); st != want || f.Lifecycle.State() != state {
			t.Errorf("control %d: %v, in %v; want %v, in %v", c, st, f.Lifecycle.State(), want, state)
		}
	}
	control(abi.ControlEnable, abi.StatusInvalidArgument, abi.StateReset) // without queues
	write := func(offset, width uint32, v uint64, want abi.Status) {
		t.Helper()
		if st := r.Write(0, offset, width, v); st != want {
			t.Errorf("register %#x: %v, want %v", offset, st, want)
		}
	}
	queuesAt := func(sq, cq uint64) {
		write(abi.RegAdminSQ, 8, sq, abi.StatusOK)
		write(abi.RegAdminCQ, 8, cq, abi.StatusOK)
		write(abi.RegAdminEntries, 4, 4, abi.StatusOK)
	}
	queuesAt(2*abi.PageSize, 3*abi.PageSize)
	control(abi.ControlEnable, abi.StatusOK, abi.StateReady)
	if f.Verbs() == nil || !slices.Equal(h.said, []string{"start"}) {
		t.Errorf("not in service: %q", h.said)
	}
	control(abi.ControlEnable, abi.StatusBadState, abi.StateReady)
	write(abi.RegAdminEntries, 4, 4, abi.StatusBadState)
	write(abi.RegAdminSQ, 8, 0, abi.StatusBadState)
	h.said = nil
	control(abi.ControlReset, abi.StatusOK, abi.StateReset)
	if f.Verbs() != nil || !slices.Equal(h.said, []string{"VFs down", "stop"}) {
		t.Errorf("in service after a reset: %q", h.said)
	}
	queuesAt(64*abi.PageSize, 0) // addresses without memory
	control(abi.ControlEnable, abi.StatusMemoryFault, abi.StateInit)
	if f.set.Unfinished() != 1 {
		t.Error("no fault is noted")
	}
	f.set.StopFaulted(0)
	if code, _ := f.Lifecycle.Fault(); code != abi.FaultMemory || f.Lifecycle.State() != abi.StateError ||
		r.Value(abi.RegFault) != uint64(abi.FaultMemory) {
		t.Errorf("fault %v, in %v", code, f.Lifecycle.State())
	}
	control(abi.ControlEnable, abi.StatusBadState, abi.StateError)
	control(abi.ControlReset, abi.StatusOK, abi.StateReset)
	f.Disable(0)
	control(abi.ControlReset, abi.StatusDenied, abi.StateDisabled)
	control(abi.ControlEnable, abi.StatusBadState, abi.StateDisabled)
	h.said = nil
	f.detach(0, &Binding{}, nil) // a session that does not have the function
	if f.Driver() != b || h.said != nil {
		t.Error("who does not have it takes it away")
	}
	f.behind = 3
	f.detach(0, b, nil)
	if f.Driver() != nil || f.Lifecycle.State() != abi.StateDisabled || h.said[len(h.said)-1] != "left 3" ||
		f.behind != 0 {
		t.Errorf("it has a driver, is in %v, said %q", f.Lifecycle.State(), h.said)
	}
	if st := f.Attach(b); st != abi.StatusDenied {
		t.Errorf("a driver for a function that is disabled: %v", st)
	}
	if _ = f.Lifecycle.Apply(pfvf.Allow); f.Attach(b) != abi.StatusOK || !f.Lifecycle.Fail(abi.FaultRing, "x") {
		t.Error("no driver for a function that was allowed")
	}
	f.detach(0, b, nil)
	if f.Lifecycle.State() != abi.StateError {
		t.Error("the reason is not readable after the driver left")
	}
	if st := f.Attach(b); st != abi.StatusOK || f.Lifecycle.State() != abi.StateReset {
		t.Errorf("after a fault of the one before: %v, in %v", st, f.Lifecycle.State())
	}
}

// TestFirstFaultCounts checks that only the first of several faults in a Step is reported, and that
// it stops the function once.
func TestFirstFaultCounts(t *testing.T) {
	f, _ := newFunction(t, 0x01_1001)
	f.Fault(abi.FaultRing, "first")
	f.Fault(abi.FaultMemory, "second")
	if f.set.Unfinished() != 1 || !f.stopped() || f.serves() {
		t.Errorf("%d functions are to be stopped", f.set.Unfinished())
	}
	f.set.StopFaulted(0)
	if code, why := f.Lifecycle.Fault(); code != abi.FaultRing || why != "first" || f.set.Unfinished() != 0 {
		t.Errorf("%v: %s", code, why)
	}
	f.Reset(0)
	if f.stopped() {
		t.Error("the fault stays after a reset")
	}
	f.stop(0)
	if f.Lifecycle.State() != abi.StateReset {
		t.Error("stopped without a fault")
	}
}

// TestWhoseDeviceItIs checks that a driver that came by a function's own device gets that function,
// by any of its numbers.
func TestWhoseDeviceItIs(t *testing.T) {
	const own = 0x03_2005
	for _, c := range []struct {
		g     Guest
		asked uint32
		want  uint32 // 0: denied
	}{
		{stranger{}, 0x01_1001, 0x01_1001},
		{stranger{}, abi.FunctionAssigned, abi.FunctionAssigned},
		{tied{}, abi.FunctionAssigned, own},
		{tied{}, own, own},
		{tied{}, 0x2005, own}, // host 0 means this NIC
		{tied{}, 0x2006, 0},
		{tied{}, 0x02_2005, 0},
		{tied{}, 0x03_2004, 0},
		{tied{}, 0, 0},
	} {
		number, no := chosen(c.g, c.asked)
		if number != c.want || (no != nil) != (c.want == 0) || no != nil && no.Status != abi.StatusDenied {
			t.Errorf("%T asks for %#x: %#x, %v", c.g, c.asked, number, no)
		}
	}
}

// stranger is a guest that may ask for any function; tied is one with a function's own device.
type (
	stranger struct{ Guest }
	tied     struct{ Guest }
)

func (tied) Function() uint32 { return 0x03_2005 }

// TestNamesOfDrivers checks that a guest is named by its CID, and a process by its PID.
func TestNamesOfDrivers(t *testing.T) {
	for want, p := range map[string]queues.Peer{
		"vsock guest 3": {Transport: "vsock", CID: 3, PID: 9}, "unix process 9": {Transport: "unix", PID: 9},
	} {
		if got := Name(p); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
