package capture

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"maps"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/falcon-vnic/vnic/device/underlay"
	"github.com/falcon-vnic/vnic/falcon/psp"
	falcon "github.com/falcon-vnic/vnic/falcon/wire"
	"github.com/falcon-vnic/vnic/rdma/ib"
	rdma "github.com/falcon-vnic/vnic/rdma/rof/wire"
)

// shown is a packet and the columns and fields that Wireshark must show for it, as tshark prints
// them.
type shown struct {
	iface  int
	packet []byte
	fields map[string]string
}

func num[T uint8 | uint16 | uint32 | uint64 | int](v T) string {
	return strconv.FormatUint(uint64(v), 10)
}

func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// inner returns a packet of the clear interface.
func inner(payload []byte) []byte {
	h := underlay.Inner{Src: netip.MustParseAddr("192.168.100.11"), Dst: netip.MustParseAddr("192.168.100.12")}
	return append(h.Append(nil, len(payload)), payload...)
}

// clearPacket returns a Falcon packet on the clear interface with the fields that all Falcon
// packets show.
func clearPacket(packet []byte, info string, fields map[string]string) shown {
	f := maps.Clone(fields)
	f[colInfo] = info
	if f[colProtocol] == "" {
		f[colProtocol] = "Falcon"
	}
	f["falcon.version"] = "1"
	return shown{Clear, inner(packet), f}
}

func baseFields(h *falcon.Header) map[string]string {
	return map[string]string{
		"falcon.cid":       fmt.Sprintf("0x%06x", h.CID),
		"falcon.function":  fmt.Sprintf("0x%06x", h.Function),
		"falcon.protocol":  num(uint8(h.Protocol)),
		"falcon.type":      num(uint8(h.Type)),
		"falcon.ar":        flag(h.AckReq),
		"falcon.data_base": num(h.DataBase),
		"falcon.req_base":  num(h.ReqBase),
		"falcon.psn":       num(h.PSN),
		"falcon.rsn":       num(h.RSN),
	}
}

func header(t falcon.PacketType) falcon.Header {
	return falcon.Header{
		CID: 0x30abcd, Function: 0x021003, Protocol: falcon.ProtocolRDMA, Type: t, AckReq: t == falcon.TypePushData,
		DataBase: 0xfffffffe, ReqBase: 101, PSN: 1234, RSN: 1200,
	}
}

// rdmaFields returns the fields that the headers h of an upper-layer part show.
func rdmaFields(h *rdma.Headers, data []byte) map[string]string {
	hex32 := func(v uint32) string { return fmt.Sprintf("0x%08x", v) }
	hex64 := func(v uint64) string { return fmt.Sprintf("0x%016x", v) }
	hex24 := func(v uint32) string { return fmt.Sprintf("0x%06x", v) }
	r := &h.RBTH
	f := map[string]string{
		colProtocol: "RDMA", "rdma.version": "1", "rdma.ce": flag(r.CE), "rdma.pad": num(r.Pad), "rdma.se": flag(r.Solicited),
		"rdma.opcode": fmt.Sprintf("0x%02x", uint8(r.Opcode)), "rdma.qp": hex24(r.DestQP),
		"rdma.syndrome": fmt.Sprintf("0x%02x", r.Syndrome), "rdma.sn": num(r.SN),
	}
	if len(data) > 0 {
		f["rdma.data"] = hex.EncodeToString(data)
	}
	if r.Pad > 0 {
		f["rdma.padding"] = strings.Repeat("00", int(r.Pad))
	}
	set := rdma.Opcodes[r.Opcode].Headers
	for hdr, fields := range map[ib.Headers]map[string]string{
		ib.HasXRCETH: {"rdma.xrceth.srq": hex24(h.XRC.SRQ)},
		ib.HasDETH:   {"rdma.deth.qkey": hex32(h.Datagram.QKey), "rdma.deth.source_qp": hex24(h.Datagram.SourceQP)},
		ib.HasRETH:   {"rdma.reth.va": hex64(h.RETH.VA), "rdma.reth.rkey": hex32(h.RETH.RKey), "rdma.reth.length": num(h.RETH.Length)},
		ib.HasAtomicETH: {
			"rdma.atomiceth.va": hex64(h.Atomic.VA), "rdma.atomiceth.rkey": hex32(h.Atomic.RKey),
			"rdma.atomiceth.swap_add": hex64(h.Atomic.SwapAdd), "rdma.atomiceth.compare": hex64(h.Atomic.Compare),
		},
		ib.HasAtomicAckETH: {"rdma.atomicacketh.original": hex64(h.AtomicAck.Original)},
		ib.HasSETH:         {"rdma.seth.rmsn": num(h.SETH.RMSN)},
		ib.HasOETH:         {"rdma.oeth.offset": num(h.OETH.Offset)},
		ib.HasSTETH:        {"rdma.steth.va": hex64(h.STETH.VA), "rdma.steth.lkey": hex32(h.STETH.LKey)},
		ib.HasImmDt:        {"rdma.immdt": hex32(bits.ReverseBytes32(h.Imm.Data))}, // four bytes, shown as they are carried
		ib.HasIETH:         {"rdma.ieth.rkey": hex32(h.Inv.RKey)},
	} {
		if set&hdr != 0 {
			maps.Copy(f, fields)
		}
	}
	return f
}

var carriers = [...]falcon.PacketType{
	ib.KindData:     falcon.TypePushData,
	ib.KindPull:     falcon.TypePullRequest,
	ib.KindResponse: falcon.TypePullData,
}

// rdmaPackets returns a packet of every opcode, and one of a reserved opcode.
func rdmaPackets() []shown {
	var all []shown
	for i := range 256 {
		op := ib.Opcode(i)
		known := &rdma.Opcodes[op]
		if known.Len == 0 && op != 0x11 {
			continue
		}
		h := rdma.Headers{
			RBTH: rdma.RBTH{Opcode: op, Solicited: op == ib.SendOnly, DestQP: 0x11, SN: 7 + uint32(i)},
			Extended: ib.Extended{
				XRC:       ib.XRCETH{SRQ: 0x123456},
				Datagram:  ib.DETH{QKey: 0x80010000, SourceQP: 0x654321},
				RETH:      ib.RETH{VA: 0x0102030405060708, RKey: 0x11121314, Length: 4097},
				Atomic:    ib.AtomicETH{VA: 0x2122232425262728, RKey: 0x31323334, SwapAdd: 0x4142434445464748, Compare: 0x5152535455565758},
				AtomicAck: ib.AtomicAckETH{Original: 0x6162636465666768},
				SETH:      ib.SETH{RMSN: 3},
				OETH:      ib.OETH{Offset: 8192},
				STETH:     ib.STETH{VA: 0x00007f0000001000, LKey: 0x0badf00d},
				Imm:       ib.ImmDt{Data: 0xb1b2b3b4},
				Inv:       ib.IETH{RKey: 0xc1c2c3c4},
			},
		}
		kind := falcon.TypePushData
		var data []byte
		if known.Len != 0 {
			kind = carriers[op.Info().Kind]
			if kind != falcon.TypePullRequest && known.Headers&ib.HasAtomicAckETH == 0 {
				data = []byte{0xde, 0xad, 0xbe, 0xef, 0x01}
				h.RBTH.Pad = 3
			}
		}
		tail := fmt.Sprintf(" %s QP 0x000011 SN %d", rdma.Opcodes.Name(op), h.RBTH.SN)
		if op == ib.ReadRespOnly { // refused
			h.RBTH.CE, h.RBTH.Syndrome = true, 0x62
			tail += " complete in error"
		}
		if len(data) > 0 {
			tail += " 5 bytes"
		}
		part := append(append(h.Append(nil), data...), make([]byte, h.RBTH.Pad)...)
		all = append(all, carry(kind, part, tail, rdmaFields(&h, data)))
	}
	return all
}

// carry puts an upper-layer part into a Falcon packet.
func carry(kind falcon.PacketType, part []byte, tail string, fields map[string]string) shown {
	h := header(kind)
	f := baseFields(&h)
	maps.Copy(f, fields)
	var b []byte
	switch kind {
	case falcon.TypePushData:
		f["falcon.request_length"] = num(len(part))
		b = (&falcon.PushData{Header: h, RequestLength: uint16(len(part))}).Append(nil)
	case falcon.TypePullRequest:
		f["falcon.request_length"] = "4120"
		b = (&falcon.PullRequest{Header: h, RequestLength: 4120}).Append(nil)
	default:
		b = h.Append(nil)
	}
	return clearPacket(append(b, part...), kind.String()+" CID 0x30abcd PSN 1234 RSN 1200"+tail, f)
}

// falconPackets returns the packets without an RDMA part.
func falconPackets() []shown {
	all := []shown{carry(falcon.TypePullData, nil, "", nil)}
	nvme := header(falcon.TypePushData)
	nvme.Protocol = falcon.ProtocolNVMe
	f := baseFields(&nvme)
	f["falcon.request_length"], f["falcon.payload"] = "3", "010203"
	p := falcon.PushData{Header: nvme, RequestLength: 3}
	all = append(all, clearPacket(append(p.Append(nil), 1, 2, 3), "PushData CID 0x30abcd PSN 1234 RSN 1200 NVMe", f))

	for code := falcon.ResyncCIE; code <= falcon.ResyncCID; code++ {
		original := [...]falcon.PacketType{falcon.TypePullRequest, falcon.TypePullData, falcon.TypePushData}[code%3]
		r := falcon.Resync{Header: header(falcon.TypeResync), Code: code, Original: original, Vendor: 0x01020304}
		f := baseFields(&r.Header)
		f["falcon.resync.code"], f["falcon.resync.type"], f["falcon.resync.vendor"] = num(uint8(code)), num(uint8(original)), "0x01020304"
		all = append(all, clearPacket(r.Append(nil), fmt.Sprintf("Resync CID 0x30abcd PSN 1234 RSN 1200 for %v: %v", original, code), f))
	}

	feedback := func(t falcon.PacketType) map[string]string {
		return map[string]string{
			"falcon.cid": "0x30abcd", "falcon.type": num(uint8(t)), "falcon.data_base": "4294967294", "falcon.req_base": "101",
			"falcon.t1": "16909060", "falcon.t2": "16909062", "falcon.hops": "3", "falcon.rx_occupancy": "17", "falcon.ecn": "4660",
		}
	}
	ack := falcon.Ack{
		CID: 0x30abcd, DataBase: 0xfffffffe, ReqBase: 101, T1: 0x01020304, T2: 0x01020306,
		Congestion: falcon.Congestion{Hops: 3, RxOccupancy: 17, ECN: 0x1234, RUE: 0x15555},
	}
	f = feedback(falcon.TypeBACK)
	f["falcon.ack.rue"], f["falcon.own.data"], f["falcon.own.request"] = "0x00015555", "0", "0"
	all = append(all, clearPacket(ack.Append(nil), "BACK CID 0x30abcd data base 4294967294 request base 101", f))
	ack.Extended, ack.DataOWN, ack.ReqOWN = true, true, true
	ack.DataAck, ack.DataRx, ack.Req = falcon.Bitmap128{Lo: 2}, falcon.Bitmap128{Hi: 1 << 63, Lo: 0b1110}, 1|1<<63
	f = feedback(falcon.TypeEACK)
	f["falcon.ack.rue"], f["falcon.own.data"], f["falcon.own.request"] = "0x00015555", "1", "1"
	f["falcon.data_ack"], f["falcon.data_rx"] = strings.Repeat("0", 31)+"2", "8"+strings.Repeat("0", 30)+"e"
	f["falcon.req_ack"] = "8000000000000001"
	all = append(all, clearPacket(ack.Append(nil), "EACK CID 0x30abcd data base 4294967294 request base 101 "+
		"received data (PSN 4294967295-1, 125) requests (PSN 101, 164) OWN data request", f))

	for code := falcon.NackCode(1); code <= falcon.NackCID+1; code++ {
		n := falcon.Nack{
			CID: 0x30abcd, DataBase: 0xfffffffe, ReqBase: 101, T1: 0x01020304, T2: 0x01020306,
			Congestion: ack.Congestion, PSN: 105, Code: code, RNR: 14, Request: code%2 == 0, ULPCode: 0x62,
		}
		f := feedback(falcon.TypeNACK)
		f["falcon.nack.rue"], f["falcon.nack.psn"], f["falcon.nack.code"] = "0x00015555", "105", num(uint8(code))
		f["falcon.nack.rnr"], f["falcon.nack.request"], f["falcon.nack.ulp"] = "14", flag(n.Request), "0x62"
		what := strings.Replace(code.String(), "NACK ", "", 1)
		if code == falcon.NackRNR {
			what += ", retry in " + fmt.Sprintf("%.2f ms", float64(falcon.RNRTimeout(14))/1e6)
		}
		window := map[bool]string{false: "data", true: "request"}[n.Request]
		all = append(all, clearPacket(n.Append(nil), "NACK CID 0x30abcd "+window+" PSN 105 "+what, f))
	}
	return all
}

// sealedPackets returns PSP frames, both encrypted and only authenticated ones.
func sealedPackets(t *testing.T, clear shown) []shown {
	t.Helper()
	h := psp.Header{NextHeader: psp.NextHeaderIPv4, CryptOffset: 8, HasVC: true, SPI: 0x80000001, IV: 1_000_000_000_000, VC: 100<<32 | 7}
	frame := func() []byte {
		b := append(append(h.Append(nil), clear.packet...), bytes.Repeat([]byte{0xcc}, psp.ICVLen)...)
		return build(t, eth(layers.EthernetTypeIPv4), ip4(layers.IPProtocolUDP), udp(underlay.SealedPort), gopacket.Payload(b))
	}
	fields := func() map[string]string {
		return map[string]string{
			"psp.next_header": "4", "psp.ext_len": num(h.Len()/8 - 1), "psp.crypt_offset": num(h.CryptOffset), "psp.sample": flag(h.Sample),
			"psp.drop": flag(h.Drop), "psp.version": num(h.Version), "psp.has_vc": flag(h.HasVC), "psp.spi": fmt.Sprintf("0x%08x", h.SPI),
			"psp.iv": num(h.IV), "psp.t1": num(uint32(h.IV >> 17)), "psp.icv": strings.Repeat("cc", 16), colProtocol: "PSP",
		}
	}
	f := fields()
	f["psp.tenant"], f["psp.tunnel"] = "100", "7"
	f["psp.inner.src"], f["psp.inner.dst"], f["psp.inner.protocol"] = "192.168.100.11", "192.168.100.12", "252"
	f["falcon.version"], f["falcon.cid"] = "1", clear.fields["falcon.cid"]
	rest := clear.packet[24:]
	f["psp.sealed"] = hex.EncodeToString(rest)
	f[colInfo] = fmt.Sprintf("PSP SPI 0x80000001 tenant 100 CID 0x30abcd sealed %d bytes", len(rest))
	all := []shown{{Sealed, frame(), f}}

	falconPacket := clear.packet
	clear.packet = slices.Clone(falconPacket) // plain IP, which is sealed in the same way
	clear.packet[9] = 17
	f = maps.Clone(f)
	delete(f, "falcon.version")
	delete(f, "falcon.cid")
	f["psp.inner.protocol"], f["psp.sealed"] = "17", hex.EncodeToString(clear.packet[20:])
	f[colInfo] = fmt.Sprintf("PSP SPI 0x80000001 tenant 100 sealed %d bytes", len(clear.packet)-20)
	all = append(all, shown{Sealed, frame(), f})
	clear.packet = falconPacket

	h.CryptOffset, h.HasVC, h.Sample, h.Drop = 0, false, true, true // all is sealed
	f = fields()
	f["psp.sealed"] = hex.EncodeToString(clear.packet)
	f[colInfo] = fmt.Sprintf("PSP SPI 0x80000001 sealed %d bytes", len(clear.packet))
	all = append(all, shown{Sealed, frame(), f})

	h.Version = psp.VersionGMAC128
	f = fields()
	maps.Copy(f, clear.fields)
	all = append(all, shown{Sealed, frame(), f})

	h = psp.Header{NextHeader: psp.NextHeaderFalcon, CryptOffset: 3, HasVC: true, SPI: 0x80000001, VC: 100 << 32} // transport mode
	clear.packet = clear.packet[20:]
	f = fields()
	f["psp.tenant"], f["psp.tunnel"], f["psp.next_header"] = "100", "0", "252"
	f["falcon.version"], f["falcon.cid"] = "1", clear.fields["falcon.cid"]
	f["psp.sealed"] = hex.EncodeToString(rest)
	f[colInfo] = fmt.Sprintf("PSP SPI 0x80000001 tenant 100 CID 0x30abcd sealed %d bytes", len(rest))
	all = append(all, shown{Sealed, frame(), f})

	h.NextHeader, h.CryptOffset = psp.NextHeaderIPv6, 13
	clear.packet = slices.Concat([]byte{0x60, 6: 252, 7: 64}, ip6A, ip6B, clear.packet)
	f = maps.Clone(f)
	f["psp.next_header"], f["psp.crypt_offset"] = "41", "13"
	f["psp.inner.src6"], f["psp.inner.dst6"], f["psp.inner.protocol"] = ip6A.String(), ip6B.String(), "252"
	all = append(all, shown{Sealed, frame(), f})

	clear.packet[6] = 6
	f = maps.Clone(f)
	delete(f, "falcon.version")
	delete(f, "falcon.cid")
	f["psp.inner.protocol"], f["psp.sealed"] = "6", hex.EncodeToString(clear.packet[40:])
	f[colInfo] = fmt.Sprintf("PSP SPI 0x80000001 tenant 100 sealed %d bytes", len(clear.packet)-40)
	return append(all, shown{Sealed, frame(), f})
}

func everyPacket(t *testing.T) []shown {
	all := append(falconPackets(), rdmaPackets()...)
	return append(all, sealedPackets(t, all[len(all)-1])...)
}
