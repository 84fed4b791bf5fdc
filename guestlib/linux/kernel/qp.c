// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Queue pairs: making, states, queries. */
#include <linux/log2.h>
#include <rdma/uverbs_ioctl.h>

#include "vnic.h"

#define VNIC_LEAST_SEND		128	/* a masked atomic: header, masks, one SGE */
#define VNIC_LEAST_RECV		32
#define VNIC_LARGEST_ENTRY	4096

struct vnic_area *vnic_queue_area(struct vnic_fn *fn, const struct vnic_queue *q)
{
	return vnic_area_alloc(fn, VNIC_QUEUE_HEADER_SIZE + ((size_t)q->entries << q->stride_log2));
}

/* The kernel's queue pairs keep what they post until it is complete. */
static int vnic_queue_keep(struct vnic_queue *q)
{
	q->wrids = kvcalloc(q->entries, sizeof(*q->wrids), GFP_KERNEL);
	return q->wrids ? 0 : -ENOMEM;
}

/* Makes a queue of at least so many entries of at least so many bytes. */
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

void vnic_queue_free(struct vnic_queue *q)
{
	vnic_area_free(q->area);
	kvfree(q->wrids);
	q->area = NULL;
	q->wrids = NULL;
}

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
	/* What the entries hold anyway is the user's. */
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
	size_t entry = VNIC_RECV_WQE_HEADER + cap->max_recv_sge * sizeof(struct vnic_sge);
	int err;

	if (cap->max_recv_sge > le16_to_cpu(fn->limits.max_sge))
		return -EINVAL;
	err = vnic_queue_make(fn, &qp->rq, cap->max_recv_wr,
			      max_t(size_t, entry, VNIC_LEAST_RECV), uctx);
	if (err)
		return err;
	entry = (1U << qp->rq.stride_log2) - VNIC_RECV_WQE_HEADER;
	qp->rq.max_sge = min_t(u32, entry / sizeof(struct vnic_sge),
			       le16_to_cpu(fn->limits.max_sge));
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
	if (attr->srq)
		p.srqn = cpu_to_le32(to_vsrq(attr->srq)->srqn);
	if (attr->srq || rq_area)
		p.recv_cq = cpu_to_le32(to_vcq(attr->recv_cq)->cqn);
	if (rq_area) {
		p.rq_log2_entries = qp->rq.log2;
		p.rq_log2_stride = qp->rq.stride_log2;
		p.max_recv_sge = qp->rq.max_sge;
		rq = vnic_area_list(rq_area, qp->life, 0, rq_area->num_pages);
		if (IS_ERR(rq)) {
			err = PTR_ERR(rq);
			goto out;
		}
		p.rq_levels = rq->levels;
		p.rq_pages = cpu_to_le64(rq->root);
	}
	err = vnic_command_in(fn, qp->life, VNIC_ADMIN_OP_CREATE_QP, &p, sizeof(p), &r, sizeof(r));
	if (!err)
		qp->qpn = le32_to_cpu(r.qpn);
	if (rq)
		vnic_page_list_free(rq);
out:
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

static bool vnic_qp_type_known(const struct ib_qp_init_attr *attr)
{
	switch (attr->qp_type) {
	case IB_QPT_GSI:
	case IB_QPT_RC:
	case IB_QPT_UC:
	case IB_QPT_UD:
	case IB_QPT_XRC_INI:
	case IB_QPT_XRC_TGT:
		return !attr->create_flags && !attr->rwq_ind_tbl;
	default:
		return false;
	}
}

/* Makes the device know a queue pair; the kernel's one joins the lists. */
static int vnic_qp_enter(struct vnic_fn *fn, struct vnic_qp *qp,
			 const struct ib_qp_init_attr *attr, struct ib_udata *udata)
{
	int err;

	qp->life = vnic_life(fn, udata);
	qp->sq.life = qp->life;
	qp->rq.life = qp->life;
	err = vnic_qp_make(fn, qp, attr, qp->sq.area, qp->rq.area, udata);
	if (err)
		return err;
	err = xa_insert_irq(&fn->qps, qp->qpn, qp, GFP_KERNEL);
	if (err) {
		vnic_qp_forget(qp);
		return err;
	}
	if (udata || attr->qp_type == IB_QPT_XRC_TGT)
		return 0;
	list_add_tail(&qp->kernel, &fn->kernel_qps);
	vnic_cq_join(to_vcq(attr->send_cq), &qp->sender, &to_vcq(attr->send_cq)->senders);
	vnic_cq_join(to_vcq(attr->recv_cq), &qp->receiver, &to_vcq(attr->recv_cq)->receivers);
	return 0;
}

int vnic_create_qp(struct ib_qp *ibqp, struct ib_qp_init_attr *attr, struct ib_udata *udata)
{
	struct vnic_fn *fn = to_fn(ibqp->device);
	struct vnic_qp *qp = to_vqp(ibqp);
	struct ib_ucontext *uctx = NULL;
	int err = 0;

	if (!vnic_qp_type_known(attr))
		return -EOPNOTSUPP;
	if (udata)
		uctx = &rdma_udata_to_drv_context(udata, struct vnic_ucontext,
						  ibucontext)->ibucontext;
	qp->type = attr->qp_type;
	qp->sig_all = attr->sq_sig_type == IB_SIGNAL_ALL_WR;
	qp->state = IB_QPS_RESET;
	mutex_init(&qp->state_lock);
	vnic_hold_init(&qp->hold);
	if (vnic_has_sq(attr->qp_type))
		err = vnic_make_sq(fn, qp, &attr->cap, uctx);
	if (!err && vnic_has_rq(attr))
		err = vnic_make_rq(fn, qp, &attr->cap, uctx);
	if (!err && !udata && qp->sq.area)
		err = vnic_queue_keep(&qp->sq);
	if (!err && !udata && qp->rq.area)
		err = vnic_queue_keep(&qp->rq);
	if (!udata)
		mutex_lock(&fn->kernel_lock);
	if (!err)
		err = vnic_qp_enter(fn, qp, attr, udata);
	if (!udata)
		mutex_unlock(&fn->kernel_lock);
	if (err)
		goto queues;
	ibqp->qp_num = qp->qpn;
	if (udata) {
		err = vnic_qp_respond(qp, udata);
		if (err)
			goto erase;
	}
	return 0;
erase:
	vnic_forget(&fn->qps, qp->qpn, qp);
	vnic_qp_forget(qp);
queues:
	vnic_queue_free(&qp->rq);
	vnic_queue_free(&qp->sq);
	return err;
}

int vnic_destroy_qp(struct ib_qp *ibqp, struct ib_udata *udata)
{
	struct vnic_fn *fn = to_fn(ibqp->device);
	struct vnic_qp *qp = to_vqp(ibqp);
	int err;

	if (qp->kernel.next)
		mutex_lock(&fn->kernel_lock);
	err = vnic_qp_forget(qp);
	if (!err)
		vnic_forget(&fn->qps, qp->qpn, qp);
	if (!err && qp->kernel.next) {
		vnic_cq_leave(to_vcq(ibqp->send_cq), qp, &qp->sender);
		vnic_cq_leave(to_vcq(ibqp->recv_cq), qp, &qp->receiver);
		list_del(&qp->kernel);
	}
	if (qp->kernel.next)
		mutex_unlock(&fn->kernel_lock);
	if (err)
		return err;
	vnic_release(&qp->hold);
	wait_for_completion(&qp->hold.gone);
	if (!udata)
		vnic_await_over(fn, qp->life);
	vnic_queue_free(&qp->rq);
	vnic_queue_free(&qp->sq);
	return 0;
}

static void vnic_reset_queue(struct vnic_queue *q)
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

static int vnic_modify_params(struct vnic_fn *fn, struct vnic_qp *qp,
			      const struct ib_qp_attr *attr, int mask, struct vnic_modify_qp *p)
{
	struct vnic_address to = {};
	int err = 0;

	BUILD_BUG_ON(sizeof(*p) - offsetof(struct vnic_modify_qp, dgid) != sizeof(to));
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
	if (mask & IB_QP_AV) {
		err = vnic_address(fn, &attr->ah_attr, &to);
		vnic_put_address(p, &to);
	}
	return err;
}

#define VNIC_QP_ATTRS	(IB_QP_STATE | IB_QP_CUR_STATE | IB_QP_EN_SQD_ASYNC_NOTIFY | \
			 IB_QP_ACCESS_FLAGS | IB_QP_PKEY_INDEX | IB_QP_PORT | IB_QP_QKEY | \
			 IB_QP_AV | IB_QP_PATH_MTU | IB_QP_TIMEOUT | IB_QP_RETRY_CNT | \
			 IB_QP_RNR_RETRY | IB_QP_RQ_PSN | IB_QP_MAX_QP_RD_ATOMIC | \
			 IB_QP_MIN_RNR_TIMER | IB_QP_SQ_PSN | IB_QP_MAX_DEST_RD_ATOMIC | \
			 IB_QP_DEST_QPN)

int vnic_modify_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask, struct ib_udata *udata)
{
	struct vnic_fn *fn = to_fn(ibqp->device);
	struct vnic_qp *qp = to_vqp(ibqp);
	enum ib_qp_state from, to;
	struct vnic_modify_qp p = {};
	int err;

	if (mask & ~VNIC_QP_ATTRS)
		return -EOPNOTSUPP;
	mutex_lock(&qp->state_lock);
	from = mask & IB_QP_CUR_STATE ? attr->cur_qp_state : READ_ONCE(qp->state);
	to = mask & IB_QP_STATE ? attr->qp_state : from;
	err = -EINVAL;
	if (!ib_modify_qp_is_ok(from, to, ibqp->qp_type, mask))
		goto out;
	err = vnic_modify_params(fn, qp, attr, mask, &p);
	if (!err)
		err = vnic_command_in(fn, qp->life, VNIC_ADMIN_OP_MODIFY_QP, &p, sizeof(p), NULL,
				      0);
	/* A queue pair of a device that is lost is in error, whatever it was. */
	if (err == -EIO && !ibqp->uobject && (to == IB_QPS_ERR || to == IB_QPS_RESET))
		err = 0;
	if (err)
		goto out;
	if (mask & IB_QP_QKEY)
		qp->qkey = attr->qkey;
	WRITE_ONCE(qp->state, to);
	if (to == IB_QPS_RESET) {
		if (!ibqp->uobject)
			vnic_await_over(fn, qp->life);
		vnic_reset_queue(&qp->sq);
		vnic_reset_queue(&qp->rq);
	}
out:
	mutex_unlock(&qp->state_lock);
	return err;
}

static void vnic_query_path(const struct vnic_query_qp_result *r, struct rdma_ah_attr *attr)
{
	attr->type = RDMA_AH_ATTR_TYPE_ROCE;
	rdma_ah_set_port_num(attr, 1);
	rdma_ah_set_sl(attr, r->sl);
	rdma_ah_set_grh(attr, NULL, le32_to_cpu(r->flow_label), r->sgid_index, r->hop_limit,
			r->traffic_class);
	rdma_ah_set_dgid_raw(attr, (void *)r->peer_gid);
	memcpy(attr->roce.dmac, r->dmac, sizeof(r->dmac));
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
	vnic_query_path(&r, &attr->ah_attr);
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
