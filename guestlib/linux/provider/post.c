// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Work requests in the memory that the device reads. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "vnic.h"

/* Rings the doorbell of a device that sleeps: the kernel does so for an empty list. */
static void vnic_wake(struct ibv_context *ctx, uint32_t command, uint32_t handle)
{
	union {
		struct ibv_post_send send;
		struct ibv_post_recv recv;
		struct ibv_post_srq_recv srq;
	} cmd = {};
	uint32_t bad[4];
	size_t size;

	switch (command) {
	case IB_USER_VERBS_CMD_POST_SEND:
		size = sizeof(cmd.send);
		cmd.send.qp_handle = handle;
		cmd.send.wqe_size = sizeof(struct ib_uverbs_send_wr);
		cmd.send.response = (uintptr_t)bad;
		break;
	case IB_USER_VERBS_CMD_POST_RECV:
		size = sizeof(cmd.recv);
		cmd.recv.qp_handle = handle;
		cmd.recv.wqe_size = sizeof(struct ib_uverbs_recv_wr);
		cmd.recv.response = (uintptr_t)bad;
		break;
	default:
		size = sizeof(cmd.srq);
		cmd.srq.srq_handle = handle;
		cmd.srq.wqe_size = sizeof(struct ib_uverbs_recv_wr);
		cmd.srq.response = (uintptr_t)bad;
	}
	cmd.send.hdr.command = command;
	cmd.send.hdr.in_words = size / 4;
	cmd.send.hdr.out_words = sizeof(struct ib_uverbs_post_send_resp) / 4;
	/* That the device is lost is reported by an asynchronous event. */
	if (write(ctx->cmd_fd, &cmd, size) < 0)
		return;
}

void vnic_wake_sends(struct vnic_qp *qp)
{
	vnic_wake(qp->ibv.qp.context, IB_USER_VERBS_CMD_POST_SEND, qp->ibv.qp.handle);
}

static uint8_t vnic_flags(unsigned int flags)
{
	return (flags & IBV_SEND_SIGNALED ? VNIC_SEND_SIGNALED : 0) |
	       (flags & IBV_SEND_SOLICITED ? VNIC_SEND_SOLICITED : 0) |
	       (flags & IBV_SEND_FENCE ? VNIC_SEND_FENCE : 0) |
	       (flags & IBV_SEND_INLINE ? VNIC_SEND_INLINE : 0);
}

static void vnic_put_sges(void *at, const struct ibv_sge *from, int n)
{
	struct vnic_sge *to = at;
	int i;

	for (i = 0; i < n; i++) {
		to[i].addr = htole64(from[i].addr);
		to[i].length = htole32(from[i].length);
		to[i].lkey = htole32(from[i].lkey);
	}
}

static int vnic_put_inline(const struct vnic_queue *q, void *at, const struct ibv_sge *from,
			   int n, uint32_t *len)
{
	uint32_t total = 0;
	int i;

	for (i = 0; i < n; i++) {
		if (from[i].length > q->max_inline - total)
			return EINVAL;
		memcpy((char *)at + total, (void *)(uintptr_t)from[i].addr, from[i].length);
		total += from[i].length;
	}
	*len = total;
	return 0;
}

/* The header of a request of a connected queue pair. */
static int vnic_put_send(struct vnic_send_wqe *w, const struct ibv_send_wr *wr)
{
	switch (wr->opcode) {
	case IBV_WR_SEND:
		return 0;
	case IBV_WR_SEND_WITH_IMM:
		w->imm = wr->imm_data;
		return 0;
	case IBV_WR_SEND_WITH_INV:
	case IBV_WR_LOCAL_INV:
		w->imm = htole32(wr->invalidate_rkey);
		return 0;
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		w->imm = wr->imm_data;
		SWITCH_FALLTHROUGH;
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_READ:
		w->remote_addr = htole64(wr->wr.rdma.remote_addr);
		w->rkey = htole32(wr->wr.rdma.rkey);
		return 0;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		w->remote_addr = htole64(wr->wr.atomic.remote_addr);
		w->rkey = htole32(wr->wr.atomic.rkey);
		w->compare_add = htole64(wr->wr.atomic.compare_add);
		w->swap = htole64(wr->wr.atomic.swap);
		return 0;
	case IBV_WR_BIND_MW:
		vnic_put_bind(w, wr->bind_mw.rkey, &wr->bind_mw.bind_info);
		return 0;
	default:
		return EINVAL;
	}
}

static int vnic_put_datagram(struct vnic_datagram_wqe *w, const struct ibv_send_wr *wr)
{
	if (wr->opcode != IBV_WR_SEND && wr->opcode != IBV_WR_SEND_WITH_IMM)
		return EINVAL;
	if (wr->opcode == IBV_WR_SEND_WITH_IMM)
		w->imm = wr->imm_data;
	w->address = to_vah(wr->wr.ud.ah)->address;
	w->remote_qpn = htole32(wr->wr.ud.remote_qpn);
	w->remote_qkey = htole32(wr->wr.ud.remote_qkey);
	return 0;
}

void vnic_put_bind(struct vnic_send_wqe *w, uint32_t rkey, const struct ibv_mw_bind_info *info)
{
	struct vnic_bind_mw *b = (void *)(w + 1);

	w->rkey = htole32(rkey);
	memset(b, 0, sizeof(*b));
	b->addr = htole64(info->addr);
	b->length = htole64(info->length);
	b->lkey = info->mr ? htole32(info->mr->lkey) : 0;
	b->access = htole32(info->mw_access_flags & (IBV_ACCESS_REMOTE_WRITE |
			    IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
			    IBV_ACCESS_ZERO_BASED));
}

static const uint8_t vnic_opcodes[] = {
	[IBV_WR_RDMA_WRITE] = VNIC_OP_WRITE,
	[IBV_WR_RDMA_WRITE_WITH_IMM] = VNIC_OP_WRITE_IMM,
	[IBV_WR_SEND] = VNIC_OP_SEND,
	[IBV_WR_SEND_WITH_IMM] = VNIC_OP_SEND_IMM,
	[IBV_WR_RDMA_READ] = VNIC_OP_READ,
	[IBV_WR_ATOMIC_CMP_AND_SWP] = VNIC_OP_CMP_SWAP,
	[IBV_WR_ATOMIC_FETCH_AND_ADD] = VNIC_OP_FETCH_ADD,
	[IBV_WR_LOCAL_INV] = VNIC_OP_LOCAL_INV,
	[IBV_WR_BIND_MW] = VNIC_OP_BIND_MW,
	[IBV_WR_SEND_WITH_INV] = VNIC_OP_SEND_INV,
};

static int vnic_build_send(struct vnic_qp *qp, uint32_t index, const struct ibv_send_wr *wr)
{
	struct vnic_send_wqe *w = vnic_entry(&qp->sq, index);
	bool datagram = qp->ibv.qp.qp_type == IBV_QPT_UD;
	struct vnic_datagram_wqe *d = (void *)w;
	uint32_t len;
	int err;

	if ((unsigned int)wr->opcode >= sizeof(vnic_opcodes) ||
	    wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->sq.max_sge)
		return EINVAL;
	memset(w, 0, sizeof(*w));
	w->wrid = htole64(wr->wr_id);
	w->opcode = vnic_opcodes[wr->opcode];
	w->flags = vnic_flags(wr->send_flags);
	err = datagram ? vnic_put_datagram(d, wr) : vnic_put_send(w, wr);
	if (err || wr->opcode == IBV_WR_BIND_MW)
		return err;
	if (qp->ibv.qp.qp_type == IBV_QPT_XRC_SEND)
		w->remote_srqn = htole32(wr->qp_type.xrc.remote_srqn);
	if (!(wr->send_flags & IBV_SEND_INLINE)) {
		w->num_sge = wr->num_sge;
		vnic_put_sges(w + 1, wr->sg_list, wr->num_sge);
		return 0;
	}
	err = vnic_put_inline(&qp->sq, w + 1, wr->sg_list, wr->num_sge, &len);
	if (err)
		return err;
	if (datagram)
		d->inline_len = htole32(len);
	else
		w->inline_len = htole32(len);
	return 0;
}

int vnic_post_send(struct ibv_qp *ibqp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct vnic_qp *qp = to_vqp(ibqp);
	uint32_t producer;
	int err = 0;

	if (!qp->sq.map.base || !vnic_may_send(ibqp)) {
		*bad = wr;
		return EINVAL;
	}
	vnic_lock(&qp->sq.lock);
	for (producer = qp->sq.producer; wr; wr = wr->next) {
		err = vnic_full(&qp->sq, producer) ? ENOMEM : vnic_build_send(qp, producer, wr);
		if (err) {
			*bad = wr;
			break;
		}
		producer++;
	}
	vnic_submit_sends(qp, producer);
	vnic_unlock(&qp->sq.lock);
	return err;
}

static int vnic_build_recv(struct vnic_queue *q, uint32_t index, const struct ibv_recv_wr *wr)
{
	struct vnic_recv_wqe *w = vnic_entry(q, index);

	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > q->max_sge)
		return EINVAL;
	memset(w, 0, sizeof(*w));
	w->wrid = htole64(wr->wr_id);
	w->num_sge = wr->num_sge;
	vnic_put_sges(w + 1, wr->sg_list, wr->num_sge);
	return 0;
}

static int vnic_receives(struct vnic_queue *q, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad,
			 bool *wake)
{
	uint32_t producer;
	int err = 0;

	vnic_lock(&q->lock);
	for (producer = q->producer; wr; wr = wr->next) {
		err = vnic_full(q, producer) ? ENOMEM : vnic_build_recv(q, producer, wr);
		if (err) {
			*bad = wr;
			break;
		}
		producer++;
	}
	*wake = vnic_show(q, producer);
	vnic_unlock(&q->lock);
	return err;
}

int vnic_post_recv(struct ibv_qp *ibqp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct vnic_qp *qp = to_vqp(ibqp);
	bool wake;
	int err;

	if (!qp->rq.map.base || ibqp->state == IBV_QPS_RESET) {
		*bad = wr;
		return EINVAL;
	}
	err = vnic_receives(&qp->rq, wr, bad, &wake);
	if (wake)
		vnic_wake(ibqp->context, IB_USER_VERBS_CMD_POST_RECV, ibqp->handle);
	return err;
}

int vnic_post_srq_recv(struct ibv_srq *ibsrq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	bool wake;
	int err = vnic_receives(&to_vsrq(ibsrq)->q, wr, bad, &wake);

	if (wake)
		vnic_wake(ibsrq->context, IB_USER_VERBS_CMD_POST_SRQ_RECV, ibsrq->handle);
	return err;
}

/* Windows of type 1: each binding gives the window another key. */
int vnic_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	struct ibv_send_wr wr = {
		.wr_id = bind->wr_id,
		.opcode = IBV_WR_BIND_MW,
		.send_flags = bind->send_flags,
		.bind_mw = {
			.mw = mw,
			.rkey = ibv_inc_rkey(mw->rkey),
			.bind_info = bind->bind_info,
		},
	};
	struct ibv_send_wr *bad;
	int err;

	if (bind->bind_info.mr && bind->bind_info.mr->pd != mw->pd)
		return EINVAL;
	err = vnic_post_send(qp, &wr, &bad);
	if (!err)
		mw->rkey = wr.bind_mw.rkey;
	return err;
}
