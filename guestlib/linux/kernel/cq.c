// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Completion queues. */
#include <linux/etherdevice.h>
#include <linux/log2.h>

#include "vnic.h"

static size_t vnic_cq_size(u32 log2)
{
	return VNIC_QUEUE_HEADER_SIZE + (sizeof(struct vnic_cqe) << log2);
}

static int vnic_cq_respond(struct vnic_cq *cq, struct vnic_area *area, u32 log2,
			   struct ib_udata *udata)
{
	struct vnic_cq_resp resp = {
		.queue.offset = vnic_area_offset(area),
		.queue.size = area->size,
		.queue.entries_log2 = log2,
		.queue.stride_log2 = ilog2(sizeof(struct vnic_cqe)),
		.cqn = cq->cqn,
	};

	if (udata->outlen < sizeof(resp))
		return -EINVAL;
	return ib_copy_to_udata(udata, &resp, sizeof(resp));
}

/* Entries wanted, as the exponent that the device takes. */
static int vnic_cq_log2(struct vnic_fn *fn, unsigned int cqe)
{
	if (cqe < 1 || cqe > le32_to_cpu(fn->limits.max_cq_entries))
		return -EINVAL;
	return max(1, order_base_2(cqe));
}

static struct vnic_area *vnic_cq_area(struct vnic_fn *fn, u32 log2, struct ib_udata *udata)
{
	struct vnic_area *area = vnic_area_alloc(fn, vnic_cq_size(log2));
	struct vnic_ucontext *uctx;
	int err;

	if (!area)
		return ERR_PTR(-ENOMEM);
	if (!udata)
		return area;
	uctx = rdma_udata_to_drv_context(udata, struct vnic_ucontext, ibucontext);
	err = vnic_area_offer(area, &uctx->ibucontext);
	if (err) {
		vnic_area_free(area);
		return ERR_PTR(err);
	}
	return area;
}

static int vnic_cq_forget(struct vnic_cq *cq)
{
	struct vnic_destroy_cq p = { .cqn = cpu_to_le32(cq->cqn) };

	return vnic_destroy(to_fn(cq->ibcq.device), cq->life, VNIC_ADMIN_OP_DESTROY_CQ, &p,
			    sizeof(p));
}

/* Makes the device's part of a completion queue. */
int vnic_cq_make(struct vnic_cq *cq)
{
	struct vnic_create_cq p = {
		.log2_entries = cq->log2,
		.vector = cpu_to_le16(cq->vector),
	};
	struct vnic_create_cq_result r;
	struct vnic_fn *fn = to_fn(cq->ibcq.device);
	struct vnic_page_list *list;
	int err;

	list = vnic_area_list(cq->area, cq->life, 0, cq->area->num_pages);
	if (IS_ERR(list))
		return PTR_ERR(list);
	p.levels = list->levels;
	p.pages = cpu_to_le64(list->root);
	err = vnic_command_in(fn, cq->life, VNIC_ADMIN_OP_CREATE_CQ, &p, sizeof(p), &r, sizeof(r));
	vnic_page_list_free(list);
	if (err)
		return err;
	cq->cqn = le32_to_cpu(r.cqn);
	err = xa_insert_irq(&fn->cqs, cq->cqn, &cq->hold, GFP_KERNEL);
	if (err)
		vnic_cq_forget(cq);
	return err;
}

/* Makes a queue of the kernel, which recover.c makes again after a loss. */
static int vnic_cq_make_kernel(struct vnic_fn *fn, struct vnic_cq *cq)
{
	int err;

	mutex_lock(&fn->kernel_lock);
	cq->life = READ_ONCE(fn->life);
	err = vnic_cq_make(cq);
	if (!err)
		list_add_tail(&cq->kernel, &fn->kernel_cqs);
	mutex_unlock(&fn->kernel_lock);
	return err;
}

int vnic_create_cq(struct ib_cq *ibcq, const struct ib_cq_init_attr *attr,
		   struct uverbs_attr_bundle *attrs)
{
	struct ib_udata *udata = attrs ? &attrs->driver_udata : NULL;
	struct vnic_fn *fn = to_fn(ibcq->device);
	struct vnic_cq *cq = to_vcq(ibcq);
	int err, log2;

	if (attr->flags & ~(IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION |
			    IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN))
		return -EOPNOTSUPP;
	log2 = vnic_cq_log2(fn, attr->cqe);
	if (log2 < 0)
		return log2;
	cq->area = vnic_cq_area(fn, log2, udata);
	if (IS_ERR(cq->area))
		return PTR_ERR(cq->area);
	cq->log2 = log2;
	if (fn->num_event_queues) /* else its events are control messages */
		cq->vector = 1 + attr->comp_vector % fn->num_event_queues;
	spin_lock_init(&cq->lock);
	vnic_hold_init(&cq->hold);
	INIT_LIST_HEAD(&cq->senders);
	INIT_LIST_HEAD(&cq->receivers);
	ibcq->cqe = 1 << log2;
	if (!udata) {
		err = vnic_cq_make_kernel(fn, cq);
		if (err)
			goto err_area;
		return 0;
	}
	cq->life = vnic_life(fn, udata);
	err = vnic_cq_make(cq);
	if (err)
		goto err_area;
	err = vnic_cq_respond(cq, cq->area, log2, udata);
	if (err)
		goto err_cq;
	return 0;

err_cq:
	vnic_forget(&fn->cqs, cq->cqn, &cq->hold);
	vnic_cq_forget(cq);
err_area:
	vnic_area_free(cq->area);
	return err;
}

static int vnic_cq_forget_kernel(struct vnic_fn *fn, struct vnic_cq *cq)
{
	int err;

	mutex_lock(&fn->kernel_lock);
	err = vnic_cq_forget(cq);
	if (!err)
		list_del(&cq->kernel);
	mutex_unlock(&fn->kernel_lock);
	return err;
}

int vnic_destroy_cq(struct ib_cq *ibcq, struct ib_udata *udata)
{
	struct vnic_fn *fn = to_fn(ibcq->device);
	struct vnic_cq *cq = to_vcq(ibcq);
	int err;

	if (rdma_is_kernel_res(&ibcq->res))
		err = vnic_cq_forget_kernel(fn, cq);
	else
		err = vnic_cq_forget(cq);
	if (err)
		return err;
	vnic_forget(&fn->cqs, cq->cqn, &cq->hold);
	vnic_release(&cq->hold);
	wait_for_completion(&cq->hold.gone);
	vnic_area_free(cq->area);
	return 0;
}

int vnic_modify_cq(struct ib_cq *ibcq, u16 count, u16 period)
{
	struct vnic_modify_cq p = {
		.cqn = cpu_to_le32(to_vcq(ibcq)->cqn),
		.count = cpu_to_le16(count),
		.period = cpu_to_le16(period),
	};

	return vnic_command_in(to_fn(ibcq->device), to_vcq(ibcq)->life, VNIC_ADMIN_OP_MODIFY_CQ,
			       &p, sizeof(p), NULL, 0);
}

/* For programs only. The provider still reads the entries in the old area. */
int vnic_resize_cq(struct ib_cq *ibcq, unsigned int cqe, struct ib_udata *udata)
{
	struct vnic_fn *fn = to_fn(ibcq->device);
	struct vnic_cq *cq = to_vcq(ibcq);
	struct vnic_resize_cq p = { .cqn = cpu_to_le32(cq->cqn) };
	struct vnic_page_list *list;
	struct vnic_area *area;
	int err, log2;

	if (!udata)
		return -EOPNOTSUPP;
	log2 = vnic_cq_log2(fn, cqe);
	if (log2 < 0)
		return log2;
	area = vnic_cq_area(fn, log2, udata);
	if (IS_ERR(area))
		return PTR_ERR(area);
	err = vnic_cq_respond(cq, area, log2, udata);
	if (err)
		goto out_area;
	list = vnic_area_list(area, cq->life, 0, area->num_pages);
	if (IS_ERR(list)) {
		err = PTR_ERR(list);
		goto out_area;
	}
	p.log2_entries = log2;
	p.levels = list->levels;
	p.pages = cpu_to_le64(list->root);
	err = vnic_command_in(fn, cq->life, VNIC_ADMIN_OP_RESIZE_CQ, &p, sizeof(p), NULL, 0);
	vnic_page_list_free(list);
	if (err)
		goto out_area;
	swap(cq->area, area);
	cq->log2 = log2;
	ibcq->cqe = 1 << log2;
out_area:
	vnic_area_free(area); /* the new one after an error, else the old one */
	return err;
}

static enum ib_wc_opcode vnic_wc_opcode(u8 opcode)
{
	switch (opcode) {
	case VNIC_WC_OP_WRITE:			return IB_WC_RDMA_WRITE;
	case VNIC_WC_OP_READ:			return IB_WC_RDMA_READ;
	case VNIC_WC_OP_CMP_SWAP:		return IB_WC_COMP_SWAP;
	case VNIC_WC_OP_FETCH_ADD:		return IB_WC_FETCH_ADD;
	case VNIC_WC_OP_BIND_MW:		return IB_WC_BIND_MW;
	case VNIC_WC_OP_LOCAL_INV:		return IB_WC_LOCAL_INV;
	case VNIC_WC_OP_REG_MR:			return IB_WC_REG_MR;
	case VNIC_WC_OP_MASKED_CMP_SWAP:	return IB_WC_MASKED_COMP_SWAP;
	case VNIC_WC_OP_MASKED_FETCH_ADD:	return IB_WC_MASKED_FETCH_ADD;
	case VNIC_WC_OP_RECV:			return IB_WC_RECV;
	case VNIC_WC_OP_RECV_WRITE_IMM:		return IB_WC_RECV_RDMA_WITH_IMM;
	default:				return IB_WC_SEND;
	}
}

static struct vnic_cqe *vnic_cqe_at(const struct vnic_cq *cq, u32 index)
{
	struct vnic_cqe *ring = cq->area->buf + VNIC_QUEUE_HEADER_SIZE;

	return &ring[index & ((1U << cq->log2) - 1)];
}

/* The entry of an index, if the device has written it. */
static struct vnic_cqe *vnic_written_cqe(const struct vnic_cq *cq, u32 index)
{
	struct vnic_cqe *e = vnic_cqe_at(cq, index);
	bool phase = le64_to_cpu(READ_ONCE(e->tail)) & VNIC_PHASE;

	if (phase == (index >> cq->log2 & 1))
		return NULL;
	/* The phase before the rest of the entry (DRV-703). */
	dma_rmb();
	return e;
}

/*
 * The id of the work request that is complete. The entry has its index in the queue, or of
 * a shared receive queue the id itself.
 */
static u64 vnic_wrid(struct vnic_qp *qp, const struct vnic_cqe *e)
{
	struct vnic_queue *q = e->opcode & VNIC_WC_OP_RECV ? &qp->rq : &qp->sq;
	u32 index = le64_to_cpu(e->wrid);
	u64 wrid;

	if (!q->wrids)
		return le64_to_cpu(e->wrid);
	wrid = q->wrids[index & (q->entries - 1)];
	/* The id was read before its place may be used again. */
	smp_store_release(&q->completed, index + 1);
	return wrid;
}

static void vnic_fill_wc(struct vnic_qp *qp, const struct vnic_cqe *e, struct ib_wc *wc)
{
	memset(wc, 0, sizeof(*wc));
	wc->wr_id = vnic_wrid(qp, e);
	wc->status = e->status;
	wc->vendor_err = le32_to_cpu(e->vendor_err);
	wc->qp = &qp->ibqp;
	wc->opcode = vnic_wc_opcode(e->opcode);
	if (wc->status != IB_WC_SUCCESS)
		return;
	wc->byte_len = le32_to_cpu(e->byte_len);
	wc->src_qp = le32_to_cpu(e->src_qp);
	wc->sl = e->sl;
	wc->port_num = 1;
	if (e->flags & VNIC_WC_FLAG_GRH)
		wc->wc_flags |= IB_WC_GRH;
	if (!is_zero_ether_addr(e->source_mac)) {
		wc->wc_flags |= IB_WC_WITH_SMAC;
		ether_addr_copy(wc->smac, e->source_mac);
	}
	if (e->flags & VNIC_WC_FLAG_IMM) {
		wc->wc_flags |= IB_WC_WITH_IMM;
		wc->ex.imm_data = (__force __be32)e->imm;
	}
	if (e->flags & VNIC_WC_FLAG_INV) {
		wc->wc_flags |= IB_WC_WITH_INVALIDATE;
		wc->ex.invalidate_rkey = le32_to_cpu(e->imm);
	}
}

/* Polls the entries that the device wrote. Those of destroyed queue pairs are dropped. */
static int vnic_take_cqes(struct vnic_fn *fn, struct vnic_cq *cq, int n, struct ib_wc *wc)
{
	struct vnic_cq_header *h = cq->area->buf;
	const struct vnic_cqe *e;
	struct vnic_hold *hold;
	u32 old = cq->consumer;
	int i = 0;

	while (i < n && !cq->lost) {
		e = vnic_written_cqe(cq, cq->consumer);
		if (!e)
			break;
		hold = xa_load(&fn->qps, le32_to_cpu(e->qpn));
		if (hold)
			vnic_fill_wc(container_of(hold, struct vnic_qp, hold), e, &wc[i++]);
		cq->consumer++;
	}
	if (cq->consumer != old) {
		/* The entries were read before the device may use their slots again (DRV-704). */
		virt_store_release(&h->consumer, cpu_to_le32(cq->consumer));
	}
	return i;
}

/* Completes what is posted to a queue of a queue pair that is lost. */
static int vnic_flush_queue(struct vnic_qp *qp, struct vnic_queue *q, enum ib_wc_opcode opcode,
			    int n, struct ib_wc *wc)
{
	int i = 0;

	if (!q->wrids)
		return 0;
	spin_lock(&q->lock);
	for (; i < n && q->completed != q->producer; i++) {
		memset(&wc[i], 0, sizeof(wc[i]));
		wc[i].wr_id = q->wrids[q->completed & (q->entries - 1)];
		wc[i].status = IB_WC_WR_FLUSH_ERR;
		wc[i].opcode = opcode;
		wc[i].qp = &qp->ibqp;
		q->completed++;
	}
	spin_unlock(&q->lock);
	return i;
}

static int vnic_flush(struct vnic_cq *cq, int n, struct ib_wc *wc)
{
	struct vnic_qp *qp;
	int i = 0;

	list_for_each_entry(qp, &cq->senders, sender) {
		if (qp->lost)
			i += vnic_flush_queue(qp, &qp->sq, IB_WC_SEND, n - i, wc + i);
	}
	list_for_each_entry(qp, &cq->receivers, receiver) {
		if (qp->lost)
			i += vnic_flush_queue(qp, &qp->rq, IB_WC_RECV, n - i, wc + i);
	}
	return i;
}

static bool vnic_to_flush(const struct vnic_cq *cq)
{
	struct vnic_qp *qp;

	list_for_each_entry(qp, &cq->senders, sender) {
		if (qp->lost && READ_ONCE(qp->sq.completed) != READ_ONCE(qp->sq.producer))
			return true;
	}
	list_for_each_entry(qp, &cq->receivers, receiver) {
		if (qp->lost && qp->rq.wrids &&
		    READ_ONCE(qp->rq.completed) != READ_ONCE(qp->rq.producer))
			return true;
	}
	return false;
}

int vnic_poll_cq(struct ib_cq *ibcq, int n, struct ib_wc *wc)
{
	struct vnic_fn *fn = to_fn(ibcq->device);
	struct vnic_cq *cq = to_vcq(ibcq);
	unsigned long flags;
	int i;

	spin_lock_irqsave(&cq->lock, flags);
	i = vnic_take_cqes(fn, cq, n, wc);
	if (i < n && READ_ONCE(fn->life) > 1)
		i += vnic_flush(cq, n - i, wc + i);
	spin_unlock_irqrestore(&cq->lock, flags);
	return i;
}

/* Removes a queue pair that is destroyed from a completion queue, with its entries. */
void vnic_cq_leave(struct vnic_cq *cq, struct vnic_qp *qp, struct list_head *link)
{
	struct vnic_cqe *e;
	unsigned long flags;
	u32 at;

	spin_lock_irqsave(&cq->lock, flags);
	list_del(link);
	/* Another queue pair may soon have its number. */
	for (at = cq->consumer; !cq->lost; at++) {
		e = vnic_written_cqe(cq, at);
		if (!e)
			break;
		if (le32_to_cpu(e->qpn) == qp->qpn)
			e->qpn = cpu_to_le32(U32_MAX);
	}
	spin_unlock_irqrestore(&cq->lock, flags);
}

void vnic_cq_join(struct vnic_cq *cq, struct list_head *link, struct list_head *list)
{
	unsigned long flags;

	spin_lock_irqsave(&cq->lock, flags);
	list_add_tail(link, list);
	spin_unlock_irqrestore(&cq->lock, flags);
}

/*
 * Calls the handler of a queue that was ever armed, so that its user polls: the device
 * reports no completions that the driver flushes, and in a new life the queue is not armed.
 */
void vnic_cq_wake(struct vnic_cq *cq)
{
	if (READ_ONCE(cq->armings) && cq->ibcq.comp_handler)
		cq->ibcq.comp_handler(&cq->ibcq, cq->ibcq.cq_context);
}

/* Arms by the word in the header (DRV-709). The provider arms programs' queues. */
int vnic_req_notify_cq(struct ib_cq *ibcq, enum ib_cq_notify_flags notify)
{
	struct vnic_cq *cq = to_vcq(ibcq);
	struct vnic_cq_header *h = cq->area->buf;
	unsigned long flags;
	u64 arm;
	int missed;

	if (!rdma_is_kernel_res(&ibcq->res))
		return 0;
	spin_lock_irqsave(&cq->lock, flags);
	cq->armings = (cq->armings + 1) & 0x7fffffff;
	if (!cq->armings)
		cq->armings = 1;
	arm = (u64)cq->armings << VNIC_CQ_ARM_NUMBER | cq->consumer;
	if ((notify & IB_CQ_SOLICITED_MASK) == IB_CQ_SOLICITED)
		arm |= VNIC_CQ_ARM_SOLICITED;
	WRITE_ONCE(h->arm, cpu_to_le64(arm));
	/* The word before the next entry is read (DRV-709). */
	virt_mb();
	missed = notify & IB_CQ_REPORT_MISSED_EVENTS &&
		 ((!cq->lost && vnic_written_cqe(cq, cq->consumer)) || vnic_to_flush(cq));
	spin_unlock_irqrestore(&cq->lock, flags);
	return missed;
}
