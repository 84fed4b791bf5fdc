package wire

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/falcon-vnic/vnic/rdma/iwarp/wiretest"
)

// bit is how tshark prints a flag.
func bit(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

func frameFields(f *Frame) map[string]string {
	private := f.Append(nil)[FrameHeaderLen:]
	m := map[string]string{
		"iwarp_mpa.marker_flag": bit(f.Markers),
		"iwarp_mpa.crc_flag":    bit(f.CRC),
		"iwarp_mpa.rej_flag":    bit(f.Reject),
		"iwarp_mpa.rev":         fmt.Sprint(f.Revision),
		"iwarp_mpa.pdlength":    fmt.Sprint(len(private)),
	}
	if len(private) != 0 {
		m["iwarp_mpa.privatedata"] = hex.EncodeToString(private)
	}
	return m
}

// segmentFields are what Wireshark shows of a segment in an FPDU. It does not know Immediate Data.
func segmentFields(s segment) map[string]string {
	h, info := &s.header, s.header.Opcode.Info()
	m := map[string]string{
		"iwarp_mpa.ulpdulength": fmt.Sprint(len(s.append(nil))),
		"iwarp_ddp.tagged_flag": bit(info.Tagged),
		"iwarp_ddp.last_flag":   bit(h.Last),
		"iwarp_ddp.dv":          "1",
		"iwarp_rdma.version":    "1",
		"iwarp_rdma.opcode":     fmt.Sprint(uint8(h.Opcode)),
	}
	if info.Tagged {
		m["iwarp_ddp.stag"], m["iwarp_ddp.tagged_offset"] = fmt.Sprint(h.STag), fmt.Sprint(h.TO)
	} else {
		m["iwarp_ddp.qn"], m["iwarp_ddp.msn"], m["iwarp_ddp.mo"] = fmt.Sprint(info.Queue), fmt.Sprint(h.MSN), fmt.Sprint(h.MO)
	}
	if info.Invalidate {
		m["iwarp_rdma.inval_stag"] = fmt.Sprint(h.Invalidate)
	}
	switch v := s.message.(type) {
	case ReadRequest:
		m["iwarp_rdma.sinkstag"], m["iwarp_rdma.sinkto"] = fmt.Sprint(v.SinkSTag), fmt.Sprint(v.SinkTO)
		m["iwarp_rdma.srcstag"], m["iwarp_rdma.srcto"] = fmt.Sprint(v.SourceSTag), fmt.Sprint(v.SourceTO)
		m["iwarp_rdma.rdmardsz"] = fmt.Sprint(v.Size)
	case AtomicRequest:
		const p = "iwarp_rdma.atomic."
		m[p+"opcode"], m[p+"request_identifier"] = fmt.Sprint(v.Opcode), fmt.Sprint(v.ID)
		m[p+"remote_stag"], m[p+"remote_tagged_offset"] = fmt.Sprint(v.STag), fmt.Sprint(v.TO)
		if v.Opcode == CmpSwap {
			m[p+"swap_data"], m[p+"swap_mask"] = fmt.Sprint(v.AddSwap), fmt.Sprint(v.AddSwapMask)
			m[p+"compare_data"], m[p+"compare_mask"] = fmt.Sprint(v.Compare), fmt.Sprint(v.CompareMask)
		} else {
			m[p+"add_data"], m[p+"add_mask"] = fmt.Sprint(v.AddSwap), fmt.Sprint(v.AddSwapMask)
			m[p+"compare_data"], m[p+"compare_mask"] = "0", fmt.Sprint(^uint64(0))
		}
	case AtomicResponse:
		m["iwarp_rdma.atomic.original_request_identifier"] = fmt.Sprint(v.ID)
		m["iwarp_rdma.atomic.original_remote_data_value"] = fmt.Sprint(v.Original)
	case Terminate:
		m["iwarp_rdma.term_layer"] = fmt.Sprint(v.Cause.Layer())
		etype, code := fmt.Sprint(uint16(v.Cause>>8&0xf)), fmt.Sprint(uint8(v.Cause))
		switch v.Cause.Layer() {
		case LayerRDMAP:
			m["iwarp_rdma.term_etype_rdma"], m["iwarp_rdma.term_errcode_rdma"] = etype, code
		case LayerDDP:
			m["iwarp_rdma.term_etype_ddp"], m["iwarp_rdma.term_errcode_ddp_tagged"] = etype, code
		case LayerMPA:
			m["iwarp_rdma.term_etype_llp"], m["iwarp_rdma.term_errcode_llp"] = etype, code
		}
		m["iwarp_rdma.term_hdrct_m"] = bit(v.LengthValid)
		m["iwarp_rdma.hdrct_d"], m["iwarp_rdma.hdrct_r"] = bit(v.DDP != nil), bit(v.ReadRequest != nil)
		if v.DDP != nil {
			m["iwarp_rdma.term_ddp_seg_len"] = fmt.Sprintf("%04x", v.Length)
			m["iwarp_rdma.term_ddp_h"] = hex.EncodeToString(v.DDP)
		}
		if v.ReadRequest != nil {
			// It takes each header for a tagged one if the error is of type 1, also RDMAP's.
			all := append(bytes.Clone(v.DDP), v.ReadRequest...)
			m["iwarp_rdma.term_ddp_h"] = hex.EncodeToString(all[:TaggedLen])
			m["iwarp_rdma.term_rdma_h"] = hex.EncodeToString(all[TaggedLen:][:ReadRequestLen])
		}
	}
	return m
}

// TestWiresharkReadsTheFieldsThatWereEncoded: tshark shows a connection with every kind of message, without and with
// markers, with exactly the fields that the encoders were given, and finds every CRC right.
func TestWiresharkReadsTheFieldsThatWereEncoded(t *testing.T) {
	all := segments(t)
	for _, markers := range []bool{false, true} {
		request := Frame{Revision: 1, CRC: true, Markers: markers, Private: []byte{1, 2, 3}}
		reply := Frame{Reply: true, Revision: 1, CRC: true, Markers: markers}
		if !markers {
			request = frames["request, revision 2, peer to peer, SEND, WRITE or READ"]
			reply = frames["reply, revision 2, peer to peer, READ"]
		}
		stream := []wiretest.Segment{{Payload: request.Append(nil)}, {Reply: true, Payload: reply.Append(nil)}}
		want := []map[string]string{frameFields(&request), frameFields(&reply)}
		pos, fpdus, withMarker := uint64(0), 0, 0
		for range 4 { // enough for markers at several places of FPDUs
			for _, name := range slices.Sorted(maps.Keys(all)) {
				s := all[name]
				fields, payload := segmentFields(s), fpdu(s.append(nil), true)
				if markers {
					payload = AppendMarkedFPDU(nil, s.append(nil), pos, true)
					if at := toMarker(pos); at < len(payload) {
						withMarker++
						fields["iwarp_mpa.marker_res"] = "0"
						fields["iwarp_mpa.marker_fpduptr"] = fmt.Sprint(at)
					}
				}
				fpdus++
				stream, want = append(stream, wiretest.Segment{Payload: payload}), append(want, fields)
				pos += uint64(len(payload))
			}
		}
		if markers && withMarker < 5 {
			t.Fatalf("only %d FPDUs have a marker", withMarker)
		}
		names := map[string]bool{wiretest.Malformed: true, wiretest.BadLength: true}
		for _, fields := range want {
			for f := range fields {
				names[f] = true
			}
		}
		segments, good := wiretest.Tshark(t, stream, slices.Sorted(maps.Keys(names)))
		if good != fpdus {
			t.Errorf("markers %t: %d CRCs of %d are right", markers, good, fpdus)
		}
		for i, got := range segments {
			if diff := cmp.Diff(want[i], got); diff != "" {
				t.Errorf("markers %t, segment %d (-want +got):\n%s", markers, i, diff)
			}
		}
	}
}
