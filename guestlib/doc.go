// Package guestlib is the user-space driver of the vnic device. It attaches to a function, provides
// memory that the device can access, and offers RDMA with an API modelled on verbs.
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
// memfd. Add ?function=pf0.vf1 if several functions are assigned to the caller. The rest is the
// same for both: register accesses, doorbells and events are sent over the stream, everything else
// goes through memory. If the guest has a window of the function (package window), doorbells use
// the window, and events too if the guest can have interrupts. Device.Path returns which way is
// used.
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
// The package's example has the complete code of both sides, and runs as a test. The programs in
// guestlib/examples do more: ping-pong, bandwidth, a key-value store read by one-sided READs, a
// lock made of CMP_SWAP.
//
// # Work and completions
//
// Work requests of a queue are done in the order posted, and complete in that order. Unsignaled
// sends have no completion unless they fail. Their room in the queue becomes free when the next
// signaled send completes, so at least one in every SendEntries sends must be signaled. Memory
// named by an SGL belongs to the device until the completion. A CQ needs room for all outstanding
// work of its QPs.
//
// Poll returns ErrProtocol for a completion that matches no outstanding work, since that is a
// mistake of the device, not of the program.
//
// # Errors and the end
//
// If the device refuses a command, the error is a *StatusError, which matches ErrBusy, ErrNotFound
// and so on. If the device is gone, stops the function, or breaks the protocol, every call fails
// with ErrDeviceLost and the reason, Device.Done is closed, and all waits end. If it breaks the
// protocol in the memory of one CQ, SQ, RQ or SRQ, only calls that use that queue fail so, and
// Device.Done stays open. Nothing that the device sends can make the program panic.
//
// Objects can be destroyed in any order that their dependencies allow, or not at all: Close frees
// everything. It tells the device first, and frees memory only after the device has confirmed that
// it no longer uses the memory.
//
// # A NIC that is restarted
//
// A NIC may be restarted under a running guest. Its stream then ends, or nothing arrives from it
// for HeartbeatTimeout, and the device needs a reset (ErrNeedsReset, and an event). The device
// dials again by itself, attaches and resets the function; Await returns when it works again.
// Objects from before fail for ever, but Buffers stay. The program must create its objects again
// and connect again.
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
// Everything is safe for use by several goroutines. A call waits for the answer to a command that
// it has sent even if its context ends, since only the answer tells which objects exist;
// Options.CommandTimeout limits the wait. PostSend, PostRecv and Poll take one lock each, do not
// block, and do not allocate. Doorbells are coalesced: one goroutine sends the doorbells of all
// queues that changed since its last write in one message.
//
// The rules of the shared memory are in docs/abi.
package guestlib
