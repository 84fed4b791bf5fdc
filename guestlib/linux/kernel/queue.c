// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Send, receive and shared receive queues: their memory and their limits. */
#include <linux/log2.h>
#include <linux/slab.h>

#include "vnic.h"

#define VNIC_LEAST_RECV		32
#define VNIC_LARGEST_ENTRY	4096

/* Allocates memory of the size that q says. */
struct vnic_area *vnic_queue_area(struct vnic_fn *fn, const struct vnic_queue *q)
{
	return vnic_area_alloc(fn, VNIC_QUEUE_HEADER_SIZE + ((size_t)q->entries << q->stride_log2));
}

/* Makes a queue of at least that many entries, each of at least that many bytes. */
int vnic_queue_make(struct vnic_fn *fn, struct vnic_queue *q, u32 entries, size_t entry,
		    struct ib_ucontext *uctx)
{
	int err;

	if (entries > le32_to_cpu(fn->limits.max_qp_entries) || entry > VNIC_LARGEST_ENTRY)
		return -EINVAL;
	q->entries = roundup_pow_of_two(max(entries, 2U));
	q->log2 = ilog2(q->entries);
	q->stride_log2 = order_base_2(entry);
	spin_lock_init(&q->lock);
	q->area = vnic_queue_area(fn, q);
	if (!q->area)
		return -ENOMEM;
	if (!uctx)
		return 0;
	err = vnic_area_offer(q->area, uctx);
	if (err)
		vnic_queue_free(q);
	return err;
}

/* Makes a queue for receives of at least that many SGEs; q->max_sge says how many fit. */
int vnic_queue_make_recv(struct vnic_fn *fn, struct vnic_queue *q, u32 entries, u32 max_sge,
			 struct ib_ucontext *uctx)
{
	size_t entry = VNIC_RECV_WQE_HEADER + max_sge * sizeof(struct vnic_sge);
	int err;

	if (max_sge > le16_to_cpu(fn->limits.max_sge))
		return -EINVAL;
	err = vnic_queue_make(fn, q, entries, max_t(size_t, entry, VNIC_LEAST_RECV), uctx);
	if (err)
		return err;
	entry = (1U << q->stride_log2) - VNIC_RECV_WQE_HEADER;
	q->max_sge = min_t(u32, entry / sizeof(struct vnic_sge), le16_to_cpu(fn->limits.max_sge));
	return 0;
}

/* Keeps the ids of work requests until these are complete: for the kernel's queue pairs. */
int vnic_queue_keep(struct vnic_queue *q)
{
	q->wrids = kvcalloc(q->entries, sizeof(*q->wrids), GFP_KERNEL);
	return q->wrids ? 0 : -ENOMEM;
}

void vnic_queue_reset(struct vnic_queue *q)
{
	unsigned long flags;

	if (!q->area)
		return;
	spin_lock_irqsave(&q->lock, flags);
	memset(q->area->buf, 0, VNIC_QUEUE_HEADER_SIZE);
	q->producer = 0;
	q->completed = 0;
	spin_unlock_irqrestore(&q->lock, flags);
}

void vnic_queue_free(struct vnic_queue *q)
{
	vnic_area_free(q->area);
	kvfree(q->wrids);
	q->area = NULL;
	q->wrids = NULL;
}
