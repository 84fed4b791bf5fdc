package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/falcon-vnic/vnic/rdma/ib"
)

// frames returns the IP packets of a capture with little-endian blocks and Ethernet frames.
func frames(t testing.TB, file string) (packets [][]byte) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for len(b) >= 12 {
		typ, n := binary.LittleEndian.Uint32(b), int(binary.LittleEndian.Uint32(b[4:]))
		if typ == 6 { // enhanced packet block
			frame := b[28 : 28+binary.LittleEndian.Uint32(b[20:])]
			packets = append(packets, ipOf(frame))
		}
		b = b[n:]
	}
	return packets
}

// ipOf cuts the IP packet out of an Ethernet frame, which may be padded.
func ipOf(frame []byte) []byte {
	p := frame[14:]
	if p[0]>>4 == 4 {
		return bytes.Clone(p[:binary.BigEndian.Uint16(p[2:])])
	}
	return bytes.Clone(p[:40+int(binary.BigEndian.Uint16(p[4:]))])
}

// named returns the packets of testdata/frames.json by name.
func named(t testing.TB) map[string][]byte {
	t.Helper()
	b, err := os.ReadFile("testdata/frames.json")
	if err != nil {
		t.Fatal(err)
	}
	var list []struct{ Name, Hex string }
	if err := json.Unmarshal(b, &list); err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for _, f := range list {
		if all[f.Name], err = hex.DecodeString(f.Hex); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// TestFramesOfLinuxAreEncodedTheSame takes what Linux sent apart and puts it together again: each byte is the same.
func TestFramesOfLinuxAreEncodedTheSame(t *testing.T) {
	packets := frames(t, "testdata/rxe.pcapng")
	seen := map[ib.Opcode]int{}
	for i, p := range packets {
		before := bytes.Clone(p)
		w, transport, err := Parse(p)
		if err != nil {
			t.Fatalf("packet %d: %v", i, err)
		}
		if !bytes.Equal(p, before) {
			t.Fatalf("packet %d: Parse changed it", i)
		}
		var h Headers
		n, err := h.Parse(transport)
		if err != nil {
			t.Fatalf("packet %d: %v", i, err)
		}
		data, ok := h.BTH.Data(transport, n)
		if !ok {
			t.Fatalf("packet %d: %s of %d bytes", i, Opcodes.Name(h.BTH.Opcode), len(transport))
		}
		seen[h.BTH.Opcode]++
		again := append(make([]byte, w.HeaderLen()), h.Append(nil)...)
		again = append(append(again, data...), make([]byte, int(h.BTH.Pad)+ICRCLen)...)
		w.Put(again)
		if p[0]>>4 == 4 { // Linux numbers its packets, which RFC 6864 leaves to it
			copy(again[4:6], p[4:6])
			copy(again[10:12], p[10:12])
			variant := mask(again, ipv4Len)
			binary.LittleEndian.PutUint32(again[len(again)-4:], crc(again[:len(again)-4]))
			variant.restore(again, ipv4Len)
		}
		if !bytes.Equal(again, p) {
			t.Errorf("packet %d, %s:\n got %x\nwant %x", i, Opcodes.Name(h.BTH.Opcode), again, p)
		}
	}
	for _, op := range []ib.Opcode{ib.SendFirst, ib.WriteOnly, ib.ReadRequest, ib.ReadRespMiddle, ib.Acknowledge, ib.AtomicResponse, ib.FetchAdd, ib.UC | ib.SendMiddle, ib.UD | ib.SendOnly} {
		if seen[op] == 0 {
			t.Errorf("no %s among %d packets: %v", Opcodes.Name(op), len(packets), seen)
		}
	}
}

// TestFramesOfHardwareAreParsed takes what hardware and simulators sent.
func TestFramesOfHardwareAreParsed(t *testing.T) {
	all := named(t)
	w, transport, err := Parse(all["UC SEND_ONLY IPv4 (IP packet incl ICRC)"])
	var h Headers
	if err == nil {
		_, err = h.Parse(transport)
	}
	if err != nil || h.BTH.Opcode != ib.UC|ib.SendOnly || w.SrcPort != 0xc000 || h.BTH.PKey != 0x2460 && h.BTH.PKey != DefaultPKey {
		t.Errorf("UC SEND: %+v, %+v, %v", w, h.BTH, err)
	}
	cnp := ipOf(all["CNP ConnectX-4 Lx (Ethernet frame)"])
	n, err := h.Parse(cnp[ipv4Len+udpLen:])
	if err != nil || h.BTH.Opcode != CNP || n+CNPReserved+ICRCLen != len(cnp)-ipv4Len-udpLen || !h.BTH.BECN || h.BTH.DestQP != 0x118 {
		t.Errorf("CNP: %+v, %v", h.BTH, err)
	}
	if _, _, err := Parse(all["RoCEv1 RC ACK (frame)"][14:]); !errors.Is(err, ErrIP) {
		t.Errorf("RoCE v1: %v, want ErrIP", err)
	}
}
