package virtqueue

// CacheLine is for tests.
const CacheLine = cacheLine

// Touched returns what the last prefetch loaded.
func (m *RAM) Touched() [2]byte { return m.touched }
