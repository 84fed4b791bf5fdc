// Package guestlib is the user-space driver of the vnic device: it attaches to a function, makes
// memory the device can reach, and offers RDMA in the shape and with the words of verbs.
//
//	Open ──► Device ──AllocPD──► PD ──RegMR(Buffer)──► MR        memory: package arena
//	           │                  └──CreateQP──► QP ──PostSend, PostRecv──► work queues in shared memory
//	           ├──CreateCQ──► CQ ──Poll, Wait                               completions in shared memory
//	           ├──Listen──► Listener ──Accept──► ConnectRequest ──Accept(qp), Reject
//	           ├──Connect(qp, gid, service)
//	           └──Events
//
// # Attaching
//
// In a guest the URL is vsock://2:7000 and the memory is pinned guest RAM, which needs root and
// io_uring in the guest. For a process on the NIC's own host it is unix:///path and the memory is a
// memfd. Add ?function=pf0.vf1 where several functions are assigned to the caller. The rest is the
// same for both: registers, doorbells and events travel over the stream, everything else through
// memory. Where the guest has a window of the function (package window) doorbells, and where it can
// have interrupts events, go by that; Device.Path tells.
//
// # Example
//
// One side sends a message to the other:
//
//	dev, err := guestlib.Open(ctx, "vsock://2:7000", guestlib.Options{})
//	pd, err := dev.AllocPD(ctx)
//	buf, err := dev.Alloc(1 << 20)                  // not Go's memory: pages that stay where they are
//	mr, err := pd.RegMR(ctx, buf, guestlib.LocalWrite)
//	cq, err := dev.CreateCQ(ctx, 128)
//	qp, err := pd.CreateQP(ctx, guestlib.QPConfig{SendCQ: cq})
//	_, err = dev.Connect(ctx, qp, peer, 4791, nil)  // the peer has a Listener there
//
//	n := copy(mr.Bytes(), "hello")
//	err = qp.PostSend(&guestlib.SendWR{ID: 1, Opcode: guestlib.Send, Flags: guestlib.Signaled, SGL: []guestlib.SGE{mr.SGE(0, n)}})
//	var wc [16]guestlib.WC
//	for {
//		n, err := cq.Poll(wc[:])                // never blocks
//		if n > 0 || err != nil { … }            // wc[:n] tell what was done; wc[i].Err() if it failed
//		err = cq.Wait(ctx)                      // sleeps until there is something to poll
//	}
//
// The example of the package is the whole of it, both sides, and runs as a test. The programs in
// guestlib/examples do more: ping-pong, bandwidth, a key-value store read by one-sided READs, a
// lock made of CMP_SWAP.
//
// # Work and completions
//
// Work requests of a queue are done in the order posted, and complete in that order. Unsignaled
// sends have no completion unless they fail; their room in the queue comes back with the next
// signaled one, so signal at least one in every SendEntries. Memory named by an SGL belongs to the
// device until the completion. A CQ needs room for all work outstanding on its QPs.
//
// A completion that fits no outstanding work is the device's mistake, not the program's: Poll
// reports it as ErrProtocol.
//
// # Errors and the end
//
// Refusals of the device are *StatusError and match ErrBusy, ErrNotFound and so on. When the device
// is gone, stops the function, or breaks the protocol, every call fails with ErrDeviceLost and the
// reason, Device.Done is closed, and all waiting ends. Nothing the device sends panics the program.
// Objects can be destroyed in any order their dependencies allow, or not at all: Close frees
// everything. The device is told first, and memory is given back only when it confirmed that it
// does not use it any more.
//
// # A NIC that is restarted
//
// A NIC may go and come back under a running guest. Its stream then ends, or nothing comes from it
// any more for HeartbeatTimeout: the device needs a reset (ErrNeedsReset, and an event). It dials
// again by itself, attaches and resets the function; Await tells when it works again. Objects of
// before fail for ever, Buffers stay: the program makes its objects anew, and connects again.
//
//	for {
//		err := work(dev)                        // makes its objects, and works
//		if !errors.Is(err, guestlib.ErrNeedsReset) {
//			return err
//		}
//		if err := dev.Await(ctx); err != nil {
//			return err
//		}
//	}
//
// # Concurrency
//
// Everything is safe for use by several goroutines. A command that was sent is waited for even if
// its context ends, since only the answer tells what exists now; Options.CommandTimeout bounds
// that. PostSend, PostRecv and Poll take one lock each, do not block, and do not allocate.
// Doorbells are coalesced: one goroutine sends those of all queues that changed since its last
// write in one message.
//
// The rules of the shared memory are in docs/abi.
package guestlib
