// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The loss of the device, and its return, for those that hold objects.
 *
 *   programs      get IBV_EVENT_DEVICE_FATAL; what they had is no more
 *   the kernel    queue pairs are in error and all their work is flushed, when the
 *                 device has confirmed that it touches no memory any more; domains,
 *                 completion queues, GIDs and the queue pair of the connection
 *                 manager come back with the device
 *
 * So the ib_device need not go, and a kernel user that lost its queue pairs makes
 * new ones, as after any error of a connection.
 */
#include <linux/slab.h>
#include <rdma/ib_mad.h>

#include "vnic.h"

static void vnic_lose_numbers(struct xarray *objects)
{
	unsigned long index;
	void *obj;

	xa_for_each(objects, index, obj)
		vnic_forget(objects, index, obj);
}

static void vnic_lose_cq(struct vnic_cq *cq)
{
	unsigned long flags;

	spin_lock_irqsave(&cq->lock, flags);
	cq->lost = true;
	spin_unlock_irqrestore(&cq->lock, flags);
}

/* From now on what is posted is flushed, by whoever polls. */
static void vnic_lose_qp(struct vnic_qp *qp)
{
	unsigned long flags;

	if (qp->type == IB_QPT_GSI)
		return; /* it comes back with all that is posted */
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

/* Waits until the device has let go; false: the driver leaves before. */
static bool vnic_await_close(struct vnic_fn *fn)
{
	bool said = false;

	while (!vnic_control_close(fn)) {
		if (!said)
			dev_warn(&fn->pdev->dev,
				 "the NIC does not let go of memory: what it may reach stays pinned, and the kernel's users wait, until it answers or is started anew\n");
		said = true;
		if (READ_ONCE(fn->leaving))
			return false;
	}
	return true;
}

/* The session is over. Commands fail at once; memory is given back when the device says so. */
void vnic_loss_work(struct work_struct *work)
{
	struct vnic_fn *fn = container_of(work, struct vnic_fn, loss);
	struct vnic_cq *cq;
	struct vnic_qp *qp;

	if (!READ_ONCE(fn->ending))
		return;
	vnic_admin_abort(fn);
	vnic_ib_event(fn, IB_EVENT_PORT_ERR);
	vnic_ib_event(fn, IB_EVENT_DEVICE_FATAL);
	if (!vnic_await_close(fn))
		return;
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
	vnic_fn_again(fn);
}

/* Somebody posted to a queue pair that is lost. */
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
	vnic_cq_wake(cq); /* it arms anew */
	return 0;
}

/* Puts what is posted and not complete into a new area, and has the device look. */
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
	smp_store_release(&h->producer, cpu_to_le32(n));
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
	int err = 0;

	if (qp->state >= IB_QPS_INIT)
		err = vnic_revive_state(fn, qp, IB_QPS_INIT, IB_QP_STATE | IB_QP_PKEY_INDEX |
					IB_QP_PORT | IB_QP_QKEY);
	if (!err && qp->state >= IB_QPS_RTR)
		err = vnic_revive_state(fn, qp, IB_QPS_RTR, IB_QP_STATE);
	if (!err && qp->state >= IB_QPS_RTS)
		err = vnic_revive_state(fn, qp, IB_QPS_RTS, IB_QP_STATE | IB_QP_SQ_PSN);
	return err;
}

/* The queue pair of the connection manager: as it was, with all that is posted. */
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
	int err = -ENOMEM;

	mutex_lock(&qp->state_lock);
	qp->life = fn->life;
	if (sq && rq && sends && receives)
		err = vnic_qp_make(fn, qp, &attr, sq, rq, false);
	if (!err)
		err = xa_insert_irq(&fn->qps, qp->qpn, qp, GFP_KERNEL);
	if (!err)
		err = vnic_revive_states(fn, qp);
	if (!err) {
		vnic_repost(fn, &qp->rq, rq, receives, VNIC_DOORBELL_RQ, qp->qpn);
		vnic_repost(fn, &qp->sq, sq, sends, VNIC_DOORBELL_SQ, qp->qpn);
	} else {
		kvfree(sends);
		kvfree(receives);
		vnic_area_free(rq);
		vnic_area_free(sq);
	}
	mutex_unlock(&qp->state_lock);
	return err;
}

static int vnic_revive_gids(struct vnic_fn *fn)
{
	int err = 0, i;

	for (i = 0; !err && i < VNIC_GID_ENTRIES; i++) {
		if (!fn->gids[i].used)
			continue;
		err = vnic_command(fn, VNIC_ADMIN_OP_ADD_GID, &fn->gids[i].entry,
				   sizeof(fn->gids[i].entry), NULL, 0);
		if (err == -EPERM || err == -EADDRINUSE || err == -ENOMEM)
			err = 0; /* vnic_add_gid has said so, or the host changed its mind */
	}
	return err;
}

/* Makes again what the kernel keeps over a loss. */
int vnic_revive(struct vnic_fn *fn)
{
	struct vnic_pd *pd;
	struct vnic_cq *cq;
	struct vnic_qp *qp;
	int err;

	mutex_lock(&fn->kernel_lock);
	err = vnic_revive_gids(fn);
	list_for_each_entry(pd, &fn->kernel_pds, kernel) {
		pd->life = fn->life;
		if (!err)
			err = vnic_pd_make(fn, pd);
	}
	list_for_each_entry(cq, &fn->kernel_cqs, kernel) {
		if (!err)
			err = vnic_revive_cq(fn, cq);
	}
	list_for_each_entry(qp, &fn->kernel_qps, kernel) {
		if (!err && qp->type == IB_QPT_GSI)
			err = vnic_revive_gsi(fn, qp);
	}
	mutex_unlock(&fn->kernel_lock);
	if (err) {
		dev_err(&fn->pdev->dev, "the device does not come back: error %d\n", err);
		return err;
	}
	vnic_ib_event(fn, IB_EVENT_PORT_ACTIVE);
	return 0;
}
