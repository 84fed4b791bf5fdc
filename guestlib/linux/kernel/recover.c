// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * What happens to objects when the device is lost, and when it returns.
 *
 *   programs      they got IBV_EVENT_DEVICE_FATAL; their objects are gone
 *   the kernel    queue pairs are in error and all their work is flushed, after the device
 *                 has confirmed that it reaches no memory any more; protection domains,
 *                 completion queues, GIDs, listeners over iWARP and the GSI queue pair come
 *                 back with the device
 *
 * So a kernel user that lost its queue pairs makes new ones, as after any error of a
 * connection. The owner of the GSI queue pair, ib_mad, keeps it for as long as the ib_device
 * is registered, so that one is made again with the receives that are posted.
 */
#include <linux/slab.h>

#include "vnic.h"

static void vnic_lose_numbers(struct xarray *objects)
{
	unsigned long index;
	struct vnic_hold *hold;

	xa_for_each(objects, index, hold)
		vnic_forget(objects, index, hold);
}

static void vnic_lose_cq(struct vnic_cq *cq)
{
	unsigned long flags;

	spin_lock_irqsave(&cq->lock, flags);
	cq->lost = true;
	spin_unlock_irqrestore(&cq->lock, flags);
}

/* From now on vnic_poll_cq() flushes what is posted. */
static void vnic_lose_qp(struct vnic_qp *qp)
{
	unsigned long flags;

	if (qp->type == IB_QPT_GSI)
		return; /* it comes back, with all that is posted */
	WRITE_ONCE(qp->state, IB_QPS_ERR);
	spin_lock_irqsave(&qp->sq.lock, flags);
	WRITE_ONCE(qp->lost, true);
	spin_unlock_irqrestore(&qp->sq.lock, flags);
}

static void vnic_wake_cqs(struct vnic_fn *fn)
{
	struct vnic_cq *cq;

	list_for_each_entry(cq, &fn->kernel_cqs, kernel)
		vnic_cq_wake(cq);
}

/* The device has confirmed the end of the session: its objects and their numbers are gone. */
void vnic_lose_objects(struct vnic_fn *fn)
{
	struct vnic_cq *cq;
	struct vnic_qp *qp;

	mutex_lock(&fn->kernel_lock);
	vnic_life_over(fn);
	vnic_lose_numbers(&fn->qps);
	vnic_lose_numbers(&fn->cqs);
	vnic_lose_numbers(&fn->srqs);
	list_for_each_entry(cq, &fn->kernel_cqs, kernel)
		vnic_lose_cq(cq);
	list_for_each_entry(qp, &fn->kernel_qps, kernel)
		vnic_lose_qp(qp);
	vnic_wake_cqs(fn);
	mutex_unlock(&fn->kernel_lock);
}

/* Work was posted to a queue pair that is lost. */
void vnic_flush_work(struct work_struct *work)
{
	struct vnic_fn *fn = container_of(work, struct vnic_fn, flush);

	mutex_lock(&fn->kernel_lock);
	vnic_wake_cqs(fn);
	mutex_unlock(&fn->kernel_lock);
}

static int vnic_revive_cq(struct vnic_fn *fn, struct vnic_cq *cq)
{
	unsigned long flags;
	int err;

	spin_lock_irqsave(&cq->lock, flags);
	memset(cq->area->buf, 0, cq->area->size);
	cq->consumer = 0;
	spin_unlock_irqrestore(&cq->lock, flags);
	cq->life = fn->life;
	err = vnic_cq_make(cq);
	if (err)
		return err;
	spin_lock_irqsave(&cq->lock, flags);
	cq->lost = false;
	spin_unlock_irqrestore(&cq->lock, flags);
	vnic_cq_wake(cq); /* its user arms it again */
	return 0;
}

/* Posts again, in a new area, what is posted and not complete. */
static void vnic_repost(struct vnic_fn *fn, struct vnic_queue *q, struct vnic_area *area,
			u64 *wrids, u8 kind, u32 number)
{
	size_t stride = (size_t)1 << q->stride_log2;
	struct vnic_queue_header *h = area->buf;
	u32 i, from, n;
	void *entry;
	unsigned long flags;

	BUILD_BUG_ON(offsetof(struct vnic_send_wqe, wrid) != offsetof(struct vnic_recv_wqe, wrid));
	BUILD_BUG_ON(offsetof(struct vnic_send_wqe, wrid) !=
		     offsetof(struct vnic_datagram_wqe, wrid));
	spin_lock_irqsave(&q->lock, flags);
	n = q->producer - q->completed;
	for (i = 0; i < n; i++) {
		from = (q->completed + i) & (q->entries - 1);
		entry = area->buf + VNIC_QUEUE_HEADER_SIZE + i * stride;
		memcpy(entry, q->area->buf + VNIC_QUEUE_HEADER_SIZE + from * stride, stride);
		*(__le64 *)(entry + offsetof(struct vnic_send_wqe, wrid)) = cpu_to_le64(i);
		wrids[i] = q->wrids[from];
	}
	swap(q->area, area);
	swap(q->wrids, wrids);
	q->completed = 0;
	q->producer = n;
	q->life = fn->life;
	/* The entries before the producer that covers them (DRV-603). */
	dma_wmb();
	WRITE_ONCE(h->producer, cpu_to_le32(n));
	vnic_ring(fn, kind, number, n);
	spin_unlock_irqrestore(&q->lock, flags);
	vnic_area_free(area);
	kvfree(wrids);
}

static int vnic_revive_state(struct vnic_fn *fn, struct vnic_qp *qp, enum ib_qp_state state,
			     u32 mask)
{
	struct vnic_modify_qp p = {
		.qpn = cpu_to_le32(qp->qpn),
		.mask = cpu_to_le32(mask),
		.state = state,
		.qkey = cpu_to_le32(qp->qkey),
	};

	return vnic_command_in(fn, qp->life, VNIC_ADMIN_OP_MODIFY_QP, &p, sizeof(p), NULL, 0);
}

static int vnic_revive_states(struct vnic_fn *fn, struct vnic_qp *qp)
{
	int err;

	if (qp->state < IB_QPS_INIT)
		return 0;
	err = vnic_revive_state(fn, qp, IB_QPS_INIT,
				IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT | IB_QP_QKEY);
	if (err || qp->state < IB_QPS_RTR)
		return err;
	err = vnic_revive_state(fn, qp, IB_QPS_RTR, IB_QP_STATE);
	if (err || qp->state < IB_QPS_RTS)
		return err;
	return vnic_revive_state(fn, qp, IB_QPS_RTS, IB_QP_STATE | IB_QP_SQ_PSN);
}

/* Makes the GSI queue pair again, in its state of before, with all that is posted. */
static int vnic_revive_gsi(struct vnic_fn *fn, struct vnic_qp *qp)
{
	struct ib_qp_init_attr attr = {
		.qp_type = qp->type,
		.send_cq = qp->ibqp.send_cq,
		.recv_cq = qp->ibqp.recv_cq,
	};
	struct vnic_area *sq = vnic_queue_area(fn, &qp->sq), *rq = vnic_queue_area(fn, &qp->rq);
	u64 *sends = kvcalloc(qp->sq.entries, sizeof(*sends), GFP_KERNEL);
	u64 *receives = kvcalloc(qp->rq.entries, sizeof(*receives), GFP_KERNEL);
	int err;

	mutex_lock(&qp->state_lock);
	qp->life = fn->life;
	if (!sq || !rq || !sends || !receives) {
		err = -ENOMEM;
		goto err_memory;
	}
	err = vnic_qp_make(fn, qp, &attr, sq, rq, false);
	if (err)
		goto err_memory;
	err = xa_insert_irq(&fn->qps, qp->qpn, &qp->hold, GFP_KERNEL);
	if (err)
		goto err_memory;
	err = vnic_revive_states(fn, qp);
	if (err)
		goto err_memory;
	vnic_repost(fn, &qp->rq, rq, receives, VNIC_DOORBELL_RQ, qp->qpn);
	vnic_repost(fn, &qp->sq, sq, sends, VNIC_DOORBELL_SQ, qp->qpn);
	mutex_unlock(&qp->state_lock);
	return 0;

err_memory:
	mutex_unlock(&qp->state_lock);
	/* The device may have the queue pair: the areas are kept until the session has ended. */
	fn->handlers->lost(fn, "it does not take back the GSI queue pair");
	kvfree(sends);
	kvfree(receives);
	vnic_area_free(rq);
	vnic_area_free(sq);
	return err;
}

static int vnic_revive_gids(struct vnic_fn *fn)
{
	struct vnic_gid *gid;
	int err;

	for (gid = fn->gids; gid < fn->gids + VNIC_GID_ENTRIES; gid++) {
		if (!gid->used)
			continue;
		err = vnic_command(fn, VNIC_ADMIN_OP_ADD_GID, &gid->entry, sizeof(gid->entry),
				   NULL, 0);
		/* The host may have changed its mind about an address: that is no loss. */
		if (err && err != -EPERM && err != -EADDRINUSE && err != -ENOMEM)
			return err;
	}
	return 0;
}

static int vnic_revive_listeners(struct vnic_fn *fn)
{
	struct iw_cm_id *id;
	unsigned long port;
	int err;

	xa_for_each(&fn->iw_listeners, port, id) {
		err = vnic_iw_listen(fn, port);
		if (err)
			return err;
	}
	return 0;
}

static int vnic_revive_all(struct vnic_fn *fn)
{
	struct vnic_pd *pd;
	struct vnic_cq *cq;
	struct vnic_qp *qp;
	int err;

	err = vnic_revive_gids(fn);
	if (err)
		return err;
	list_for_each_entry(pd, &fn->kernel_pds, kernel) {
		pd->life = fn->life;
		err = vnic_pd_make(fn, pd);
		if (err)
			return err;
	}
	list_for_each_entry(cq, &fn->kernel_cqs, kernel) {
		err = vnic_revive_cq(fn, cq);
		if (err)
			return err;
	}
	list_for_each_entry(qp, &fn->kernel_qps, kernel) {
		if (qp->type != IB_QPT_GSI)
			continue;
		err = vnic_revive_gsi(fn, qp);
		if (err)
			return err;
	}
	return vnic_revive_listeners(fn);
}

/* Makes again what the kernel keeps over a loss. */
int vnic_revive_objects(struct vnic_fn *fn)
{
	int err;

	mutex_lock(&fn->kernel_lock);
	err = vnic_revive_all(fn);
	mutex_unlock(&fn->kernel_lock);
	if (err) {
		dev_err(&fn->pdev->dev, "the device does not come back: error %d\n", err);
		return err;
	}
	vnic_ib_event(fn, IB_EVENT_PORT_ACTIVE);
	return 0;
}
