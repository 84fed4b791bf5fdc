package gateway

// PortInput is a frame that came from a function's port.
type PortInput struct {
	Port    *Port
	Frame   []byte
	Offload Offload
}
