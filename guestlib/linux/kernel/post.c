// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Posting of the kernel's work requests, and doorbells. A program posts in its mapped queue,
 * and calls the kernel with an empty list to ring the doorbell of a device that sleeps.
 */
#include <linux/log2.h>
#include <rdma/ib_verbs.h>

#include "vnic.h"

#define VNIC_BELLS_KEPT	64 /* records of the bell ring that programs leave to the kernel */

static void *vnic_entry(const struct vnic_queue *q, u32 index)
{
	return q->area->buf + VNIC_QUEUE_HEADER_SIZE +
	       ((size_t)(index & (q->entries - 1)) << q->stride_log2);
}

static bool vnic_full(const struct vnic_queue *q)
{
	const struct vnic_queue_header *h = q->area->buf;

	if (q->wrids) {
		/* The id of a completed one was read before its place is used again. */
		return q->producer - smp_load_acquire(&q->completed) >= q->entries;
	}
	/* The consumer before the slots that it makes free (DEV-606). */
	return q->producer - le32_to_cpu(virt_load_acquire(&h->consumer)) >= q->entries;
}

/* Publishes entries, and rings the doorbell if the device sleeps (DRV-603, DRV-604). */
static void vnic_submit(struct vnic_fn *fn, struct vnic_queue *q, u32 old, u8 kind, u32 number)
{
	struct vnic_queue_header *h = q->area->buf;
	u32 event;

	if (q->producer == old || q->life != READ_ONCE(fn->life))
		return;
	/* The entries before the producer that covers them (DRV-603). */
	dma_wmb();
	WRITE_ONCE(h->producer, cpu_to_le32(q->producer));
	/* The producer before the event index is read (DRV-604). */
	virt_mb();
	event = le32_to_cpu(READ_ONCE(h->event_index));
	if (q->producer - event - 1 < q->producer - old)
		vnic_ring(fn, kind, number, q->producer);
}

/*
 * Rings the doorbell of a queue with the producer in its header. If a program has written
 * nonsense there, the device checks it.
 */
static void vnic_bell_of(struct vnic_fn *fn, const struct vnic_queue *q, u8 kind, u32 number)
{
	const struct vnic_queue_header *h;

	if (!q->area || q->life != READ_ONCE(fn->life))
		return;
	h = q->area->buf;
	vnic_ring(fn, kind, number, le32_to_cpu(READ_ONCE(h->producer)));
}

/* A program that rings faster than the device reads waits here, and leaves room for others. */
static void vnic_user_bell(struct vnic_fn *fn, const struct vnic_queue *q, u8 kind, u32 number)
{
	if (q->area && vnic_bells_room(fn, VNIC_BELLS_KEPT))
		vnic_bell_of(fn, q, kind, number);
}

static void vnic_ring_again(struct vnic_fn *fn, struct vnic_queue *q, u8 kind, u32 number)
{
	unsigned long flags;

	if (!q->area || !vnic_bells_room(fn, 0))
		return;
	spin_lock_irqsave(&q->lock, flags);
	vnic_bell_of(fn, q, kind, number);
	spin_unlock_irqrestore(&q->lock, flags);
}

/*
 * The bell ring was full when doorbells were to be sent. Which ones is not recorded, so all
 * queues get one.
 */
void vnic_bells_work(struct work_struct *work)
{
	struct vnic_fn *fn = container_of(work, struct vnic_fn, bells.again);
	struct vnic_hold *hold;
	struct vnic_srq *srq;
	struct vnic_qp *qp;
	unsigned long i;

	if (vnic_bells_room(fn, 0))
		vnic_admin_ring(fn);
	for (i = 0; (hold = vnic_find_from(&fn->qps, &i, U32_MAX)); i++) {
		qp = container_of(hold, struct vnic_qp, hold);
		if (READ_ONCE(qp->state) != IB_QPS_RESET) { /* else its queues may change */
			vnic_ring_again(fn, &qp->sq, VNIC_DOORBELL_SQ, qp->qpn);
			vnic_ring_again(fn, &qp->rq, VNIC_DOORBELL_RQ, qp->qpn);
		}
		vnic_release(hold);
	}
	for (i = 0; (hold = vnic_find_from(&fn->srqs, &i, U32_MAX)); i++) {
		srq = container_of(hold, struct vnic_srq, hold);
		vnic_ring_again(fn, &srq->q, VNIC_DOORBELL_SRQ, srq->srqn);
		vnic_release(hold);
	}
}

static int vnic_fill_sges(struct vnic_sge *to, const struct ib_sge *from, int n)
{
	int i;

	for (i = 0; i < n; i++) {
		to[i].addr = cpu_to_le64(from[i].addr);
		to[i].length = cpu_to_le32(from[i].length);
		to[i].lkey = cpu_to_le32(from[i].lkey);
	}
	return n;
}

static u8 vnic_send_flags(int flags)
{
	return (flags & IB_SEND_SIGNALED ? VNIC_SEND_SIGNALED : 0) |
	       (flags & IB_SEND_SOLICITED ? VNIC_SEND_SOLICITED : 0) |
	       (flags & IB_SEND_FENCE ? VNIC_SEND_FENCE : 0);
}

static int vnic_fill_datagram(struct vnic_datagram_wqe *w, const struct ib_send_wr *wr)
{
	const struct ib_ud_wr *ud = ud_wr(wr);

	if (wr->opcode != IB_WR_SEND && wr->opcode != IB_WR_SEND_WITH_IMM)
		return -EINVAL;
	w->address = to_vah(ud->ah)->address;
	w->remote_qpn = cpu_to_le32(ud->remote_qpn);
	w->remote_qkey = cpu_to_le32(ud->remote_qkey);
	if (wr->opcode == IB_WR_SEND_WITH_IMM)
		w->imm = (__force __le32)wr->ex.imm_data;
	return 0;
}

static void vnic_fill_fast_reg(struct vnic_send_wqe *w, const struct ib_reg_wr *reg)
{
	struct vnic_mr *mr = to_vmr(reg->mr);
	struct vnic_fast_reg *f = (void *)(w + 1);

	w->rkey = cpu_to_le32(reg->key);
	f->iova = cpu_to_le64(reg->mr->iova);
	f->length = cpu_to_le64(reg->mr->length);
	f->pages = cpu_to_le64(mr->list_dma);
	f->access = cpu_to_le32(reg->access & ~(u32)IB_ACCESS_OPTIONAL);
	f->offset = cpu_to_le32(reg->mr->iova & (reg->mr->page_size - 1));
	f->page_shift = ilog2(reg->mr->page_size);
}

static int vnic_fill_send(struct vnic_send_wqe *w, const struct ib_send_wr *wr)
{
	switch (wr->opcode) {
	case IB_WR_SEND:
		break;
	case IB_WR_SEND_WITH_IMM:
		w->imm = (__force __le32)wr->ex.imm_data;
		break;
	case IB_WR_SEND_WITH_INV:
	case IB_WR_LOCAL_INV:
		w->imm = cpu_to_le32(wr->ex.invalidate_rkey);
		break;
	case IB_WR_RDMA_WRITE_WITH_IMM:
		w->imm = (__force __le32)wr->ex.imm_data;
		fallthrough;
	case IB_WR_RDMA_WRITE:
	case IB_WR_RDMA_READ:
		w->remote_addr = cpu_to_le64(rdma_wr(wr)->remote_addr);
		w->rkey = cpu_to_le32(rdma_wr(wr)->rkey);
		break;
	case IB_WR_RDMA_READ_WITH_INV:
		if (wr->num_sge != 1)
			return -EINVAL;
		/* The key of the sink. That in ex is the one before in rdma_rw's requests. */
		w->imm = cpu_to_le32(wr->sg_list[0].lkey);
		w->remote_addr = cpu_to_le64(rdma_wr(wr)->remote_addr);
		w->rkey = cpu_to_le32(rdma_wr(wr)->rkey);
		break;
	case IB_WR_ATOMIC_CMP_AND_SWP:
	case IB_WR_ATOMIC_FETCH_AND_ADD:
		w->remote_addr = cpu_to_le64(atomic_wr(wr)->remote_addr);
		w->rkey = cpu_to_le32(atomic_wr(wr)->rkey);
		w->compare_add = cpu_to_le64(atomic_wr(wr)->compare_add);
		w->swap = cpu_to_le64(atomic_wr(wr)->swap);
		break;
	case IB_WR_REG_MR:
		if (!(reg_wr(wr)->mr->page_size & VNIC_PAGE_SIZES))
			return -EINVAL;
		vnic_fill_fast_reg(w, reg_wr(wr));
		break;
	default:
		return -EINVAL;
	}
	return 0;
}

static int vnic_opcode(enum ib_wr_opcode op)
{
	switch (op) {
	case IB_WR_RDMA_WRITE:			return VNIC_OP_WRITE;
	case IB_WR_RDMA_WRITE_WITH_IMM:		return VNIC_OP_WRITE_IMM;
	case IB_WR_SEND:			return VNIC_OP_SEND;
	case IB_WR_SEND_WITH_IMM:		return VNIC_OP_SEND_IMM;
	case IB_WR_RDMA_READ:			return VNIC_OP_READ;
	case IB_WR_ATOMIC_CMP_AND_SWP:		return VNIC_OP_CMP_SWAP;
	case IB_WR_ATOMIC_FETCH_AND_ADD:	return VNIC_OP_FETCH_ADD;
	case IB_WR_SEND_WITH_INV:		return VNIC_OP_SEND_INV;
	case IB_WR_RDMA_READ_WITH_INV:		return VNIC_OP_READ_INV;
	case IB_WR_LOCAL_INV:			return VNIC_OP_LOCAL_INV;
	case IB_WR_REG_MR:			return VNIC_OP_REG_MR;
	default:				return -EINVAL;
	}
}

static int vnic_build_send(struct vnic_qp *qp, const struct ib_send_wr *wr)
{
	struct vnic_send_wqe *w = vnic_entry(&qp->sq, qp->sq.producer);
	int op = vnic_opcode(wr->opcode);
	int err;

	if (op < 0 || wr->num_sge > qp->sq.max_sge || wr->send_flags & IB_SEND_INLINE)
		return -EINVAL;
	memset(w, 0, sizeof(*w));
	w->wrid = cpu_to_le64(qp->sq.producer);
	w->opcode = op;
	w->flags = vnic_send_flags(wr->send_flags);
	w->num_sge = wr->num_sge;
	if (qp->type == IB_QPT_UD || qp->type == IB_QPT_GSI)
		err = vnic_fill_datagram((void *)w, wr);
	else
		err = vnic_fill_send(w, wr);
	if (!err && op != VNIC_OP_REG_MR)
		vnic_fill_sges((void *)(w + 1), wr->sg_list, wr->num_sge);
	return err;
}

int vnic_post_send(struct ib_qp *ibqp, const struct ib_send_wr *wr, const struct ib_send_wr **bad)
{
	struct vnic_fn *fn = to_fn(ibqp->device);
	struct vnic_qp *qp = to_vqp(ibqp);
	unsigned long flags;
	int err = 0;
	bool lost;
	u32 old;

	*bad = wr;
	if (!rdma_is_kernel_res(&ibqp->res)) {
		if (wr)
			return -EINVAL;
		vnic_user_bell(fn, &qp->sq, VNIC_DOORBELL_SQ, qp->qpn);
		return 0;
	}
	spin_lock_irqsave(&qp->sq.lock, flags);
	old = qp->sq.producer;
	for (; wr; wr = wr->next) {
		err = vnic_full(&qp->sq) ? -ENOMEM : vnic_build_send(qp, wr);
		if (err) {
			*bad = wr;
			break;
		}
		qp->sq.wrids[qp->sq.producer & (qp->sq.entries - 1)] = wr->wr_id;
		qp->sq.producer++;
	}
	vnic_submit(fn, &qp->sq, old, VNIC_DOORBELL_SQ, qp->qpn);
	lost = qp->lost;
	spin_unlock_irqrestore(&qp->sq.lock, flags);
	if (lost)
		queue_work(fn->loss_wq, &fn->flush);
	return err;
}

static int vnic_post_receives(struct vnic_fn *fn, struct vnic_queue *q, u8 kind, u32 number,
			      const struct ib_recv_wr *wr, const struct ib_recv_wr **bad)
{
	struct vnic_recv_wqe *w;
	unsigned long flags;
	int err = 0;
	u32 old;

	spin_lock_irqsave(&q->lock, flags);
	old = q->producer;
	for (; wr; wr = wr->next) {
		err = wr->num_sge > q->max_sge ? -EINVAL : vnic_full(q) ? -ENOMEM : 0;
		if (err) {
			*bad = wr;
			break;
		}
		w = vnic_entry(q, q->producer);
		memset(w, 0, sizeof(*w));
		w->wrid = cpu_to_le64(q->wrids ? q->producer : wr->wr_id);
		if (q->wrids)
			q->wrids[q->producer & (q->entries - 1)] = wr->wr_id;
		w->num_sge = vnic_fill_sges((void *)(w + 1), wr->sg_list, wr->num_sge);
		q->producer++;
	}
	vnic_submit(fn, q, old, kind, number);
	spin_unlock_irqrestore(&q->lock, flags);
	return err;
}

int vnic_post_recv(struct ib_qp *ibqp, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad)
{
	struct vnic_fn *fn = to_fn(ibqp->device);
	struct vnic_qp *qp = to_vqp(ibqp);
	int err;

	*bad = wr;
	if (!rdma_is_kernel_res(&ibqp->res)) {
		if (wr)
			return -EINVAL;
		vnic_user_bell(fn, &qp->rq, VNIC_DOORBELL_RQ, qp->qpn);
		return 0;
	}
	if (!qp->rq.area)
		return -EINVAL;
	err = vnic_post_receives(fn, &qp->rq, VNIC_DOORBELL_RQ, qp->qpn, wr, bad);
	/* The producer before lost is read: vnic_lose_qp() sets lost, and then reads it. */
	smp_mb();
	if (READ_ONCE(qp->lost))
		queue_work(fn->loss_wq, &fn->flush);
	return err;
}

int vnic_post_srq_recv(struct ib_srq *ibsrq, const struct ib_recv_wr *wr,
		       const struct ib_recv_wr **bad)
{
	struct vnic_fn *fn = to_fn(ibsrq->device);
	struct vnic_srq *srq = to_vsrq(ibsrq);

	*bad = wr;
	if (!rdma_is_kernel_res(&ibsrq->res)) {
		if (wr)
			return -EINVAL;
		vnic_user_bell(fn, &srq->q, VNIC_DOORBELL_SRQ, srq->srqn);
		return 0;
	}
	return vnic_post_receives(fn, &srq->q, VNIC_DOORBELL_SRQ, srq->srqn, wr, bad);
}
