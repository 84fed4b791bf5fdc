// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Queue pairs, shared receive queues, XRC domains. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "vnic.h"

static int vnic_queue_map(struct ibv_context *ctx, struct vnic_queue *q,
			  const struct vnic_mapping *m, bool single)
{
	vnic_lock_init(&q->lock, single);
	q->mask = (UINT32_C(1) << m->entries_log2) - 1;
	q->stride_log2 = m->stride_log2;
	return vnic_map(ctx, &q->map, m);
}

static void vnic_note_caps(struct vnic_qp *qp, const struct ibv_qp_cap *cap)
{
	qp->sq.max_sge = cap->max_send_sge;
	qp->sq.max_inline = cap->max_inline_data;
	qp->rq.max_sge = cap->max_recv_sge;
}

struct ibv_qp *vnic_create_qp_ex(struct ibv_context *ctx, struct ibv_qp_init_attr_ex *attr)
{
	struct {
		struct ib_uverbs_ex_create_qp_resp ibv;
		struct vnic_qp_resp drv;
	} resp = {};
	struct ibv_create_qp_ex cmd = {};
	struct vnic_qp *qp;
	bool single;
	int err;

	if (attr->comp_mask & ~(IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD |
				IBV_QP_INIT_ATTR_CREATE_FLAGS |
				IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) ||
	    (attr->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS && attr->create_flags)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	qp = calloc(1, sizeof(*qp));
	if (!qp)
		return NULL;
	if (attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) {
		err = vnic_wr_init(qp, attr->qp_type == IBV_QPT_UD ||
				   attr->qp_type == IBV_QPT_RC || attr->qp_type == IBV_QPT_UC ||
				   attr->qp_type == IBV_QPT_XRC_SEND ? attr->send_ops_flags :
				   UINT64_MAX);
		if (err)
			goto free;
	}
	err = ibv_cmd_create_qp_ex2(ctx, &qp->ibv, attr, &cmd, sizeof(cmd), &resp.ibv,
				    sizeof(resp), NULL);
	if (err)
		goto free;
	vnic_domain_hold(attr->comp_mask & IBV_QP_INIT_ATTR_PD ? attr->pd : NULL, &qp->parent,
			 &single);
	qp->sig_all = attr->sq_sig_all;
	vnic_note_caps(qp, &attr->cap);
	err = vnic_queue_map(ctx, &qp->sq, &resp.drv.sq, single);
	if (!err)
		err = vnic_queue_map(ctx, &qp->rq, &resp.drv.rq, single);
	if (err)
		goto destroy;
	if (attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
		vnic_compat_mark_extended(&qp->ibv);
	return &qp->ibv.qp;
destroy:
	vnic_unmap(&qp->sq.map);
	vnic_domain_drop(qp->parent);
	ibv_cmd_destroy_qp(&qp->ibv.qp);
free:
	free(qp);
	errno = err;
	return NULL;
}

struct ibv_qp *vnic_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp_init_attr_ex ex = {
		.qp_context = attr->qp_context,
		.send_cq = attr->send_cq,
		.recv_cq = attr->recv_cq,
		.srq = attr->srq,
		.cap = attr->cap,
		.qp_type = attr->qp_type,
		.sq_sig_all = attr->sq_sig_all,
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = pd,
	};
	struct ibv_qp *qp = vnic_create_qp_ex(pd->context, &ex);

	if (qp)
		attr->cap = ex.cap;
	return qp;
}

struct ibv_qp *vnic_open_qp(struct ibv_context *ctx, struct ibv_qp_open_attr *attr)
{
	struct ib_uverbs_create_qp_resp resp = {};
	struct ibv_open_qp cmd = {};
	struct vnic_qp *qp = calloc(1, sizeof(*qp));
	int err;

	if (!qp)
		return NULL;
	err = ibv_cmd_open_qp(ctx, &qp->ibv, sizeof(qp->ibv), attr, &cmd, sizeof(cmd), &resp,
			      sizeof(resp));
	if (err) {
		free(qp);
		errno = err;
		return NULL;
	}
	return &qp->ibv.qp;
}

int vnic_modify_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int mask)
{
	struct vnic_qp *qp = to_vqp(ibqp);
	struct ibv_modify_qp cmd = {};
	int err;

	err = ibv_cmd_modify_qp(ibqp, attr, mask, &cmd, sizeof(cmd));
	if (!err && mask & IBV_QP_STATE && attr->qp_state == IBV_QPS_RESET) {
		/* The kernel has set the headers to zero. */
		qp->sq.producer = 0;
		qp->rq.producer = 0;
		if (ibqp->send_cq)
			vnic_cq_sweep(ibqp->send_cq, ibqp->qp_num);
		if (ibqp->recv_cq && ibqp->recv_cq != ibqp->send_cq)
			vnic_cq_sweep(ibqp->recv_cq, ibqp->qp_num);
	}
	return err;
}

int vnic_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
		  struct ibv_qp_init_attr *init)
{
	struct ibv_query_qp cmd;

	return ibv_cmd_query_qp(qp, attr, mask, init, &cmd, sizeof(cmd));
}

int vnic_destroy_qp(struct ibv_qp *ibqp)
{
	struct vnic_qp *qp = to_vqp(ibqp);
	int err = ibv_cmd_destroy_qp(ibqp);

	if (err)
		return err;
	vnic_unmap(&qp->sq.map);
	vnic_unmap(&qp->rq.map);
	vnic_domain_drop(qp->parent);
	free(qp);
	return 0;
}

static int vnic_srq_map(struct ibv_context *ctx, struct vnic_srq *srq,
			const struct vnic_srq_resp *resp, uint32_t max_sge)
{
	srq->srqn = resp->srqn;
	srq->q.max_sge = max_sge;
	return vnic_queue_map(ctx, &srq->q, &resp->queue, false);
}

struct ibv_srq *vnic_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct {
		struct ib_uverbs_create_srq_resp ibv;
		struct vnic_srq_resp drv;
	} resp = {};
	struct ibv_create_srq cmd = {};
	struct vnic_srq *srq = calloc(1, sizeof(*srq));
	int err;

	if (!srq)
		return NULL;
	err = ibv_cmd_create_srq(pd, &srq->ibv.srq, attr, &cmd, sizeof(cmd), &resp.ibv,
				 sizeof(resp));
	if (err)
		goto free;
	err = vnic_srq_map(pd->context, srq, &resp.drv, attr->attr.max_sge);
	if (err)
		goto destroy;
	return &srq->ibv.srq;
destroy:
	ibv_cmd_destroy_srq(&srq->ibv.srq);
free:
	free(srq);
	errno = err;
	return NULL;
}

struct ibv_srq *vnic_create_srq_ex(struct ibv_context *ctx, struct ibv_srq_init_attr_ex *attr)
{
	struct {
		struct ib_uverbs_create_srq_resp ibv;
		struct vnic_srq_resp drv;
	} resp = {};
	struct ibv_create_xsrq cmd = {};
	struct vnic_srq *srq;
	int err;

	if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) || attr->srq_type == IBV_SRQT_BASIC)
		return vnic_create_srq(attr->pd, (struct ibv_srq_init_attr *)attr);
	if (attr->srq_type != IBV_SRQT_XRC) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	srq = calloc(1, sizeof(*srq));
	if (!srq)
		return NULL;
	err = ibv_cmd_create_srq_ex(ctx, &srq->ibv, attr, &cmd, sizeof(cmd), &resp.ibv,
				    sizeof(resp));
	if (err)
		goto free;
	err = vnic_srq_map(ctx, srq, &resp.drv, attr->attr.max_sge);
	if (err)
		goto destroy;
	return &srq->ibv.srq;
destroy:
	ibv_cmd_destroy_srq(&srq->ibv.srq);
free:
	free(srq);
	errno = err;
	return NULL;
}

int vnic_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask)
{
	struct ibv_modify_srq cmd = {};

	return ibv_cmd_modify_srq(srq, attr, mask, &cmd, sizeof(cmd));
}

int vnic_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr)
{
	struct ibv_query_srq cmd = {};

	return ibv_cmd_query_srq(srq, attr, &cmd, sizeof(cmd));
}

int vnic_get_srq_num(struct ibv_srq *srq, uint32_t *num)
{
	*num = to_vsrq(srq)->srqn;
	return 0;
}

int vnic_destroy_srq(struct ibv_srq *ibsrq)
{
	struct vnic_srq *srq = to_vsrq(ibsrq);
	int err = ibv_cmd_destroy_srq(ibsrq);

	if (err)
		return err;
	vnic_unmap(&srq->q.map);
	free(srq);
	return 0;
}

struct ibv_xrcd *vnic_open_xrcd(struct ibv_context *ctx, struct ibv_xrcd_init_attr *attr)
{
	struct ib_uverbs_open_xrcd_resp resp = {};
	struct ibv_open_xrcd cmd = {};
	struct verbs_xrcd *xrcd = calloc(1, sizeof(*xrcd));
	int err;

	if (!xrcd)
		return NULL;
	err = ibv_cmd_open_xrcd(ctx, xrcd, sizeof(*xrcd), attr, &cmd, sizeof(cmd), &resp,
				sizeof(resp));
	if (err) {
		free(xrcd);
		errno = err;
		return NULL;
	}
	return &xrcd->xrcd;
}

int vnic_close_xrcd(struct ibv_xrcd *ibxrcd)
{
	struct verbs_xrcd *xrcd = container_of(ibxrcd, struct verbs_xrcd, xrcd);
	int err = ibv_cmd_close_xrcd(xrcd);

	if (!err)
		free(xrcd);
	return err;
}
