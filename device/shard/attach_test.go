package shard

import (
	"bytes"
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/guest"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/falcon/credit"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// TestUnassignedFunctionsAreRefused checks that a PF without a tenant is disabled, and that VFs that are not
// enabled take no memory and are refused.
func TestUnassignedFunctionsAreRefused(t *testing.T) {
	c, err := config.Parse([]byte("nic: {host: 9}\nuplink: {backend: memory, address: 10.0.0.9/24}\n"))
	if err != nil {
		t.Fatal(err)
	}
	_, shards := newNIC(t, c, 1)
	s := shards[0]
	n := s.funcs
	if n.members.len() != 1 {
		t.Fatalf("%d functions", n.members.len())
	}
	for vf, want := range map[uint32]abi.Status{1: abi.StatusDenied, 4: abi.StatusDenied, 5: abi.StatusNotFound, 4095: abi.StatusNotFound} {
		if _, st, _ := s.funcs.choose(vf, "", queues.Identity{}); st != want {
			t.Errorf("VF %d: %s, want %s", vf, st, want)
		}
	}
	for f := range n.members.all() {
		if f.Lifecycle.State() != abi.StateDisabled || f.Attach(&guest.Binding{}) != abi.StatusDenied {
			t.Errorf("%s in %s", f.ID, f.Lifecycle.State())
		}
		if f.Registers().Write(0, abi.RegControl, 4, uint64(abi.ControlReset)) != abi.StatusDenied {
			t.Errorf("%s was reset out of DISABLED", f.ID)
		}
	}
}

// TestAGuestIsKnownByItsCIDOrAttachment checks that a function is assigned to its guest by the CID that the transport
// vouches for, or by the attachment that bare clients come through.
func TestAGuestIsKnownByItsCIDOrAttachment(t *testing.T) {
	for _, tc := range []struct {
		guest  *config.Guest
		attach string
		cid    uint32
		is     bool
	}{
		{nil, "bare", 0, false},
		{nil, "", 33, false},
		{&config.Guest{Unix: "bare"}, "bare", 0, true},
		{&config.Guest{Unix: "bare"}, "other", 0, false},
		{&config.Guest{Unix: "bare"}, "bare", 33, false}, // a virtual machine is no bare client
		{&config.Guest{CID: 33}, "", 33, true},
		{&config.Guest{CID: 33}, "", 34, false},
		{&config.Guest{CID: 33}, "", 0, false},
		{&config.Guest{}, "", 0, false},
	} {
		f := &member{cfg: config.Function{Guest: tc.guest}}
		if got := f.assignedTo(tc.attach, queues.Identity{CID: tc.cid}); got != tc.is {
			t.Errorf("%+v, a guest with id %d on %q: %t", tc.guest, tc.cid, tc.attach, got)
		}
	}
}

// TestFeaturesAreAgreedOn checks that commands of a feature that the driver did not agree on are
// refused, as breaking DRV-103; with the feature the same commands are carried out, or refused for
// other errors.
func TestFeaturesAreAgreedOn(t *testing.T) {
	const extended, datagrams = abi.FeatureExtendedVerbs, abi.FeatureDatagrams
	for _, c := range []struct {
		name   string
		need   uint64
		op     abi.AdminOp
		params interface{ Marshal([]byte) }
	}{
		{"QP of type UD", datagrams, abi.AdminOpCreateQP, &abi.CreateQP{Type: abi.QPTypeUD}},
		{"QP of type GSI", datagrams, abi.AdminOpCreateQP, &abi.CreateQP{Type: abi.QPTypeGSI}},
		{"QP of type XRCSend", extended, abi.AdminOpCreateQP, &abi.CreateQP{Type: abi.QPTypeXRCSend}},
		{"QP of type XRCRecv", extended, abi.AdminOpCreateQP, &abi.CreateQP{Type: abi.QPTypeXRCRecv}},
		{"weakly ordered QP", extended, abi.AdminOpCreateQP, &abi.CreateQP{Type: abi.QPTypeRC, Ordering: abi.OrderingWeak}},
		{"QP that completes in error", extended, abi.AdminOpCreateQP, &abi.CreateQP{Type: abi.QPTypeRC, ErrorMode: abi.ErrorModeCompleteInError}},
		{"weakly ordered datagrams", extended | datagrams, abi.AdminOpCreateQP, &abi.CreateQP{Type: abi.QPTypeUD, Ordering: abi.OrderingWeak}},
		{"address handle", datagrams, abi.AdminOpCreateAH, &abi.CreateAH{}},
		{"DestroyAH", datagrams, abi.AdminOpDestroyAH, &abi.DestroyAH{}},
		{"SRQ", extended, abi.AdminOpCreateSRQ, &abi.CreateSRQ{}},
		{"ModifySRQ", extended, abi.AdminOpModifySRQ, &abi.ModifySRQ{}},
		{"QuerySRQ", extended, abi.AdminOpQuerySRQ, &abi.QuerySRQ{}},
		{"DestroySRQ", extended, abi.AdminOpDestroySRQ, &abi.DestroySRQ{}},
		{"CloseXRCD", extended, abi.AdminOpCloseXRCD, &abi.CloseXRCD{}},
		{"memory window", extended, abi.AdminOpAllocMW, &abi.AllocMW{}},
		{"DeallocMW", extended, abi.AdminOpDeallocMW, &abi.DeallocMW{}},
		{"ReregMR", extended, abi.AdminOpReregMR, &abi.ReregMR{}},
		{"ResizeCQ", extended, abi.AdminOpResizeCQ, &abi.ResizeCQ{}},
		{"ModifyCQ", extended, abi.AdminOpModifyCQ, &abi.ModifyCQ{}},
	} {
		v := newVirtual(t, 1, wire100us)
		d := newDriver(v, 0, 1)
		d.setUp()
		for bit := uint64(1); bit != 0; bit <<= 1 {
			if c.need&bit == 0 {
				continue
			}
			d.b.Features = ^bit
			before := len(d.fn.Violations().All())
			if st, _ := d.command(c.op, c.params); st != abi.StatusUnsupported {
				t.Errorf("%s without feature %#x: %s", c.name, bit, st)
			}
			if list := d.fn.Violations().All(); before == 0 && (len(list) != 1 || list[0].Clause != 103) {
				t.Errorf("%s without feature %#x: violations %+v", c.name, bit, list)
			}
		}
		d.b.Features = c.need
		if st, _ := d.command(c.op, c.params); st == abi.StatusUnsupported {
			t.Errorf("%s with its feature: %s", c.name, st)
		}
	}
}

// TestAFunctionFollowsTheTableOfItsLifecycle drives one function through its lifecycle in any order, with objects, a
// connection and traffic, and compares its state with the table of docs/abi §3. A reset takes one
// Step from any state, leaves nothing, and the driver may start again on the same stream (DEV-302,
// DEV-303, DEV-304).
func TestAFunctionFollowsTheTableOfItsLifecycle(t *testing.T) { eachShards(t, testLifecycleModel) }

func testLifecycleModel(t *testing.T) {
	v := newVirtual(t, 3, wire100us)
	v.tell = false
	d, b := newDriver(v, 0, 1), newDriver(v, 1, 1)
	s := v.shardOf(d.fn)
	service := uint64(0)
	rapid.Check(t, func(t *rapid.T) {
		model := abi.StateReset
		apply := func(ev pfvf.Event) {
			var err error
			if model, err = pfvf.Transition(model, ev); err != nil {
				t.Fatal(err)
			}
		}
		one := func() { // exactly one Step
			in := thread.Input{}
			s.Step(v.now, &in, v.out(s))
			v.out(s).Do()
		}
		set := func(reg, width uint32, value uint64) abi.Status {
			d.ch.Replies()
			d.put(reg, width, value)
			one()
			return d.ch.Replies()[0].Status
		}
		reset := func() {
			if st := set(abi.RegControl, 4, uint64(abi.ControlReset)); st != abi.StatusOK {
				t.Fatalf("reset in %s: %s", model, st)
			}
			apply(pfvf.Reset)
			f := d.fn
			cqs, async := d.ch.Waiting()
			if f.Verbs() != nil || len(f.conns.IDs()) != 0 || f.Registers().Value(abi.RegAdminSQ)|f.Registers().Value(abi.RegAdminCQ)|f.Registers().Value(abi.RegAdminEntries)|f.Registers().Value(abi.RegFault) != 0 ||
				len(async) != 0 || len(cqs) != 0 {
				t.Fatalf("after one Step a reset function still holds %+v, %d connections, %d events", f.Verbs(), len(f.conns.IDs()), len(async))
			}
			before := bytes.Clone(d.mem)
			v.idle(1e6)
			if !bytes.Equal(before, d.mem) {
				t.Fatal("the device touched memory after a reset")
			}
		}
		ready := func() { // only in READY
			if model != abi.StateReady {
				t.Skip()
			}
		}
		connected := false
		clear(d.mem)
		reset()
		t.Repeat(map[string]func(*rapid.T){
			"enable": func(t *rapid.T) {
				if model != abi.StateReset {
					if st := set(abi.RegControl, 4, uint64(abi.ControlEnable)); st != abi.StatusBadState {
						t.Fatalf("enable in %s: %s", model, st)
					}
					if st := set(abi.RegAdminEntries, 4, 4); st != abi.StatusBadState {
						t.Fatalf("admin registers in %s: %s", model, st)
					}
					return
				}
				clear(d.mem)
				connected = false
				d.enable()
				apply(pfvf.Enable)
				apply(pfvf.Ready)
			},
			"enable outside memory": func(t *rapid.T) {
				if model != abi.StateReset {
					t.Skip()
				}
				set(abi.RegAdminSQ, 8, 1<<50)
				set(abi.RegAdminEntries, 4, 4)
				if st := set(abi.RegControl, 4, uint64(abi.ControlEnable)); st != abi.StatusMemoryFault {
					t.Fatal(st)
				}
				apply(pfvf.Enable)
				apply(pfvf.Fault)
			},
			"unknown control": func(t *rapid.T) {
				if st := set(abi.RegControl, 4, 3); st != abi.StatusInvalidArgument {
					t.Fatal(st)
				}
			},
			"traffic": func(t *rapid.T) { // left in the middle
				ready()
				if !connected {
					connected = true
					b.write(abi.RegControl, 4, uint64(abi.ControlReset))
					clear(b.mem)
					d.objects()
					b.setUp()
					service++
					d.connectTo(b, service)
				}
				for range rapid.IntRange(1, 3).Draw(t, "requests") {
					if free, err := d.sendQ.Free(); err != nil || free == 0 {
						break
					}
					d.send(abi.OpWrite, 0, 100_000, b, 0)
				}
				for range rapid.IntRange(0, 5).Draw(t, "events") {
					v.advance(v.now + 1e6)
				}
				for ok := true; ok; {
					_, ok = d.completion()
				}
				d.collect()
				b.collect()
			},
			"fault": func(*rapid.T) {
				d.ring(abi.DoorbellAdmin, 0, 0xffff)
				one()
				if model == abi.StateReady { // DEV-305: else it has no effect
					apply(pfvf.Fault)
					connected = false
					if d.fn.Registers().Value(abi.RegFault) != uint64(abi.FaultCommand) {
						t.Fatal("fault code", d.fn.Registers().Value(abi.RegFault))
					}
				}
			},
			"reset": func(*rapid.T) { reset() },
			"": func(t *rapid.T) {
				if got := abi.State(d.fn.Registers().Value(abi.RegState)); got != model {
					t.Fatalf("state %s, want %s", got, model)
				}
			},
		})
	})
	d.write(abi.RegControl, 4, uint64(abi.ControlReset))
	b.write(abi.RegControl, 4, uint64(abi.ControlReset))
	v.idle(60e9)
	for i, core := range v.cores {
		if n := core.Manager.CIDsInUse(); n != 0 {
			t.Errorf("NIC %d: %d connection identifiers in use after all resets", i, n)
		}
		for _, f := range v.functions(i) {
			if c := f.Credits.InUse(); c != (credit.Cost{}) {
				t.Errorf("%s: credits %v in use after all resets", f.ID, c)
			}
		}
	}
}

// TestAdminInWindow checks that with registers of 0 the admin queues are those of the window, and
// that they are empty after each reset, whatever was left in them. (DEV-1017)
func TestAdminInWindow(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	o := newOffender(t, v, 0)
	v.shards[0].guests.OpenEvents(o.b, o.bell)
	sq, cq := o.bell.(queues.AdminHolder).AdminQueues()
	for range 3 {
		o.write(abi.RegAdminEntries, 4, abi.MaxAdminEntries)
		o.sq, o.cq = ring.NewProducer(sq, ring.AdminLayout(abi.MaxAdminEntries)), ring.NewCQReader(cq, ring.AdminLayout(abi.MaxAdminEntries))
		o.write(abi.RegControl, 4, uint64(abi.ControlEnable))
		for range 300 {
			pdn := o.must(abi.AdminOpAllocPD, nil)
			o.must(abi.AdminOpDeallocPD, &abi.DeallocPD{PDN: binary.LittleEndian.Uint32(pdn)})
		}
		o.write(abi.RegControl, 4, uint64(abi.ControlReset))
	}
	for i, q := range []ring.Bytes{sq, cq} {
		b := make([]byte, ring.AdminLayout(abi.MaxAdminEntries).Size())
		if err := q.ReadAt(0, b); err != nil || !bytes.Equal(b, make([]byte, len(b))) {
			t.Errorf("admin queue %d is not empty: %v", i, err)
		}
	}
}
