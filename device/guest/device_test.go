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
)

// owner is a fake owner and fake connections of a function. It records the calls to it.
type owner struct {
	abi.ConnectionHandler
	possible, enabled int
	said              []string
	later             func() abi.Ticket
	tickets           []abi.Ticket // of CMConnect
}

func (h *owner) say(format string, args ...any) {
	h.said = append(h.said, fmt.Sprintf(format, args...))
}

func (h *owner) VF(falcon.Time, uint16, func() abi.Ticket) (abi.VFHandler, abi.Status) {
	return nil, abi.StatusNotFound
}

func (h *owner) VFs() (possible, enabled int)               { return h.possible, h.enabled }
func (h *owner) TakeVFsDown(falcon.Time)                    { h.say("VFs down") }
func (h *owner) Announce(_, _ [16]byte, _ func(abi.Status)) {}
func (h *owner) Withdraw()                                  { h.say("withdraw") }
func (h *owner) LinkChanged(falcon.Time)                    {}
func (h *owner) CreditsChanged()                            {}
func (h *owner) Left(_ falcon.Time, n uint64)               { h.say("left %d", n) }
func (h *owner) ConnectByNumber(falcon.Time, uint32)        {}
func (h *owner) EndQP(falcon.Time, uint32)                  {}
func (h *owner) Start(*rdma.Function, *queues.Memory)       { h.say("start") }
func (h *owner) Stop()                                      { h.say("stop") }
func (h *owner) Stopped(falcon.Time)                        {}

func (h *owner) Commands(_ falcon.Time, later func() abi.Ticket) abi.ConnectionHandler {
	h.later = later
	return h
}

func (h *owner) CMConnect(*abi.CMConnect) (uint32, abi.Status) {
	h.tickets = append(h.tickets, h.later())
	return 0, abi.StatusPending
}

func (h *owner) QueryObjects(abi.CreditPart) (abi.ObjectCounts, abi.Status) {
	return abi.ObjectCounts{}, abi.StatusOK
}

// boxed is a channel whose End does nothing.
type boxed struct{ *outbox }

// newDevice returns a function in a set of its own.
func newDevice(t *testing.T, id pfvf.ID) (*Device, *owner) {
	t.Helper()
	s := NewSet(SetConfig{
		Engine: rdma.NewEngine(rdma.Config{}), MTU: 4096, Speed: 100_000, Effects: &effect.List{}, Woke: &atomic.Bool{},
		Log: func(falcon.Time, slog.Level, string, ...any) {},
	})
	h := &owner{}
	f := s.Add(&pfvf.Function{
		ID: id, Tenant: 7, Addr: netip.MustParseAddr("192.168.100.11"), MAC: [6]byte{2, 0x56, 0x4e, 1, 0, 1},
		Credits: credit.New(nil, credit.Cost{11, 12, 13, 14, 15, 16, 17, 18}),
	}, h)
	f.Connect(h)
	return f, h
}

// TestADriverEnablesItsFunctionOnceAndResetsItInAnyState checks that a driver must set queues
// before it enables its function, can enable it once, and can reset it in every state but DISABLED.
func TestADriverEnablesItsFunctionOnceAndResetsItInAnyState(t *testing.T) {
	f, h := newDevice(t, 0x01_1000)
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
	f.refusedBehind = 3
	f.detach(0, b, nil)
	if f.Driver() != nil || f.Lifecycle.State() != abi.StateDisabled || h.said[len(h.said)-1] != "left 3" ||
		f.refusedBehind != 0 {
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

// TestTheFirstFaultOfAStepIsReported checks that only the first of several faults in a Step is
// reported, and that it stops the function once.
func TestTheFirstFaultOfAStepIsReported(t *testing.T) {
	f, _ := newDevice(t, 0x01_1001)
	f.Fault(abi.FaultRing, "first")
	f.Fault(abi.FaultMemory, "second")
	if f.set.Unfinished() != 1 || !f.faulted() || f.serves() {
		t.Errorf("%d functions are to be stopped", f.set.Unfinished())
	}
	f.set.StopFaulted(0)
	if code, why := f.Lifecycle.Fault(); code != abi.FaultRing || why != "first" || f.set.Unfinished() != 0 {
		t.Errorf("%v: %s", code, why)
	}
	f.Reset(0)
	if f.faulted() {
		t.Error("the fault stays after a reset")
	}
	f.stop(0)
	if f.Lifecycle.State() != abi.StateReset {
		t.Error("stopped without a fault")
	}
}

func (boxed) End() {}
