// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The window: capability chain, bell ring, event queues (section 10 of the ABI). It is memory
 * of the host, and the device is another processor of it. Hence virt_ barriers: they order
 * accesses on a kernel for one processor, too.
 */
#include <linux/delay.h>
#include <linux/io.h>
#include <linux/sched/signal.h>

#include "vnic.h"

#define VNIC_BELLS_TIMEOUT	(10 * HZ)

static void *vnic_block(struct vnic_fn *fn, const struct vnic_capability *cap, size_t need)
{
	u32 offset = le32_to_cpu(cap->offset);
	u32 length = le32_to_cpu(cap->length);

	if (le16_to_cpu(cap->version) != 1 || length < need || length > fn->window_len ||
	    offset > fn->window_len - length || offset % 64)
		return NULL;
	return fn->window + offset;
}

static void vnic_block_take(struct vnic_fn *fn, const struct vnic_capability *cap)
{
	struct vnic_event_queue *eq;
	void *at;

	switch (le16_to_cpu(cap->type)) {
	case VNIC_CAP_BELLS:
		fn->bells.mask = (1 << VNIC_WINDOW_BELLS_LOG2) - 1;
		at = vnic_block(fn, cap, VNIC_QUEUE_HEADER_SIZE +
				(sizeof(struct vnic_doorbell) << VNIC_WINDOW_BELLS_LOG2));
		fn->bells.hdr = at;
		fn->bells.ring = at + VNIC_QUEUE_HEADER_SIZE;
		break;
	case VNIC_CAP_EVENTS:
		at = vnic_block(fn, cap, VNIC_QUEUE_HEADER_SIZE +
				(sizeof(struct vnic_window_event) << VNIC_WINDOW_EVENTS_LOG2));
		if (!at || fn->num_event_queues == VNIC_MAX_EVENT_QUEUES)
			break;
		eq = &fn->event_queues[fn->num_event_queues++];
		eq->fn = fn;
		eq->mask = (1 << VNIC_WINDOW_EVENTS_LOG2) - 1;
		eq->hdr = at;
		eq->ring = at + VNIC_QUEUE_HEADER_SIZE;
		break;
	case VNIC_CAP_CONTROL:
		at = vnic_block(fn, cap, VNIC_WINDOW_MESSAGES + VNIC_QUEUE_HEADER_SIZE +
				(VNIC_WINDOW_MESSAGE_SIZE << VNIC_WINDOW_CONTROL_LOG2));
		if (!at)
			break;
		fn->control.hdr = at;
		fn->control.requests = at + VNIC_WINDOW_REQUESTS;
		fn->control.messages = at + VNIC_WINDOW_MESSAGES;
		break;
	case VNIC_CAP_ADMIN_SQ:
		fn->admin.sq = vnic_block(fn, cap, VNIC_QUEUE_HEADER_SIZE +
				VNIC_MAX_ADMIN_ENTRIES * sizeof(struct vnic_admin_cmd));
		break;
	case VNIC_CAP_ADMIN_CQ:
		fn->admin.cq = vnic_block(fn, cap, VNIC_QUEUE_HEADER_SIZE +
				VNIC_MAX_ADMIN_ENTRIES * sizeof(struct vnic_admin_cqe));
		break;
	}
}

/*
 * Whether BAR 2 of a device that is enabled begins with the header of a window. It is read
 * before the driver claims anything: other people's ivshmem devices look the same in PCI.
 */
bool vnic_window_is_ours(struct pci_dev *pdev)
{
	const struct vnic_window_header *h;
	bool ours;

	if (!(pci_resource_flags(pdev, 2) & IORESOURCE_MEM) ||
	    pci_resource_len(pdev, 2) < sizeof(*h))
		return false;
	h = memremap(pci_resource_start(pdev, 2), sizeof(*h), MEMREMAP_WB);
	if (!h)
		return false;
	ours = le32_to_cpu(h->magic) == VNIC_MAGIC;
	memunmap((void *)h);
	return ours;
}

/* Finds the blocks of the window. */
int vnic_window_open(struct vnic_fn *fn)
{
	const struct vnic_window_header *h = fn->window;
	const struct vnic_capability *cap;
	u32 at, next;

	if (le16_to_cpu(h->major) != VNIC_VERSION_MAJOR) {
		dev_err(&fn->pdev->dev, "the NIC speaks ABI %u.%u, this driver %u.%u: update one\n",
			le16_to_cpu(h->major), le16_to_cpu(h->minor), VNIC_VERSION_MAJOR,
			VNIC_VERSION_MINOR);
		return -EPROTO;
	}
	fn->number = le32_to_cpu(h->function);
	for (at = le32_to_cpu(h->first_cap); at; at = next) {
		if (at % 8 || at > fn->window_len - sizeof(*cap))
			break;
		cap = fn->window + at;
		next = le32_to_cpu(cap->next);
		if (next && next <= at)
			break;
		vnic_block_take(fn, cap);
	}
	if (!fn->bells.hdr || !fn->control.hdr || !fn->admin.sq || !fn->admin.cq ||
	    !fn->num_event_queues) {
		dev_err(&fn->pdev->dev,
			"the window lacks bells, control, admin or event queues: update the NIC\n");
		return -EPROTO;
	}
	return 0;
}

/* Both sides begin at index 0 when a session is opened (DEV-1002, DEV-1008). */
void vnic_window_start(struct vnic_fn *fn)
{
	unsigned int i;

	fn->bells.producer = 0;
	for (i = 0; i < fn->num_event_queues; i++)
		fn->event_queues[i].consumer = 0;
}

/* Tells the device to read the bell ring, by a posted write; from any context. */
static void vnic_bell(struct vnic_fn *fn)
{
	writel(0, fn->bar0 + VNIC_WINDOW_DOORBELL);
}

/* Tells the device to read the control block. */
void vnic_control_bell(struct vnic_fn *fn)
{
	writel(VNIC_WINDOW_DOORBELL_CONTROL, fn->bar0 + VNIC_WINDOW_DOORBELL);
}

/* Whether a producer that moved from old to new has passed the event index. */
static bool vnic_wakes(u32 event, u32 old, u32 new)
{
	return new - event - 1 < new - old;
}

static u32 vnic_bells_taken(const struct vnic_bells *b)
{
	return le32_to_cpu(READ_ONCE(b->hdr->consumer));
}

/*
 * Waits until the bell ring has room for a record, and for @kept more that are left to
 * others. A device that takes no record for ten seconds is lost. Returns false if it is lost, or
 * if the calling process is being killed.
 */
bool vnic_bells_room(struct vnic_fn *fn, u32 kept)
{
	unsigned long until = jiffies + VNIC_BELLS_TIMEOUT;
	struct vnic_bells *b = &fn->bells;
	u32 before = vnic_bells_taken(b), taken;

	for (;;) {
		if (READ_ONCE(fn->lost) || fatal_signal_pending(current))
			return false;
		taken = vnic_bells_taken(b);
		if (READ_ONCE(b->producer) - taken + kept <= b->mask)
			return true;
		if (taken != before) {
			before = taken;
			until = jiffies + VNIC_BELLS_TIMEOUT;
		} else if (time_after(jiffies, until)) {
			fn->handlers->lost(fn, "it takes no doorbells");
		}
		vnic_bell(fn);
		usleep_range(500, 1500);
	}
}

/*
 * Sends a doorbell record. It may be called under spinlocks, so it does not wait for
 * room: if there is none, a work item rings for all queues later (vnic_bells_work).
 */
void vnic_ring(struct vnic_fn *fn, u8 kind, u32 queue, u32 index)
{
	struct vnic_bells *b = &fn->bells;
	struct vnic_doorbell *d;
	unsigned long flags;
	u32 event;

	if (READ_ONCE(fn->lost))
		return;
	spin_lock_irqsave(&b->lock, flags);
	if (b->producer - vnic_bells_taken(b) > b->mask) {
		queue_work(fn->loss_wq, &b->again);
		goto out;
	}
	d = &b->ring[b->producer & b->mask];
	memset(d, 0, sizeof(*d));
	d->kind = kind;
	d->queue = cpu_to_le32(queue);
	d->index = cpu_to_le32(index);
	WRITE_ONCE(b->producer, b->producer + 1);
	/* The record before the producer that covers it (DRV-603). */
	virt_store_release(&b->hdr->producer, cpu_to_le32(b->producer));
	/* The producer before the event index is read (DRV-1003). */
	virt_mb();
	event = le32_to_cpu(READ_ONCE(b->hdr->event_index));
	if (vnic_wakes(event, b->producer - 1, b->producer))
		vnic_bell(fn);
out:
	spin_unlock_irqrestore(&b->lock, flags);
}

/*
 * The interrupt of an event queue. The device is the producer here, and the driver the
 * consumer: each writes the words of the header that the other writes of the bell ring.
 */
irqreturn_t vnic_events(int irq, void *data)
{
	struct vnic_event_queue *eq = data;
	u32 cqns[32];
	unsigned int i, n;
	u32 producer;

	if (READ_ONCE(eq->fn->lost))
		return IRQ_HANDLED;
	for (;;) {
		/* The producer before the records that it covers. */
		producer = le32_to_cpu(virt_load_acquire(&eq->hdr->producer));
		if (producer == eq->consumer) {
			WRITE_ONCE(eq->hdr->event_index, cpu_to_le32(eq->consumer));
			/* The event index before the producer is read again (DRV-1009). */
			virt_mb();
			if (le32_to_cpu(READ_ONCE(eq->hdr->producer)) == eq->consumer)
				return IRQ_HANDLED;
			continue;
		}
		for (n = 0; n < ARRAY_SIZE(cqns) && eq->consumer != producer; n++)
			cqns[n] = le32_to_cpu(eq->ring[eq->consumer++ & eq->mask].cqn);
		/* The records were read before the device may use their slots again. */
		virt_store_release(&eq->hdr->consumer, cpu_to_le32(eq->consumer));
		/* The consumer before any of the CQs is read (DRV-1010). */
		virt_mb();
		for (i = 0; i < n; i++)
			eq->fn->handlers->completion(eq->fn, cqns[i]);
	}
}
