/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The data path: posting work and taking completions (docs/abi sections 6 and 7). */
#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "internal.h"

/* The slot for the next entry, NULL if the queue is full or of before a reset. */
static uint8_t *next_slot(const struct vnic_qp *qp, const struct queue *q)
{
	if (check_life(qp->dev, qp->life) < 0)
		return NULL;
	uint32_t consumer = load32(q->area + offsetof(struct vnic_queue_header, consumer));
	if (q->next - consumer >= q->entries) {
		fail(EAGAIN, "the queue of %u entries is full: poll completions", q->entries);
		return NULL;
	}
	return q->area + VNIC_QUEUE_HEADER_SIZE + (size_t)(q->next & (q->entries - 1)) * q->stride;
}

/* Makes the entry in next_slot the device's, and rings unless the device is looking (DRV-603, DRV-604). */
static int publish(struct vnic_qp *qp, struct queue *q, uint8_t kind)
{
	store32(q->area + offsetof(struct vnic_queue_header, producer), ++q->next);
	if (qp->dev->info.features & VNIC_FEATURE_EVENT_INDEX) {
		full_barrier();
		if (q->next - load32(q->area + offsetof(struct vnic_queue_header, event_index)) - 1 >= 1)
			return 0;
	}
	return ring_doorbell(qp->dev, kind, 0, qp->qpn, q->next);
}

int vnic_post_send(struct vnic_qp *qp, const struct vnic_send_wr *wr)
{
	bool in_line = wr->flags & VNIC_SEND_INLINE;
	if (in_line ? wr->inline_len > qp->max_inline : wr->num_sge > qp->max_send_sge)
		return fail(EINVAL, "%u SGEs or %u inline bytes are more than the QP was made for", wr->num_sge, wr->inline_len);
	uint8_t *slot = next_slot(qp, &qp->sq);
	if (!slot)
		return -1;
	struct vnic_send_wqe e = {
		.wrid = wr->wrid, .opcode = wr->opcode, .flags = wr->flags, .num_sge = in_line ? 0 : wr->num_sge, .imm = wr->imm, .rkey = wr->rkey,
		.remote_addr = wr->remote_addr, .compare_add = wr->compare_add, .swap = wr->swap, .inline_len = in_line ? wr->inline_len : 0,
	};
	memcpy(slot, &e, sizeof e);
	if (in_line)
		memcpy(slot + sizeof e, wr->inline_data, wr->inline_len);
	else if (wr->num_sge)
		memcpy(slot + sizeof e, wr->sgl, wr->num_sge * sizeof *wr->sgl);
	return publish(qp, &qp->sq, VNIC_DOORBELL_SQ);
}

int vnic_post_reg_mr(struct vnic_qp *qp, uint64_t wrid, uint8_t flags, struct vnic_fast_mr *f, void *addr, size_t length, uint32_t access)
{
	const uint8_t *first = addr;
	size_t offset = (uintptr_t)addr % VNIC_PAGE_SIZE, pages = (offset + length + VNIC_PAGE_SIZE - 1) / VNIC_PAGE_SIZE;
	if (!length || pages > f->max_pages)
		return fail(EINVAL, "%zu bytes at %p: the region was made for 1 to %u pages", length, addr, f->max_pages);
	if (check_life(qp->dev, f->mr.life) < 0)
		return -1;
	uint8_t *slot = next_slot(qp, &qp->sq);
	if (!slot)
		return -1;
	for (size_t i = 0; i < pages; i++)
		f->list[i] = arena_addr(&qp->dev->arena, first - offset + i * VNIC_PAGE_SIZE);
	uint32_t key = (f->mr.rkey & ~0xffU) | (uint8_t)(f->mr.rkey + 1); /* another than before: what has the old one is refused */
	struct vnic_send_wqe e = { .wrid = wrid, .opcode = VNIC_OP_REG_MR, .flags = flags, .rkey = key };
	struct vnic_fast_reg r = { .iova = (uintptr_t)addr, .length = length, .pages = arena_addr(&qp->dev->arena, f->list), .access = access,
				   .offset = (uint32_t)offset };
	memcpy(slot, &e, sizeof e);
	memcpy(slot + sizeof e, &r, sizeof r);
	f->mr = (struct vnic_mr){ .addr = addr, .length = length, .lkey = key, .rkey = key, .life = f->mr.life };
	return publish(qp, &qp->sq, VNIC_DOORBELL_SQ);
}

int vnic_post_recv(struct vnic_qp *qp, uint64_t wrid, const struct vnic_sge *sgl, uint8_t num_sge)
{
	if (num_sge > qp->max_recv_sge)
		return fail(EINVAL, "%u SGEs are more than the QP was made for", num_sge);
	uint8_t *slot = next_slot(qp, &qp->rq);
	if (!slot)
		return -1;
	struct vnic_recv_wqe e = { .wrid = wrid, .num_sge = num_sge };
	memcpy(slot, &e, sizeof e);
	memcpy(slot + sizeof e, sgl, num_sge * sizeof *sgl);
	return publish(qp, &qp->rq, VNIC_DOORBELL_RQ);
}

static const uint8_t *entry_of(const struct vnic_cq *cq, uint32_t i)
{
	return cq->area + VNIC_QUEUE_HEADER_SIZE + (size_t)(i & (cq->entries - 1)) * sizeof(struct vnic_cqe);
}

/* The phase of the pass over the queue says whether entry i is there (DRV-703). */
static bool filled(const struct vnic_cq *cq, uint32_t i)
{
	bool phase = load64(entry_of(cq, i) + VNIC_CQE_TAIL_OFFSET) & VNIC_PHASE;
	return phase != (i / cq->entries % 2 != 0);
}

int vnic_poll_cq(struct vnic_cq *cq, struct vnic_cqe *cqes, int n)
{
	int got = 0;
	for (; got < n && filled(cq, cq->next); got++)
		memcpy(&cqes[got], entry_of(cq, cq->next++), sizeof *cqes);
	if (got)
		store32(cq->area + offsetof(struct vnic_cq_header, consumer), cq->next);
	return got;
}

/* Asks for one event when entry next is written: by the arm word, or by a doorbell (DRV-709, DEV-707). */
static int arm(struct vnic_cq *cq)
{
	cq->event = false;
	if (!(cq->dev->info.features & VNIC_FEATURE_ARM_WORD))
		return ring_doorbell(cq->dev, VNIC_DOORBELL_CQ_ARM, 0, cq->cqn, cq->next);
	if (++cq->arming >> (64 - VNIC_CQ_ARM_NUMBER) || !cq->arming)
		cq->arming = 1;
	store64(cq->area + offsetof(struct vnic_cq_header, arm), (uint64_t)cq->arming << VNIC_CQ_ARM_NUMBER | cq->next);
	full_barrier();
	return 0;
}

/* Fails when no completion can come any more. */
static int check_over(const struct vnic_cq *cq)
{
	if (cq->failed)
		return fail(EIO, "completion queue %u has failed: it was full, or its memory could not be reached; make another", cq->cqn);
	return check_life(cq->dev, cq->life) < 0 ? -1 : check_stopped(cq->dev);
}

int vnic_wait_cq(struct vnic_cq *cq, int timeout_ms)
{
	if (filled(cq, cq->next))
		return 1;
	if (check_over(cq) < 0 || arm(cq) < 0)
		return -1;
	for (long long end = now_ms() + timeout_ms;;) {
		if (filled(cq, cq->next)) /* also right after arming: what was written before brings no event */
			return 1;
		if (check_over(cq) < 0 || (cq->event && arm(cq) < 0))
			return -1;
		long long left = timeout_ms < 0 ? -1 : end - now_ms();
		if (timeout_ms >= 0 && left <= 0)
			return 0;
		if (vnic_dispatch(cq->dev, (int)left) < 0)
			return -1;
	}
}
