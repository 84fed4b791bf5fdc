// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* What the device reports: completion events and asynchronous events. */
#include "vnic.h"

/* Handles a completion event, which came by an event queue or a control message. */
void vnic_completion_event(struct vnic_fn *fn, u32 cqn)
{
	struct vnic_hold *hold;
	struct vnic_cq *cq;

	if (cqn == VNIC_ADMIN_CQ) {
		vnic_admin_poll(fn);
		return;
	}
	hold = vnic_find(&fn->cqs, cqn);
	if (!hold)
		return; /* it was destroyed meanwhile (DRV-710) */
	cq = container_of(hold, struct vnic_cq, hold);
	if (cq->ibcq.comp_handler)
		cq->ibcq.comp_handler(&cq->ibcq, cq->ibcq.cq_context);
	vnic_release(hold);
}

static void vnic_qp_event(struct vnic_fn *fn, u32 qpn, enum ib_event_type type)
{
	struct ib_event ev = { .event = type };
	struct vnic_hold *hold = vnic_find(&fn->qps, qpn);
	struct vnic_qp *qp;

	if (!hold)
		return;
	qp = container_of(hold, struct vnic_qp, hold);
	if (type == IB_EVENT_QP_FATAL || type == IB_EVENT_QP_REQ_ERR ||
	    type == IB_EVENT_QP_ACCESS_ERR)
		WRITE_ONCE(qp->state, IB_QPS_ERR);
	ev.device = qp->ibqp.device;
	ev.element.qp = &qp->ibqp;
	if (qp->ibqp.event_handler)
		qp->ibqp.event_handler(&ev, qp->ibqp.qp_context);
	if (READ_ONCE(qp->state) == IB_QPS_ERR)
		vnic_iw_close(qp);
	vnic_release(hold);
}

static void vnic_cq_failed(struct vnic_fn *fn, u32 cqn)
{
	struct ib_event ev = { .event = IB_EVENT_CQ_ERR };
	struct vnic_hold *hold = vnic_find(&fn->cqs, cqn);
	struct vnic_cq *cq;

	if (!hold)
		return;
	cq = container_of(hold, struct vnic_cq, hold);
	ev.device = cq->ibcq.device;
	ev.element.cq = &cq->ibcq;
	if (cq->ibcq.event_handler)
		cq->ibcq.event_handler(&ev, cq->ibcq.cq_context);
	vnic_release(hold);
}

static void vnic_srq_event(struct vnic_fn *fn, u32 srqn, enum ib_event_type type)
{
	struct ib_event ev = { .event = type };
	struct vnic_hold *hold = vnic_find(&fn->srqs, srqn);
	struct vnic_srq *srq;

	if (!hold)
		return;
	srq = container_of(hold, struct vnic_srq, hold);
	ev.device = srq->ibsrq.device;
	ev.element.srq = &srq->ibsrq;
	if (srq->ibsrq.event_handler)
		srq->ibsrq.event_handler(&ev, srq->ibsrq.srq_context);
	vnic_release(hold);
}

/* Handles an asynchronous event, in the thread of the control messages. */
void vnic_async_event(struct vnic_fn *fn, const struct vnic_async_event *ev)
{
	u32 number = le32_to_cpu(ev->number);

	switch (le16_to_cpu(ev->type)) {
	case VNIC_EVENT_CONNECT_REQUEST:
	case VNIC_EVENT_ESTABLISHED:
	case VNIC_EVENT_REJECTED:
	case VNIC_EVENT_UNREACHABLE:
	case VNIC_EVENT_DISCONNECTED:
		vnic_iw_event(fn, ev);
		break;
	case VNIC_EVENT_QP_FATAL:
		dev_dbg(&fn->pdev->dev, "QP %#x failed: %.64s\n", number, ev->priv);
		vnic_qp_event(fn, number, IB_EVENT_QP_FATAL);
		break;
	case VNIC_EVENT_QP_REQ_ERR:
		vnic_qp_event(fn, number, IB_EVENT_QP_REQ_ERR);
		break;
	case VNIC_EVENT_QP_ACCESS_ERR:
		vnic_qp_event(fn, number, IB_EVENT_QP_ACCESS_ERR);
		break;
	case VNIC_EVENT_COMM_EST:
		vnic_qp_event(fn, number, IB_EVENT_COMM_EST);
		break;
	case VNIC_EVENT_SQ_DRAINED:
		vnic_qp_event(fn, number, IB_EVENT_SQ_DRAINED);
		break;
	case VNIC_EVENT_LAST_WQE:
		vnic_qp_event(fn, number, IB_EVENT_QP_LAST_WQE_REACHED);
		break;
	case VNIC_EVENT_CQ_ERROR:
		vnic_cq_failed(fn, number);
		break;
	case VNIC_EVENT_SRQ_LIMIT:
		vnic_srq_event(fn, number, IB_EVENT_SRQ_LIMIT_REACHED);
		break;
	case VNIC_EVENT_SRQ_ERROR:
		vnic_srq_event(fn, number, IB_EVENT_SRQ_ERR);
		break;
	case VNIC_EVENT_LINK_STATE:
		fn->link_up = le32_to_cpu(ev->status);
		vnic_ib_event(fn, fn->link_up ? IB_EVENT_PORT_ACTIVE : IB_EVENT_PORT_ERR);
		break;
	case VNIC_EVENT_FUNCTION_FAULT:
	case VNIC_EVENT_FUNCTION_STATE:
		dev_warn(&fn->pdev->dev, "the function left READY: %.64s\n", ev->priv);
		fn->handlers->lost(fn, "it reset or stopped the function");
		break;
	}
}
