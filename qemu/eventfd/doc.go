// Package eventfd signals eventfds whose file description is shared with a guest's QEMU.
//
// The flags of an open file belong to its description, and so to everybody who has a copy of the
// descriptor. QEMU may clear O_NONBLOCK and fill the counter; write(2) then blocks for as long as
// QEMU likes. Asking poll(2) first does not help, since the counter can be filled in between. QEMU
// also decides what a signal costs: it calls everybody who watches the eventfd, and a million epoll
// instances may. Therefore each guest has a Notifier, whose thread signals what could block or has
// been slow.
//
// The kernel itself can signal an eventfd without ever blocking: a full counter stays full. Linux
// AIO offers that for the completion of a request (IOCB_FLAG_RESFD), and a request that fails at
// once completes at once. So a signal usually leaves on its caller's thread, which takes 1 µs; to
// wake another thread for it takes ten times as long. A guest whose slow signals use up their
// allowance gets all signals from its Notifier's thread until they are paid for. Without AIO that
// thread writes, and waits if QEMU makes it wait.
//
// A descriptor may also be a socket instead of an eventfd (CheckCall). It is sent the 8 bytes that
// a write would add to an eventfd, by a send that never waits.
//
// # Ownership and concurrency
//
// Set, Signal and Close may be called from any thread, and do not block. An Event owns a copy of
// the descriptor that it was given, which its Notifier's thread closes.
//
// References: io_submit(2), eventfd(2), send(2); fs/aio.c and fs/eventfd.c of Linux.
package eventfd
