package wire

import "errors"

// Errors of packets. RoCEv2 drops all of them silently (Annex A17, CA17-24).
var (
	ErrShort   = errors.New("rdma/roce/wire: packet shorter than its headers")
	ErrIP      = errors.New("rdma/roce/wire: not an IP header of RoCEv2")
	ErrUDP     = errors.New("rdma/roce/wire: not a UDP header of RoCEv2")
	ErrICRC    = errors.New("rdma/roce/wire: wrong ICRC")
	ErrVersion = errors.New("rdma/roce/wire: BTH version is not 0")
	ErrOpcode  = errors.New("rdma/roce/wire: reserved opcode")
)
