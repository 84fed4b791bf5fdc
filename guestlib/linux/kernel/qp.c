// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Queue pairs: making, states, queries. */
#include "vnic.h"

#define VNIC_LEAST_SEND		128	/* a masked atomic: header, masks, one SGE */

static int vnic_make_sq(struct vnic_fn *fn, struct vnic_qp *qp, struct ib_qp_cap *cap,
			struct ib_ucontext *uctx)
{
	u32 max_inline = le16_to_cpu(fn->limits.max_inline);
	size_t entry = max_t(size_t, cap->max_send_sge * sizeof(struct vnic_sge),
			     cap->max_inline_data);
	int err;

	if (cap->max_send_sge > le16_to_cpu(fn->limits.max_sge) ||
	    cap->max_inline_data > max_inline)
		return -EINVAL;
	entry = max_t(size_t, VNIC_SEND_WQE_HEADER + entry, VNIC_LEAST_SEND);
	err = vnic_queue_make(fn, &qp->sq, cap->max_send_wr, entry, uctx);
	if (err)
		return err;
	/* The entries may hold more than was asked for. */
	entry = (1U << qp->sq.stride_log2) - VNIC_SEND_WQE_HEADER;
	qp->sq.max_sge = min_t(u32, entry / sizeof(struct vnic_sge),
			       le16_to_cpu(fn->limits.max_sge));
	qp->sq.max_inline = min_t(u32, entry, max_inline);
	cap->max_send_wr = qp->sq.entries;
	cap->max_send_sge = qp->sq.max_sge;
	cap->max_inline_data = qp->sq.max_inline;
	return 0;
}

static int vnic_make_rq(struct vnic_fn *fn, struct vnic_qp *qp, struct ib_qp_cap *cap,
			struct ib_ucontext *uctx)
{
	int err = vnic_queue_make_recv(fn, &qp->rq, cap->max_recv_wr, cap->max_recv_sge, uctx);

	if (err)
		return err;
	cap->max_recv_wr = qp->rq.entries;
	cap->max_recv_sge = qp->rq.max_sge;
	return 0;
}

static bool vnic_has_sq(enum ib_qp_type type)
{
	return type != IB_QPT_XRC_TGT;
}

static bool vnic_has_rq(const struct ib_qp_init_attr *attr)
{
	return attr->qp_type != IB_QPT_XRC_INI && attr->qp_type != IB_QPT_XRC_TGT && !attr->srq;
}

/* Makes the device's part of a queue pair, with its queues in these areas. */
int vnic_qp_make(struct vnic_fn *fn, struct vnic_qp *qp, const struct ib_qp_init_attr *attr,
		 struct vnic_area *sq_area, struct vnic_area *rq_area, bool user)
{
	struct vnic_page_list *sq = NULL, *rq = NULL;
	struct vnic_create_qp p = { .type = attr->qp_type, .sig_all = qp->sig_all };
	struct vnic_create_qp_result r;
	int err = 0;

	if (!user)
		p.flags = VNIC_QP_PRIVILEGED;
	if (attr->qp_type == IB_QPT_XRC_TGT)
		err = vnic_xrcd_number(attr->xrcd, qp->life, &p.xrcdn);
	else
		p.pdn = cpu_to_le32(to_vpd(qp->ibqp.pd)->pdn);
	if (err)
		return err;
	if (attr->srq)
		p.srqn = cpu_to_le32(to_vsrq(attr->srq)->srqn);
	if (attr->srq || rq_area)
		p.recv_cq = cpu_to_le32(to_vcq(attr->recv_cq)->cqn);
	if (sq_area) {
		p.send_cq = cpu_to_le32(to_vcq(attr->send_cq)->cqn);
		p.sq_log2_entries = qp->sq.log2;
		p.sq_log2_stride = qp->sq.stride_log2;
		p.max_send_sge = qp->sq.max_sge;
		p.max_inline = cpu_to_le16(qp->sq.max_inline);
		sq = vnic_area_list(sq_area, qp->life, 0, sq_area->num_pages);
		if (IS_ERR(sq))
			return PTR_ERR(sq);
		p.sq_levels = sq->levels;
		p.sq_pages = cpu_to_le64(sq->root);
	}
	if (rq_area) {
		p.rq_log2_entries = qp->rq.log2;
		p.rq_log2_stride = qp->rq.stride_log2;
		p.max_recv_sge = qp->rq.max_sge;
		rq = vnic_area_list(rq_area, qp->life, 0, rq_area->num_pages);
		if (IS_ERR(rq)) {
			err = PTR_ERR(rq);
			goto out_sq;
		}
		p.rq_levels = rq->levels;
		p.rq_pages = cpu_to_le64(rq->root);
	}
	err = vnic_command_in(fn, qp->life, VNIC_ADMIN_OP_CREATE_QP, &p, sizeof(p), &r, sizeof(r));
	if (!err)
		qp->qpn = le32_to_cpu(r.qpn);
	if (rq)
		vnic_page_list_free(rq);
out_sq:
	if (sq)
		vnic_page_list_free(sq);
	return err;
}

static void vnic_map_response(struct vnic_mapping *m, const struct vnic_queue *q)
{
	if (!q->area)
		return;
	m->offset = vnic_area_offset(q->area);
	m->size = q->area->size;
	m->entries_log2 = q->log2;
	m->stride_log2 = q->stride_log2;
}

static int vnic_qp_respond(struct vnic_qp *qp, struct ib_udata *udata)
{
	struct vnic_qp_resp resp = {};

	vnic_map_response(&resp.sq, &qp->sq);
	vnic_map_response(&resp.rq, &qp->rq);
	if (udata->outlen < sizeof(resp))
		return -EINVAL;
	return ib_copy_to_udata(udata, &resp, sizeof(resp));
}

static int vnic_qp_forget(struct vnic_qp *qp)
{
	struct vnic_destroy_qp p = { .qpn = cpu_to_le32(qp->qpn) };

	return vnic_destroy(to_fn(qp->ibqp.device), qp->life, VNIC_ADMIN_OP_DESTROY_QP, &p,
			    sizeof(p));
}

static bool vnic_qp_type_known(const struct ib_device *ibdev, enum ib_qp_type type, bool user)
{
	if (vnic_is_iwarp(ibdev))
		return type == IB_QPT_RC;
	switch (type) {
	case IB_QPT_GSI:
	case IB_QPT_RC:
	case IB_QPT_UC:
	case IB_QPT_UD:
	case IB_QPT_XRC_TGT:
		return true;
	case IB_QPT_XRC_INI:
		return user;
	default:
		return false;
	}
}

static int vnic_qp_make_queues(struct vnic_fn *fn, struct vnic_qp *qp,
			       struct ib_qp_init_attr *attr, struct ib_ucontext *uctx)
{
	int err;

	if (vnic_has_sq(attr->qp_type)) {
		err = vnic_make_sq(fn, qp, &attr->cap, uctx);
		if (err)
			return err;
	}
	if (vnic_has_rq(attr)) {
		err = vnic_make_rq(fn, qp, &attr->cap, uctx);
		if (err)
			return err;
	}
	if (!uctx && qp->sq.area) {
		err = vnic_queue_keep(&qp->sq);
		if (err)
			return err;
	}
	return !uctx && qp->rq.area ? vnic_queue_keep(&qp->rq) : 0;
}

/* Creates the queue pair in the device, in a life, and notes its number. */
static int vnic_qp_enter(struct vnic_fn *fn, struct vnic_qp *qp,
			 const struct ib_qp_init_attr *attr, u32 life, bool user)
{
	int err;

	qp->life = life;
	qp->sq.life = life;
	qp->rq.life = life;
	err = vnic_qp_make(fn, qp, attr, qp->sq.area, qp->rq.area, user);
	if (err)
		return err;
	err = xa_insert_irq(&fn->qps, qp->qpn, &qp->hold, GFP_KERNEL);
	if (err)
		vnic_qp_forget(qp);
	return err;
}

/* A queue pair of the kernel: its work is flushed after a loss. */
static int vnic_qp_enter_kernel(struct vnic_fn *fn, struct vnic_qp *qp,
				const struct ib_qp_init_attr *attr)
{
	int err;

	mutex_lock(&fn->kernel_lock);
	err = vnic_qp_enter(fn, qp, attr, READ_ONCE(fn->life), false);
	if (err)
		goto out;
	list_add_tail(&qp->kernel, &fn->kernel_qps);
	vnic_cq_join(to_vcq(attr->send_cq), &qp->sender, &to_vcq(attr->send_cq)->senders);
	vnic_cq_join(to_vcq(attr->recv_cq), &qp->receiver, &to_vcq(attr->recv_cq)->receivers);
out:
	mutex_unlock(&fn->kernel_lock);
	return err;
}

/*
 * The core passes no udata for an XRC target either, although programs own it. It has no work
 * that would have to be flushed, so it is not treated as the kernel's.
 */
static bool vnic_qp_of_kernel(const struct vnic_qp *qp, bool user)
{
	return !user && qp->type != IB_QPT_XRC_TGT;
}

int vnic_create_qp(struct ib_qp *ibqp, struct ib_qp_init_attr *attr, struct ib_udata *udata)
{
	struct vnic_fn *fn = to_fn(ibqp->device);
	struct vnic_qp *qp = to_vqp(ibqp);
	struct ib_ucontext *uctx = NULL;
	int err;

	if (!vnic_qp_type_known(ibqp->device, attr->qp_type, udata) || attr->create_flags ||
	    attr->rwq_ind_tbl)
		return -EOPNOTSUPP;
	if (udata)
		uctx = &rdma_udata_to_drv_context(udata, struct vnic_ucontext,
						  ibucontext)->ibucontext;
	qp->type = attr->qp_type;
	qp->sig_all = attr->sq_sig_type == IB_SIGNAL_ALL_WR;
	qp->state = IB_QPS_RESET;
	mutex_init(&qp->state_lock);
	spin_lock_init(&qp->iw.lock);
	vnic_hold_init(&qp->hold);
	err = vnic_qp_make_queues(fn, qp, attr, uctx);
	if (err)
		goto err_queues;
	if (vnic_qp_of_kernel(qp, udata))
		err = vnic_qp_enter_kernel(fn, qp, attr);
	else
		err = vnic_qp_enter(fn, qp, attr, vnic_life(fn, udata), udata);
	if (err)
		goto err_queues;
	ibqp->qp_num = qp->qpn;
	if (!udata)
		return 0;
	err = vnic_qp_respond(qp, udata);
	if (err)
		goto err_qp;
	return 0;

err_qp:
	vnic_forget(&fn->qps, qp->qpn, &qp->hold);
	vnic_qp_forget(qp);
err_queues:
	vnic_queue_free(&qp->rq);
	vnic_queue_free(&qp->sq);
	return err;
}

static int vnic_qp_leave(struct vnic_fn *fn, struct vnic_qp *qp)
{
	int err = vnic_qp_forget(qp);

	if (!err)
		vnic_forget(&fn->qps, qp->qpn, &qp->hold);
	return err;
}

static int vnic_qp_leave_kernel(struct vnic_fn *fn, struct vnic_qp *qp)
{
	int err;

	mutex_lock(&fn->kernel_lock);
	err = vnic_qp_leave(fn, qp);
	if (err)
		goto out;
	vnic_cq_leave(to_vcq(qp->ibqp.send_cq), qp, &qp->sender);
	vnic_cq_leave(to_vcq(qp->ibqp.recv_cq), qp, &qp->receiver);
	list_del(&qp->kernel);
out:
	mutex_unlock(&fn->kernel_lock);
	return err;
}

int vnic_destroy_qp(struct ib_qp *ibqp, struct ib_udata *udata)
{
	struct vnic_fn *fn = to_fn(ibqp->device);
	struct vnic_qp *qp = to_vqp(ibqp);
	bool kernel = rdma_is_kernel_res(&ibqp->res);
	int err;

	if (vnic_qp_of_kernel(qp, !kernel))
		err = vnic_qp_leave_kernel(fn, qp);
	else
		err = vnic_qp_leave(fn, qp);
	if (err)
		return err;
	vnic_iw_close(qp); /* iw_cm lets go of the queue pair */
	vnic_release(&qp->hold);
	wait_for_completion(&qp->hold.gone);
	if (kernel)
		vnic_await_over(fn, qp->life);
	vnic_queue_free(&qp->rq);
	vnic_queue_free(&qp->sq);
	return 0;
}

static int vnic_modify_params(struct vnic_qp *qp, const struct ib_qp_attr *attr, int mask,
			      struct vnic_modify_qp *p)
{
	p->qpn = cpu_to_le32(qp->qpn);
	p->mask = cpu_to_le32(mask); /* the values are the same */
	p->state = attr->qp_state;
	p->cur_state = attr->cur_qp_state;
	p->sqd_notify = attr->en_sqd_async_notify;
	p->access = cpu_to_le32(attr->qp_access_flags & (IB_ACCESS_REMOTE_WRITE |
				IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_ATOMIC |
				IB_ACCESS_LOCAL_WRITE | IB_ACCESS_MW_BIND));
	p->path_mtu = attr->path_mtu;
	p->min_rnr_timer = attr->min_rnr_timer;
	p->retry_cnt = attr->retry_cnt;
	p->rnr_retry = attr->rnr_retry;
	p->timeout = attr->timeout;
	p->max_rd_atomic = attr->max_rd_atomic;
	p->max_dest_rd_atomic = attr->max_dest_rd_atomic;
	p->pkey_index = cpu_to_le16(attr->pkey_index);
	p->dest_qpn = cpu_to_le32(attr->dest_qp_num);
	p->qkey = cpu_to_le32(attr->qkey);
	p->rqpsn = cpu_to_le32(attr->rq_psn & 0xffffff);
	p->sqpsn = cpu_to_le32(attr->sq_psn & 0xffffff);
	return mask & IB_QP_AV ? vnic_address(&attr->ah_attr, &p->address) : 0;
}

#define VNIC_QP_ATTRS	(IB_QP_STATE | IB_QP_CUR_STATE | IB_QP_EN_SQD_ASYNC_NOTIFY | \
			 IB_QP_ACCESS_FLAGS | IB_QP_PKEY_INDEX | IB_QP_PORT | IB_QP_QKEY | \
			 IB_QP_AV | IB_QP_PATH_MTU | IB_QP_TIMEOUT | IB_QP_RETRY_CNT | \
			 IB_QP_RNR_RETRY | IB_QP_RQ_PSN | IB_QP_MAX_QP_RD_ATOMIC | \
			 IB_QP_MIN_RNR_TIMER | IB_QP_SQ_PSN | IB_QP_MAX_DEST_RD_ATOMIC | \
			 IB_QP_DEST_QPN)

/* Carries out a change of a queue pair, whose state is to then. state_lock is held. */
static int vnic_qp_change(struct vnic_qp *qp, const struct vnic_modify_qp *p, enum ib_qp_state to)
{
	struct vnic_fn *fn = to_fn(qp->ibqp.device);
	bool kernel = rdma_is_kernel_res(&qp->ibqp.res);
	int err;

	err = vnic_command_in(fn, qp->life, VNIC_ADMIN_OP_MODIFY_QP, p, sizeof(*p), NULL, 0);
	/* After a loss the kernel's queue pairs are in error, and go to these states. */
	if (err == -EIO && kernel && (to == IB_QPS_ERR || to == IB_QPS_RESET))
		err = 0;
	if (err)
		return err;
	WRITE_ONCE(qp->state, to);
	if (to == IB_QPS_ERR || to == IB_QPS_RESET)
		vnic_iw_close(qp);
	if (to == IB_QPS_RESET) {
		if (kernel)
			vnic_await_over(fn, qp->life);
		vnic_queue_reset(&qp->sq);
		vnic_queue_reset(&qp->rq);
	}
	return 0;
}

#define VNIC_IW_RIGHTS	(IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_ATOMIC)

/*
 * Over iWARP the connection moves a queue pair to RTS, whatever its user asks for before, and
 * what iw_cm calls SQD is the orderly end. The rights of the peer are those that regions give:
 * rdma_cm sets none.
 */
static int vnic_modify_iw_qp(struct vnic_qp *qp, const struct ib_qp_attr *attr, int mask)
{
	struct vnic_modify_qp p = {
		.qpn = cpu_to_le32(qp->qpn),
		.mask = cpu_to_le32(IB_QP_STATE),
		.state = attr->qp_state,
	};
	int err;

	if (mask & (IB_QP_AV | IB_QP_DEST_QPN))
		return -EOPNOTSUPP;
	if (!(mask & IB_QP_STATE))
		return 0;
	switch (attr->qp_state) {
	case IB_QPS_INIT:
		p.mask = cpu_to_le32(IB_QP_STATE | IB_QP_ACCESS_FLAGS);
		p.access = cpu_to_le32(VNIC_IW_RIGHTS);
		break;
	case IB_QPS_RTR:
	case IB_QPS_RTS:
		return 0;
	case IB_QPS_SQD:
		return vnic_iw_disconnect(qp);
	default:
		break;
	}
	mutex_lock(&qp->state_lock);
	err = vnic_qp_change(qp, &p, attr->qp_state);
	mutex_unlock(&qp->state_lock);
	return err;
}

int vnic_modify_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask, struct ib_udata *udata)
{
	struct vnic_qp *qp = to_vqp(ibqp);
	enum ib_qp_state from, to;
	struct vnic_modify_qp p = {};
	int err;

	if (mask & ~VNIC_QP_ATTRS)
		return -EOPNOTSUPP;
	if (vnic_is_iwarp(ibqp->device))
		return vnic_modify_iw_qp(qp, attr, mask);
	mutex_lock(&qp->state_lock);
	from = mask & IB_QP_CUR_STATE ? attr->cur_qp_state : READ_ONCE(qp->state);
	to = mask & IB_QP_STATE ? attr->qp_state : from;
	err = -EINVAL;
	if (!ib_modify_qp_is_ok(from, to, ibqp->qp_type, mask))
		goto out;
	err = vnic_modify_params(qp, attr, mask, &p);
	if (err)
		goto out;
	err = vnic_qp_change(qp, &p, to);
	if (!err && mask & IB_QP_QKEY)
		qp->qkey = attr->qkey;
out:
	mutex_unlock(&qp->state_lock);
	return err;
}

int vnic_query_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask,
		  struct ib_qp_init_attr *init)
{
	struct vnic_qp *qp = to_vqp(ibqp);
	struct vnic_query_qp p = { .qpn = cpu_to_le32(qp->qpn) };
	struct vnic_query_qp_result r;
	int err;

	err = vnic_command_in(to_fn(ibqp->device), qp->life, VNIC_ADMIN_OP_QUERY_QP, &p, sizeof(p),
			      &r, sizeof(r));
	if (err)
		return err;
	memset(attr, 0, sizeof(*attr));
	memset(init, 0, sizeof(*init));
	WRITE_ONCE(qp->state, r.state);
	attr->qp_state = r.state;
	attr->cur_qp_state = r.state;
	attr->path_mtu = r.path_mtu;
	attr->path_mig_state = IB_MIG_MIGRATED;
	attr->qkey = le32_to_cpu(r.qkey);
	attr->rq_psn = le32_to_cpu(r.rqpsn);
	attr->sq_psn = le32_to_cpu(r.sqpsn);
	attr->dest_qp_num = le32_to_cpu(r.peer_qpn);
	attr->qp_access_flags = le32_to_cpu(r.access);
	attr->pkey_index = le16_to_cpu(r.pkey_index);
	attr->sq_draining = r.draining;
	attr->max_rd_atomic = r.max_rd_atomic;
	attr->max_dest_rd_atomic = r.max_dest_rd_atomic;
	attr->min_rnr_timer = r.min_rnr_timer;
	attr->port_num = 1;
	attr->timeout = r.timeout;
	attr->retry_cnt = r.retry_cnt;
	attr->rnr_retry = r.rnr_retry;
	if (!vnic_is_iwarp(ibqp->device))
		vnic_query_address(&r.address, &attr->ah_attr);
	if (qp->sq.area) {
		attr->cap.max_send_wr = qp->sq.entries;
		attr->cap.max_send_sge = qp->sq.max_sge;
		attr->cap.max_inline_data = qp->sq.max_inline;
	}
	if (qp->rq.area) {
		attr->cap.max_recv_wr = qp->rq.entries;
		attr->cap.max_recv_sge = qp->rq.max_sge;
	}
	init->cap = attr->cap;
	init->qp_type = ibqp->qp_type;
	init->send_cq = ibqp->send_cq;
	init->recv_cq = ibqp->recv_cq;
	init->srq = ibqp->srq;
	init->sq_sig_type = qp->sig_all ? IB_SIGNAL_ALL_WR : IB_SIGNAL_REQ_WR;
	return 0;
}
