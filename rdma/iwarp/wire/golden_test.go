package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// golden returns the bytes of testdata/iwarp.json by their names.
func golden(t testing.TB) map[string][]byte {
	t.Helper()
	text, err := os.ReadFile("testdata/iwarp.json")
	if err != nil {
		t.Fatal(err)
	}
	var entries []struct{ Name, Hex string }
	if err := json.Unmarshal(text, &entries); err != nil {
		t.Fatal(err)
	}
	m := make(map[string][]byte)
	for _, e := range entries {
		if m[e.Name], err = hex.DecodeString(strings.ReplaceAll(e.Hex, " ", "")); err != nil {
			t.Fatalf("%s: %v", e.Name, err)
		}
	}
	return m
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// frames are the Request and Reply Frames of the golden bytes.
var frames = map[string]Frame{
	"request, revision 1, M and C":         {Revision: 1, Markers: true, CRC: true, Private: []byte{0xde, 0xad, 0xbe, 0xef}},
	"request, revision 2, IRD 1 and ORD 1": {Revision: 2, HasEnhanced: true, Enhanced: Enhanced{IRD: 1, ORD: 1}, Private: []byte{}},
	"request, revision 2, peer to peer, SEND, WRITE or READ": {
		Revision: 2, CRC: true, HasEnhanced: true, Private: []byte{0xca, 0xfe},
		Enhanced: Enhanced{PeerToPeer: true, RTR: RTRSend | RTRWrite | RTRRead, IRD: 16, ORD: AnyDepth},
	},
	"reply, revision 2, peer to peer, READ": {
		Reply: true, Revision: 2, CRC: true, HasEnhanced: true, Private: []byte{0xca, 0xfe},
		Enhanced: Enhanced{PeerToPeer: true, RTR: RTRRead, IRD: 16, ORD: 32},
	},
	"reply, rejected": {Reply: true, Revision: 1, Reject: true, Private: []byte{}},
}

// segment is a ULPDU: a header, and its message or data.
type segment struct {
	header  Header
	message any // ReadRequest, AtomicRequest, AtomicResponse, Terminate, or data
}

var readRequest = ReadRequest{SinkSTag: 0xa1a2a3a4, SinkTO: 0xb1b2b3b4b5b6b7b8, Size: 1 << 20, SourceSTag: 0xc1c2c3c4, SourceTO: 0xd1d2d3d4d5d6d7d8}

// segments are the ULPDUs of the golden bytes.
func segments(t testing.TB) map[string]segment {
	imm := []byte{1, 2, 3, 4, 5, 6, 7, 8}
	fetchAdd := AtomicRequest{ID: 0x11121314, STag: 0x21222324, TO: 0x3132333435363738, AddSwap: 0x4142434445464748, AddSwapMask: 0x5152535455565758}
	cmpSwap := fetchAdd
	cmpSwap.Opcode, cmpSwap.Compare, cmpSwap.CompareMask = CmpSwap, 0x6162636465666768, 0x7172737475767778
	write := Header{Opcode: OpWrite, Last: true, STag: 0x11223344, TO: 0x5566778899aabbcc}
	more := write
	more.Last = false
	read := golden(t)["READ Request"]
	return map[string]segment{
		"WRITE":                       {write, []byte{1, 2, 3, 4}},
		"WRITE, not the last segment": {more, []byte{1, 2, 3, 4}},
		"READ Request":                {Header{Opcode: OpReadRequest, Last: true, MSN: 7}, readRequest},
		"READ Response":               {Header{Opcode: OpReadResponse, Last: true, STag: 0xa1a2a3a4, TO: 0xb1b2b3b4b5b6b7b8}, []byte{1, 2, 3, 4, 5}},
		"SEND":                        {Header{Opcode: OpSend, Last: true, MSN: 1}, []byte{1, 2, 3}},
		"SEND, second segment":        {Header{Opcode: OpSend, Last: true, MSN: 1, MO: 0x400}, []byte{10, 11, 12, 13}},
		"SEND, first segment":         {Header{Opcode: OpSend, MSN: 1}, []byte{1}},
		"SEND with Invalidate":        {Header{Opcode: OpSendInv, Last: true, MSN: 2, Invalidate: 0xe1e2e3e4}, []byte{1}},
		"SEND with SE":                {Header{Opcode: OpSendSE, Last: true, MSN: 3}, []byte{}},
		"SEND with SE and Invalidate": {Header{Opcode: OpSendSEInv, Last: true, MSN: 4, Invalidate: 0xe1e2e3e4}, []byte{1, 2}},
		"Terminate, CRC":              {Header{Opcode: OpTerminate, Last: true, MSN: 1}, Terminate{Cause: CRCMismatch}},
		"Terminate, tagged": {
			Header{Opcode: OpTerminate, Last: true, MSN: 1},
			Terminate{Cause: TaggedOutOfBounds, DDP: write.Append(nil), LengthValid: true, Length: 18},
		},
		"Terminate, READ Request": {
			Header{Opcode: OpTerminate, Last: true, MSN: 1},
			Terminate{Cause: OutOfBounds, DDP: read[:UntaggedLen], LengthValid: true, Length: 46, ReadRequest: read[UntaggedLen:]},
		},
		"Immediate Data":           {Header{Opcode: OpImmediate, Last: true, MSN: 5}, imm},
		"Immediate Data with SE":   {Header{Opcode: OpImmediateSE, Last: true, MSN: 6}, imm},
		"Atomic Request, FetchAdd": {Header{Opcode: OpAtomicRequest, Last: true, MSN: 8}, fetchAdd},
		"Atomic Request, CmpSwap":  {Header{Opcode: OpAtomicRequest, Last: true, MSN: 9}, cmpSwap},
		"Atomic Response":          {Header{Opcode: OpAtomicResponse, Last: true, MSN: 1}, AtomicResponse{ID: 0x11121314, Original: 0x8182838485868788}},
	}
}

func (s segment) append(b []byte) []byte {
	b = s.header.Append(b)
	switch m := s.message.(type) {
	case ReadRequest:
		return m.Append(b)
	case AtomicRequest:
		return m.Append(b)
	case AtomicResponse:
		return m.Append(b)
	case Terminate:
		return m.Append(b)
	case []byte:
		return append(b, m...)
	}
	panic("no such message")
}

// parseSegment decodes a ULPDU as far as this package knows it.
func parseSegment(ulpdu []byte) (s segment, err error) {
	h, n, err := ParseHeader(ulpdu)
	if err != nil {
		return segment{}, err
	}
	s.header = h
	switch rest := ulpdu[n:]; h.Opcode {
	case OpReadRequest:
		s.message, err = ParseReadRequest(rest)
	case OpAtomicRequest:
		s.message, err = ParseAtomicRequest(rest)
	case OpAtomicResponse:
		s.message, err = ParseAtomicResponse(rest)
	case OpTerminate:
		s.message, err = ParseTerminate(rest)
	case OpImmediate, OpImmediateSE:
		var data [ImmediateLen]byte
		data, err = ParseImmediate(rest)
		s.message = data[:]
	default:
		s.message = rest
	}
	return s, err
}

// diff returns how two values differ. Most do not, which DeepEqual sees a hundred times as fast: fuzzing compares often.
func diff(a, b any) string {
	if reflect.DeepEqual(a, b) {
		return ""
	}
	return cmp.Diff(a, b, cmp.AllowUnexported(segment{}))
}

func TestFramesAreThoseOfTheSpecification(t *testing.T) {
	bytesOf := golden(t)
	for name, f := range frames {
		if got := f.Append(nil); !bytes.Equal(got, bytesOf[name]) {
			t.Errorf("%s: encoded %x, want %x", name, got, bytesOf[name])
		}
		got, n, err := ParseFrame(append(bytes.Clone(bytesOf[name]), 0, 1, 2), f.Reply)
		if d := diff(f, got); err != nil || n != len(bytesOf[name]) || d != "" {
			t.Errorf("%s: %d bytes, %v (-want +got):\n%s", name, n, err, d)
		}
	}
}

func TestSegmentsAreThoseOfTheSpecification(t *testing.T) {
	bytesOf := golden(t)
	for name, s := range segments(t) {
		if got := s.append(nil); !bytes.Equal(got, bytesOf[name]) {
			t.Errorf("%s: encoded %x, want %x", name, got, bytesOf[name])
		}
		got, err := parseSegment(bytesOf[name])
		if d := diff(s, got); err != nil || d != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, d)
		}
	}
}

func TestGoldenFPDUs(t *testing.T) {
	bytesOf := golden(t)
	for name, c := range map[string]struct {
		ulpdu string
		crc   bool
	}{"FPDU of WRITE": {"WRITE", true}, "FPDU of SEND": {"SEND", true}, "FPDU of SEND without CRC": {"SEND", false}} {
		want, ulpdu := bytesOf[name], bytesOf[c.ulpdu]
		if got := fpdu(ulpdu, c.crc); !bytes.Equal(got, want) {
			t.Errorf("%s: made %x, want %x", name, got, want)
		}
		got, n, err := ParseFPDU(append(bytes.Clone(want), 0xff), c.crc)
		if err != nil || n != len(want) || !bytes.Equal(got, ulpdu) {
			t.Errorf("%s: %x, %d bytes, %v", name, got, n, err)
		}
	}
	for name, pos := range map[string]uint64{
		"FPDU of SEND behind the first marker":           0,
		"FPDU of SEND with a marker at byte 20":          3*MarkerInterval - 20,
		"FPDU of SEND with a marker in front of its CRC": MarkerInterval - 24,
		"FPDU of SEND": MarkerInterval - 28, // the next marker is the next FPDU's
	} {
		want, ulpdu := bytesOf[name], bytesOf["SEND"]
		if got := AppendMarkedFPDU(nil, ulpdu, pos, true); !bytes.Equal(got, want) {
			t.Errorf("%s: made %x, want %x", name, got, want)
		}
	}
}

// fpdu makes the FPDU of a ULPDU.
func fpdu(ulpdu []byte, crc bool) []byte {
	b := bytes.Repeat([]byte{0xee}, FPDULen(len(ulpdu)))
	copy(b[FPDUHeaderLen:], ulpdu)
	PutFPDU(b, len(ulpdu), crc)
	return b
}
