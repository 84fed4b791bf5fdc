package tcp

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/falcon-vnic/vnic/internal/checksum"
	"github.com/falcon-vnic/vnic/internal/list"
)

// function is a function in the netstack: a NIC with one address, and the link by which its packets
// come and go.
type function struct {
	s         *Stack
	id        uint32
	addr      netip.Addr
	mtu       uint32
	conns     int
	lingering list.List[stream] // those that are over, and that gVisor has not forgotten, from the oldest on
	listeners map[uint16]*listener

	dispatcher stack.NetworkDispatcher
	streams    map[flow]*stream
	mu         sync.Mutex   // a goroutine of gVisor's may read streams, too
	unbased    atomic.Int32 // streams whose first sequence number is not known
	given      atomic.Bool  // up, with its netstack
	offers     [64]offer    // by flow.slot
}

// offer is what a peer's SYN said of the segments that it takes. It is kept until another takes its slot.
type offer struct {
	flow
	mss int
}

// slot returns the index of the flow's offer.
func (of flow) slot() int { return int(of.local^of.peer.Port()) % 64 }

// flow identifies a stream of a function.
type flow struct {
	local uint16
	peer  netip.AddrPort
}

var _ stack.LinkEndpoint = (*function)(nil)

// add gives a function a NIC with its address, and a way to all others.
func (s *Stack) add(id uint32, addr netip.Addr, mtu int) {
	f := &function{s: s, id: id, addr: addr, mtu: uint32(mtu), listeners: map[uint16]*listener{}, streams: map[flow]*stream{}}
	everywhere := header.IPv4EmptySubnet
	if addr.Is6() {
		everywhere = header.IPv6EmptySubnet
	}
	if err := s.net.CreateNIC(f.nic(), f); err != nil {
		panic(fmt.Sprintf("tcp: function %d: %s", id, err))
	}
	own := tcpip.ProtocolAddress{Protocol: f.protocol(), AddressWithPrefix: tcpAddr(addr).WithPrefix()}
	if err := s.net.AddProtocolAddress(f.nic(), own, stack.AddressProperties{}); err != nil {
		panic(fmt.Sprintf("tcp: function %d, address %s: %s", id, addr, err))
	}
	s.net.AddRoute(tcpip.Route{Destination: everywhere, NIC: f.nic()})
	s.functions[id] = f
}

// remove takes the function out, with its listeners and streams.
func (f *function) remove() {
	for _, l := range f.listeners {
		l.end()
	}
	for st := range f.s.streams {
		if st.f == f {
			st.queue.EventUnregister(&st.entry)
			st.ep.Abort()
			st.over = true
			f.forget(st)
			delete(f.s.streams, st)
			delete(f.s.streams, st.next)
		}
	}
	f.s.net.RemoveRoutes(func(r tcpip.Route) bool { return r.NIC == f.nic() })
	_ = f.s.net.RemoveNIC(f.nic())
	delete(f.s.functions, f.id)
}

// nic returns the number of the function's NIC; 0 is not allowed.
func (f *function) nic() tcpip.NICID { return tcpip.NICID(f.id) + 1 }

func (f *function) protocol() tcpip.NetworkProtocolNumber {
	if f.addr.Is4() {
		return header.IPv4ProtocolNumber
	}
	return header.IPv6ProtocolNumber
}

// mss returns the bytes of data in a segment: gVisor leaves room for as many options as there can be, in every
// segment.
func (f *function) mss() int {
	ip := header.IPv4MinimumSize
	if f.addr.Is6() {
		ip = header.IPv6MinimumSize
	}
	return int(f.mtu) - ip - header.TCPMinimumSize - header.TCPOptionsMaximumSize
}

// mssTo returns the bytes of data in a segment to a peer that has just said how long its segments may be.
func (f *function) mssTo(of flow) int {
	if o := &f.offers[of.slot()]; o.flow == of {
		return min(f.mss(), o.mss-header.TCPOptionsMaximumSize)
	}
	return f.mss()
}

// offered notes what a SYN says.
func (f *function) offered(of flow, segment header.TCP) {
	if at := int(segment.DataOffset()); at >= header.TCPMinimumSize && at <= len(segment) {
		said := header.ParseSynOptions(segment.Options(), segment.Flags().Contains(header.TCPFlagAck))
		f.offers[of.slot()] = offer{of, int(said.MSS)}
	}
}

// bound makes an endpoint with the function's address and a port; 0: any. It has only the function's
// packets, even if a function of another tenant has the same address.
func (f *function) bound(port uint16, queue *waiter.Queue) (tcpip.Endpoint, tcpip.Error) {
	ep, err := f.s.net.NewEndpoint(tcp.ProtocolNumber, f.protocol(), queue)
	if err != nil {
		return nil, err
	}
	ep.SocketOptions().SetReuseAddress(port != 0) // earlier connections may linger at a listener's port
	if err = ep.SocketOptions().SetBindToDevice(int32(f.nic())); err == nil {
		err = ep.Bind(tcpip.FullAddress{NIC: f.nic(), Addr: tcpAddr(f.addr), Port: port})
	}
	if err != nil {
		ep.Close()
		return nil, err
	}
	return ep, nil
}

// enter lets segments find a stream.
func (f *function) enter(st *stream) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if old := f.streams[st.flow]; old == nil || old.base.Load() != 0 {
		f.unbased.Add(1)
	}
	f.streams[st.flow] = st
}

// forget removes a stream, and makes room for another.
func (f *function) forget(st *stream) {
	f.mu.Lock()
	if f.streams[st.flow] == st {
		delete(f.streams, st.flow)
		if st.base.Load() == 0 {
			f.unbased.Add(-1)
		}
	}
	f.mu.Unlock()
	f.conns--
	f.s.counts.conns.Add(^uint64(0))
	for _, l := range f.listeners {
		f.s.again(l)
	}
}

// hasRoom reports whether the function may have another connection. If need be, the one that has lingered
// longest makes room, as in Linux (tcp_max_tw_buckets).
func (f *function) hasRoom() bool {
	if f.conns == f.s.limits.Conns {
		if oldest := f.lingering.First(); oldest != nil {
			oldest.vanish()
		}
	}
	return f.conns < f.s.limits.Conns
}

// vanish ends a stream that lingers.
func (st *stream) vanish() {
	st.ep.Abort()
	st.leave()
}

// parse returns the TCP segment of a packet, its offset (at), and the address that it comes
// from.
func (f *function) parse(b []byte) (src netip.Addr, at int, segment header.TCP, ok bool) {
	var from, to tcpip.Address
	if f.addr.Is4() {
		ip := header.IPv4(b)
		if header.IPVersion(b) != 4 || !ip.IsValid(len(b)) || ip.Protocol() != uint8(tcp.ProtocolNumber) || ip.More() || ip.FragmentOffset() != 0 {
			return src, 0, nil, false
		}
		at = int(ip.HeaderLength())
		from, to, segment = ip.SourceAddress(), ip.DestinationAddress(), header.TCP(b[at:ip.TotalLength()])
	} else {
		ip := header.IPv6(b)
		if header.IPVersion(b) != 6 || !ip.IsValid(len(b)) || ip.NextHeader() != uint8(tcp.ProtocolNumber) {
			return src, 0, nil, false
		}
		at = header.IPv6MinimumSize
		from, to, segment = ip.SourceAddress(), ip.DestinationAddress(), header.TCP(b[at:][:ip.PayloadLength()])
	}
	if len(segment) < header.TCPMinimumSize || netipAddr(to) != f.addr {
		return src, 0, nil, false
	}
	sum := header.PseudoHeaderChecksum(tcp.ProtocolNumber, from, to, uint16(len(segment)))
	return netipAddr(from), at, segment, checksum.Fold(uint32(checksum.Sum(segment))+uint32(sum)) == 0xffff
}

// acknowledged notes what a segment of a peer acknowledges.
func (f *function) acknowledged(of flow, ack uint32) {
	st := f.streams[of]
	if st == nil {
		return
	}
	base := st.base.Load()
	if base == 0 {
		return // nothing was sent
	}
	end := st.conn.written
	if st.fin {
		end++
	}
	if more := ack - uint32(base) - uint32(st.acked); more > 0 && uint64(more) <= end-st.acked {
		st.acked += uint64(more)
		f.s.again(st)
	}
}

// WritePackets implements stack.LinkEndpoint: gVisor sends packets, from any of its goroutines. If
// there is no room they are lost, as on a network. Packets of connections leave the checksum open, and
// stand for several segments if there is more to send than one takes.
func (f *function) WritePackets(list stack.PacketBufferList) (int, tcpip.Error) {
	if f.given.Load() {
		return list.Len(), nil
	}
	for _, pkt := range list.AsSlice() {
		if f.unbased.Load() > 0 {
			f.learn(pkt)
		}
		d := Departure{Function: f.id, Segments: 1}
		if gso := &pkt.GSOOptions; gso.Type != stack.GSONone {
			d.Unsummed = true
			if n, mss := pkt.Data().Size(), int(gso.MSS); n > mss {
				d.Segments, d.Segment = (n+mss-1)/mss, mss
			}
		}
		switch first, ok := f.s.departing.put(departure{pkt, d}); {
		case !ok:
			f.s.counts.departingFull.Add(1)
		case first:
			f.s.wake()
		}
	}
	return list.Len(), nil
}

// learn notes the sequence number of a stream's first byte: that of the first segment that a
// connected endpoint sends.
func (f *function) learn(pkt *stack.PacketBuffer) {
	segment := header.TCP(pkt.TransportHeader().Slice())
	if len(segment) < header.TCPMinimumSize || segment.Flags().Contains(header.TCPFlagSyn) || segment.Flags().Contains(header.TCPFlagRst) {
		return
	}
	peer := netipAddr(pkt.Network().DestinationAddress())
	f.mu.Lock()
	defer f.mu.Unlock()
	st := f.streams[flow{segment.SourcePort(), netip.AddrPortFrom(peer, segment.DestinationPort())}]
	if st != nil && st.base.Load() == 0 {
		st.base.Store(1<<32 | uint64(segment.SequenceNumber()))
		f.unbased.Add(-1)
	}
}

// Attach implements stack.LinkEndpoint.
func (f *function) Attach(d stack.NetworkDispatcher) { f.dispatcher = d }

// IsAttached implements stack.LinkEndpoint.
func (f *function) IsAttached() bool { return f.dispatcher != nil }

// MTU implements stack.LinkEndpoint.
func (f *function) MTU() uint32 { return f.mtu }

// Capabilities implements stack.LinkEndpoint: arrived checks the checksums.
func (*function) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityRXChecksumOffload
}

// The rest of stack.LinkEndpoint: there is no link layer.
func (*function) SetMTU(uint32)                           {}
func (*function) MaxHeaderLength() uint16                 { return 0 }
func (*function) LinkAddress() tcpip.LinkAddress          { return "" }
func (*function) SetLinkAddress(tcpip.LinkAddress)        {}
func (*function) Wait()                                   {}
func (*function) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareNone }
func (*function) AddHeader(*stack.PacketBuffer)           {}
func (*function) ParseHeader(*stack.PacketBuffer) bool    { return true }
func (*function) Close()                                  {}
func (*function) SetOnCloseAction(func())                 {}

func tcpAddr(a netip.Addr) tcpip.Address { return tcpip.AddrFromSlice(a.AsSlice()) }

func netipAddr(a tcpip.Address) netip.Addr {
	addr, _ := netip.AddrFromSlice(a.AsSlice())
	return addr
}

// SupportedGSO and GSOMaxSize implement stack.GSOEndpoint: a packet may stand for several segments, whose
// checksums are left to whoever cuts it. All of them but the last of the stream are full: gVisor subtracts
// the longest headers, and 1, from the size.
func (*function) SupportedGSO() stack.SupportedGSO { return stack.HostGSOSupported }

func (f *function) GSOMaxSize() uint32 { return uint32(f.most() + gsoHeaders) }

const gsoHeaders = header.TCPTotalHeaderMaximumSize + 1

// most returns the bytes of data in the longest packet that stands for several segments.
func (f *function) most() int { return (maxPacket - gsoHeaders) / f.mss() * f.mss() }
