package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

// TestSyndromes: what an acknowledgement says, by its five bits of kind and value.
func TestSyndromes(t *testing.T) {
	for s := range 256 {
		timer, notReady := Syndrome(s).NotReady()
		kind := s >> 5 & 3
		if notReady != (kind == 1) || timer != uint8(s%32) || Syndrome(s).Acks() != (kind == 0) {
			t.Errorf("%#x: acknowledges %t, not ready %t for %d", s, Syndrome(s).Acks(), notReady, timer)
		}
	}
}

// TestCreditsRoundDown: an acknowledgement gives as many credits as can be said (IBA table 46),
// never more than there are.
func TestCreditsRoundDown(t *testing.T) {
	for code, want := range map[Syndrome]int{0: 0, 1: 1, 4: 4, 5: 6, 6: 8, 7: 12, 8: 16, 15: 192, 20: 1024, 29: 24576, 30: 32768} {
		if n, counted := code.Credits(); n != want || !counted {
			t.Errorf("code %d: %d credits, %t", code, n, counted)
		}
	}
	if _, counted := SynAck.Credits(); counted {
		t.Error("code 31 counts")
	}
	for n := range 40_000 {
		s := SynCredits(n)
		said, counted := s.Credits()
		if !s.Acks() || !counted || said > n || n < 32768 && 3*said < 2*n-2 {
			t.Fatalf("%d receives: %#x gives %d", n, s, said)
		}
	}
}

// TestFieldsChecked: a packet whose ICRC is right is refused for each field that RoCEv2 fixes.
func TestFieldsChecked(t *testing.T) {
	for _, w := range ways {
		ip := w.HeaderLen() - udpLen
		v6 := ip == ipv6Len
		set16 := func(at int, v uint16) func([]byte) []byte {
			return func(b []byte) []byte { binary.BigEndian.PutUint16(b[at:], v); return b }
		}
		set := func(at int, v byte) func([]byte) []byte {
			return func(b []byte) []byte { b[at] = v; return b }
		}
		longer := func(n int) func([]byte) []byte {
			return func(b []byte) []byte {
				b = append(b, make([]byte, n)...)
				if v6 {
					binary.BigEndian.PutUint16(b[4:], uint16(len(b)-ipv6Len))
				} else {
					binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
				}
				binary.BigEndian.PutUint16(b[ip+4:], uint16(len(b)-ip))
				return b
			}
		}
		all := len(packet(&w, 8))
		for name, c := range map[string]struct {
			v4, v6 bool
			change func([]byte) []byte
			want   error
		}{
			"nothing":                    {true, true, func(b []byte) []byte { return b }, nil},
			"version 5":                  {true, true, set(0, 0x55), ErrIP},
			"options":                    {true, false, set(0, 0x46), ErrIP},
			"IPv4 too long":              {true, false, set16(2, uint16(all+1)), ErrIP},
			"IPv4 too short":             {true, false, set16(2, uint16(all-1)), ErrIP},
			"may be cut (CA17-7)":        {true, false, set16(6, 0), ErrIP},
			"reserved flag":              {true, false, set16(6, 0xc000), ErrIP},
			"more fragments":             {true, false, set16(6, 0x2000), ErrIP},
			"a later fragment":           {true, false, set16(6, 0x4001), ErrIP},
			"TCP over IPv4":              {true, false, set(9, 6), ErrIP},
			"IPv6 too long":              {false, true, set16(4, uint16(all-ipv6Len+1)), ErrIP},
			"IPv6 too short":             {false, true, set16(4, uint16(all-ipv6Len-1)), ErrIP},
			"TCP over IPv6":              {false, true, set(6, 6), ErrIP},
			"another port":               {true, true, set16(ip+2, 4790), ErrUDP},
			"UDP too long":               {true, true, set16(ip+4, uint16(all-ip+1)), ErrUDP},
			"UDP too short":              {true, true, set16(ip+4, uint16(all-ip-1)), ErrUDP},
			"no multiple of four":        {true, true, longer(2), ErrUDP},
			"longer by a multiple of it": {true, true, longer(4), nil},
			"a UDP checksum":             {true, true, checksum(ip, 0), nil},
			"a wrong UDP checksum":       {true, true, checksum(ip, 1), ErrUDP},
			"another wrong one":          {true, true, checksum(ip, 0x8000), ErrUDP},
		} {
			if v6 && !c.v6 || !v6 && !c.v4 {
				continue
			}
			b := c.change(packet(&w, 8))
			sign(b)
			if _, _, err := Parse(b); !errors.Is(err, c.want) {
				t.Errorf("IPv6 %t, %s: %v, want %v", v6, name, err, c.want)
			}
		}
	}
}

// checksum makes a packet's UDP checksum (RFC 768, RFC 8200 §8.1), wrong by some bits.
func checksum(ip int, wrong uint16) func([]byte) []byte {
	return func(b []byte) []byte {
		pseudo := append([]byte{}, b[8:ipv6Len]...)
		if ip == ipv4Len {
			pseudo = append([]byte{}, b[12:ipv4Len]...)
		}
		pseudo = append(binary.BigEndian.AppendUint32(pseudo, uint32(len(b)-ip)), 0, 0, 0, protoUDP)
		sign(b) // the checksum covers the ICRC, which takes it for ones
		pseudo = append(pseudo, b[ip:]...)
		total := 0
		for i := 0; i < len(pseudo); i += 2 {
			if total += int(binary.BigEndian.Uint16(pseudo[i:])); total > 0xffff {
				total -= 0xffff
			}
		}
		binary.BigEndian.PutUint16(b[ip+6:], ^uint16(total)^wrong)
		return b
	}
}

// TestShortest: a packet has a base header and an ICRC at least; what is shorter is short, not
// wrong in another way.
func TestShortest(t *testing.T) {
	for _, w := range ways {
		n := w.HeaderLen()
		b := append((&BTH{Opcode: SendOnly}).Append(make([]byte, n)), make([]byte, ICRCLen)...)
		w.Put(b)
		if _, transport, err := Parse(b); err != nil || len(transport) != BTHLen {
			t.Errorf("%d bytes behind UDP, %v", len(transport), err)
		}
		short := bytes.Clone(b[:n+BTHLen])
		w.Put(short)
		if _, _, err := Parse(short); !errors.Is(err, ErrShort) {
			t.Errorf("without room for the ICRC: %v", err)
		}
	}
	v4, v6 := make([]byte, ipv4Len), make([]byte, ipv6Len)
	v4[0], v6[0] = 0x45, 0x60
	for _, c := range []struct {
		b    []byte
		want error
	}{{nil, ErrShort}, {v4[:19], ErrShort}, {v4, ErrIP}, {v6[:19], ErrShort}, {v6[:39], ErrShort}, {v6, ErrIP}} {
		if _, _, err := Parse(c.b); !errors.Is(err, c.want) {
			t.Errorf("%x: %v, want %v", c.b, err, c.want)
		}
	}
}

// TestDataEnds: the data ends in front of the pad, which the packet has room for.
func TestDataEnds(t *testing.T) {
	for _, c := range []struct {
		packet, headers int
		pad             uint8
		want            int // -1: no packet
	}{
		{12, 12, 0, 0}, {16, 12, 0, 4}, {16, 12, 3, 1}, {16, 16, 0, 0}, {16, 16, 1, -1}, {12, 16, 0, -1}, {17, 12, 0, -1}, {18, 12, 0, -1}, {20, 12, 3, 5},
	} {
		h := BTH{Pad: c.pad}
		data, ok := h.Data(make([]byte, c.packet), c.headers)
		if ok != (c.want >= 0) || ok && len(data) != c.want {
			t.Errorf("%+v: %d bytes, %t", c, len(data), ok)
		}
	}
}

// TestHeadersExactlyLong: each header is parsed from as many bytes as it has, and no fewer.
func TestHeadersExactlyLong(t *testing.T) {
	for name, c := range map[string]struct {
		n     int
		parse func([]byte) error
	}{
		"BTH":    {BTHLen, func(b []byte) error { _, err := ParseBTH(b); return err }},
		"XRCETH": {XRCETHLen, func(b []byte) error { _, err := ParseXRCETH(b); return err }},
		"DETH":   {DETHLen, func(b []byte) error { _, err := ParseDETH(b); return err }},
		"AETH":   {AETHLen, func(b []byte) error { _, err := ParseAETH(b); return err }},
	} {
		if err := c.parse(make([]byte, c.n)); err != nil {
			t.Errorf("%s of %d bytes: %v", name, c.n, err)
		}
		if err := c.parse(make([]byte, c.n-1)); !errors.Is(err, ErrShort) {
			t.Errorf("%s of %d bytes: %v", name, c.n-1, err)
		}
	}
}

// TestNumbersCut: numbers that are longer than their fields are cut to them, and touch no other.
func TestNumbersCut(t *testing.T) {
	b := (&BTH{Pad: 7, DestQP: 0xff123456, PSN: 0xff654321}).Append(nil)
	if h, err := ParseBTH(b); err != nil || h != (BTH{Pad: 3, DestQP: 0x123456, PSN: 0x654321}) {
		t.Errorf("%+v, %v", h, err)
	}
	if x, _ := ParseXRCETH((&XRCETH{SRQ: 0xff123456}).Append(nil)); x.SRQ != 0x123456 {
		t.Errorf("%+v", x)
	}
	if raw := (&XRCETH{SRQ: 0xff123456}).Append(nil); raw[0] != 0 {
		t.Errorf("XRCETH %x", raw)
	}
	if raw := (&DETH{SourceQP: 0xff123456}).Append(nil); raw[4] != 0 {
		t.Errorf("DETH %x", raw)
	}
	if raw := (&AETH{Syndrome: 0x20, MSN: 0xff123456}).Append(nil); raw[0] != 0x20 || raw[1] != 0x12 {
		t.Errorf("AETH %x", raw)
	}
}
