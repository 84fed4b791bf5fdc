package conform

import (
	"github.com/falcon-vnic/vnic/queues/abi"
)

var vfChecks = []check{
	{"vf.others", "DEV-309", abi.FeatureVFCommands, vfOthers},
	{"vf.settings", "DEV-309", abi.FeatureVFCommands, vfSettings},
	{"vf.reset", "DEV-307 DEV-303", abi.FeatureVFCommands | abi.FeatureFunctionEvents, vfReset},
	{"vf.pf-reset", "DEV-308 DEV-307", abi.FeatureVFCommands | abi.FeatureFunctionEvents, vfPFReset},
	{"vf.link", "DEV-310", abi.FeatureVFCommands | abi.FeatureFunctionEvents, vfLink},
	{"vf.quota", "DEV-311", abi.FeatureVFCommands, vfQuota},
}

func vfOthers(t *T) {
	c := t.ready()
	vf := &abi.VFNumber{VF: 1}
	if c.number&0xfff != 0 {
		for _, op := range []abi.AdminOp{abi.AdminOpVFEnable, abi.AdminOpVFDisable, abi.AdminOpVFReset, abi.AdminOpQueryVF} {
			c.refuse(op, vf, abi.StatusDenied)
		}
		return
	}
	for _, n := range []uint32{0, uint32(c.register(abi.RegTotalVF)) + 1, 0xffff} {
		c.refuse(abi.AdminOpQueryVF, &abi.VFNumber{VF: uint16(n)}, abi.StatusNotFound)
	}
}

// family is a PF and a VF of it that the kit enabled.
type family struct {
	*client
	vf uint16
}

// family enables a VF that was disabled. The function must be a PF that may enable one more.
func (t *T) family() *family {
	c := t.ready()
	if c.number&0xfff != 0 {
		t.Skipf("the function is a VF; run the kit on a PF")
	}
	total := uint16(c.register(abi.RegTotalVF))
	for vf := total; vf > 0; vf-- {
		var q abi.QueryVFResult
		c.must(abi.AdminOpQueryVF, &abi.VFNumber{VF: vf}, &q)
		mac := [6]byte{2, 0x5a, 0x5a, byte(vf >> 8), byte(vf), 1}
		if q.State != abi.StateDisabled || q.Tenant != 0 && q.MAC != mac {
			continue // in use
		}
		gid := c.gid()
		gid[14], gid[15] = gid[14]^0x5a, byte(vf)
		in := abi.SetVF{VF: vf, Mask: abi.VFAttrMAC | abi.VFAttrTenant | abi.VFAttrGID | abi.VFAttrLink, MAC: mac, Tenant: uint32(c.register(abi.RegTenant)), GID: gid}
		c.must(abi.AdminOpSetVF, &in, nil)
		c.must(abi.AdminOpVFEnable, &abi.VFNumber{VF: vf}, nil)
		t.cleanup(func() { c.command(abi.AdminOpVFDisable, &abi.VFNumber{VF: vf}, nil) })
		return &family{c, vf}
	}
	t.Skipf("the PF has no VF left to enable (vf_count)")
	return nil
}

func (f *family) query() (q abi.QueryVFResult) {
	f.must(abi.AdminOpQueryVF, &abi.VFNumber{VF: f.vf}, &q)
	return q
}

// child returns a stream to the VF, which is assigned to the same guest as the PF.
func (f *family) child() *client {
	c := f.t.dial()
	r := c.hello(abi.Hello{Major: abi.VersionMajor, Minor: abi.VersionMinor, Function: f.number | uint32(f.vf), Features: features})
	if r.Status != abi.StatusOK {
		f.t.Fatalf("hello for VF %d, which its PF enabled: %s", f.vf, r.Status)
	}
	c.enable()
	return c
}

// told waits for EventFunctionState with a state.
func (c *client) told(want abi.State) {
	if e := c.stream.event(abi.EventFunctionState); abi.State(e.Status) != want || e.Number != c.number {
		c.t.Fatalf("EventFunctionState of %#x with %s, want %#x with %s", e.Number, abi.State(e.Status), c.number, want)
	}
	if s := c.state(); s != want {
		c.t.Fatalf("after EventFunctionState with %s the function is in %s", want, s)
	}
}

func vfSettings(t *T) {
	f := t.family()
	before := f.query()
	for _, x := range []struct {
		in   abi.SetVF
		want abi.Status
	}{
		{abi.SetVF{Mask: abi.VFAttrTenant, Tenant: uint32(f.register(abi.RegTenant)) + 1}, abi.StatusDenied},
		{abi.SetVF{Mask: abi.VFAttrTrust, Trust: 1}, abi.StatusDenied},
		{abi.SetVF{Mask: abi.VFAttrSpoofCheck}, abi.StatusDenied},
		{abi.SetVF{Mask: abi.VFAttrMaxQP, MaxQP: uint32(f.register(abi.RegMaxQP)) + 1}, abi.StatusTooLarge},
	} {
		x.in.VF = f.vf
		switch st := f.command(abi.AdminOpSetVF, &x.in, nil); st {
		case x.want:
		case abi.StatusOK:
			t.Skipf("the PF is trusted")
		default:
			t.Fatalf("SetVF with mask %#x by a PF that is not trusted: %s, want %s", x.in.Mask, st, x.want)
		}
		if now := f.query(); now != before {
			t.Fatalf("SetVF was refused and changed the VF: %+v, before %+v", now, before)
		}
	}
}

func vfReset(t *T) {
	f := t.family()
	c := f.child()
	r := c.qpPair(nil)
	r.nop(1)
	r.cq.want(1, abi.WCSuccess)
	f.must(abi.AdminOpVFReset, &abi.VFNumber{VF: f.vf}, nil)
	c.told(abi.StateReset)
	c.enable()
	c.refuse(abi.AdminOpQueryQP, &abi.QueryQP{QPN: r.a.qpn}, abi.StatusNotFound)
	f.must(abi.AdminOpVFDisable, &abi.VFNumber{VF: f.vf}, nil)
	c.told(abi.StateDisabled)
	if st := c.control(abi.ControlReset); st != abi.StatusDenied {
		t.Fatalf("ControlReset in DISABLED: %s, want %s", st, abi.StatusDenied)
	}
	f.must(abi.AdminOpVFEnable, &abi.VFNumber{VF: f.vf}, nil)
	c.told(abi.StateReset)
	c.enable()
	f.allocPD() // the PF went on meanwhile
}

func vfPFReset(t *T) {
	f := t.family()
	c := f.child()
	c.allocPD()
	f.breakDoorbell() // a fault of the PF leaves its VFs as they are,
	f.faulted(abi.FaultCommand)
	c.allocPD()
	f.reset() // a reset does not
	c.told(abi.StateReset)
	c.enable()
	f.enable()
}

func vfLink(t *T) {
	f := t.family()
	c := f.child()
	set := func(l abi.Link, up uint64) {
		f.must(abi.AdminOpSetVF, &abi.SetVF{VF: f.vf, Mask: abi.VFAttrLink, Link: l}, nil)
		if e := c.stream.event(abi.EventLinkState); uint64(e.Status) != up || c.register(abi.RegLinkUp) != up {
			t.Fatalf("link %s: EventLinkState %d, RegLinkUp %d", l, e.Status, c.register(abi.RegLinkUp))
		}
	}
	set(abi.LinkDisable, 0)
	pdn, q := c.allocPD(), c.newCQ(4)
	a := c.newQP(pdn, q, q, nil)
	a.modify(a.step(abi.QPStateInit, 0))
	c.refuse(abi.AdminOpCMConnect, &abi.CMConnect{QPN: a.qpn, Service: service, DGID: f.gid()}, abi.StatusUnreachable)
	set(abi.LinkEnable, 1)
	a.connect(a.qpn)
}

func vfQuota(t *T) {
	f := t.family()
	c := f.child()
	r := c.qpPair(nil) // two QPs
	f.must(abi.AdminOpSetVF, &abi.SetVF{VF: f.vf, Mask: abi.VFAttrMaxQP, MaxQP: 1}, nil)
	r.nop(1) // nothing is taken away
	r.cq.want(1, abi.WCSuccess)
	sq, rq := c.newQueue(abi.DoorbellSQ, queueLog2, sendStride), c.newQueue(abi.DoorbellRQ, queueLog2, recvStride)
	c.refuse(abi.AdminOpCreateQP, &abi.CreateQP{
		PDN: r.pdn, SendCQ: r.cq.cqn, RecvCQ: r.rcq.cqn, Type: abi.QPTypeRC, SQLog2Entries: queueLog2, RQLog2Entries: queueLog2,
		SQLog2Stride: sendStride, RQLog2Stride: recvStride, MaxSendSGE: 1, MaxRecvSGE: 1, SQLevels: 1, RQLevels: 1, SQPages: sq.list.Root, RQPages: rq.list.Root,
	}, abi.StatusNoResources)
	f.must(abi.AdminOpSetVF, &abi.SetVF{VF: f.vf, Mask: abi.VFAttrMaxQP, MaxQP: 8}, nil)
}
