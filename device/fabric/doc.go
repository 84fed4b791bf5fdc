// Package fabric is an Ethernet segment in memory: a learning switch whose ports are tap.Uplink, so
// that NICs can be joined without root, TAPs or a kernel (vnic demo --no-vm, tests).
//
//	NIC A ─ Port ─┐                 ┌─ Port ─ NIC B
//	              └─▶ Switch (MAC table, one bounded queue per port) ◀─┘
//
// Write copies each frame into the queues of its destination ports: the port on which its
// destination was learnt, or all others. If a queue is full, the frame is dropped and counted at
// the receiving port, as a switch does; Write never blocks and never reports a full port. A port's
// FD is an eventfd that is readable while frames wait.
//
// Concurrency: each port has one owner; the switch is shared by all of them under one lock.
package fabric
