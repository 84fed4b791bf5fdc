// Package eventfd signals eventfds whose file description is shared with a guest's
// QEMU.
//
// The flags of an open file belong to its description, so to everybody who has a copy:
// QEMU may clear O_NONBLOCK and fill the counter, and then write(2) blocks for as long
// as QEMU likes. Asking poll(2) first does not help, since the counter can be filled in
// between. And QEMU decides what a signal costs: whoever signals calls on everybody who
// watches, and a million epoll instances may. Therefore nothing here touches such a
// descriptor on its caller's thread: each guest has a Line, which is a thread.
//
// The kernel itself can signal an eventfd without ever blocking: a full counter stays
// full. Linux AIO offers that for the completion of a request (IOCB_FLAG_RESFD), and a
// request that fails at once completes at once. Where there is no AIO the Line writes, and
// waits if QEMU makes it wait.
//
// What is not an eventfd but a socket is sent the 8 bytes that a write would add, and whether to
// wait is said with each send.
//
// References: io_submit(2), eventfd(2), send(2); fs/aio.c and fs/eventfd.c of Linux.
package eventfd
