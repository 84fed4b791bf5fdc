package wire

// PadLen is the number of zero bytes, 0–3, behind n bytes of data: the upper-layer part of a
// packet is a multiple of 4 bytes (RDMA over Falcon §8.2, Pad).
func PadLen(n int) int { return -n & 3 }

// Padded is n with its padding.
func Padded(n int) int { return n + PadLen(n) }

// PushLength is the Request Length of a push: everything behind Falcon's own header for op with
// n bytes of data (Falcon §7.5). It is 0 when op is not carried by Push Data.
func PushLength(op Opcode, n int) int {
	if i := op.Info(); i != nil && i.Kind == KindPushData {
		return i.Len + Padded(n)
	}
	return 0
}

// PullLength is the Request Length of a pull: the length of the Pull Data payload expected for
// the request op (Falcon §7.3), 24+n padded for a READ of n bytes, 32 for an atomic. It is 0 when
// op is not carried by a Pull Request.
func PullLength(op Opcode, n int) int {
	i := op.Info()
	switch {
	case i == nil || i.Kind != KindPullRequest:
		return 0
	case i.Headers&HdrAtomicETH != 0:
		return AtomicResponse.HeaderLen()
	}
	return ReadRespOnly.HeaderLen() + Padded(n)
}

// Data cuts the data out of an upper-layer part: what follows the headers of length n without
// the pad of r. ok is false when the part is shorter than that or not a multiple of 4 bytes.
func (r *RBTH) Data(part []byte, n int) (data []byte, ok bool) {
	end := len(part) - int(r.Pad)
	if end < n || len(part)&3 != 0 {
		return nil, false
	}
	return part[n:end], true
}
