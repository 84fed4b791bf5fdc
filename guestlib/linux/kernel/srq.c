// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Shared receive queues and XRC domains. */
#include "vnic.h"

static int vnic_srq_command(struct vnic_fn *fn, struct vnic_srq *srq,
			    const struct ib_srq_init_attr *attr, bool user)
{
	struct vnic_create_srq p = {
		.pdn = cpu_to_le32(to_vpd(srq->ibsrq.pd)->pdn),
		.limit = cpu_to_le32(attr->attr.srq_limit),
		.log2_entries = srq->q.log2,
		.log2_stride = srq->q.stride_log2,
		.max_sge = srq->q.max_sge,
	};
	struct vnic_create_srq_result r;
	struct vnic_page_list *list;
	int err;

	if (!user)
		p.flags = VNIC_QP_PRIVILEGED;
	if (attr->srq_type == IB_SRQT_XRC) {
		err = vnic_xrcd_number(attr->ext.xrc.xrcd, srq->q.life, &p.xrcdn);
		if (err)
			return err;
		p.type = VNIC_SRQ_TYPE_XRC;
		p.cqn = cpu_to_le32(to_vcq(attr->ext.cq)->cqn);
	}
	list = vnic_area_list(srq->q.area, srq->q.life, 0, srq->q.area->num_pages);
	if (IS_ERR(list))
		return PTR_ERR(list);
	p.levels = list->levels;
	p.pages = cpu_to_le64(list->root);
	err = vnic_command_in(fn, srq->q.life, VNIC_ADMIN_OP_CREATE_SRQ, &p, sizeof(p), &r,
			      sizeof(r));
	vnic_page_list_free(list);
	if (!err)
		srq->srqn = le32_to_cpu(r.srqn);
	return err;
}

static int vnic_srq_respond(struct vnic_srq *srq, struct ib_udata *udata)
{
	struct vnic_srq_resp resp = {
		.queue.offset = vnic_area_offset(srq->q.area),
		.queue.size = srq->q.area->size,
		.queue.entries_log2 = srq->q.log2,
		.queue.stride_log2 = srq->q.stride_log2,
		.srqn = srq->srqn,
	};

	if (udata->outlen < sizeof(resp))
		return -EINVAL;
	return ib_copy_to_udata(udata, &resp, sizeof(resp));
}

static int vnic_srq_forget(struct vnic_srq *srq)
{
	struct vnic_destroy_srq p = { .srqn = cpu_to_le32(srq->srqn) };

	return vnic_destroy(to_fn(srq->ibsrq.device), srq->q.life, VNIC_ADMIN_OP_DESTROY_SRQ, &p,
			    sizeof(p));
}

int vnic_create_srq(struct ib_srq *ibsrq, struct ib_srq_init_attr *attr, struct ib_udata *udata)
{
	struct vnic_fn *fn = to_fn(ibsrq->device);
	struct vnic_srq *srq = to_vsrq(ibsrq);
	struct ib_ucontext *uctx = NULL;
	int err;

	if (attr->srq_type != IB_SRQT_BASIC && attr->srq_type != IB_SRQT_XRC)
		return -EOPNOTSUPP;
	if (!attr->attr.max_wr)
		return -EINVAL;
	if (udata)
		uctx = &rdma_udata_to_drv_context(udata, struct vnic_ucontext,
						  ibucontext)->ibucontext;
	vnic_hold_init(&srq->hold);
	srq->q.life = to_vpd(ibsrq->pd)->life;
	err = vnic_queue_make_recv(fn, &srq->q, attr->attr.max_wr, attr->attr.max_sge, uctx);
	if (err)
		return err;
	err = vnic_srq_command(fn, srq, attr, !!udata);
	if (err)
		goto err_queue;
	err = xa_insert_irq(&fn->srqs, srq->srqn, &srq->hold, GFP_KERNEL);
	if (err)
		goto err_srq;
	attr->attr.max_wr = srq->q.entries;
	attr->attr.max_sge = srq->q.max_sge;
	ibsrq->ext.xrc.srq_num = srq->srqn;
	if (!udata)
		return 0;
	err = vnic_srq_respond(srq, udata);
	if (err)
		goto err_number;
	return 0;

err_number:
	vnic_forget(&fn->srqs, srq->srqn, &srq->hold);
err_srq:
	vnic_srq_forget(srq);
err_queue:
	vnic_queue_free(&srq->q);
	return err;
}

int vnic_destroy_srq(struct ib_srq *ibsrq, struct ib_udata *udata)
{
	struct vnic_fn *fn = to_fn(ibsrq->device);
	struct vnic_srq *srq = to_vsrq(ibsrq);
	int err;

	err = vnic_srq_forget(srq);
	if (err)
		return err;
	vnic_forget(&fn->srqs, srq->srqn, &srq->hold);
	vnic_release(&srq->hold);
	wait_for_completion(&srq->hold.gone);
	if (!udata)
		vnic_await_over(fn, srq->q.life);
	vnic_queue_free(&srq->q);
	return 0;
}

int vnic_modify_srq(struct ib_srq *ibsrq, struct ib_srq_attr *attr, enum ib_srq_attr_mask mask,
		    struct ib_udata *udata)
{
	struct vnic_srq *srq = to_vsrq(ibsrq);
	struct vnic_modify_srq p = {
		.srqn = cpu_to_le32(srq->srqn),
		.mask = cpu_to_le32(VNIC_SRQ_ATTR_LIMIT),
		.limit = cpu_to_le32(attr->srq_limit),
	};
	struct vnic_modify_srq_result r;

	if (mask & ~(IB_SRQ_LIMIT | IB_SRQ_MAX_WR))
		return -EINVAL;
	if (mask & IB_SRQ_MAX_WR)
		return -EOPNOTSUPP;
	if (attr->srq_limit > srq->q.entries)
		return -EINVAL;
	return vnic_command_in(to_fn(ibsrq->device), srq->q.life, VNIC_ADMIN_OP_MODIFY_SRQ, &p,
			       sizeof(p), &r, sizeof(r));
}

int vnic_query_srq(struct ib_srq *ibsrq, struct ib_srq_attr *attr)
{
	struct vnic_query_srq p = { .srqn = cpu_to_le32(to_vsrq(ibsrq)->srqn) };
	struct vnic_query_srq_result r;
	int err;

	err = vnic_command_in(to_fn(ibsrq->device), to_vsrq(ibsrq)->q.life, VNIC_ADMIN_OP_QUERY_SRQ,
			      &p, sizeof(p), &r, sizeof(r));
	if (err)
		return err;
	attr->max_wr = le32_to_cpu(r.entries);
	attr->max_sge = le32_to_cpu(r.max_sge);
	attr->srq_limit = le32_to_cpu(r.limit);
	return 0;
}

/* The number of a domain. Programs share them by a file, so one may be of an older life. */
int vnic_xrcd_number(struct ib_xrcd *xrcd, u32 life, __le32 *number)
{
	if (to_vxrcd(xrcd)->life != life)
		return -EIO;
	*number = cpu_to_le32(to_vxrcd(xrcd)->xrcdn);
	return 0;
}

int vnic_alloc_xrcd(struct ib_xrcd *xrcd, struct ib_udata *udata)
{
	struct vnic_open_xrcd_result r;
	int err;

	to_vxrcd(xrcd)->life = vnic_life(to_fn(xrcd->device), udata);
	err = vnic_command_in(to_fn(xrcd->device), to_vxrcd(xrcd)->life, VNIC_ADMIN_OP_OPEN_XRCD,
			      NULL, 0, &r, sizeof(r));
	if (!err)
		to_vxrcd(xrcd)->xrcdn = le32_to_cpu(r.xrcdn);
	return err;
}

int vnic_dealloc_xrcd(struct ib_xrcd *xrcd, struct ib_udata *udata)
{
	struct vnic_close_xrcd p = { .xrcdn = cpu_to_le32(to_vxrcd(xrcd)->xrcdn) };

	return vnic_destroy(to_fn(xrcd->device), to_vxrcd(xrcd)->life, VNIC_ADMIN_OP_CLOSE_XRCD, &p,
			    sizeof(p));
}
