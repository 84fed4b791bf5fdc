package wire

import "errors"

var (
	// ErrShort reports a packet that ends before its headers do.
	ErrShort = errors.New("rdma/wire: packet shorter than its headers")
	// ErrVersion reports an RBTH whose version is not Version.
	ErrVersion = errors.New("rdma/wire: RBTH version is not 1")
	// ErrOpcode reports an opcode that is reserved (RDMA over Falcon §8.1.3).
	ErrOpcode = errors.New("rdma/wire: reserved opcode")
)
