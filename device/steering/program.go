package steering

import (
	"fmt"

	"golang.org/x/net/bpf"

	"github.com/falcon-vnic/vnic/device/security"
	"github.com/falcon-vnic/vnic/device/underlay"
)

// Offsets in a frame: Ethernet, then IP without options or extension headers, then UDP.
const (
	etherType  = 12
	ip         = 14
	ipProtocol = ip + 9
	ip4Len     = 20
	ip6Next    = ip + 6
	ip6Len     = 40
	udpPort    = 2 // destination port, from UDP on
	udpLen     = 8

	typeIPv4 = 0x0800
	typeIPv6 = 0x86DD
	plainIP4 = 0x45
	udp      = 17
)

// Operations of eBPF (RFC 9669) and their parts.
const (
	loadByte     = 0x30 // LD | ABS | B
	loadHalf     = 0x28
	loadByteAt   = 0x50 // LD | IND | B: from a register on
	loadWordAt   = 0x40
	moveNumber   = 0xb7 // ALU64 | MOV | K
	moveRegister = 0xbf
	andNumber    = 0x57
	shiftRight   = 0x77
	modNumber    = 0x97
	jump         = 0x05 // JMP | JA
	jumpIfEqual  = 0x15 // JMP | JEQ | K
	jumpUnless   = 0x55 // JMP | JNE | K
	exit         = 0x95
)

// Registers: the result of a load and of the program, the frame as loads need it, the offset of
// PSP, and the next header.
const (
	result = 0
	frame  = 6
	begin  = 7
	next   = 8
)

// Bits of a CID: the shard is in the top bits (device/conn).
const (
	shardShift = 20
	shardMask  = 0xf
)

// Program returns the program for a NIC with this number of shards, one instruction in each number
// as the kernel lays them out on a little-endian machine. A load beyond the frame ends the program
// with queue 0.
func Program(transport bool, shards int) []uint64 {
	c := security.ClearOf(transport)
	var a assembler
	a.op(moveRegister, frame, 1, 0)
	a.op(loadHalf, 0, 0, etherType)
	a.branch(jumpIfEqual, typeIPv6, "v6")
	a.branch(jumpUnless, typeIPv4, "other")
	a.op(loadByte, 0, 0, ip)
	a.branch(jumpUnless, plainIP4, "other")
	a.op(loadByte, 0, 0, ipProtocol)
	a.branch(jumpUnless, udp, "other")
	a.op(loadHalf, 0, 0, ip+ip4Len+udpPort)
	a.branch(jumpUnless, underlay.SealedPort, "other")
	a.op(moveNumber, begin, 0, ip+ip4Len+udpLen)
	a.branch(jump, 0, "psp")
	a.label("v6")
	a.op(loadByte, 0, 0, ip6Next)
	a.branch(jumpUnless, udp, "other")
	a.op(loadHalf, 0, 0, ip+ip6Len+udpPort)
	a.branch(jumpUnless, underlay.SealedPort, "other")
	a.op(moveNumber, begin, 0, ip+ip6Len+udpLen)
	a.label("psp")
	a.op(loadByteAt, 0, begin, c.NextHeader)
	a.op(moveRegister, next, result, 0)
	a.op(loadByteAt, 0, begin, c.CryptOffset)
	a.op(andNumber, result, 0, int(c.CryptOffsetMask))
	a.branch(jumpIfEqual, int(c.Plain), "plain")
	a.op(moveRegister, result, next, 0)
	a.branch(jumpIfEqual, int(c.V6), "cid6")
	a.op(loadWordAt, 0, begin, c.CID)
	a.branch(jump, 0, "shard")
	a.label("cid6")
	a.op(loadWordAt, 0, begin, c.CID6)
	a.label("shard")
	a.op(shiftRight, result, 0, shardShift)
	a.op(andNumber, result, 0, shardMask)
	a.op(exit, 0, 0, 0)
	a.label("plain")
	a.op(loadWordAt, 0, begin, c.SPI)
	a.op(modNumber, result, 0, shards)
	a.op(exit, 0, 0, 0)
	a.label("other")
	a.op(moveNumber, result, 0, 0)
	a.op(exit, 0, 0, 0)
	return a.finish()
}

// assembler encodes instructions and their jumps, which are all forward.
type assembler struct {
	code   []uint64
	labels map[string]int
	jumps  map[int]string
}

// 63      32 31    16 15 12 11  8 7    0
// [ number ][ offset ][ src ][ dst ][ op ]
func (a *assembler) op(op, dst, src uint8, number int) {
	a.code = append(a.code, uint64(op)|uint64(dst)<<8|uint64(src)<<12|uint64(uint32(number))<<32)
}

// branch jumps to a label if the result of the last load compares accordingly with a number.
func (a *assembler) branch(op uint8, number int, to string) {
	if a.jumps == nil {
		a.jumps = map[int]string{}
	}
	a.jumps[len(a.code)] = to
	a.op(op, result, 0, number)
}

func (a *assembler) label(name string) {
	if a.labels == nil {
		a.labels = map[string]int{}
	}
	a.labels[name] = len(a.code)
}

func (a *assembler) finish() []uint64 {
	for at, to := range a.jumps {
		a.code[at] |= uint64(uint16(a.labels[to]-at-1)) << 16
	}
	return a.code
}

// Sockets returns the program that chooses the socket of each datagram, among as many as there are
// shards. It sees the payload of UDP alone. It is classic BPF, which any user may give to a socket.
func Sockets(transport bool, shards int) []bpf.RawInstruction {
	c := security.ClearOf(transport)
	program, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: uint32(c.CryptOffset), Size: 1},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: uint32(c.CryptOffsetMask)},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(c.Plain), SkipTrue: 8},
		bpf.LoadAbsolute{Off: uint32(c.NextHeader), Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(c.V6), SkipTrue: 2},
		bpf.LoadAbsolute{Off: uint32(c.CID), Size: 4},
		bpf.Jump{Skip: 1},
		bpf.LoadAbsolute{Off: uint32(c.CID6), Size: 4},
		bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: shardShift},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: shardMask},
		bpf.RetA{},
		bpf.LoadAbsolute{Off: uint32(c.SPI), Size: 4}, // the gateway class
		bpf.ALUOpConstant{Op: bpf.ALUOpMod, Val: uint32(shards)},
		bpf.RetA{},
	})
	if err != nil {
		panic(fmt.Sprintf("steering: %v", err)) // the program is the same for all
	}
	return program
}
