package shard

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/falcon-vnic/vnic/device/config"
	"github.com/falcon-vnic/vnic/device/control"
	"github.com/falcon-vnic/vnic/device/controller"
	"github.com/falcon-vnic/vnic/device/functions"
	"github.com/falcon-vnic/vnic/device/gateway"
	"github.com/falcon-vnic/vnic/device/thread"
	"github.com/falcon-vnic/vnic/falcon/cm"
	"github.com/falcon-vnic/vnic/falcon/credit"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// operate carries out an operator's request with settings as text.
func (v *virtual) operate(nic int, function, action string, set ...string) error {
	c := control.FunctionChange{Function: function, Action: action, Set: map[string]string{}}
	for i := 0; i < len(set); i += 2 {
		c.Set[set[i]] = set[i+1]
	}
	id, err := pfvf.ParseID(fmt.Sprintf("h%d.%s", nic+1, function))
	if err != nil {
		return err
	}
	return v.asked(func(then func(error)) { v.cores[nic].Operate(id, &c, then) })
}

// change changes a function's settings, as a PF does.
func (v *virtual) change(nic int, id pfvf.ID, edit func(*config.Function) error) error {
	return v.asked(func(then func(error)) {
		v.cores[nic].Change(id, func(_, to *config.Function) error { return edit(to) }, then)
	})
}

// asked runs f and returns its answer.
func (v *virtual) asked(f func(then func(error))) (err error) {
	v.t.Helper()
	done := false
	f(func(e error) { err, done = e, true })
	v.until("the answer", func() bool { return done })
	return err
}

func (v *virtual) mustOperate(nic int, function, action string, set ...string) {
	v.t.Helper()
	if err := v.operate(nic, function, action, set...); err != nil {
		v.t.Fatal(err)
	}
}

func vfID(nic, vf int) pfvf.ID { return pfvf.ID((nic+1)<<16 | vf) }

// manyVFs lets PF 0 of both sides have VFs up to 4095, for its own guest.
func manyVFs(_ int, c *config.Config) {
	pf := &c.Functions[0]
	pf.VFCount = pfvf.MaxVF
	pf.Tenant, pf.Address, pf.Guest = 7, netip.AddrFrom4([4]byte{192, 168, 100, byte(100 + c.NIC.Host)}), &config.Guest{Unix: "bare"}
	yes := true
	pf.Enabled = &yes
}

// heap returns the memory in use after a collection.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestOnlyEnabledVFsTakeMemory checks that 16 PFs with 4095 VFs each need no more memory than 16 PFs; memory is for
// enabled VFs, and is freed when they are disabled.
func TestOnlyEnabledVFsTakeMemory(t *testing.T) {
	shard := func(vfs int) (*controller.Core, *Shard) {
		var b strings.Builder
		b.WriteString("nic: {host: 1}\nuplink: {backend: memory, address: 10.0.0.1/24}\nfunctions:\n")
		for pf := range 16 {
			fmt.Fprintf(&b, "  - {pf: %d, vf_count: %d}\n", pf, vfs)
		}
		c, err := config.Parse([]byte(b.String()))
		if err != nil {
			t.Fatal(err)
		}
		core, shards := newNIC(t, c, 1)
		return core, shards[0]
	}
	base := heap()
	_, none := shard(0)
	without := heap() - base
	base = heap()
	core, s := shard(pfvf.MaxVF)
	with := heap() - base
	if with-without > 64<<10 {
		t.Errorf("65520 VFs that nobody enabled take %d bytes", with-without)
	}
	const n = 2000
	var decided controller.CoreOutput
	var out thread.Output
	var done int
	change := func(on bool) {
		for i := range n {
			id, _ := pfvf.NewID(1, uint32(i%16), uint32(1+i/16))
			core.Change(id, func(_, c *config.Function) error {
				c.Tenant, c.Address, c.Enabled = 7, netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), &on
				return nil
			}, func(err error) {
				if done++; err != nil {
					t.Fatal(err)
				}
			})
		}
		for done = 0; done < n; {
			core.Step(1, &decided)
			s.Step(1, &thread.Input{}, &out)
			out.Do()
		}
	}
	before := heap()
	change(true)
	each := (heap() - before) / n
	t.Logf("%d bytes of a NIC with 16 PFs, %d with 65520 possible VFs, %d per enabled VF", without, with, each)
	if each > 6<<10 {
		t.Errorf("an enabled VF takes %d bytes", each)
	}
	if s.funcs.members.len() != 16+n || s.funcs.table.Len() != n {
		t.Errorf("%d functions, %d by address", s.funcs.members.len(), s.funcs.table.Len())
	}
	change(false)
	if s.funcs.members.len() != 16 || s.funcs.host.Charged() != (credit.Cost{}) {
		t.Errorf("%d functions are left, charged %v", s.funcs.members.len(), s.funcs.host.Charged())
	}
	if left := (heap() - before) / n; left > each/2+1024 { // their settings are kept
		t.Errorf("%d bytes for each VF that is disabled", left)
	}
	runtime.KeepAlive(none)
	runtime.KeepAlive(s)
}

// TestOperatorSetsVF creates, changes, disables and enables VFs while another pair transfers data.
// (DEV-307)
func TestOperatorSetsVF(t *testing.T) {
	v := newVirtualWith(t, 5, wire100us, manyVFs)
	a, b := pair(v)
	bystander := func() {
		t.Helper()
		a.send(abi.OpWrite, 0, 200_000, b, 0)
		if cqe := a.done(); cqe.Status != abi.WCSuccess {
			t.Fatalf("the other pair: %s", cqe.Status)
		}
	}
	set := []string{"tenant", "7", "address", "192.168.100.77", "guest", "unix:bare"}
	v.mustOperate(0, "pf0.vf4000", "enable", set...)
	bystander()
	d, e := newDriver(v, 0, 4000), newDriver(v, 1, 2)
	d.setUp()
	e.setUp()
	d.connectTo(e, 5)
	d.send(abi.OpWrite, 0, 4096, e, 0)
	if cqe := d.done(); cqe.Status != abi.WCSuccess {
		t.Fatal(cqe.Status)
	}
	if got := d.fn.Registers().Value(abi.RegGIDLo); got != 0xffffc0a8644d {
		t.Errorf("GID %x", got)
	}

	// Settings that do not make it another function change under traffic.
	d.send(abi.OpWrite, 0, 1<<20, e, 0)
	v.mustOperate(0, "pf0.vf4000", "", "rate", "1000", "trust", "on", "spoofchk", "off", "max_qp", "1", "credits", "req-pkt-tx=8")
	if cqe := d.done(); cqe.Status != abi.WCSuccess {
		t.Fatal(cqe.Status)
	}
	if f := d.fn; !f.Trust || f.SpoofCheck || f.Rate.Rate() != 125e6 || f.Registers().Value(abi.RegMaxTxRate) != 1000 || f.Registers().Value(abi.RegCreditLimitReqPktTx) != 8 {
		t.Errorf("%+v", f.Function)
	}
	if st, _ := d.command(abi.AdminOpCreateQP, &abi.CreateQP{
		PDN: d.pdn, SendCQ: d.cqn, RecvCQ: d.cqn, Type: abi.QPTypeRC, SQLog2Entries: 2, RQLog2Entries: 2, SQLog2Stride: 7, RQLog2Stride: 5,
		MaxSendSGE: 1, MaxRecvSGE: 1, SQLevels: 1, RQLevels: 1, SQPages: d.list(0, 64, 1), RQPages: d.list(1, 66, 1),
	}); st != abi.StatusNoResources {
		t.Errorf("a second QP with a quota of 1: %s", st)
	}

	// Another MAC makes it another function: it is reset, told, and usable again.
	v.mustOperate(0, "pf0.vf4000", "", "mac", "02:00:00:00:00:99")
	if ev := d.event(abi.EventFunctionState); ev.Status != uint32(abi.StateReset) || ev.Number != uint32(vfID(0, 4000)) {
		t.Errorf("%+v", ev)
	}
	if d.fn.Verbs() != nil || d.fn.Registers().Value(abi.RegMAC) != 0x990000000002 {
		t.Errorf("not reset, or MAC %x", d.fn.Registers().Value(abi.RegMAC))
	}
	bystander()
	clear(d.mem)
	d.setUp()
	e.event(abi.EventDisconnected)

	// Disabled: told, refused, removed with the session; enabled again with its settings.
	v.mustOperate(0, "pf0.vf4000", "disable")
	if ev := d.event(abi.EventFunctionState); ev.Status != uint32(abi.StateDisabled) {
		t.Errorf("%+v", ev)
	}
	if st := d.fn.Registers().Write(v.now, abi.RegControl, 4, uint64(abi.ControlReset)); st != abi.StatusDenied {
		t.Errorf("a disabled function's driver resets it: %s", st)
	}
	_ = d.ch.Close(nil)
	if v.shards[0].funcs.members.get(vfID(0, 4000)) != nil {
		t.Error("a disabled VF without a session is still there")
	}
	bystander()
	v.mustOperate(0, "pf0.vf4000", "enable")
	d = newDriver(v, 0, 4000)
	if !d.fn.Trust || d.fn.MAC != [6]byte{2, 0, 0, 0, 0, 0x99} {
		t.Errorf("what was set is lost: %+v", d.fn.Function)
	}
	d.setUp()
	// Disabled under a session and enabled again: the same stream works on.
	v.mustOperate(0, "pf0.vf4000", "disable")
	v.mustOperate(0, "pf0.vf4000", "enable")
	if ev := d.event(abi.EventFunctionState); ev.Status != uint32(abi.StateReset) {
		t.Errorf("%+v", ev)
	}
	clear(d.mem)
	d.setUp()
	bystander()
}

// TestAnOperatorsErrorNamesValueAndRemedy checks that each error names function, value and remedy, and that nothing
// changes.
func TestAnOperatorsErrorNamesValueAndRemedy(t *testing.T) {
	v := newVirtualWith(t, 6, wire100us, manyVFs)
	s := v.shards[0]
	before := s.View().Functions.Describe(vfID(0, 1))
	for _, c := range []struct {
		function, action string
		set              []string
		want             string
	}{
		{"pf0.vf1", "", nil, "nothing to change; set one of address"},
		{"pf0.vf1", "", []string{"vlan", "5"}, "h1.pf0.vf1: vlan: VFs are kept apart by tenant"},
		{"pf0.vf1", "", []string{"min_tx_rate", "5"}, "set guarantee"},
		{"pf0.vf1", "", []string{"colour", "red"}, "h1.pf0.vf1: colour: unknown setting; use one of"},
		{"pf0.vf1", "", []string{"mac", "01:00:00:00:00:01"}, "is a multicast address; clear"},
		{"pf0.vf1", "", []string{"mac", config.FunctionMAC("1", 0, 2).String()}, "is already used by h1.pf0.vf2; give each"},
		{"pf0.vf1", "", []string{"address", "192.168.100.12"}, "is already used by h1.pf0.vf2"},
		{"pf0.vf1", "", []string{"address", "ten"}, `"ten" is not an IPv4 or IPv6 address; write it as`},
		{"pf0.vf1", "", []string{"tenant", "0"}, "tenant: missing or 0; name the tenant"},
		{"pf0.vf1", "", []string{"rate", "fast"}, `rate: "fast" is not a whole number`},
		{"pf0.vf1", "", []string{"trust", "yes"}, `"yes" is neither on nor off; write on or off`},
		{"pf0.vf1", "", []string{"state", "up"}, `"up" is not a link state; write auto`},
		{"pf0.vf1", "", []string{"guest", "me"}, `"me" is not a guest; write cid:3`},
		{"pf0.vf1", "", []string{"guest", "unix:nowhere"}, `no unix attachment is named "nowhere"; add`},
		{"pf0.vf1", "", []string{"max_qp", "0"}, "0 would leave the function without"},
		{"pf0.vf1", "", []string{"max_qp", "70000"}, "70000 is out of range; use 1 to 65534"},
		{"pf0.vf1", "", []string{"qp_entries", "48"}, "48 is not a power of two"},
		{"pf0.vf1", "", []string{"dma_window", "1G"}, `"1G" is not a window; write ADDRESS+SIZE`},
		{"pf0.vf1", "", []string{"dma_window", "1+4K"}, "is not the address of a page"},
		{"pf0.vf1", "", []string{"credits", "gold=5"}, `"gold" is not a counter; use one of req-pkt-tx`},
		{"pf0.vf1", "", []string{"credits", "0"}, "a limit of 0 would stop the function"},
		{"pf0.vf1", "", []string{"credits", "req-buf-tx=1"}, "request_buffer_tx: 1 is less than one packet of 4096 bytes needs, so work would wait forever; use 33 or more"},
		{"pf0.vf1", "", []string{"guarantee", "req-pkt-tx=2000"}, "2000 is more than the 1024 that credits.request_packet_tx allows it; lower it"},
		{"pf0.vf1", "", []string{"credits", "net-buf-rx=9000", "guarantee", "net-buf-rx=9000"}, "9000 are guaranteed to functions, but there are only 4096; raise it or lower"},
		{"pf0.vf1", "", []string{"credits", "net-buf-rx=4096", "guarantee", "net-buf-rx=4096"}, "leave 0 of 4096 to a function that has none; a packet needs 1"},
		{"pf0.vf1", "destroy", nil, "use enable, disable or reset"},
		{"pf0.vf9", "enable", nil, "has no tenant yet; give it one with an address: vnic vf set"},
		{"pf0.vf9", "reset", nil, "h1.pf0.vf9 is disabled; enable it first"},
		{"pf3.vf1", "enable", nil, "there is no function h1.pf3.vf1; add {pf: 3} under functions"},
	} {
		err := v.operate(0, c.function, c.action, c.set...)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s %s %v:\n got %v\nwant %s", c.function, c.action, c.set, err, c.want)
		}
	}
	if after := s.View().Functions.Describe(vfID(0, 1)); after != before {
		t.Errorf("refused changes left %+v, was %+v", after, before)
	}
	if got := s.funcs.host.Charged(); got != (credit.Cost{}) {
		t.Errorf("charged %v", got)
	}
}

// TestPFManagesVFs checks the commands of a PF: only a PF may use them, and they cannot give more
// than it has. (DEV-309, DEV-311)
func TestPFManagesVFs(t *testing.T) { eachShards(t, testPFManagesVFs) }

func testPFManagesVFs(t *testing.T) {
	v := newVirtualWith(t, 8, wire100us, manyVFs)
	pf, vf1 := newDriver(v, 0, 0), newDriver(v, 0, 1)
	pf.enable()
	vf1.setUp()
	refused := func(d *driver, want abi.Status, op abi.AdminOp, p marshaler) {
		t.Helper()
		if st, r := d.command(op, p); st != want || binary.LittleEndian.Uint64(r) != 0 {
			t.Errorf("%s %+v: %s, %x; want %s", op, p, st, r, want)
		}
	}
	for op := abi.AdminOpVFEnable; op <= abi.AdminOpQueryVFObjects; op++ {
		refused(vf1, abi.StatusDenied, op, &abi.VFNumber{VF: 2})
		refused(pf, abi.StatusNotFound, op, &abi.VFNumber{VF: 0})
		refused(pf, abi.StatusNotFound, op, &abi.VFNumber{VF: 1 << 12})
	}
	set := func(c abi.SetVF) *abi.SetVF { c.VF = 20; return &c }
	refused(pf, abi.StatusInvalidArgument, abi.AdminOpVFEnable, &abi.VFNumber{VF: 20}) // no tenant
	gid := netip.MustParseAddr("192.168.100.120").As16()
	pf.must(abi.AdminOpSetVF, set(abi.SetVF{
		Mask: abi.VFAttrMAC | abi.VFAttrTenant | abi.VFAttrGID | abi.VFAttrMaxTxRate | abi.VFAttrLink | abi.VFAttrMaxQP,
		MAC:  [6]byte{2, 0, 0, 0, 0, 20}, Tenant: 7, GID: gid, MaxTxRate: 500, Link: abi.LinkEnable, MaxQP: 9,
	}))
	pf.must(abi.AdminOpVFEnable, &abi.VFNumber{VF: 20})
	if n := pf.fn.Registers().Value(abi.RegNumVF); n != 5 || pf.fn.Registers().Value(abi.RegTotalVF) != pfvf.MaxVF {
		t.Errorf("%d VFs", n)
	}
	var q abi.QueryVFResult
	q.Unmarshal(pf.must(abi.AdminOpQueryVF, &abi.VFNumber{VF: 20}))
	if q.State != abi.StateReset || q.MAC != [6]byte{2, 0, 0, 0, 0, 20} || q.Tenant != 7 || q.GID != gid || q.MaxTxRate != 500 || q.LinkUp != 1 || q.Link != abi.LinkEnable || q.SpoofCheck != 1 {
		t.Errorf("%+v", q)
	}
	d := newDriverWith(v, 0, 20, abi.FeatureFunctionEvents|abi.FeatureDatagrams|abi.FeatureExtendedVerbs) // the PF's guest may drive it
	if !d.fn.assignedTo("bare", d.b.Peer) {
		t.Error("the VF is not its PF's guest's")
	}
	d.setUp()
	q.Unmarshal(pf.must(abi.AdminOpQueryVF, &abi.VFNumber{VF: 20}))
	if q.State != abi.StateReady || q.Attached != 1 || q.QPs != 1 || q.MRs != 1 {
		t.Errorf("%+v", q)
	}

	// Credits: limits apply at once; only a trusted PF may set a guarantee or more than its own.
	counts := func(n uint32) (b [32]byte) {
		for i := range 8 {
			binary.LittleEndian.PutUint32(b[4*i:], n)
		}
		return b
	}
	pf.must(abi.AdminOpSetVFCredits, &abi.SetVFCredits{VF: 20, Part: abi.CreditLimit, Mask: 0xff, Counts: counts(100)})
	r := pf.must(abi.AdminOpQueryVFCredits, &abi.QueryVFCredits{VF: 20, Part: abi.CreditLimit})
	if binary.LittleEndian.Uint32(r[28:]) != 100 || d.fn.Credits.Limit()[credit.NetBufRx] != 100 {
		t.Errorf("limits %x, %v", r, d.fn.Credits.Limit())
	}
	refused(pf, abi.StatusTooLarge, abi.AdminOpSetVFCredits, &abi.SetVFCredits{VF: 20, Mask: 1, Counts: counts(5000)})
	refused(pf, abi.StatusInvalidArgument, abi.AdminOpSetVFCredits, &abi.SetVFCredits{VF: 20, Mask: 0x100, Counts: counts(5)})
	refused(pf, abi.StatusInvalidArgument, abi.AdminOpSetVFCredits, &abi.SetVFCredits{VF: 20, Mask: 1})
	refused(pf, abi.StatusInvalidArgument, abi.AdminOpSetVFCredits, &abi.SetVFCredits{VF: 20, Part: abi.CreditLimit, Mask: 2, Counts: counts(1)})
	refused(pf, abi.StatusDenied, abi.AdminOpSetVFCredits, &abi.SetVFCredits{VF: 20, Part: abi.CreditGuarantee, Mask: 1, Counts: counts(5)})
	refused(pf, abi.StatusDenied, abi.AdminOpSetVF, set(abi.SetVF{Mask: abi.VFAttrTenant, Tenant: 8}))
	refused(pf, abi.StatusDenied, abi.AdminOpSetVF, set(abi.SetVF{Mask: abi.VFAttrTrust, Trust: 1}))
	refused(pf, abi.StatusDenied, abi.AdminOpSetVF, set(abi.SetVF{Mask: abi.VFAttrSpoofCheck}))
	// Quotas of objects (DEV-312).
	quotas := func(n uint32) (b [abi.ObjectCountsSize]byte) {
		for i := range int(abi.NumObjects) {
			binary.LittleEndian.PutUint32(b[4*i:], n)
		}
		return b
	}
	pf.must(abi.AdminOpSetVFObjects, &abi.SetVFObjects{VF: 20, Mask: 0xf0, Counts: quotas(3)})
	objects := func(d *driver, op abi.AdminOp, p marshaler) (o abi.ObjectCounts) {
		o.Unmarshal(d.must(op, p))
		return o
	}
	want := abi.ObjectCounts{QPs: 9, CQs: 512, MRs: 4096, PDs: 256, AHs: 3, SRQs: 3, MWs: 3, XRCDs: 3, MCGs: 256}
	if o := objects(pf, abi.AdminOpQueryVFObjects, &abi.QueryVFObjects{VF: 20}); o != want {
		t.Errorf("quotas %+v", o)
	}
	if o := objects(d, abi.AdminOpQueryObjects, &abi.QueryObjects{}); o != want {
		t.Errorf("quotas as the VF sees them %+v", o)
	}
	for range 3 {
		d.must(abi.AdminOpOpenXRCD, nil)
		d.must(abi.AdminOpCreateAH, &abi.CreateAH{PDN: d.pdn, DGID: gid})
	}
	refused(d, abi.StatusNoResources, abi.AdminOpOpenXRCD, nil)
	refused(d, abi.StatusNoResources, abi.AdminOpCreateAH, &abi.CreateAH{PDN: d.pdn, DGID: gid})
	used := abi.ObjectCounts{QPs: 1, CQs: 1, MRs: 1, PDs: 1, AHs: 3, XRCDs: 3}
	if o := objects(pf, abi.AdminOpQueryVFObjects, &abi.QueryVFObjects{VF: 20, Part: abi.CreditInUse}); o != used {
		t.Errorf("in use %+v", o)
	}
	if o := objects(pf, abi.AdminOpQueryVFObjects, &abi.QueryVFObjects{VF: 21, Part: abi.CreditInUse}); o != (abi.ObjectCounts{}) {
		t.Errorf("in use by a function that is not there %+v", o)
	}
	if f := v.shardOf(d.fn).View().Functions.Describe(vfID(0, 20)); f.AHs != 3 || f.XRCDs != 3 || f.MaxAH != 3 || f.MaxSRQ != 3 {
		t.Errorf("shown %+v", f)
	}
	refused(d, abi.StatusInvalidArgument, abi.AdminOpQueryObjects, &abi.QueryObjects{Part: abi.CreditGuarantee})
	refused(pf, abi.StatusTooLarge, abi.AdminOpSetVFObjects, &abi.SetVFObjects{VF: 20, Mask: 1 << 5, Counts: quotas(257)})
	refused(pf, abi.StatusInvalidArgument, abi.AdminOpSetVFObjects, &abi.SetVFObjects{VF: 20, Mask: 1 << 9, Counts: quotas(1)})
	refused(pf, abi.StatusInvalidArgument, abi.AdminOpSetVFObjects, &abi.SetVFObjects{VF: 20, Mask: 1})
	refused(pf, abi.StatusTooLarge, abi.AdminOpSetVF, set(abi.SetVF{Mask: abi.VFAttrMaxMR, MaxMR: 5000}))
	refused(pf, abi.StatusInvalidArgument, abi.AdminOpSetVF, set(abi.SetVF{Mask: 1 << 11}))
	refused(pf, abi.StatusInvalidArgument, abi.AdminOpSetVF, set(abi.SetVF{Mask: abi.VFAttrMAC, MAC: [6]byte{1}}))
	refused(pf, abi.StatusAddressInUse, abi.AdminOpSetVF, set(abi.SetVF{Mask: abi.VFAttrGID, GID: vf1.fn.GID()}))
	refused(pf, abi.StatusInvalidArgument, abi.AdminOpSetVFWindow, &abi.SetVFWindow{VF: 20, Address: 1, Length: 4096})
	if d.fn.Lifecycle.State() != abi.StateReady {
		t.Error("a refused command reset the VF")
	}
	v.mustOperate(0, "pf0", "", "trust", "on")
	pf.must(abi.AdminOpSetVFCredits, &abi.SetVFCredits{VF: 20, Part: abi.CreditGuarantee, Mask: 1, Counts: counts(5)})
	if d.fn.Credits.Guaranteed() != (credit.Cost{credit.ReqPktTx: 5}) || d.fn.fs.host.Charged()[credit.ReqPktTx] != 5 {
		t.Errorf("guaranteed %v", d.fn.Credits.Guaranteed())
	}

	pf.must(abi.AdminOpVFReset, &abi.VFNumber{VF: 20})
	if ev := d.event(abi.EventFunctionState); ev.Status != uint32(abi.StateReset) || d.fn.Verbs() != nil {
		t.Errorf("%+v", ev)
	}
	pf.must(abi.AdminOpSetVFWindow, &abi.SetVFWindow{VF: 20, Address: 1 << 30, Length: 1 << 20})
	if w := d.fn.Settings().Window; w.Addr != 1<<30 || w.Size != 1<<20 {
		t.Errorf("%+v", w)
	}
	pf.must(abi.AdminOpVFDisable, &abi.VFNumber{VF: 20})
	refused(pf, abi.StatusBadState, abi.AdminOpVFReset, &abi.VFNumber{VF: 20})
	if vf1.fn.Lifecycle.State() != abi.StateReady {
		t.Error("another VF noticed")
	}
}

// TestPFResetTakesVFsDown checks that VFs are reset lowest first, each told, and the PF last.
// Resets by another PF's driver and the end of a stream do not reset them. (DEV-308)
func TestPFResetTakesVFsDown(t *testing.T) {
	v := newVirtualWith(t, 9, wire100us, manyVFs)
	pf := newDriver(v, 0, 0)
	var vfs []*driver
	for n := 1; n <= 4; n++ {
		if n != 3 { // VF 3 exists, but has no driver
			vfs = append(vfs, newDriver(v, 0, n))
		}
	}
	pf.enable()
	for _, d := range vfs {
		d.setUp()
	}
	var log strings.Builder
	v.logTo(0, &log)
	pf.write(abi.RegControl, 4, uint64(abi.ControlReset))
	if pf.fn.Lifecycle.State() != abi.StateReset {
		t.Fatal(pf.fn.Lifecycle.State())
	}
	order := regexp.MustCompile(`function=\S+`).FindAllString(log.String(), -1)
	if perNIC > 1 { // only those of one shard are in order
		slices.Sort(order)
	}
	if !slices.Equal(order, []string{
		"function=h1.pf0.vf1", "function=h1.pf0.vf2", "function=h1.pf0.vf3", "function=h1.pf0.vf4",
	}) {
		t.Errorf("reset in the order %v:\n%s", order, &log)
	}
	for _, d := range vfs {
		if d.fn.Lifecycle.State() != abi.StateReset || d.fn.Verbs() != nil {
			t.Errorf("%s is in %s", d.fn.ID, d.fn.Lifecycle.State())
		}
		d.event(abi.EventFunctionState)
		clear(d.mem)
		d.setUp()
	}
	_ = pf.ch.Close(nil) // a PF's guest that leaves does not reset the VFs
	for _, d := range vfs {
		if d.fn.Lifecycle.State() != abi.StateReady {
			t.Errorf("%s is in %s", d.fn.ID, d.fn.Lifecycle.State())
		}
	}
}

// TestPFOverShards checks that a PF's reset, and its link, reach its VFs on any shard, and that it
// counts them all.
func TestPFOverShards(t *testing.T) {
	eachShards(t, func(t *testing.T) {
		v := newVirtualWith(t, 9, wire100us, manyVFs)
		pf := newDriver(v, 0, 0)
		pf.enable()
		var vfs []*driver
		for n := 1; n <= 4; n++ {
			d := newDriver(v, 0, n)
			d.setUp()
			vfs = append(vfs, d)
		}
		numVFs := func() uint64 { return pf.fn.Registers().Value(abi.RegNumVF) }
		if numVFs() != 4 {
			t.Errorf("%d VFs at first", numVFs())
		}
		pf.must(abi.AdminOpVFDisable, &abi.VFNumber{VF: 3})
		if numVFs() != 3 {
			t.Errorf("%d VFs, one is disabled", numVFs())
		}
		pf.must(abi.AdminOpVFEnable, &abi.VFNumber{VF: 3})
		if numVFs() != 4 {
			t.Errorf("%d VFs, all are enabled again", numVFs())
		}
		for _, link := range []string{"disable", "auto"} {
			v.mustOperate(0, "pf0", "", "state", link)
			for _, d := range vfs {
				if d.fn.LinkUp != (link == "auto") {
					t.Errorf("the PF's link is %s, that of %s is up: %t", link, d.fn.ID, d.fn.LinkUp)
				}
			}
		}
		pf.write(abi.RegControl, 4, uint64(abi.ControlReset))
		for _, d := range vfs {
			if d.fn.Lifecycle.State() != abi.StateReset || d.fn.Verbs() != nil {
				t.Errorf("%s is in %s", d.fn.ID, d.fn.Lifecycle.State())
			}
		}
	})
}

// TestAFunctionKeepsBelowItsRate checks that what a function sends, including READ responses, stays below its rate,
// and that the limit can be removed.
func TestAFunctionKeepsBelowItsRate(t *testing.T) {
	eachDistance(t, func(t *testing.T) {
		for _, op := range []abi.Opcode{abi.OpWrite, abi.OpRead} {
			t.Run(op.String(), func(t *testing.T) {
				v := newVirtual(t, 10, wire100us)
				a, b := pair(v)
				limited := a
				if op == abi.OpRead {
					limited = b
				}
				name := fmt.Sprintf("pf0.vf%d", limited.fn.ID.VF())
				transfer := func() float64 {
					const n, size = 8, 500_000
					start := v.now
					for range n {
						a.send(op, 0, size, b, 0)
					}
					for range n {
						if cqe := a.done(); cqe.Status != abi.WCSuccess {
							t.Fatal(cqe.Status)
						}
					}
					return n * size * 8 / (float64(v.now-start) / 1e9) / 1e6
				}
				free := transfer()
				v.mustOperate(limited.nic, name, "", "max_tx_rate", "200")
				held := transfer()
				v.mustOperate(limited.nic, name, "", "max_tx_rate", "0")
				again := transfer()
				t.Logf("%.0f Mbit/s, held to 200: %.0f, and without again: %.0f", free, held, again)
				if held < 180 || held > 215 || again < free*0.9 {
					t.Errorf("%.0f Mbit/s, held to 200: %.0f, and without again: %.0f", free, held, again)
				}
			})
		}
	})
}

// TestAFunctionWhoseLinkIsDownIsCutOff checks that a function whose link is down is cut off and told, and goes on where it
// was when the link is up again. A VF follows its PF. (DEV-310)
func TestAFunctionWhoseLinkIsDownIsCutOff(t *testing.T) {
	v := newVirtualWith(t, 11, wire100us, manyVFs)
	a, b := pair(v)
	link := func(want uint32) {
		t.Helper()
		if e := a.event(abi.EventLinkState); e.Number != 0 || e.Status != want || a.fn.Registers().Value(abi.RegLinkUp) != uint64(want) {
			t.Fatalf("link event %d, register %d, want %d", e.Status, a.fn.Registers().Value(abi.RegLinkUp), want)
		}
	}
	v.mustOperate(0, "pf0.vf1", "", "state", "disable")
	link(0)
	a.send(abi.OpWrite, 0, 1000, b, 0)
	v.idle(50e6)
	if _, ok := a.completion(); ok || v.dropped(0, dropLinkDown)+v.reason(0, gateway.DropPortDown) == 0 {
		t.Fatal("a packet passed a link that is down")
	}
	v.mustOperate(0, "pf0.vf1", "", "state", "auto")
	link(1)
	if cqe := a.done(); cqe.Status != abi.WCSuccess {
		t.Fatal(cqe.Status)
	}
	v.mustOperate(0, "pf0", "", "state", "disable")
	link(0)
	v.mustOperate(0, "pf0.vf1", "", "state", "enable")
	link(1)
	v.mustOperate(0, "pf0", "", "state", "auto")
	v.mustOperate(1, "pf0.vf1", "", "state", "disable")
	b.send(abi.OpWrite, 0, 1000, a, 0)
	a.send(abi.OpWrite, 0, 1000, b, 0)
	v.idle(50e6)
	if _, ok := a.completion(); ok {
		t.Fatal("a packet reached a function whose link is down")
	}
	c := newDriver(v, 0, 2)
	v.mustOperate(0, "pf0.vf2", "", "state", "disable")
	c.setUp()
	if st, _ := c.command(abi.AdminOpCMConnect, &abi.CMConnect{QPN: c.qpn, Service: 1, DGID: b.fn.GID()}); st != abi.StatusUnreachable {
		t.Errorf("connect without a link: %s", st)
	}

	v.mustOperate(0, "pf0.vf2", "", "state", "enable")
	d := newDriver(v, 0, 4)
	v.mustOperate(0, "pf0.vf4", "", "tenant", "7", "address", "192.168.100.44")
	d.setUp()
	c.connectTo(d, 8) // inside the NIC
	v.mustOperate(0, "pf0.vf4", "", "state", "disable")
	if !overRoCE { // the peer cannot be told
		c.event(abi.EventDisconnected)
	}
}

// TestChangeAllOrNothing checks that a change that peers cannot be told of is refused completely,
// and that it does not cause later refusals.
func TestChangeAllOrNothing(t *testing.T) {
	address := func(vf int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, byte(vf >> 8), byte(vf)}) }
	const listed = cm.MaxEndpoints - 3 - 1 // VFs 1 to 3 share the tenant, and one is to come
	v := newVirtualWith(t, 71, wire100us, func(i int, c *config.Config) {
		c.Functions[0].VFCount = pfvf.MaxVF
		for vf := 5; i == 0 && vf < 5+listed; vf++ {
			f, on := defaultVF(0, uint16(vf)), true
			f.Tenant, f.Address, f.Enabled = 7, address(vf), &on
			c.Functions[0].VFs = append(c.Functions[0].VFs, config.VF{VF: uint16(vf), Function: f})
		}
	})
	enable := func(vf int) error {
		id, _ := pfvf.NewID(1, 0, uint32(vf))
		return v.change(0, id, func(c *config.Function) error {
			on := true
			c.Tenant, c.Address, c.Enabled = 7, address(vf), &on
			return nil
		})
	}
	if err := enable(3000); err != nil {
		t.Fatal(err)
	}
	before := len(v.functions(0))
	err := enable(3001)
	var no *functions.Refusal
	if !errors.As(err, &no) || no.Status != abi.StatusNoResources || !strings.Contains(err.Error(), "2049 functions") {
		t.Fatalf("one more than can be told: %v", err)
	}
	id, _ := pfvf.NewID(1, 0, 3001)
	owner := v.nics[0][v.shards[0].cfg.ShardOf()(0, 3001)].funcs
	if owner.members.get(id) != nil || len(v.functions(0)) != before || *owner.settings(id).Enabled {
		t.Error("it is there all the same")
	}
	first, _ := pfvf.NewID(1, 0, 1)
	if err := v.change(0, first, func(c *config.Function) error { c.Weight = 7; return nil }); err != nil {
		t.Errorf("another function's change: %v", err)
	}
	last, _ := pfvf.NewID(1, 0, 4) // of a tenant that is not shared
	move := func(c *config.Function) error { c.Tenant, c.Address = 7, address(4); return nil }
	f := v.function(0, 4)
	if err := v.change(0, last, move); err == nil || f.Tenant != 8 || f.cfg.Tenant != 8 {
		t.Errorf("moved to the tenant that is full: %v, it is in %d", err, f.Tenant)
	}
	v.idle(5 * cmDelay)
	if n := v.cores[1].Manager.CM.Peers()[0].Offers; n != cm.MaxEndpoints {
		t.Errorf("the peer knows of %d functions, want %d", n, cm.MaxEndpoints)
	}
}

// TestChangedGuestsAreReportedOnce checks that a shard reports the guests of functions that were
// added or changed, once.
func TestChangedGuestsAreReportedOnce(t *testing.T) {
	eachShards(t, func(t *testing.T) {
		v := newVirtual(t, 1, wire100us)
		guests := func() map[pfvf.ID]uint32 {
			all := map[pfvf.ID]uint32{}
			for _, s := range v.nics[0] {
				maps.Copy(all, s.View().Functions.NewGuests())
			}
			return all
		}
		if g := guests(); g[vfID(0, 3)] != 33 || g[vfID(0, 1)] != 0 {
			t.Errorf("guests at first: %v", g)
		}
		if g := guests(); len(g) != 0 {
			t.Errorf("guests without a change: %v", g)
		}
		expect := func(cid uint32) {
			t.Helper()
			if g := guests(); len(g) != 1 || g[vfID(0, 3)] != cid {
				t.Errorf("guests %v, want %d of VF 3 alone", g, cid)
			}
		}
		v.mustOperate(0, "pf0.vf3", "", "guest", "none")
		expect(0)
		v.mustOperate(0, "pf0.vf3", "", "guest", "cid:33")
		expect(33)
		v.mustOperate(0, "pf0.vf3", "disable")
		expect(0)
		v.mustOperate(0, "pf0.vf3", "enable")
		expect(33)
	})
}

// TestEveryKindHasAQuotaAndACount checks that for every kind of objects the operator can set a
// quota and sees the numbers, under the kind's name.
func TestEveryKindHasAQuotaAndACount(t *testing.T) {
	v := newVirtual(t, 1, wire100us)
	d := newDriver(v, 0, 1)
	d.setUp()
	s := v.shards[0]
	for k := range abi.NumObjects {
		most := uint32(5 + k)
		v.mustOperate(0, "pf0.vf1", "", "max_"+k.Info().Key, fmt.Sprint(most))
		raw, err := json.Marshal(s.View().Functions.Describe(d.fn.ID))
		if err != nil {
			t.Fatal(err)
		}
		var shown map[string]any
		if err := json.Unmarshal(raw, &shown); err != nil {
			t.Fatal(err)
		}
		n := float64(d.fn.Verbs().Counts()[k])
		if shown["max_"+k.Info().Key] != float64(most) || shown[k.Info().Key+"s"] != n {
			t.Errorf("%s: shown as %v of %v, want %v of %d", k, shown[k.Info().Key+"s"], shown["max_"+k.Info().Key], n, most)
		}
	}
}

// TestFunctionsComeInOrderOfTheirIDs compares a perFunction with a sorted list. IDs of another host,
// and numbers that are no ID, have no value.
func TestFunctionsComeInOrderOfTheirIDs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const host = 3 << 16
		r := perFunction[pfvf.ID]{host: 3}
		var want []pfvf.ID
		t.Repeat(map[string]func(*rapid.T){
			"change": func(t *rapid.T) {
				id := pfvf.ID(host | rapid.Uint32Range(0, 2).Draw(t, "pf")<<12 | rapid.Uint32Range(0, 20).Draw(t, "vf"))
				if i, there := slices.BinarySearch(want, id); there {
					r.remove(id)
					want = slices.Delete(want, i, i+1)
				} else {
					r.put(id, &id)
					want = slices.Insert(want, i, id)
				}
			},
			"": func(t *rapid.T) {
				var all, ofPF []pfvf.ID
				for id := range r.all() {
					all = append(all, *id)
				}
				for id := range r.of(host | 1<<12) {
					ofPF = append(ofPF, *id)
				}
				if !slices.Equal(all, want) || r.len() != len(want) {
					t.Fatalf("%v, want %v", all, want)
				}
				if want := slices.DeleteFunc(slices.Clone(want), func(id pfvf.ID) bool { return id.PF() != 1 }); !slices.Equal(ofPF, want) {
					t.Fatalf("of PF 1 %v, want %v", ofPF, want)
				}
				for id := range pfvf.ID(1 << 13) {
					_, there := slices.BinarySearch(want, host|id)
					if v := r.get(host | id); (v != nil) != there || there && *v != host|id {
						t.Fatalf("%s: %v", host|id, v)
					}
					if r.get(id) != nil || r.get(1<<24|host|id) != nil {
						t.Fatalf("%s of another host has a value", id)
					}
				}
			},
		})
	})
}

// TestChangeOfOneFunction checks that disabling and enabling a VF, and removing and adding a port,
// need the same memory among ten functions as among two thousand: no list of all is copied.
func TestChangeOfOneFunction(t *testing.T) {
	measure := func(n int) (function, port uint64) {
		c, err := config.Parse([]byte("nic: {host: 1}\nuplink: {backend: memory, address: 10.0.0.1/24}\nfunctions:\n  - {pf: 0, vf_count: 2000}\n"))
		if err != nil {
			t.Fatal(err)
		}
		core, shards := newNIC(t, c, 1)
		s := shards[0]
		var decided controller.CoreOutput
		var out thread.Output
		set := func(i int, on bool) (taken uint64) {
			id, _ := pfvf.NewID(1, 0, uint32(1+i))
			done := false
			core.Change(id, func(_, c *config.Function) error {
				c.Tenant, c.Address, c.Enabled = 7, netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), &on
				return nil
			}, func(err error) {
				if done = true; err != nil {
					t.Fatal(err)
				}
			})
			for !done {
				core.Step(1, &decided) // it has a list of all for peers, on a goroutine of its own
				taken += allocated(func() { s.Step(1, &thread.Input{}, &out) })
				out.Do()
			}
			return taken
		}
		for i := range n {
			set(i, true)
		}
		function = usual(func() uint64 { return set(5, false) + set(5, true) })
		ports := make([]*Port, n)
		for i := range n {
			id, _ := pfvf.NewID(1, 0, uint32(1+i))
			ports[i] = &Port{ID: id, Config: &config.Port{Name: "p"}}
			s.plain.join(ports[i], config.MAC{})
		}
		port = usual(func() uint64 {
			return allocated(func() { s.plain.leave(ports[5]); s.plain.join(ports[5], config.MAC{}) })
		})
		if s.funcs.members.len() != 1+n || s.plain.ports.len() != n {
			t.Fatalf("%d functions, %d ports", s.funcs.members.len(), s.plain.ports.len())
		}
		return function, port
	}
	few, fewPort := measure(10)
	many, manyPort := measure(2000)
	if many > 2*few {
		t.Errorf("a change of a function takes %d bytes among 10, %d among 2000", few, many)
	}
	if manyPort > 2*fewPort {
		t.Errorf("a change of a port takes %d bytes among 10, %d among 2000", fewPort, manyPort)
	}
}

// allocated returns how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// usual returns the median of what f returns: tables grow now and then.
func usual(f func() uint64) uint64 {
	var all [21]uint64
	for i := range all {
		all[i] = f()
	}
	slices.Sort(all[:])
	return all[len(all)/2]
}

// TestSettingsAreComparedByValue checks that two nil values are the same, and two set values if
// they are equal.
func TestSettingsAreComparedByValue(t *testing.T) {
	a, b, c := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	for _, tc := range []struct {
		a, b *netip.Addr
		same bool
	}{{nil, nil, true}, {&a, &a, true}, {&a, &b, true}, {&a, &c, false}, {&a, nil, false}, {nil, &a, false}} {
		if same(tc.a, tc.b) != tc.same {
			t.Errorf("%v and %v: the same %t", tc.a, tc.b, !tc.same)
		}
	}
}

// TestPFSeesTheRateOfAVF checks that a PF sees the rate of a VF, up to the largest value that the
// field can hold.
func TestPFSeesTheRateOfAVF(t *testing.T) {
	s := newVirtualWith(t, 5, wire100us, manyVFs).shards[0]
	id, err := pfvf.NewID(uint32(s.cfg.NIC.Host), 0, 20)
	if err != nil {
		t.Fatal(err)
	}
	const most = math.MaxUint32
	for rate, want := range map[uint64]uint32{
		0: 0, 25_000: 25_000, most - 1: most - 1, most: most, most + 1: most, 1 << 40: most,
	} {
		c := s.funcs.settings(id)
		c.MaxTxRate = rate
		s.funcs.absent[id] = c
		if r, st := (&seenVF{fs: s.funcs, id: id}).QueryVF(); st != abi.StatusOK || r.MaxTxRate != want {
			t.Errorf("a rate of %d: %d, %s", rate, r.MaxTxRate, st)
		}
	}
}

// defaultVF returns a function of NIC 1 that the configuration does not describe.
func defaultVF(pf uint8, vf uint16) config.Function {
	nic := config.Config{CM: config.CM{Name: "1"}}
	return nic.DefaultVF(pf, vf)
}
