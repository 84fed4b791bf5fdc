package transport

// Datagram holds what is sent with the data of a datagram.
type Datagram struct {
	To, From  uint32 // queue pairs
	QKey      uint32
	Imm       uint32
	HasImm    bool
	Solicited bool
	Length    int    // of the data
	Work      uint32 // index of the work request of queue pair From, for traces
	Serial    uint32 // for the use of the transport
}
