package ib

import (
	"bytes"
	"testing"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// TestOperationsOfRequests: a request of several packets has First, Middle and Last ones, one of a
// single packet an Only one. The last one says what else the message is.
func TestOperationsOfRequests(t *testing.T) {
	for verb, want := range map[abi.Opcode][4]Opcode{
		abi.OpSend:           {SendOnly, SendFirst, SendMiddle, SendLast},
		abi.OpSendImm:        {SendOnlyImm, SendFirst, SendMiddle, SendLastImm},
		abi.OpSendInv:        {SendOnlyInv, SendFirst, SendMiddle, SendLastInv},
		abi.OpWrite:          {WriteOnly, WriteFirst, WriteMiddle, WriteLast},
		abi.OpWriteImm:       {WriteOnlyImm, WriteFirst, WriteMiddle, WriteLastImm},
		abi.OpAtomicWrite:    {WriteOnly},
		abi.OpRead:           {ReadRequest, ReadRequest, ReadRequest, ReadRequest},
		abi.OpReadInv:        {ReadRequest, ReadRequest, ReadRequest, ReadRequest},
		abi.OpCmpSwap:        {CmpSwap},
		abi.OpFetchAdd:       {FetchAdd},
		abi.OpMaskedCmpSwap:  {MaskedCmpSwap},
		abi.OpMaskedFetchAdd: {MaskedFetchAdd},
	} {
		for i, place := range [][2]bool{{true, true}, {true, false}, {false, false}, {false, true}} {
			if i > 0 && want[1] == 0 && verb != abi.OpSend && verb != abi.OpSendImm && verb != abi.OpSendInv {
				break // always one packet
			}
			op := Operation(verb, place[0], place[1])
			if op != want[i] {
				t.Errorf("%v, first %t, last %t: %s, want %s", verb, place[0], place[1], op.Info().Name, want[i].Info().Name)
			}
			info := op.Info()
			if info.Kind == KindData && (info.First != place[0] || info.Last != place[1]) {
				t.Errorf("%s is called first %t, last %t", info.Name, info.First, info.Last)
			}
			if atomic := verb == abi.OpCmpSwap || verb == abi.OpFetchAdd || verb >= abi.OpMaskedCmpSwap; op.Atomic() != atomic {
				t.Errorf("%s is an atomic: %t", info.Name, op.Atomic())
			}
		}
	}
}

// TestNumbersAreCut: a number that is longer than its 24 bits is cut to them, and touches no other
// field; the format says where they are in their word.
func TestNumbersAreCut(t *testing.T) {
	x := Extended{XRC: XRCETH{SRQ: 0xff0a0b0c}, Datagram: DETH{SourceQP: 0xff0a0b0c}, AETH: AETH{Syndrome: 0x20, MSN: 0xff123456}}
	for shift, want := range map[uint][]byte{0: {0, 0x0a, 0x0b, 0x0c}, 8: {0x0a, 0x0b, 0x0c, 0}} {
		b := x.Append(nil, HasXRCETH|HasDETH|HasAETH, shift)
		if !bytes.Equal(b[:4], want) || !bytes.Equal(b[8:12], want) || !bytes.Equal(b[12:], []byte{0x20, 0x12, 0x34, 0x56}) {
			t.Errorf("shift %d: % x", shift, b)
		}
	}
}

// TestASyndromeTellsAcknowledgedFromNotReady: what an acknowledgement says, by its five bits of kind and value.
func TestASyndromeTellsAcknowledgedFromNotReady(t *testing.T) {
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

// TestDataEndsBeforeItsPad: the data ends in front of the pad, which the packet has room for.
func TestDataEndsBeforeItsPad(t *testing.T) {
	for _, c := range []struct {
		packet, headers int
		pad             uint8
		want            int // -1: no packet
	}{
		{12, 12, 0, 0}, {16, 12, 0, 4}, {16, 12, 3, 1}, {16, 16, 0, 0}, {16, 16, 1, -1}, {12, 16, 0, -1}, {17, 12, 0, -1}, {18, 12, 0, -1}, {20, 12, 3, 5},
	} {
		data, ok := CutData(make([]byte, c.packet), c.headers, c.pad)
		if ok != (c.want >= 0) || ok && len(data) != c.want {
			t.Errorf("%+v: %d bytes, %t", c, len(data), ok)
		}
	}
}
