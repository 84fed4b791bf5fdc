// Package setup is what the example programs share: a device, memory for the peer to reach, and a
// completion queue.
//
//	pingpong   SEND and RECV, and sleeping until a message comes
//	bandwidth  many WRITEs outstanding, few completions
//	kv         a key-value store whose readers do not trouble the server: READ
//	lock       a lock and a counter in another guest's memory: CMP_SWAP, READ, WRITE
//
// Each program is a server, or, given the server's address, a client:
//
//	pingpong -d vsock://2:7000                     # in one guest
//	pingpong -d vsock://2:7000 192.168.100.11      # in the other
package setup
