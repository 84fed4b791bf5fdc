package verbs

import (
	"bytes"
	"slices"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// gid is an IPv4 address as a GID.
func gid(n byte) [16]byte { return [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: n} }

// TestGIDsAreIPv4IPv6OrGroups: GIDs are IPv4 addresses in their mapped form or IPv6 addresses, and
// both may be groups; packets have addresses of one kind.
func TestGIDsAreIPv4IPv6OrGroups(t *testing.T) {
	v4, v6 := gid(1), [16]byte{0: 0xfe, 1: 0x80, 15: 1}
	group4, group6 := [16]byte{10: 0xff, 11: 0xff, 12: 239, 15: 1}, [16]byte{0: 0xff, 1: 2, 15: 1}
	for name, c := range map[string]struct {
		gid           [16]byte
		isIPv4, group bool
	}{
		"IPv4":                    {v4, true, false},
		"IPv6":                    {v6, false, false},
		"group, IPv4":             {group4, true, true},
		"first of IPv4's groups":  {[16]byte{10: 0xff, 11: 0xff, 12: 224}, true, true},
		"before them":             {[16]byte{10: 0xff, 11: 0xff, 12: 223, 13: 255}, true, false},
		"behind them":             {[16]byte{10: 0xff, 11: 0xff, 12: 240}, true, false},
		"group, IPv6":             {group6, false, true},
		"IPv6 that looks like it": {[16]byte{0: 0xfe, 12: 239}, false, false},
		"none":                    {[16]byte{}, false, false},
	} {
		if IsIPv4(c.gid) != c.isIPv4 || IsMulticast(c.gid) != c.group {
			t.Errorf("%s: IPv4 %t, group %t", name, IsIPv4(c.gid), IsMulticast(c.gid))
		}
	}
	none := [16]byte{}
	for name, c := range map[string]struct {
		src, dst [16]byte
		qpn      uint32
		want     bool
	}{
		"IPv4":               {v4, gid(2), 5, true},
		"IPv6":               {v6, v6, 5, true},
		"from IPv4 to IPv6":  {v4, v6, 5, false},
		"from IPv6 to IPv4":  {v6, v4, 5, false},
		"from anybody":       {none, v6, 5, true},
		"to nobody":          {v4, none, 5, false},
		"to a group":         {v4, group4, abi.GroupQPN, true},
		"of the other kind":  {v4, group6, abi.GroupQPN, true},
		"to one of a group":  {v4, group4, 5, false},
		"to all of a person": {v4, gid(2), abi.GroupQPN, false},
	} {
		if a := (Address{SGID: c.src, GID: c.dst}); a.fits(c.qpn) != c.want {
			t.Errorf("%s: leads there %t", name, a.fits(c.qpn))
		}
	}
}

// TestPathsAreLimitedToTheirFields: the largest value of each part of a path passes, one more does
// not; the bits of ECN are left out. (DEV-946)
func TestPathsAreLimitedToTheirFields(t *testing.T) {
	for _, c := range []struct {
		flow uint32
		sl   uint8
		vlan uint16
		want abi.Status
	}{
		{0, 0, 0, abi.StatusOK},
		{1<<20 - 1, 15, abi.NoVLAN, abi.StatusOK},
		{1 << 20, 0, 0, abi.StatusInvalidArgument},
		{0, 16, 0, abi.StatusInvalidArgument},
		{0, 0, 1, abi.StatusUnsupported},
		{0, 0, abi.NoVLAN - 1, abi.StatusUnsupported},
	} {
		want := Path{FlowLabel: c.flow, TrafficClass: 0xfc, HopLimit: 9, SL: c.sl}
		if c.want != abi.StatusOK {
			want = Path{}
		}
		if p, st := pathOf(c.flow, 0xff, 9, c.sl, c.vlan); st != c.want || p != want {
			t.Errorf("%+v: %v, %+v", c, st, p)
		}
	}
}

// TestGIDsLastUntilTheyAreCleared: an entry of the table is there from when it is set until it is
// cleared, each by itself; the first one is there from the beginning.
func TestGIDsLastUntilTheyAreCleared(t *testing.T) {
	g := newGuest(t, Limits{})
	is := func(index uint8, want [16]byte, there bool) {
		t.Helper()
		if got, ok := g.GID(index); got != want || ok != there {
			t.Errorf("entry %d: % x, %t", index, got, ok)
		}
	}
	is(0, [16]byte{}, true)
	is(1, [16]byte{}, false)
	g.SetGID(1, gid(1))
	g.SetGID(abi.GIDEntries-1, gid(2))
	is(1, gid(1), true)
	is(2, [16]byte{}, false)
	is(abi.GIDEntries-1, gid(2), true)
	is(abi.GIDEntries, [16]byte{}, false)
	is(255, [16]byte{}, false)
	g.ClearGID(1)
	is(1, [16]byte{}, false)
	is(0, [16]byte{}, true)
	is(abi.GIDEntries-1, gid(2), true)
}

// TestAddressHandlesNeedValidPartsAndRoom: a handle needs valid parts and room, and counts for its
// domain until it is destroyed. Its destinations are told of both.
func TestAddressHandlesNeedValidPartsAndRoom(t *testing.T) {
	g := newGuest(t, Limits{Objects: Counts{abi.ObjectAH: 2}})
	make1 := func(what string, c abi.CreateAH, want abi.Status) uint32 {
		t.Helper()
		ahn, st := g.CreateAH(0, &c)
		if st != want {
			t.Errorf("%s: %v, want %v", what, st, want)
		}
		return ahn
	}
	good := abi.CreateAH{PDN: g.pdn, DGID: gid(1)}
	bad := func(change func(c *abi.CreateAH)) abi.CreateAH {
		c := good
		change(&c)
		return c
	}
	make1("no domain", bad(func(c *abi.CreateAH) { c.PDN = 0x777 }), abi.StatusNotFound)
	make1("no address", bad(func(c *abi.CreateAH) { c.DGID = [16]byte{} }), abi.StatusInvalidArgument)
	make1("no such entry", bad(func(c *abi.CreateAH) { c.SGIDIndex = 1 }), abi.StatusInvalidArgument)
	make1("SL", bad(func(c *abi.CreateAH) { c.SL = 16 }), abi.StatusInvalidArgument)
	first, second := make1("first", good, abi.StatusOK), make1("second", good, abi.StatusOK)
	make1("third", good, abi.StatusNoResources)
	w := g.ways[Address{GID: gid(1)}]
	if w == nil || len(g.ways) != 1 || w.wanted != 2 {
		t.Fatalf("ways %+v", g.ways)
	}
	if st := g.DeallocPD(g.pdn); st != abi.StatusBusy {
		t.Errorf("their domain: %v", st)
	}
	g.good(g.DestroyAH(0, first))
	if st := g.DestroyAH(0, first); st != abi.StatusNotFound || w.left != 1 || g.AH(second) == nil {
		t.Errorf("destroyed twice: %v, the way was left %d times", st, w.left)
	}
	g.good(g.DestroyAH(0, second))
	g.good(g.DeallocPD(g.pdn))
	g.Close(0)
	make1("after the end", good, abi.StatusBadState)
}

// TestALimitedNumberOfAddressesIsRemembered: a limited number of addresses of requests is
// remembered. A further one replaces the oldest, whose destinations are told.
func TestALimitedNumberOfAddressesIsRemembered(t *testing.T) {
	g := newGuest(t, Limits{})
	at := func(i int) Address { return Address{GID: gid(1), Path: Path{FlowLabel: uint32(i)}} }
	var made [recentAHs + 3]*AH
	for i := range recentAHs {
		made[i] = g.handleFor(0, at(i))
		g.destination(made[i], true)
	}
	for i := range recentAHs {
		if g.handleFor(0, at(i)) != made[i] || made[i].gone {
			t.Fatalf("address %d of %d is forgotten", i, recentAHs)
		}
	}
	for i := range 3 {
		made[recentAHs+i] = g.handleFor(0, at(recentAHs+i))
		if !made[i].gone || g.ways[at(i)].left != 1 || made[i+1].gone || g.handleFor(0, at(i+1)) != made[i+1] {
			t.Errorf("address %d is not forgotten for %d, or more are", i, recentAHs+i)
		}
	}
	if again := g.handleFor(0, at(0)); again == made[0] || again.gone {
		t.Error("a forgotten address has its old handle")
	}
}

// datagram is a SEND by the handle ahn, signaled.
func datagram(wrid uint64, ahn uint32) abi.SendWQE {
	return abi.SendWQE{WRID: wrid, Opcode: abi.OpSend, Flags: abi.SendSignaled, AHN: ahn, RemoteQPN: 5, RemoteQKey: sideQKey}
}

// TestADatagramCompletesUnlessItWaits: the result of a datagram depends on its destination's
// answer. It completes unless it waits. (DEV-940, DEV-942)
func TestADatagramCompletesUnlessItWaits(t *testing.T) {
	for says, c := range map[Sent]struct {
		want  []abi.WCStatus
		state abi.QPState
		lost  uint64
		spent []int
	}{
		Taken:      {[]abi.WCStatus{abi.WCSuccess}, abi.QPStateRTS, 0, []int{30}},
		Lost:       {[]abi.WCStatus{abi.WCSuccess}, abi.QPStateRTS, 1, nil},
		Full:       {nil, abi.QPStateRTS, 0, nil},
		Unreadable: {[]abi.WCStatus{abi.WCLocProtErr}, abi.QPStateSQE, 0, nil},
	} {
		g := newGuest(t, Limits{})
		m := g.region(g.pdn, 64, allRights)
		s := g.newUD(nil)
		ahn, st := g.CreateAH(0, &abi.CreateAH{PDN: g.pdn, DGID: gid(1)})
		g.good(st)
		w := g.ways[Address{GID: gid(1)}]
		w.says = says
		s.post(0, datagram(1, ahn), m.sge(0, 30))
		s.Turn(0)
		if got := s.sent.statuses(); !slices.Equal(got, c.want) || s.State() != c.state || g.Account.DatagramsLost != c.lost || !slices.Equal(g.spent, c.spent) {
			t.Errorf("%d: completions %v, QP in %v, %d lost, charged %v", says, got, s.State(), g.Account.DatagramsLost, g.spent)
		}
		if d := w.sent[0]; d.To != 5 || d.Datagram.From != s.number || d.QKey != sideQKey || d.HasImm || d.Solicited || d.Datagram.Length != 30 {
			t.Errorf("%d: sent %+v", says, d)
		}
	}
}

// TestADatagramCarriesTheFlagsOfItsRequest: flags and immediate data of a request are those of its
// datagram; a controlled Q_Key is that of the queue pair.
func TestADatagramCarriesTheFlagsOfItsRequest(t *testing.T) {
	g := newGuest(t, Limits{})
	s := g.newUD(nil)
	ahn, st := g.CreateAH(0, &abi.CreateAH{PDN: g.pdn, DGID: gid(1)})
	g.good(st)
	for _, c := range []struct {
		change func(x *abi.SendWQE)
		want   transport.Datagram
	}{
		{func(*abi.SendWQE) {}, transport.Datagram{QKey: sideQKey}},
		{func(x *abi.SendWQE) { x.Opcode, x.Imm = abi.OpSendImm, 9 }, transport.Datagram{QKey: sideQKey, HasImm: true, Imm: 9}},
		{func(x *abi.SendWQE) { x.Flags |= abi.SendSolicited }, transport.Datagram{QKey: sideQKey, Solicited: true}},
		{func(x *abi.SendWQE) { x.RemoteQKey = 0x7fffffff }, transport.Datagram{QKey: 0x7fffffff}},
		{func(x *abi.SendWQE) { x.RemoteQKey = 0x80000001 }, transport.Datagram{QKey: sideQKey}},
	} {
		w := g.ways[Address{GID: gid(1)}]
		w.sent = nil
		x := datagram(1, ahn)
		c.change(&x)
		s.post(0, x)
		s.Turn(0)
		got := w.sent[0].Datagram
		c.want.To, c.want.From, c.want.Work = 5, s.number, got.Work
		if got != c.want {
			t.Errorf("sent %+v, want %+v", got, c.want)
		}
	}
	data := []byte("inline")
	x := datagram(2, ahn)
	x.Flags, x.InlineLen = x.Flags|abi.SendInline, uint32(len(data))
	s.postRaw(0, x, data)
	s.Turn(0)
	if d := g.ways[Address{GID: gid(1)}].sent[1]; !bytes.Equal(d.Inline, data) || d.SGEs != nil || d.Datagram.Length != len(data) {
		t.Errorf("inline: %+v", d)
	}
}

// TestInvalidDatagramsFail: a request to send a datagram must have a valid operation, a handle of
// its domain, and no more bytes than the function may send. (DEV-942)
func TestInvalidDatagramsFail(t *testing.T) {
	for name, c := range map[string]struct {
		change func(g *guest, x *abi.SendWQE)
		length int
		want   abi.WCStatus
	}{
		"all bytes":       {func(*guest, *abi.SendWQE) {}, 50, abi.WCSuccess},
		"a byte too many": {func(*guest, *abi.SendWQE) {}, 51, abi.WCLocLenErr},
		"immediate data":  {func(_ *guest, x *abi.SendWQE) { x.Opcode = abi.OpSendImm }, 1, abi.WCSuccess},
		"WRITE":           {func(_ *guest, x *abi.SendWQE) { x.Opcode = abi.OpWrite }, 1, abi.WCLocQPOpErr},
		"largest number":  {func(_ *guest, x *abi.SendWQE) { x.RemoteQPN = abi.GroupQPN - 1 }, 1, abi.WCSuccess},
		"a group's":       {func(_ *guest, x *abi.SendWQE) { x.RemoteQPN = abi.GroupQPN }, 1, abi.WCLocQPOpErr},
		"no number":       {func(_ *guest, x *abi.SendWQE) { x.RemoteQPN = abi.GroupQPN + 1 }, 1, abi.WCLocQPOpErr},
		"no handle":       {func(_ *guest, x *abi.SendWQE) { x.AHN = 0x777 }, 1, abi.WCLocQPOpErr},
		"another domain": {func(g *guest, x *abi.SendWQE) {
			ahn, st := g.CreateAH(0, &abi.CreateAH{PDN: g.newPD(), DGID: gid(1)})
			g.good(st)
			x.AHN = ahn
		}, 1, abi.WCLocQPOpErr},
		"a handle of a group": {func(g *guest, x *abi.SendWQE) {
			ahn, st := g.CreateAH(0, &abi.CreateAH{PDN: g.pdn, DGID: [16]byte{10: 0xff, 11: 0xff, 12: 239}})
			g.good(st)
			x.AHN, x.RemoteQPN = ahn, abi.GroupQPN
		}, 1, abi.WCSuccess},
	} {
		g := newGuest(t, Limits{MTU: 50})
		m := g.region(g.pdn, 64, allRights)
		s := g.newUD(nil)
		ahn, st := g.CreateAH(0, &abi.CreateAH{PDN: g.pdn, DGID: gid(1)})
		g.good(st)
		x := datagram(1, ahn)
		c.change(g, &x)
		s.post(0, x, m.sge(0, c.length))
		s.Turn(0)
		if got := s.sent.statuses(); !slices.Equal(got, []abi.WCStatus{c.want}) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestAQueuePairWaitsForTheDestinationThatIsFull: a queue pair whose destination has no room waits
// for that destination, and for no other.
func TestAQueuePairWaitsForTheDestinationThatIsFull(t *testing.T) {
	g := newGuest(t, Limits{})
	s := g.newUD(nil)
	a, b := &way{}, &way{}
	if !s.Wait(a) || s.Wait(a) || !s.blocked {
		t.Error("waiting is news twice, or never")
	}
	g.turns = 0
	if s.Resume(b); g.turns != 0 || !s.blocked {
		t.Error("room at another destination lets it go on")
	}
	s.post(0, datagram(1, 0x777))
	if s.Resume(a); g.turns != 1 || s.blocked {
		t.Error("room at the destination does not let it go on")
	}
	if s.Resume(a); g.turns != 1 {
		t.Error("it goes on twice")
	}
	if !s.Wait(b) || !s.Wait(a) {
		t.Error("waiting for another is no news")
	}
}

// TestABadReceiveFailsWithTheDatagramThatTakesIt: a receive whose own entry or memory is invalid
// fails with the datagram that takes it, and fails the queue pair unless its requests complete in
// error.
func TestABadReceiveFailsWithTheDatagramThatTakesIt(t *testing.T) {
	for _, inError := range []bool{false, true} {
		for _, gone := range []bool{false, true} {
			g := newGuest(t, Limits{})
			m := g.region(g.pdn, 100, allRights)
			s := g.newUD(func(c *abi.CreateQP) {
				if inError {
					c.ErrorMode = abi.ErrorModeCompleteInError
				}
			})
			first := m.sge(0, 100)
			if gone {
				g.UseFaults(&trouble{access: true})
			} else {
				first.LKey ^= 1 << 20
			}
			s.receive(0, 1, first)
			s.receive(0, 2, m.sge(0, 100))
			d := &Arrival{Datagram: &transport.Datagram{To: s.number, QKey: sideQKey}, Data: []byte{1}, GRH: new([GRHSize]byte)}
			g.Deliver(0, d)
			g.UseFaults(nil)
			if got := s.received.poll(); len(got) != 1 || got[0].WRID != 1 || got[0].Status != abi.WCLocProtErr {
				t.Errorf("complete in error %t, memory gone %t: %+v", inError, gone, got)
			}
			state, after := abi.QPStateErr, 0
			if inError {
				state, after = abi.QPStateRTS, 1
			}
			if g.Deliver(0, d); s.State() != state || len(s.received.poll()) != after {
				t.Errorf("complete in error %t, memory gone %t: QP in %v", inError, gone, s.State())
			}
		}
	}
}

// TestADatagramIsPlacedBehindItsHeaderOrDropped: a datagram is written to the next receive behind
// the room for its header, if its queue pair accepts it and it fits. Otherwise it is dropped
// silently. (DEV-943, DEV-944)
func TestADatagramIsPlacedBehindItsHeaderOrDropped(t *testing.T) {
	for name, c := range map[string]struct {
		change      func(g *guest, s *side, d *Arrival)
		got         bool
		lost, qkeys uint64
	}{
		"exactly fits":    {func(*guest, *side, *Arrival) {}, true, 0, 0},
		"a byte too long": {func(_ *guest, _ *side, d *Arrival) { d.Data = make([]byte, 21) }, false, 1, 0},
		"longest":         {func(g *guest, _ *side, _ *Arrival) { g.limits.MTU = 20 }, true, 0, 0},
		"longer":          {func(g *guest, _ *side, _ *Arrival) { g.limits.MTU = 19 }, false, 1, 0},
		"wrong Q_Key":     {func(_ *guest, _ *side, d *Arrival) { d.QKey++ }, false, 0, 1},
		"nobody":          {func(_ *guest, _ *side, d *Arrival) { d.To = 0x777 }, false, 1, 0},
		"a connection": {func(g *guest, _ *side, d *Arrival) {
			d.To, d.QKey = g.newRC(nil).number, 0
		}, false, 1, 0},
		"in INIT": {func(_ *guest, s *side, _ *Arrival) { s.state = abi.QPStateInit }, false, 1, 0},
		"in SQE":  {func(_ *guest, s *side, _ *Arrival) { s.state = abi.QPStateSQE }, true, 0, 0},
	} {
		g := newGuest(t, Limits{})
		m := g.region(g.pdn, 100, allRights)
		s := g.newUD(nil)
		s.receive(0, 7, m.sge(0, GRHSize+20))
		d := &Arrival{
			Datagram: &transport.Datagram{To: s.number, From: 9, QKey: sideQKey}, Data: bytes.Repeat([]byte{0xaa}, 20), GRH: new([GRHSize]byte), SL: 3,
		}
		copy(d.GRH[:], bytes.Repeat([]byte{0xbb}, GRHSize))
		c.change(g, s, d)
		g.Deliver(0, d)
		got := s.received.poll()
		if (len(got) == 1) != c.got || g.Account.DatagramsLost != c.lost || g.Stats.BadQKeys != c.qkeys {
			t.Errorf("%s: completions %+v, %d lost, %d wrong Q_Keys", name, got, g.Account.DatagramsLost, g.Stats.BadQKeys)
			continue
		}
		if !c.got {
			continue
		}
		want := abi.CQE{WRID: 7, QPN: s.number, SrcQP: 9, ByteLen: GRHSize + 20, Opcode: abi.WCOpRecv, Flags: abi.WCFlagGRH, SL: 3}
		if mem := g.mem(m.iova, 61); got[0] != want || !bytes.Equal(mem[:GRHSize], d.GRH[:]) || !bytes.Equal(mem[GRHSize:60], d.Data) || mem[60] != 0 {
			t.Errorf("%s: %+v, memory % x", name, got[0], mem)
		}
		if n := g.Account.BytesRx; g.Account.PushesRx != 1 || n != 20 {
			t.Errorf("%s: %d packets, %d bytes counted", name, g.Account.PushesRx, n)
		}
	}
}

// TestAttachmentsAreIndependent: each attachment is a pair of group and queue pair. Detaching one
// does not affect others, and the quota counts the pairs. (DEV-954)
func TestAttachmentsAreIndependent(t *testing.T) {
	group := func(n byte) [16]byte { return [16]byte{10: 0xff, 11: 0xff, 12: 239, 15: n} }
	g := newGuest(t, Limits{Objects: Counts{abi.ObjectMCG: 3}})
	a, b := g.newUD(nil), g.newUD(nil)
	attach := func(s *side, n byte, want abi.Status) {
		t.Helper()
		if st := g.AttachMcast(&abi.Mcast{QPN: s.number, GID: group(n)}); st != want {
			t.Errorf("attached to %d: %v, want %v", n, st, want)
		}
	}
	count := func(want int) {
		t.Helper()
		if got := g.Counts()[abi.ObjectMCG]; got != want {
			t.Errorf("%d attachments are counted, want %d", got, want)
		}
	}
	attach(a, 1, abi.StatusOK)
	attach(a, 2, abi.StatusOK)
	attach(b, 1, abi.StatusOK)
	attach(b, 2, abi.StatusNoResources)
	attach(b, 1, abi.StatusOK) // it is already
	attach(g.newRC(nil), 1, abi.StatusInvalidArgument)
	count(3)
	g.SetLimits(Limits{Objects: Counts{abi.ObjectMCG: 1}})
	g.good(g.DetachMcast(&abi.Mcast{QPN: a.number, GID: group(1)}))
	count(2)
	attach(a, 1, abi.StatusNoResources)
	if st := g.DetachMcast(&abi.Mcast{QPN: a.number, GID: group(1)}); st != abi.StatusNotFound || len(g.members[group(1)]) != 1 || g.members[group(1)][0] != b.QP {
		t.Errorf("%v, members %v", st, g.members)
	}
	g.good(g.DestroyQP(0, a.number))
	count(1)
	if len(g.members) != 1 {
		t.Errorf("%d groups with somebody", len(g.members))
	}
	g.good(g.DetachMcast(&abi.Mcast{QPN: b.number, GID: group(1)}))
	count(0)
	attach(b, 3, abi.StatusOK)
}
