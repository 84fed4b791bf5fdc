package steering

import (
	"fmt"

	"golang.org/x/net/bpf"

	"github.com/falcon-vnic/vnic/device/security"
)

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
