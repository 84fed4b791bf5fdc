package roce_test

import (
	"net/netip"
	"testing"

	"github.com/falcon-vnic/vnic/falcon/sim"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/ib"
	"github.com/falcon-vnic/vnic/rdma/roce"
	"github.com/falcon-vnic/vnic/rdma/roce/wire"
	"github.com/falcon-vnic/vnic/rdma/transport"
)

// target is an endpoint that serves from 4 KiB of memory, and counts what it is asked.
type target struct {
	memory  [4096]byte
	placed  int
	serving bool
	done    int

	receives int // that there are, if they are counted
	counted  bool
}

func (e *target) Gather(_ *transport.Request, offset uint32, dst []byte) error {
	for i := range dst {
		dst[i] = byte(offset) + byte(i)
	}
	return nil
}

func (e *target) Element(r *transport.Request, offset uint32) (addr uint64, lkey, left uint32) {
	return 0, 0, r.Length - offset
}

func (e *target) Scatter(r *transport.Request, offset uint32, src []byte) error {
	if uint64(offset)+uint64(len(src)) > uint64(r.Length) {
		panic("outside of the request")
	}
	return nil
}

func (e *target) Done(_ transport.Time, r *transport.Request, st abi.WCStatus, _ uint32) {
	if st != abi.WCSuccess && r.Status == abi.WCSuccess {
		r.Status = st
	}
	if r.Pending < 0 {
		panic("done once too often")
	}
	e.done++
}
func (e *target) PeerNotReady(transport.Time, *transport.Request, int) {}
func (e *target) Unanswered(transport.Time, *transport.Request)        {}
func (e *target) Serving() bool                                        { return e.serving }
func (e *target) Heard()                                               {}
func (e *target) Address(uint32) bool                                  { return false }
func (e *target) Place(_ transport.Time, p *transport.Packet, data []byte) transport.Verdict {
	if int(p.Length) != len(data) {
		panic("a packet's length")
	}
	e.placed++
	if !p.Sends() && (p.RKey != 7 || p.Addr > 4096 || uint64(len(data)) > 4096-p.Addr) {
		e.serving = false
		return transport.Verdict{Refusal: transport.Access}
	}
	return transport.Verdict{}
}
func (e *target) Complete(transport.Time, *transport.Packet, uint64, abi.WCStatus) {}
func (e *target) Refused(transport.Time, transport.Refusal)                        { e.serving = false }

func (e *target) Read(rkey uint32, addr uint64, n uint32) (transport.Memory, transport.Refusal) {
	if rkey != 7 || addr > 4096 || uint64(n) > 4096-addr {
		return nil, transport.Access
	}
	return memory{e}, transport.Accepted
}

type memory struct{ e *target }

func (m memory) Read(addr uint64, dst []byte) error {
	if copy(dst, m.e.memory[addr:]) < len(dst) {
		panic("outside of the memory")
	}
	return nil
}

func (e *target) Atomic(*transport.Atomic) (uint64, transport.Refusal) { return 1, transport.Accepted }

func (e *target) Receives() (n int, counted bool) { return e.receives, e.counted }

func (e *target) RNRTimer() uint8                            { return 1 }
func (e *target) AnswerAt(now transport.Time) transport.Time { return now }
func (e *target) Answered(int)                               {}
func (e *target) Unblocked(transport.Time)                   {}
func (e *target) Ended(transport.Time, abi.WCStatus, string) {}
func (e *target) Settle(transport.Time)                      {}

// attach gives a connection to an endpoint.
func attach(t testing.TB, c *roce.Conn, e transport.Endpoint, qpn, peer uint32) {
	t.Helper()
	attachMTU(t, c, e, qpn, peer, 256)
}

// attachMTU is attach with a path MTU.
func attachMTU(t testing.TB, c *roce.Conn, e transport.Endpoint, qpn, peer uint32, mtu int) {
	t.Helper()
	attachAs(t, c, &transport.Terms{Endpoint: e, QPN: qpn, Peer: peer, PathMTU: mtu})
}

// attachUC is attach for an unreliable connection.
func attachUC(t testing.TB, c *roce.Conn, e transport.Endpoint, qpn, peer uint32) {
	t.Helper()
	attachAs(t, c, &transport.Terms{Endpoint: e, QPN: qpn, Peer: peer, PathMTU: 256, Unreliable: true})
}

func attachAs(t testing.TB, c *roce.Conn, x *transport.Terms) {
	t.Helper()
	x.Serves, x.Reads, x.PSN, x.Account = 16, 16, 100, new(transport.Account)
	x.Sending = &transport.Sending{PSN: 100, Timeout: 14, RetryCount: 7}
	if _, ok := c.Attach(x); !ok {
		t.Fatal("not attached")
	}
}

// FuzzPeer lets a peer send anything: each four bytes of the input and what follows are a packet
// with valid addresses and ICRC. Whatever it sends, the queue pair gets no calls outside of its
// requests and memory, and answers are bounded. There are a reliable and an unreliable connection.
func FuzzPeer(f *testing.F) {
	for op := range 256 {
		if ib.Opcode(op).Info() != nil {
			f.Add([]byte{byte(op), 0, 1, 40, 0, 0, 0, 7, byte(op), 1, 0, 255})
		}
	}
	for _, service := range []ib.Opcode{ib.RC, ib.UC} { // messages of three packets; the second one is broken off
		for _, m := range [][3]ib.Opcode{{ib.SendFirst, ib.SendMiddle, ib.SendLast}, {ib.WriteFirst, ib.WriteMiddle, ib.WriteLastImm}} {
			var in []byte
			for i, op := range append(m[:], m[0], m[2], m[2], m[0], m[1]) {
				in = append(in, byte(service|op), byte(i), 0x11, 0, 0, 2, 0, 7)
			}
			f.Add(in)
		}
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		w := newWorld(1, false, 1500, sim.Impairment{Delay: 1000})
		own, e := w.connect(0), &target{serving: true}
		attach(t, own, e, 17, 18)
		unreliable := w.connect(0)
		attachUC(t, unreliable, &target{serving: true}, 19, 20)
		now := transport.Time(1e9)
		requests := make([]transport.Request, 12)
		for i := range requests {
			r := &requests[i]
			r.Length = uint32(i) * 100
			r.WQE.Opcode = []abi.Opcode{abi.OpSend, abi.OpRead, abi.OpWriteImm, abi.OpFetchAdd}[i%4]
			if r.Atomic() {
				r.Length = 8
			}
			for r.Status == abi.WCSuccess && !r.Issued {
				if _, err := own.Issue(now, r); err != nil {
					break
				}
			}
		}
		way := wire.Way{Src: w.ports[1].Addr, Dst: w.ports[0].Addr, Hops: 64, SrcPort: 0xc000}
		for len(in) >= 8 {
			qpn := uint32(17)
			if ib.Opcode(in[0])&ib.ServiceMask == ib.UC {
				qpn = 19
			}
			op, psn, flags, n := ib.Opcode(in[0]), wire.PSN(100).Add(int(int8(in[1]))), in[2], int(in[3])
			h := wire.Headers{
				BTH: wire.BTH{Opcode: op, DestQP: qpn, PSN: psn, PKey: wire.DefaultPKey, AckReq: flags&1 != 0, Pad: uint8(ib.PadLen(n))},
				Extended: ib.Extended{
					RETH: ib.RETH{VA: uint64(in[4]) << 4, RKey: uint32(in[7]), Length: uint32(in[5])<<8 | uint32(in[6])},
					AETH: ib.AETH{Syndrome: ib.Syndrome(in[4]), MSN: uint32(in[5])},
				},
			}
			h.Atomic = ib.AtomicETH{VA: h.RETH.VA, RKey: h.RETH.RKey}
			in = in[8:]
			n += int(flags>>4&1) << 8 // up to more than a packet
			packet := h.Append(make([]byte, way.HeaderLen()))
			packet = append(packet, make([]byte, n+ib.PadLen(n)+wire.ICRCLen)...)
			way.Put(packet)
			w.ports[0].Receive(now, packet)
			if flags&2 != 0 {
				now += transport.Time(flags) << 16
			}
			w.engines[0].Run(now)
			sent := 0
			for k, _ := w.engines[0].Transmit(now, w.packet[:]); k > 0; k, _ = w.engines[0].Transmit(now, w.packet[:]) {
				if _, _, err := wire.Parse(w.packet[:k]); err != nil {
					t.Fatalf("sent a packet that is none: %v", err)
				}
				if sent++; sent > 5000 {
					t.Fatal("sends without end")
				}
			}
		}
		own.Forget()
		if pushes, pulls := own.UnderWay(); pushes != 0 || pulls != 0 {
			t.Fatalf("%d and %d packets under way at the end", pushes, pulls)
		}
		own.Close(now)
		unreliable.Close(now)
	})
}

// TestPacketsOfStrangersAreDropped sends packets that are nearly valid; none of them counts.
func TestPacketsOfStrangersAreDropped(t *testing.T) {
	w := newWorld(1, true, 1500, sim.Impairment{})
	own, e := w.connect(0), &target{serving: true}
	attach(t, own, e, 17, 18)
	good := wire.Way{Src: w.ports[1].Addr, Dst: w.ports[0].Addr, Hops: 64, SrcPort: 0xc000}
	send := func(way wire.Way, b wire.BTH) {
		h := wire.Headers{BTH: b}
		packet := h.Append(make([]byte, way.HeaderLen()))
		packet = append(packet, make([]byte, wire.ICRCLen)...)
		way.Put(packet)
		w.ports[0].Receive(1e9, packet)
	}
	b := wire.BTH{Opcode: ib.SendOnly, DestQP: 17, PSN: 100, PKey: wire.DefaultPKey}
	otherSource, otherQP, otherKey, otherService := good, b, b, b
	otherSource.Src = otherSource.Dst
	otherQP.DestQP, otherKey.PKey, otherService.Opcode = 19, 0x1234, ib.UC|ib.SendOnly
	send(otherSource, b)
	send(good, otherQP)
	send(good, otherKey)
	send(good, otherService)
	// Datagrams: one queue pair's to a group, a group's to an address that is neither.
	toGroup, elsewhere, datagram, ofGroup := good, good, b, b
	toGroup.Dst, elsewhere.Dst = netip.MustParseAddr("ff05::1"), netip.MustParseAddr("fd00::3")
	datagram.Opcode, ofGroup.Opcode, ofGroup.DestQP = ib.UD|ib.SendOnly, ib.UD|ib.SendOnly, abi.GroupQPN
	send(toGroup, datagram)
	send(elsewhere, ofGroup)
	if s := w.ports[0].Stats(); e.placed != 0 || s.Strange != 6 || s.Received != 0 {
		t.Errorf("%d packets placed, %+v", e.placed, s)
	}
	w.ports[0].Receive(1e9, make([]byte, 60))
	send(good, b)
	send(good, datagram)
	if s := w.ports[0].Stats(); e.placed != 1 || s.Wrong != 1 || s.Received != 2 {
		t.Errorf("%d packets placed, %+v", e.placed, s)
	}
}

// TestNoAllocations sends and takes WRITEs and READs.
func TestNoAllocations(t *testing.T) {
	w := newWorld(1, false, 1500, sim.Impairment{Delay: 1000})
	a, b := w.connect(0), w.connect(1)
	attach(t, a, &target{serving: true}, 17, 18)
	attach(t, b, &target{serving: true}, 18, 17)
	now := transport.Time(1e9)
	var r transport.Request
	round := func(op abi.Opcode) {
		r = transport.Request{Length: 2000, WQE: abi.SendWQE{Opcode: op, RKey: 7}}
		for !r.Issued {
			if _, err := a.Issue(now, &r); err != nil {
				t.Fatal(err)
			}
		}
		for r.Pending > 0 {
			now = max(now, w.step(now))
		}
	}
	for range 300 {
		round(abi.OpWrite)
		round(abi.OpRead)
	}
	if n := testing.AllocsPerRun(300, func() { round(abi.OpWrite); round(abi.OpRead) }); n != 0 {
		t.Errorf("%v allocations per WRITE and READ, want 0", n)
	}
}
