package vsock

// fifo is a byte queue that grows with its content up to max bytes.
type fifo struct {
	buf  []byte // length is a power of two, or 0
	head int    // first byte
	n    int    // bytes queued
	max  int
}

// put queues all of p. If p does not fit it queues nothing and returns false.
func (f *fifo) put(p []byte) bool {
	if len(p) > f.max-f.n {
		return false
	}
	f.grow(f.n + len(p))
	at := (f.head + f.n) & (len(f.buf) - 1)
	k := copy(f.buf[at:], p)
	copy(f.buf, p[k:])
	f.n += len(p)
	return true
}

// fill queues as much of p as fits and returns the number of bytes queued.
func (f *fifo) fill(p []byte) int {
	k := min(len(p), f.max-f.n)
	f.put(p[:k])
	return k
}

// get removes up to len(dst) bytes, copies them to dst and returns their number.
func (f *fifo) get(dst []byte) int {
	n := min(len(dst), f.n)
	k := copy(dst[:n], f.buf[f.head:])
	copy(dst[k:n], f.buf)
	f.drop(n)
	return n
}

// appendTo removes n bytes and appends them to b.
func (f *fifo) appendTo(b []byte, n int) []byte {
	first := min(n, len(f.buf)-f.head)
	b = append(b, f.buf[f.head:f.head+first]...)
	b = append(b, f.buf[:n-first]...)
	f.drop(n)
	return b
}

func (f *fifo) drop(n int) {
	f.n -= n
	if f.n == 0 {
		f.head = 0
		return
	}
	f.head = (f.head + n) & (len(f.buf) - 1)
}

func (f *fifo) clear() { f.buf, f.head, f.n = nil, 0, 0 }

func (f *fifo) grow(n int) {
	size := len(f.buf)
	for size < n {
		size = max(2*size, 4096)
	}
	if size == len(f.buf) {
		return
	}
	buf := make([]byte, size)
	k := copy(buf[:f.n], f.buf[f.head:])
	copy(buf[k:f.n], f.buf)
	f.buf, f.head = buf, 0
}
