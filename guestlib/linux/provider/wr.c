// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* ibv_wr_*: requests built call by call between ibv_wr_start and ibv_wr_complete. */
#include <errno.h>
#include <string.h>

#include "vnic.h"

static void vnic_wr_start(struct ibv_qp_ex *ibqp)
{
	struct vnic_qp *qp = to_vqp_ex(ibqp);

	vnic_lock(&qp->sq.lock);
	qp->building = qp->sq.producer;
	qp->error = vnic_may_send(&qp->ibv.qp) ? 0 : EINVAL;
	qp->wqe = NULL;
}

static int vnic_wr_complete(struct ibv_qp_ex *ibqp)
{
	struct vnic_qp *qp = to_vqp_ex(ibqp);
	int err = qp->error;

	if (!err)
		vnic_submit_sends(qp, qp->building);
	vnic_unlock(&qp->sq.lock);
	return err;
}

static void vnic_wr_abort(struct ibv_qp_ex *ibqp)
{
	vnic_unlock(&to_vqp_ex(ibqp)->sq.lock);
}

/* Begins a request. Returns NULL if the queue is full, or after an error. */
static struct vnic_send_wqe *vnic_wr_new(struct ibv_qp_ex *ibqp, uint8_t opcode)
{
	struct vnic_qp *qp = to_vqp_ex(ibqp);
	unsigned int flags = ibqp->wr_flags;
	struct vnic_send_wqe *w;

	qp->wqe = NULL;
	if (qp->error)
		return NULL;
	if (vnic_full(&qp->sq, qp->building)) {
		qp->error = ENOMEM;
		return NULL;
	}
	w = vnic_entry(&qp->sq, qp->building++);
	memset(w, 0, sizeof(*w));
	w->wrid = htole64(ibqp->wr_id);
	w->opcode = opcode;
	w->flags = (flags & IBV_SEND_SIGNALED ? VNIC_SEND_SIGNALED : 0) |
		   (flags & IBV_SEND_SOLICITED ? VNIC_SEND_SOLICITED : 0) |
		   (flags & IBV_SEND_FENCE ? VNIC_SEND_FENCE : 0);
	qp->wqe = w;
	return w;
}

static void vnic_wr_send(struct ibv_qp_ex *qp)
{
	vnic_wr_new(qp, VNIC_OP_SEND);
}

static void vnic_wr_send_imm(struct ibv_qp_ex *qp, __be32 imm)
{
	struct vnic_send_wqe *w = vnic_wr_new(qp, VNIC_OP_SEND_IMM);

	if (w)
		w->imm = imm;
}

static void vnic_wr_send_inv(struct ibv_qp_ex *qp, uint32_t rkey)
{
	struct vnic_send_wqe *w = vnic_wr_new(qp, VNIC_OP_SEND_INV);

	if (w)
		w->imm = htole32(rkey);
}

static void vnic_wr_local_inv(struct ibv_qp_ex *qp, uint32_t rkey)
{
	struct vnic_send_wqe *w = vnic_wr_new(qp, VNIC_OP_LOCAL_INV);

	if (w)
		w->imm = htole32(rkey);
}

static struct vnic_send_wqe *vnic_wr_remote(struct ibv_qp_ex *qp, uint8_t opcode, uint32_t rkey,
					    uint64_t addr)
{
	struct vnic_send_wqe *w = vnic_wr_new(qp, opcode);

	if (w) {
		w->rkey = htole32(rkey);
		w->remote_addr = htole64(addr);
	}
	return w;
}

static void vnic_wr_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr)
{
	vnic_wr_remote(qp, VNIC_OP_WRITE, rkey, addr);
}

static void vnic_wr_write_imm(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, __be32 imm)
{
	struct vnic_send_wqe *w = vnic_wr_remote(qp, VNIC_OP_WRITE_IMM, rkey, addr);

	if (w)
		w->imm = imm;
}

static void vnic_wr_read(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr)
{
	vnic_wr_remote(qp, VNIC_OP_READ, rkey, addr);
}

static void vnic_wr_cmp_swp(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, uint64_t compare,
			    uint64_t swap)
{
	struct vnic_send_wqe *w = vnic_wr_remote(qp, VNIC_OP_CMP_SWAP, rkey, addr);

	if (w) {
		w->compare_add = htole64(compare);
		w->swap = htole64(swap);
	}
}

static void vnic_wr_fetch_add(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, uint64_t add)
{
	struct vnic_send_wqe *w = vnic_wr_remote(qp, VNIC_OP_FETCH_ADD, rkey, addr);

	if (w)
		w->compare_add = htole64(add);
}

static void vnic_wr_atomic_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr,
				 const void *word)
{
	struct vnic_send_wqe *w = vnic_wr_remote(qp, VNIC_OP_ATOMIC_WRITE, rkey, addr);

	if (w)
		memcpy(&w->swap, word, sizeof(w->swap));
}

static void vnic_wr_bind_mw(struct ibv_qp_ex *qp, struct ibv_mw *mw, uint32_t rkey,
			    const struct ibv_mw_bind_info *info)
{
	struct vnic_send_wqe *w = vnic_wr_new(qp, VNIC_OP_BIND_MW);

	if (w)
		vnic_put_bind(w, rkey, info);
}

static void vnic_set_sge(struct ibv_qp_ex *ibqp, uint32_t lkey, uint64_t addr, uint32_t length)
{
	struct vnic_send_wqe *w = to_vqp_ex(ibqp)->wqe;
	struct vnic_sge *s;

	if (!w)
		return;
	s = (void *)(w + 1);
	s->addr = htole64(addr);
	s->length = htole32(length);
	s->lkey = htole32(lkey);
	w->num_sge = 1;
}

static void vnic_set_sge_list(struct ibv_qp_ex *ibqp, size_t n, const struct ibv_sge *list)
{
	struct vnic_qp *qp = to_vqp_ex(ibqp);
	struct vnic_sge *s;
	size_t i;

	if (!qp->wqe)
		return;
	if (n > qp->sq.max_sge) {
		qp->error = ENOMEM;
		return;
	}
	s = (void *)(qp->wqe + 1);
	for (i = 0; i < n; i++) {
		s[i].addr = htole64(list[i].addr);
		s[i].length = htole32(list[i].length);
		s[i].lkey = htole32(list[i].lkey);
	}
	qp->wqe->num_sge = n;
}

static void vnic_set_inline_list(struct ibv_qp_ex *ibqp, size_t n, const struct ibv_data_buf *list)
{
	struct vnic_qp *qp = to_vqp_ex(ibqp);
	struct vnic_send_wqe *w = qp->wqe;
	size_t total = 0, i;

	if (!w)
		return;
	for (i = 0; i < n; i++) {
		if (list[i].length > qp->sq.max_inline - total) {
			qp->error = ENOMEM;
			return;
		}
		memcpy((char *)(w + 1) + total, list[i].addr, list[i].length);
		total += list[i].length;
	}
	w->flags |= VNIC_SEND_INLINE;
	if (qp->ibv.qp.qp_type == IBV_QPT_UD)
		((struct vnic_datagram_wqe *)w)->inline_len = htole32(total);
	else
		w->inline_len = htole32(total);
}

static void vnic_set_inline(struct ibv_qp_ex *qp, void *addr, size_t length)
{
	struct ibv_data_buf buf = { addr, length };

	vnic_set_inline_list(qp, 1, &buf);
}

static void vnic_set_ud_addr(struct ibv_qp_ex *ibqp, struct ibv_ah *ah, uint32_t qpn,
			     uint32_t qkey)
{
	struct vnic_datagram_wqe *d = (void *)to_vqp_ex(ibqp)->wqe;

	if (!d)
		return;
	d->address = to_vah(ah)->address;
	d->remote_qpn = htole32(qpn);
	d->remote_qkey = htole32(qkey);
}

static void vnic_set_xrc_srqn(struct ibv_qp_ex *ibqp, uint32_t srqn)
{
	struct vnic_send_wqe *w = to_vqp_ex(ibqp)->wqe;

	if (w)
		w->remote_srqn = htole32(srqn);
}

#define VNIC_SEND_OPS	(IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | \
			 IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | \
			 IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | \
			 IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV | \
			 IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_SEND_WITH_INV | \
			 IBV_QP_EX_WITH_ATOMIC_WRITE)

int vnic_wr_init(struct vnic_qp *vqp, uint64_t ops)
{
	struct ibv_qp_ex *qp = &vqp->ibv.qp_ex;

	if (ops & ~(uint64_t)VNIC_SEND_OPS)
		return EOPNOTSUPP;
	qp->wr_start = vnic_wr_start;
	qp->wr_complete = vnic_wr_complete;
	qp->wr_abort = vnic_wr_abort;
	qp->wr_send = vnic_wr_send;
	qp->wr_send_imm = vnic_wr_send_imm;
	qp->wr_send_inv = vnic_wr_send_inv;
	qp->wr_local_inv = vnic_wr_local_inv;
	qp->wr_rdma_write = vnic_wr_write;
	qp->wr_rdma_write_imm = vnic_wr_write_imm;
	qp->wr_rdma_read = vnic_wr_read;
	qp->wr_atomic_cmp_swp = vnic_wr_cmp_swp;
	qp->wr_atomic_fetch_add = vnic_wr_fetch_add;
	qp->wr_atomic_write = vnic_wr_atomic_write;
	qp->wr_bind_mw = vnic_wr_bind_mw;
	qp->wr_set_sge = vnic_set_sge;
	qp->wr_set_sge_list = vnic_set_sge_list;
	qp->wr_set_inline_data = vnic_set_inline;
	qp->wr_set_inline_data_list = vnic_set_inline_list;
	qp->wr_set_ud_addr = vnic_set_ud_addr;
	qp->wr_set_xrc_srqn = vnic_set_xrc_srqn;
	return 0;
}
