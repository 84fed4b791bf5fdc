// Package tap gives Ethernet ports on Linux TAP devices, and the links around them: bridges, MTU,
// quiet (no IPv6 autoconfiguration, no multicast snooping on what we make).
//
//	kernel netdev "vnic1" ◀── bridge, veth, tcpdump …
//	      │ /dev/net/tun
//	Port: FD (poll), Read, Write ── the shard
//
// Two backends stand behind one interface and pass one conformance test. native (the default) opens
// the device itself, with virtio-net headers, close-on-exec from the first moment and exclusive
// creation; with Config.Queues, it has several queues (queues.go); with Config.Superframes, runs of
// equal-sized UDP datagrams of one flow cross the kernel as one packet (superframe.go), with one
// system call instead of one each. water uses the songgao/water library, plain frames only; what
// that library omits (close-on-exec, name length, no descriptor lost when opening fails) is added
// around it.
//
// Everything works in the network namespace of the calling thread; a Port keeps working when its
// thread is elsewhere. Making a TAP or a bridge needs root or CAP_NET_ADMIN. Devices made here
// vanish when their Port is closed or the process dies.
//
// Ownership: a Port has one owner at a time; Open and the link functions may be called from
// anywhere.
package tap
