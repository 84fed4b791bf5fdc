// Package eventfd signals eventfds whose file description is shared with a guest's
// QEMU.
//
// The flags of an open file belong to its description, so to everybody who has a copy:
// QEMU may clear O_NONBLOCK and fill the counter, and then write(2) blocks for as long
// as QEMU likes. Asking poll(2) first does not help, since the counter can be filled in
// between. Therefore nothing here writes to such a descriptor on its caller's thread.
//
// The kernel itself can signal an eventfd without ever blocking: a full counter stays
// full. Linux AIO offers that for the completion of a request (IOCB_FLAG_RESFD), and a
// request that fails at once completes at once. Where there is no AIO, a goroutine for
// each Event writes, one at a time.
//
// What is not an eventfd but a socket is sent the 8 bytes that a write would add, and whether to
// wait is said with each send.
//
// References: io_submit(2), eventfd(2), send(2); fs/aio.c and fs/eventfd.c of Linux.
package eventfd
