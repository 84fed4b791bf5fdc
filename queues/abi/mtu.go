package abi

// Bytes returns the size in bytes, or 0 when m is not a path MTU.
func (m PathMTU) Bytes() int {
	if m < MTU256 || m > MTU4096 {
		return 0
	}
	return 128 << m
}

// PathMTUFor returns the largest path MTU of at most n bytes, or 0 when there
// is none.
func PathMTUFor(n int) PathMTU {
	m := PathMTU(0)
	for m < MTU4096 && (m+1).Bytes() <= n {
		m++
	}
	return m
}
