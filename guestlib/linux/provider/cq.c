// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Completion queues. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "vnic.h"

static bool vnic_there(const struct vnic_map *map, uint32_t log2, uint32_t index,
		       const struct vnic_cqe **e)
{
	bool pass = !(index >> log2 & 1);
	uint64_t tail;

	*e = (const struct vnic_cqe *)((char *)map->base + VNIC_QUEUE_HEADER_SIZE) +
	     (index & ((UINT32_C(1) << log2) - 1));
	/* The phase before the rest of the entry (DRV-703). */
	tail = atomic_load_explicit((_Atomic uint64_t *)&(*e)->tail, memory_order_acquire);
	return !(le64toh(tail) & VNIC_PHASE) != pass;
}

static void vnic_show_consumer(struct vnic_cq *cq)
{
	struct vnic_cq_header *h = cq->old.base ? cq->old.base : cq->map.base;

	atomic_store_explicit((_Atomic uint32_t *)&h->consumer, htole32(cq->consumer),
			      memory_order_release);
}

/* The entry at the consumer index. After a resize those of the old area come first. */
static const struct vnic_cqe *vnic_head(struct vnic_cq *cq)
{
	const struct vnic_cqe *e;

	if (cq->old.base) {
		if (vnic_there(&cq->old, cq->old_log2, cq->consumer, &e))
			return e;
		vnic_unmap(&cq->old);
		cq->consumer = 0;
	}
	return vnic_there(&cq->map, cq->log2, cq->consumer, &e) ? e : NULL;
}

/* No queue pair has this number. It marks entries of queue pairs that were reset. */
#define VNIC_QPN_RESET UINT32_MAX

/* The next entry that is not marked so. */
static const struct vnic_cqe *vnic_next(struct vnic_cq *cq)
{
	const struct vnic_cqe *e;

	while ((e = vnic_head(cq)) && e->qpn == htole32(VNIC_QPN_RESET)) {
		cq->consumer++;
		vnic_show_consumer(cq);
	}
	return e;
}

static void vnic_sweep(const struct vnic_map *map, uint32_t log2, uint32_t index, uint32_t qpn)
{
	const struct vnic_cqe *e;

	for (; vnic_there(map, log2, index, &e); index++)
		if (e->qpn == htole32(qpn))
			((struct vnic_cqe *)e)->qpn = htole32(VNIC_QPN_RESET);
}

/* Drops the completions of a queue pair that goes to RESET. */
void vnic_cq_sweep(struct ibv_cq *ibcq, uint32_t qpn)
{
	struct vnic_cq *cq = to_vcq(ibcq);

	vnic_lock(&cq->lock);
	if (cq->old.base)
		vnic_sweep(&cq->old, cq->old_log2, cq->consumer, qpn);
	vnic_sweep(&cq->map, cq->log2, cq->old.base ? 0 : cq->consumer, qpn);
	vnic_unlock(&cq->lock);
}

static unsigned int vnic_flags(const struct vnic_cqe *e)
{
	return e->flags & (VNIC_WC_FLAG_GRH | VNIC_WC_FLAG_IMM | VNIC_WC_FLAG_INV);
}

static uint32_t vnic_imm(const struct vnic_cqe *e)
{
	return e->flags & VNIC_WC_FLAG_INV ? le32toh(e->imm) : e->imm;
}

static void vnic_fill(const struct vnic_cqe *e, struct ibv_wc *wc)
{
	memset(wc, 0, sizeof(*wc));
	wc->wr_id = le64toh(e->wrid);
	wc->status = e->status;
	wc->opcode = e->opcode;
	wc->vendor_err = le32toh(e->vendor_err);
	wc->qp_num = le32toh(e->qpn);
	if (e->status != VNIC_WC_SUCCESS)
		return;
	wc->byte_len = le32toh(e->byte_len);
	wc->invalidated_rkey = vnic_imm(e);
	wc->src_qp = le32toh(e->src_qp);
	wc->wc_flags = vnic_flags(e);
	wc->sl = e->sl;
}

int vnic_poll_cq(struct ibv_cq *ibcq, int n, struct ibv_wc *wc)
{
	struct vnic_cq *cq = to_vcq(ibcq);
	const struct vnic_cqe *e;
	int i;

	vnic_lock(&cq->lock);
	for (i = 0; i < n && (e = vnic_next(cq)); i++) {
		vnic_fill(e, &wc[i]);
		cq->consumer++;
	}
	if (i)
		vnic_show_consumer(cq);
	vnic_unlock(&cq->lock);
	return i;
}

/* Arms by the word in the header (DRV-709); the event comes through the kernel. */
static void vnic_arm(struct vnic_cq *cq, bool solicited)
{
	struct vnic_cq_header *h = cq->map.base;
	uint32_t next = cq->old.base ? 0 : cq->consumer;
	uint64_t arm;

	cq->armings = (cq->armings + 1) & 0x7fffffff;
	if (!cq->armings)
		cq->armings = 1;
	cq->armed = true;
	arm = (uint64_t)cq->armings << VNIC_CQ_ARM_NUMBER | next;
	if (solicited)
		arm |= VNIC_CQ_ARM_SOLICITED;
	atomic_store_explicit((_Atomic uint64_t *)&h->arm, htole64(arm), memory_order_relaxed);
	/* The word before the program polls again (DRV-709). */
	atomic_thread_fence(memory_order_seq_cst);
}

int vnic_req_notify_cq(struct ibv_cq *ibcq, int solicited)
{
	struct vnic_cq *cq = to_vcq(ibcq);

	vnic_lock(&cq->lock);
	vnic_arm(cq, solicited);
	vnic_unlock(&cq->lock);
	return 0;
}

static int vnic_start_poll(struct ibv_cq_ex *ibcq, struct ibv_poll_cq_attr *attr)
{
	struct vnic_cq *cq = to_vcq_ex(ibcq);

	if (attr->comp_mask)
		return EINVAL;
	vnic_lock(&cq->lock);
	cq->cqe = vnic_next(cq);
	if (!cq->cqe) {
		vnic_unlock(&cq->lock);
		return ENOENT;
	}
	ibcq->wr_id = le64toh(cq->cqe->wrid);
	ibcq->status = cq->cqe->status;
	return 0;
}

static int vnic_next_poll(struct ibv_cq_ex *ibcq)
{
	struct vnic_cq *cq = to_vcq_ex(ibcq);

	cq->consumer++;
	vnic_show_consumer(cq);
	cq->cqe = vnic_next(cq);
	if (!cq->cqe)
		return ENOENT;
	ibcq->wr_id = le64toh(cq->cqe->wrid);
	ibcq->status = cq->cqe->status;
	return 0;
}

static void vnic_end_poll(struct ibv_cq_ex *ibcq)
{
	struct vnic_cq *cq = to_vcq_ex(ibcq);

	if (cq->cqe) {
		cq->consumer++;
		vnic_show_consumer(cq);
	}
	vnic_unlock(&cq->lock);
}

static enum ibv_wc_opcode vnic_read_opcode(struct ibv_cq_ex *cq)
{
	return to_vcq_ex(cq)->cqe->opcode;
}

static uint32_t vnic_read_vendor_err(struct ibv_cq_ex *cq)
{
	return le32toh(to_vcq_ex(cq)->cqe->vendor_err);
}

static uint32_t vnic_read_byte_len(struct ibv_cq_ex *cq)
{
	return le32toh(to_vcq_ex(cq)->cqe->byte_len);
}

static __be32 vnic_read_imm(struct ibv_cq_ex *cq)
{
	return (__be32)vnic_imm(to_vcq_ex(cq)->cqe);
}

static uint32_t vnic_read_qp_num(struct ibv_cq_ex *cq)
{
	return le32toh(to_vcq_ex(cq)->cqe->qpn);
}

static uint32_t vnic_read_src_qp(struct ibv_cq_ex *cq)
{
	return le32toh(to_vcq_ex(cq)->cqe->src_qp);
}

static unsigned int vnic_read_flags(struct ibv_cq_ex *cq)
{
	return vnic_flags(to_vcq_ex(cq)->cqe);
}

static uint8_t vnic_read_sl(struct ibv_cq_ex *cq)
{
	return to_vcq_ex(cq)->cqe->sl;
}

static uint32_t vnic_read_slid(struct ibv_cq_ex *cq)
{
	return 0;
}

static uint8_t vnic_read_path_bits(struct ibv_cq_ex *cq)
{
	return 0;
}

static uint64_t vnic_read_ts(struct ibv_cq_ex *cq)
{
	return le64toh(to_vcq_ex(cq)->cqe->timestamp);
}

#define VNIC_WC_FLAGS	(IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP)

static void vnic_cq_ex_init(struct ibv_cq_ex *cq)
{
	cq->start_poll = vnic_start_poll;
	cq->next_poll = vnic_next_poll;
	cq->end_poll = vnic_end_poll;
	cq->read_opcode = vnic_read_opcode;
	cq->read_vendor_err = vnic_read_vendor_err;
	cq->read_byte_len = vnic_read_byte_len;
	cq->read_imm_data = vnic_read_imm;
	cq->read_qp_num = vnic_read_qp_num;
	cq->read_src_qp = vnic_read_src_qp;
	cq->read_wc_flags = vnic_read_flags;
	cq->read_slid = vnic_read_slid;
	cq->read_sl = vnic_read_sl;
	cq->read_dlid_path_bits = vnic_read_path_bits;
	cq->read_completion_ts = vnic_read_ts;
}

static struct vnic_cq *vnic_make_cq(struct ibv_context *ctx, struct ibv_cq_init_attr_ex *attr)
{
	struct {
		struct ib_uverbs_ex_create_cq_resp ibv;
		struct vnic_cq_resp drv;
	} resp = {};
	struct ibv_create_cq_ex cmd = {};
	struct ibv_pd *domain = NULL;
	struct vnic_cq *cq;
	bool single;
	int err;

	if (attr->wc_flags & ~(uint64_t)VNIC_WC_FLAGS ||
	    attr->comp_mask & ~(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD) {
		domain = attr->parent_domain;
		if (!domain || !to_vpd(domain)->parent) {
			errno = EINVAL;
			return NULL;
		}
	}
	cq = calloc(1, sizeof(*cq));
	if (!cq)
		return NULL;
	err = ibv_cmd_create_cq_ex(ctx, attr, NULL, &cq->ibv, &cmd, sizeof(cmd), &resp.ibv,
				   sizeof(resp), 0);
	if (err)
		goto free;
	err = vnic_map(ctx, &cq->map, &resp.drv.queue);
	if (err)
		goto destroy;
	cq->log2 = resp.drv.queue.entries_log2;
	vnic_domain_hold(domain, &cq->parent, &single);
	if (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS &&
	    attr->flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED)
		single = true;
	vnic_lock_init(&cq->lock, single);
	return cq;
destroy:
	ibv_cmd_destroy_cq(&cq->ibv.cq);
free:
	free(cq);
	errno = err;
	return NULL;
}

struct ibv_cq *vnic_create_cq(struct ibv_context *ctx, int cqe, struct ibv_comp_channel *channel,
			      int vector)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = cqe,
		.channel = channel,
		.comp_vector = vector,
		.wc_flags = IBV_WC_STANDARD_FLAGS,
	};
	struct vnic_cq *cq = vnic_make_cq(ctx, &attr);

	return cq ? &cq->ibv.cq : NULL;
}

struct ibv_cq_ex *vnic_create_cq_ex(struct ibv_context *ctx, struct ibv_cq_init_attr_ex *attr)
{
	struct vnic_cq *cq = vnic_make_cq(ctx, attr);

	if (!cq)
		return NULL;
	vnic_cq_ex_init(&cq->ibv.cq_ex);
	return &cq->ibv.cq_ex;
}

int vnic_resize_cq(struct ibv_cq *ibcq, int cqe)
{
	struct {
		struct ib_uverbs_resize_cq_resp ibv;
		struct vnic_cq_resp drv;
	} resp = {};
	struct vnic_cq *cq = to_vcq(ibcq);
	struct ibv_resize_cq cmd;
	const struct vnic_cqe *e;
	struct vnic_map map = {};
	int i, err;

	vnic_lock(&cq->lock);
	vnic_next(cq);
	err = EBUSY; /* the area before the last resize is still in use */
	if (cq->old.base)
		goto out;
	err = EINVAL; /* there are more completions than the new size */
	for (i = 0; i < cqe && vnic_there(&cq->map, cq->log2, cq->consumer + i, &e); i++)
		;
	if (i == cqe && vnic_there(&cq->map, cq->log2, cq->consumer + i, &e))
		goto out;
	err = ibv_cmd_resize_cq(ibcq, cqe, &cmd, sizeof(cmd), &resp.ibv, sizeof(resp));
	if (!err)
		err = vnic_map(ibcq->context, &map, &resp.drv.queue);
	if (err)
		goto out;
	cq->old = cq->map;
	cq->old_log2 = cq->log2;
	cq->map = map;
	cq->log2 = resp.drv.queue.entries_log2;
	if (cq->armed) /* the arming may be lost (DRV-720) */
		vnic_arm(cq, false);
out:
	vnic_unlock(&cq->lock);
	return err;
}

int vnic_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr)
{
	struct ibv_modify_cq cmd = {};

	return ibv_cmd_modify_cq(cq, attr, &cmd, sizeof(cmd));
}

int vnic_destroy_cq(struct ibv_cq *ibcq)
{
	struct vnic_cq *cq = to_vcq(ibcq);
	int err = ibv_cmd_destroy_cq(ibcq);

	if (err)
		return err;
	vnic_unmap(&cq->old);
	vnic_unmap(&cq->map);
	vnic_domain_drop(cq->parent);
	free(cq);
	return 0;
}
