// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The life of a function: session, registers, READY; its loss, and its return.
 *
 *           open, enable            its interface (netdev.c)
 *   down ---------------> up -----------------------> ib_device registered
 *    ^                                                       |
 *    '--- the session ended, a fault, another state (DRV-210) '
 *
 * One work item does all of it: it looks at what is and does the next step. A loss
 * is another work item's (recover.c). The ib_device stays registered meanwhile, so
 * that kernel users (NVMe, NFS) connect anew by themselves.
 */
#include <linux/delay.h>
#include <linux/etherdevice.h>

#include "vnic.h"

#define VNIC_RETRY	HZ

void vnic_fn_kick(struct vnic_fn *fn)
{
	if (!READ_ONCE(fn->stopping))
		mod_delayed_work(fn->wq, &fn->work, 0);
}

/* A life is over: the next begins at once, or in a while if the function had not come up. */
void vnic_fn_again(struct vnic_fn *fn)
{
	if (!READ_ONCE(fn->stopping))
		mod_delayed_work(fn->wq, &fn->work, READ_ONCE(fn->up) ? 0 : VNIC_RETRY);
}

/* Says that the session is over, and why, unless the driver itself ends it; from any context. */
void vnic_fn_lost(struct vnic_fn *fn, const char *why)
{
	unsigned long flags;
	bool was;

	spin_lock_irqsave(&fn->life_lock, flags);
	was = fn->lost;
	WRITE_ONCE(fn->lost, true);
	if (!was)
		WRITE_ONCE(fn->ending, true);
	spin_unlock_irqrestore(&fn->life_lock, flags);
	if (was)
		return;
	if (why)
		dev_warn(&fn->pdev->dev, "the NIC is lost: %s\n", why);
	spin_lock_irqsave(&fn->control.reply_lock, flags);
	complete(&fn->control.replied);
	spin_unlock_irqrestore(&fn->control.reply_lock, flags);
	queue_work(fn->loss_wq, &fn->loss);
}

int vnic_reg_read(struct vnic_fn *fn, u32 offset, u32 width, u64 *value)
{
	struct vnic_reg_read r = { cpu_to_le32(offset), cpu_to_le32(width) };
	struct vnic_reg_reply reply;
	int err = vnic_control_call(fn, VNIC_MSG_REG_READ, &r, sizeof(r), VNIC_MSG_REG_REPLY,
				    &reply, sizeof(reply));

	if (!err && reply.status)
		err = -EIO;
	*value = err ? 0 : le64_to_cpu(reply.value);
	return err;
}

static int vnic_reg_write(struct vnic_fn *fn, u32 offset, u32 width, u64 value)
{
	struct vnic_reg_write w = { cpu_to_le32(offset), cpu_to_le32(width), cpu_to_le64(value) };
	struct vnic_reg_reply reply;
	int err = vnic_control_call(fn, VNIC_MSG_REG_WRITE, &w, sizeof(w), VNIC_MSG_REG_REPLY,
				    &reply, sizeof(reply));

	if (!err && reply.status) {
		dev_err(&fn->pdev->dev, "the NIC refuses register %#x: status %u\n", offset,
			le32_to_cpu(reply.status));
		err = -EIO;
	}
	return err;
}

static int vnic_hello(struct vnic_fn *fn)
{
	struct vnic_hello hello = {
		.major = cpu_to_le16(VNIC_VERSION_MAJOR),
		.minor = cpu_to_le16(VNIC_VERSION_MINOR),
		.function = cpu_to_le32(fn->number),
		.features = cpu_to_le64(~0ULL),
		.driver = "vnic.ko",
	};
	struct vnic_hello_reply r;
	int err = vnic_control_call(fn, VNIC_MSG_HELLO, &hello, sizeof(hello),
				    VNIC_MSG_HELLO_REPLY, &r, sizeof(r));

	if (!err && r.status) {
		dev_err_ratelimited(&fn->pdev->dev, "the NIC refuses the driver: status %u\n",
				    le32_to_cpu(r.status));
		err = -EIO;
	}
	if (!err)
		fn->features = le64_to_cpu(r.features);
	return err;
}

static int vnic_enable(struct vnic_fn *fn)
{
	int err, i;
	u64 state;

	err = vnic_reg_read(fn, VNIC_REG_STATE, 4, &state);
	if (!err && state != VNIC_STATE_RESET)
		err = vnic_reg_write(fn, VNIC_REG_CONTROL, 4, VNIC_CONTROL_RESET);
	vnic_admin_start(fn);
	if (!err)
		err = vnic_reg_write(fn, VNIC_REG_ADMIN_SQ, 8, 0); /* the window's blocks */
	if (!err)
		err = vnic_reg_write(fn, VNIC_REG_ADMIN_CQ, 8, 0);
	if (!err)
		err = vnic_reg_write(fn, VNIC_REG_ADMIN_ENTRIES, 4, fn->admin.entries);
	if (!err)
		err = vnic_reg_write(fn, VNIC_REG_CONTROL, 4, VNIC_CONTROL_ENABLE);
	for (i = 0; !err && i < 1000; i++) {
		err = vnic_reg_read(fn, VNIC_REG_STATE, 4, &state);
		if (!err && state == VNIC_STATE_READY) {
			WRITE_ONCE(fn->admin.open, true);
			return 0;
		}
		usleep_range(500, 1500);
	}
	return err ?: -ETIMEDOUT;
}

static int vnic_learn(struct vnic_fn *fn)
{
	struct vnic_query_objects which = { .part = VNIC_CREDIT_LIMIT };
	u64 mac, mtu, link;
	int err, i;

	err = vnic_reg_read(fn, VNIC_REG_MAC, 8, &mac);
	if (!err)
		err = vnic_reg_read(fn, VNIC_REG_MTU, 4, &mtu);
	if (!err)
		err = vnic_reg_read(fn, VNIC_REG_LINK_UP, 4, &link);
	if (!err)
		err = vnic_command(fn, VNIC_ADMIN_OP_QUERY_DEVICE, NULL, 0, &fn->limits,
				   sizeof(fn->limits));
	if (!err)
		err = vnic_command(fn, VNIC_ADMIN_OP_QUERY_OBJECTS, &which, sizeof(which),
				   &fn->counts, sizeof(fn->counts));
	if (err)
		return err;
	for (i = 0; i < ETH_ALEN; i++)
		fn->mac[i] = mac >> (8 * i);
	fn->mtu = mtu;
	fn->link_up = link;
	return 0;
}

static int vnic_fn_up(struct vnic_fn *fn)
{
	struct vnic_gid_index own = { 0 };
	int err;

	err = vnic_control_open(fn);
	if (err)
		dev_warn_ratelimited(&fn->pdev->dev,
				     "the NIC does not answer; it is asked again and again\n");
	if (!err)
		err = vnic_hello(fn);
	if (!err)
		err = vnic_enable(fn);
	if (!err)
		err = vnic_learn(fn);
	if (!err) /* ib_core fills the table */
		err = vnic_command(fn, VNIC_ADMIN_OP_DEL_GID, &own, sizeof(own), NULL, 0);
	if (err)
		vnic_fn_lost(fn, NULL);
	else
		dev_info(&fn->pdev->dev, "function %#x is up, MAC %pM\n", fn->number, fn->mac);
	return err;
}

/* Lets go of the device. What it does not confirm to have let go of stays kept. */
void vnic_fn_down(struct vnic_fn *fn, const char *why)
{
	vnic_netdev_part(fn, why);
	vnic_fn_leave(fn);
	fn->up = false;
}

/* Ends the session, if there is one. */
void vnic_fn_leave(struct vnic_fn *fn)
{
	WRITE_ONCE(fn->leaving, true);
	vnic_fn_lost(fn, NULL);
	flush_work(&fn->loss);
	WRITE_ONCE(fn->leaving, false);
}

void vnic_fn_work(struct work_struct *work)
{
	struct vnic_fn *fn = container_of(to_delayed_work(work), struct vnic_fn, work);

	mutex_lock(&fn->lock);
	if (READ_ONCE(fn->stopping))
		goto out;
	vnic_netdev_gone(fn);
	if (READ_ONCE(fn->ending)) {
		queue_work(fn->loss_wq, &fn->loss); /* this work goes on after it */
		goto out;
	}
	if (READ_ONCE(fn->lost))
		fn->up = false;
	if (!fn->up && !vnic_fn_up(fn)) {
		fn->up = true;
		if (fn->ib && vnic_revive(fn))
			vnic_fn_lost(fn, "it does not take back what it had");
	}
	if (READ_ONCE(fn->lost))
		fn->up = false;
	if (fn->up)
		vnic_netdev_follow(fn);
	else
		mod_delayed_work(fn->wq, &fn->work, VNIC_RETRY);
out:
	mutex_unlock(&fn->lock);
}

/*
 * The object of the first number from this one on, held; NULL: there is none. hold says
 * where it has its vnic_hold.
 */
void *vnic_find_from(struct xarray *objects, unsigned long *number, unsigned long last, size_t hold)
{
	unsigned long flags;
	void *obj;

	xa_lock_irqsave(objects, flags);
	obj = xa_find(objects, number, last, XA_PRESENT);
	if (obj)
		refcount_inc(&((struct vnic_hold *)(obj + hold))->refs);
	xa_unlock_irqrestore(objects, flags);
	return obj;
}

/* The object of a number, held; NULL: it was destroyed. */
void *vnic_find(struct xarray *objects, u32 number, size_t hold)
{
	unsigned long n = number;

	return vnic_find_from(objects, &n, n, hold);
}

static void vnic_qp_event(struct vnic_fn *fn, u32 qpn, enum ib_event_type type)
{
	struct ib_event ev = { .event = type };
	struct vnic_qp *qp = vnic_find(&fn->qps, qpn, offsetof(struct vnic_qp, hold));

	if (!qp)
		return;
	if (type == IB_EVENT_QP_FATAL || type == IB_EVENT_QP_REQ_ERR ||
	    type == IB_EVENT_QP_ACCESS_ERR)
		WRITE_ONCE(qp->state, IB_QPS_ERR);
	ev.device = qp->ibqp.device;
	ev.element.qp = &qp->ibqp;
	if (qp->ibqp.event_handler)
		qp->ibqp.event_handler(&ev, qp->ibqp.qp_context);
	vnic_release(&qp->hold);
}

static void vnic_cq_failed(struct vnic_fn *fn, u32 cqn)
{
	struct ib_event ev = { .event = IB_EVENT_CQ_ERR };
	struct vnic_cq *cq = vnic_find(&fn->cqs, cqn, offsetof(struct vnic_cq, hold));

	if (!cq)
		return;
	ev.device = cq->ibcq.device;
	ev.element.cq = &cq->ibcq;
	if (cq->ibcq.event_handler)
		cq->ibcq.event_handler(&ev, cq->ibcq.cq_context);
	vnic_release(&cq->hold);
}

static void vnic_srq_event(struct vnic_fn *fn, u32 srqn, enum ib_event_type type)
{
	struct ib_event ev = { .event = type };
	struct vnic_srq *srq = vnic_find(&fn->srqs, srqn, offsetof(struct vnic_srq, hold));

	if (!srq)
		return;
	ev.device = srq->ibsrq.device;
	ev.element.srq = &srq->ibsrq;
	if (srq->ibsrq.event_handler)
		srq->ibsrq.event_handler(&ev, srq->ibsrq.srq_context);
	vnic_release(&srq->hold);
}

/* An asynchronous event, in the thread of the control messages. */
void vnic_async_event(struct vnic_fn *fn, const struct vnic_async_event *ev)
{
	u32 number = le32_to_cpu(ev->number);

	switch (le16_to_cpu(ev->type)) {
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
		vnic_fn_lost(fn, "it reset or stopped the function");
		break;
	}
}
