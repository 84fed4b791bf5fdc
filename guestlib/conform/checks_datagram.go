package conform

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/falcon-vnic/vnic/queues/abi"
)

var datagramChecks = []check{
	{"ud.deliver", "DEV-940 DEV-944", abi.FeatureDatagrams, udDeliver},
	{"ud.header", "DEV-944", abi.FeatureDatagrams, udHeader},
	{"ud.lost", "DEV-940 DEV-943", abi.FeatureDatagrams, udLost},
	{"ud.handles", "DEV-941", abi.FeatureDatagrams, udHandles},
	{"ud.error", "DEV-942", abi.FeatureDatagrams, udError},
	{"ud.address", "DEV-948", abi.FeatureDatagrams, udAddress},
	{"ud.gid", "DEV-949", abi.FeatureDatagrams, udGID},
	{"ud.group", "DEV-954", abi.FeatureDatagrams, udGroup},
	{"ud.gsi", "DEV-945", abi.FeatureDatagrams, udGSI},
}

// mailbox is two UD queue pairs of the function and a handle for its own address.
type mailbox struct {
	*qpPair
	ahn uint32
}

// qkey is the Q_Key of the kit's queue pairs.
const qkey = 0x1234

func (t *T) mailbox() *mailbox {
	c := t.ready()
	m := &mailbox{qpPair: &qpPair{client: c, pdn: c.allocPD()}}
	m.cq, m.rcq = c.newCQ(6), c.newCQ(6)
	m.mr = c.regMR(m.pdn, pairMemory, allAccess)
	m.a, m.b = m.newUD(abi.QPTypeUD, qkey), m.newUD(abi.QPTypeUD, qkey)
	m.ahn = m.handle(abi.CreateAH{DGID: c.gid(), TrafficClass: 0x20, HopLimit: 33})
	return m
}

func (m *mailbox) handle(in abi.CreateAH) uint32 {
	in.PDN = m.pdn
	var out abi.CreateAHResult
	m.must(abi.AdminOpCreateAH, &in, &out)
	return out.AHN
}

func (m *mailbox) newUD(typ abi.QPType, key uint32) *qp {
	q := m.newQP(m.pdn, m.cq, m.rcq, func(q *abi.CreateQP) { q.Type = typ })
	q.modify(abi.ModifyQP{State: abi.QPStateInit, QKey: key, Mask: abi.QPAttrState | abi.QPAttrQKey | abi.QPAttrPKeyIndex | abi.QPAttrPort})
	q.modify(abi.ModifyQP{State: abi.QPStateRTR, Mask: abi.QPAttrState})
	q.modify(abi.ModifyQP{State: abi.QPStateRTS, Mask: abi.QPAttrState | abi.QPAttrSQPSN})
	return q
}

// mail sends a datagram from a to a queue pair.
func (m *mailbox) mail(wrid uint64, to, key uint32, n int) {
	m.a.post(abi.SendWQE{WRID: wrid, Opcode: abi.OpSend, Flags: abi.SendSignaled, AHN: m.ahn, RemoteQPN: to, RemoteQKey: key}, m.mr.sge(0, n))
}

func udDeliver(t *T) {
	m := t.mailbox()
	mtu := int(m.register(abi.RegMTU))
	for i, n := range []int{0, 1, 64, mtu} {
		for j := range n {
			m.mr.bytes()[j] = byte(i + j*3)
		}
		m.b.postRecv(uint64(i), m.mr.sge(16<<10, abi.GRHSize+n))
		m.mail(100, m.b.qpn, qkey, n)
		m.cq.want(100, abi.WCSuccess)
		e := m.rcq.want(uint64(i), abi.WCSuccess)
		if int(e.ByteLen) != n+abi.GRHSize || e.SrcQP != m.a.qpn || e.QPN != m.b.qpn || e.Flags&abi.WCFlagGRH == 0 || e.PKeyIndex != 0 ||
			(e.SourceMAC == [6]byte{}) == (m.features&abi.FeatureSourceMAC != 0) {
			t.Fatalf("a datagram of %d bytes: completion %+v", n, e)
		}
		if !bytes.Equal(m.mr.bytes()[:n], m.mr.bytes()[16<<10+abi.GRHSize:][:n]) {
			t.Fatalf("a datagram of %d bytes: the data is not what was sent", n)
		}
	}
	m.b.postRecv(9, m.mr.sge(16<<10, 128))
	m.a.post(abi.SendWQE{WRID: 101, Opcode: abi.OpSendImm, Imm: 0x77, AHN: m.ahn, RemoteQPN: m.b.qpn, RemoteQKey: 1 << 31}, m.mr.sge(0, 8))
	if e := m.rcq.want(9, abi.WCSuccess); e.Imm != 0x77 || e.Flags&abi.WCFlagImm == 0 { // by the QP's own Q_Key
		t.Fatalf("a datagram with immediate data: completion %+v", e)
	}
}

// udAddress checks addresses in the entry, with and without inline data.
func udAddress(t *T) {
	m := t.mailbox()
	d := abi.DatagramWQE{
		WRID: 1, Opcode: abi.OpSend, Flags: abi.SendSignaled, RemoteQPN: m.b.qpn, RemoteQKey: qkey, DGID: m.gid(), HopLimit: 7,
	}
	post := func(inline []byte) {
		var b [abi.DatagramWQESize]byte
		d.Marshal(b[:])
		var x abi.SendWQE
		if x.Unmarshal(b[:]); inline != nil {
			m.a.postInline(x, inline)
		} else {
			m.a.post(x, m.mr.sge(0, 8))
		}
	}
	for i := range uint64(4) {
		m.b.postRecv(i, m.mr.sge(16<<10, 256))
		if post(nil); i%2 == 1 {
			m.b.postRecv(10+i, m.mr.sge(16<<10, 256))
			post([]byte("in the entry"))
		}
		m.cq.want(1, abi.WCSuccess)
		m.rcq.want(i, abi.WCSuccess)
		if i%2 == 1 {
			m.cq.want(1, abi.WCSuccess)
			m.rcq.want(10+i, abi.WCSuccess)
		}
	}
	d.SGIDIndex = 63 // which is empty
	post(nil)
	m.cq.want(1, abi.WCLocQPOpErr)
}

// udGID checks a datagram to and from an address that was added.
func udGID(t *T) {
	const index = 5
	m := t.mailbox()
	local := m.linkLocal()
	m.must(abi.AdminOpAddGID, &abi.GIDEntry{Index: index, GID: local}, nil)
	m.ahn = m.handle(abi.CreateAH{DGID: local, SGIDIndex: index, HopLimit: 33})
	m.b.postRecv(1, m.mr.sge(16<<10, 128))
	m.mail(2, m.b.qpn, qkey, 8)
	m.cq.want(2, abi.WCSuccess)
	e := m.rcq.want(1, abi.WCSuccess)
	if h := m.mr.bytes()[16<<10:][:abi.GRHSize]; e.SL != abi.SLRoCEIPv6 || h[0]>>4 != 6 || [16]byte(h[8:24]) != local || [16]byte(h[24:40]) != local {
		t.Fatalf("a datagram to %s, from there: SL %d, header %x", netip.AddrFrom16(local), e.SL, h)
	}
}

// udGroup attaches both queue pairs: each must get a copy, also the sender.
func udGroup(t *T) {
	m := t.mailbox()
	group := [16]byte{0: 0xff, 1: 0x05, 14: 0x76, 15: 0x6e}
	if netip.AddrFrom16(m.gid()).Is4In6() {
		group = [16]byte{10: 0xff, 11: 0xff, 12: 239, 13: 255, 14: 0x76, 15: 0x6e}
	}
	attach := func(op abi.AdminOp, q *qp, gid [16]byte) abi.Status {
		return m.command(op, &abi.Mcast{QPN: q.qpn, GID: gid}, nil)
	}
	if st := attach(abi.AdminOpAttachMcast, m.a, group); st == abi.StatusUnsupported || st == abi.StatusUnknownCommand {
		t.Skipf("the host carries no multicast for the function: %s", st)
	} else if st != abi.StatusOK {
		t.Fatalf("AttachMcast: %s", st)
	}
	m.must(abi.AdminOpAttachMcast, &abi.Mcast{QPN: m.b.qpn, GID: group}, nil)
	m.refuse(abi.AdminOpAttachMcast, &abi.Mcast{QPN: m.a.qpn, GID: m.gid()}, abi.StatusInvalidArgument)
	m.refuse(abi.AdminOpDetachMcast, &abi.Mcast{QPN: m.a.qpn, GID: [16]byte{0: 0xff, 15: 1}}, abi.StatusNotFound)
	m.ahn = m.handle(abi.CreateAH{DGID: group, HopLimit: 1})
	copy(m.mr.bytes(), "to the group")
	say := func(wrid uint64, hear ...*qp) {
		for i, q := range []*qp{m.a, m.b} {
			q.postRecv(wrid+uint64(i), m.mr.sge(16<<10+i*4096, 128))
		}
		m.mail(wrid, abi.GroupQPN, qkey, 12)
		m.cq.want(wrid, abi.WCSuccess)
		heard := map[uint32]bool{}
		for range hear {
			e := m.rcq.next()
			b := m.mr.bytes()[16<<10+int(e.WRID-wrid)*4096:][:abi.GRHSize+12]
			if e.Status != abi.WCSuccess || e.SrcQP != m.a.qpn || heard[e.QPN] || !bytes.Equal(b[36:40], group[12:]) || string(b[40:]) != "to the group" {
				t.Fatalf("a datagram to a group: completion %+v, header and data % x", e, b)
			}
			heard[e.QPN] = true
		}
		for _, q := range hear {
			if !heard[q.qpn] {
				t.Fatalf("QP %d did not hear what its group was told", q.qpn)
			}
		}
		m.rcq.empty()
	}
	say(1, m.a, m.b)
	if st := attach(abi.AdminOpDetachMcast, m.a, group); st != abi.StatusOK {
		t.Fatalf("DetachMcast: %s", st)
	}
	say(11, m.b)
	m.mail(21, m.b.qpn, qkey, 12) // a queue pair, at the group's address
	m.cq.want(21, abi.WCLocQPOpErr)
}

func udHeader(t *T) {
	m := t.mailbox()
	for i, op := range []abi.Opcode{abi.OpSend, abi.OpSendImm} {
		m.b.postRecv(1, m.mr.sge(16<<10, 256))
		m.a.post(abi.SendWQE{WRID: 2, Opcode: op, Flags: abi.SendSignaled, AHN: m.ahn, RemoteQPN: m.b.qpn, RemoteQKey: qkey}, m.mr.sge(0, 10))
		m.cq.want(2, abi.WCSuccess)
		// UDP, BTH, DETH, immediate data, data with padding, ICRC
		m.header(m.rcq.want(1, abi.WCSuccess), 8+12+8+4*i+12+4)
	}
}

// header checks the headers before the data of the datagram that completed as e; n bytes follow
// them.
func (m *mailbox) header(e abi.CQE, n int) {
	h := m.mr.bytes()[16<<10:][:abi.GRHSize]
	gid := netip.AddrFrom16(m.gid())
	if !gid.Is4In6() {
		if e.SL != abi.SLRoCEIPv6 || h[0]>>4 != 6 || int(binary.BigEndian.Uint16(h[4:])) != n || h[7] != 33 || !bytes.Equal(h[8:24], h[24:40]) ||
			netip.AddrFrom16([16]byte(h[8:24])) != gid {
			m.t.Fatalf("a datagram from %s: SL %d, header %x, %d bytes behind it", gid, e.SL, h, n)
		}
		return
	}
	ip := h[20:]
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum&0xffff + sum>>16
	own := gid.Unmap().As4()
	if e.SL != abi.SLRoCEIPv4 || !bytes.Equal(h[:20], make([]byte, 20)) || ip[0] != 0x45 || ip[1]&^3 != 0x20 || int(binary.BigEndian.Uint16(ip[2:])) != 20+n ||
		ip[8] != 33 || sum+sum>>16 != 0xffff || [4]byte(ip[12:16]) != own || [4]byte(ip[16:20]) != own {
		m.t.Fatalf("a datagram from %s: SL %d, header %x, %d bytes behind it", gid, e.SL, h, n)
	}
}

func udLost(t *T) {
	m := t.mailbox()
	m.b.postRecv(1, m.mr.sge(16<<10, 100))
	for _, x := range []struct {
		name    string
		to, key uint32
		n       int
	}{
		{"with another Q_Key", m.b.qpn, qkey + 1, 8},
		{"to a QP that there is not", m.b.qpn ^ 0x40_0000, qkey, 8},
		{"longer than the receive", m.b.qpn, qkey, 61},
	} {
		m.mail(5, x.to, x.key, x.n)
		m.cq.want(5, abi.WCSuccess) // nothing tells the sender
		t.never(func() bool { _, ok := m.rcq.poll(); return ok }, "a datagram %s took a receive", x.name)
	}
	m.mail(6, m.b.qpn, qkey, 60)
	m.rcq.want(1, abi.WCSuccess) // the receive is still there
}

func udHandles(t *T) {
	m := t.mailbox()
	foreign := [16]byte{0xff, 0x0e, 15: 1} // a group of the other family
	if !netip.AddrFrom16(m.gid()).Is4In6() {
		foreign = [16]byte{10: 0xff, 11: 0xff, 12: 239, 15: 1}
	}
	m.refuse(abi.AdminOpCreateAH, &abi.CreateAH{PDN: m.pdn, DGID: foreign}, abi.StatusUnsupported)
	nobody := m.gid()
	nobody[15] ^= 0x81
	own := m.ahn
	m.ahn = m.handle(abi.CreateAH{DGID: nobody})
	m.mail(1, m.b.qpn, qkey, 8)
	m.cq.want(1, abi.WCSuccess) // it is lost
	m.must(abi.AdminOpDestroyAH, &abi.DestroyAH{AHN: m.ahn}, nil)
	m.ahn = own
	m.mail(2, 0xff_ffff, qkey, 8)
	m.cq.want(2, abi.WCLocQPOpErr)
}

func udError(t *T) {
	m := t.mailbox()
	m.a.postRecv(9, m.mr.sge(16<<10, 128))
	ahn := m.ahn
	m.ahn ^= 0x40_0000
	m.mail(1, m.b.qpn, qkey, 8)
	m.ahn = ahn
	if e := m.cq.next(); e.WRID != 1 || e.Status == abi.WCSuccess || e.Status == abi.WCWRFlushErr {
		t.Fatalf("a datagram by a handle that there is not: work request %d, %s", e.WRID, e.Status)
	}
	m.a.wantState(abi.QPStateSQE)
	m.mail(2, m.b.qpn, qkey, 8)
	m.cq.want(2, abi.WCWRFlushErr)
	m.b.post(abi.SendWQE{WRID: 3, Opcode: abi.OpSend, Flags: abi.SendSignaled, AHN: m.ahn, RemoteQPN: m.a.qpn, RemoteQKey: qkey}, m.mr.sge(0, 8))
	m.rcq.want(9, abi.WCSuccess) // receives go on
	m.cq.want(3, abi.WCSuccess)
	m.a.modify(abi.ModifyQP{State: abi.QPStateRTS, Mask: abi.QPAttrState})
	m.b.postRecv(10, m.mr.sge(16<<10, 128))
	m.mail(4, m.b.qpn, qkey, 8)
	m.cq.want(4, abi.WCSuccess)
	m.rcq.want(10, abi.WCSuccess)
}

func udGSI(t *T) {
	m := t.mailbox()
	g := m.newUD(abi.QPTypeGSI, abi.GSIQKey)
	if g.qpn != 1 {
		t.Fatalf("the QP of type GSI has number %d, want 1", g.qpn)
	}
	sq, rq := m.newQueue(abi.DoorbellSQ, queueLog2, sendStride), m.newQueue(abi.DoorbellRQ, queueLog2, recvStride)
	m.refuse(abi.AdminOpCreateQP, &abi.CreateQP{
		PDN: m.pdn, SendCQ: m.cq.cqn, RecvCQ: m.rcq.cqn, Type: abi.QPTypeGSI, SQLog2Entries: queueLog2, RQLog2Entries: queueLog2,
		SQLog2Stride: sendStride, RQLog2Stride: recvStride, MaxSendSGE: 1, MaxRecvSGE: 1, SQLevels: 1, RQLevels: 1, SQPages: sq.list.Root, RQPages: rq.list.Root,
	}, abi.StatusBusy)
	g.postRecv(1, m.mr.sge(16<<10, 128))
	m.mail(2, 1, abi.GSIQKey, 8) // bit 31 is set: the QP's own is sent
	m.rcq.empty()
	m.a.modify(abi.ModifyQP{QKey: abi.GSIQKey, Mask: abi.QPAttrQKey})
	m.mail(3, 1, 1<<31, 8)
	m.rcq.want(1, abi.WCSuccess)
}
