// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Connections over iWARP, for iw_cm. The device makes them by commands that name a queue pair,
 * and reports what becomes of them by events (DEV-903, DEV-970 to DEV-973).
 *
 *          CMConnect               Established
 *   NONE ------------> CALLING ------------------> OPEN
 *     '--------------> ACCEPTING -------------------'
 *          CMAccept                Established
 *
 * A connection ends when the device says so; when its queue pair is moved to error, reset or
 * destroyed; and when the device is lost: whatever is first. iw_cm takes each of its events once
 * and in this order only: the reply to a call, or that what was accepted is established; then
 * the close.
 */
#include <linux/in.h>
#include <linux/in6.h>
#include <net/ipv6.h>
#include <rdma/iw_cm.h>

#include "vnic.h"

/* An address and a TCP port, as the device has them. */
struct vnic_iw_address {
	struct in6_addr ip; /* IPv4 in its mapped form */
	u16 port;
};

static int vnic_iw_address(const struct sockaddr_storage *from, struct vnic_iw_address *to)
{
	const struct sockaddr_in6 *in6 = (const void *)from;
	const struct sockaddr_in *in = (const void *)from;

	switch (from->ss_family) {
	case AF_INET:
		ipv6_addr_set_v4mapped(in->sin_addr.s_addr, &to->ip);
		to->port = ntohs(in->sin_port);
		return 0;
	case AF_INET6:
		to->ip = in6->sin6_addr;
		to->port = ntohs(in6->sin6_port);
		return 0;
	default:
		return -EAFNOSUPPORT;
	}
}

static void vnic_iw_sockaddr(const struct in6_addr *ip, u16 port, struct sockaddr_storage *to)
{
	struct sockaddr_in6 *in6 = (void *)to;
	struct sockaddr_in *in = (void *)to;

	if (ipv6_addr_v4mapped(ip)) {
		in->sin_family = AF_INET;
		in->sin_addr.s_addr = ip->s6_addr32[3];
		in->sin_port = htons(port);
	} else {
		in6->sin6_family = AF_INET6;
		in6->sin6_addr = *ip;
		in6->sin6_port = htons(port);
	}
}

/* The part of an event for iw_cm that the peer has sent. */
static void vnic_iw_of_peer(struct iw_cm_event *to, const struct vnic_async_event *ev)
{
	to->ird = ev->ird;
	to->ord = ev->ord;
	to->private_data = (void *)ev->priv;
	to->private_data_len = min_t(u16, le16_to_cpu(ev->priv_len), sizeof(ev->priv));
}

static void vnic_iw_tell(struct iw_cm_id *id, enum iw_cm_event_type type, int status,
			 const struct vnic_async_event *ev)
{
	struct iw_cm_event e = {
		.event = type,
		.status = status,
		.local_addr = id->m_local_addr,
		.remote_addr = id->m_remote_addr,
	};

	if (ev)
		vnic_iw_of_peer(&e, ev);
	if (!id->event_handler(id, &e))
		return;
	/* There was no memory for the private data. Whoever destroys the id waits for the event. */
	e.private_data_len = 0;
	id->event_handler(id, &e);
}

/* Begins a connection of a queue pair. */
static int vnic_iw_begin(struct vnic_qp *qp, struct iw_cm_id *id, enum vnic_iw_state state,
			 u32 cmid)
{
	struct vnic_iw *iw = &qp->iw;
	unsigned long flags;
	int err = -EISCONN;

	spin_lock_irqsave(&iw->lock, flags);
	if (iw->state == VNIC_IW_NONE) {
		id->add_ref(id);
		iw->id = id;
		iw->state = state;
		if (cmid)
			iw->cmid = cmid;
		err = 0;
	}
	spin_unlock_irqrestore(&iw->lock, flags);
	return err;
}

/* Takes the connection from its queue pair. The lock is held; the caller releases the id. */
static struct iw_cm_id *vnic_iw_take(struct vnic_iw *iw)
{
	struct iw_cm_id *id = iw->id;

	iw->state = VNIC_IW_NONE;
	iw->id = NULL;
	return id;
}

/*
 * The command that was to make the connection failed. Returns 0 if the connection has ended
 * meanwhile, and iw_cm been told.
 */
static int vnic_iw_failed(struct vnic_qp *qp, struct iw_cm_id *id, int err)
{
	struct vnic_iw *iw = &qp->iw;
	unsigned long flags;
	bool ours;

	spin_lock_irqsave(&iw->lock, flags);
	ours = iw->id == id;
	if (ours)
		vnic_iw_take(iw);
	spin_unlock_irqrestore(&iw->lock, flags);
	if (!ours)
		return 0;
	id->rem_ref(id);
	return err;
}

/* The connection is over: iw_cm gets the events that it still waits for. The lock is held. */
static struct iw_cm_id *vnic_iw_over(struct vnic_iw *iw, int status,
				     const struct vnic_async_event *ev)
{
	switch (iw->state) {
	case VNIC_IW_NONE:
		return NULL;
	case VNIC_IW_CALLING:
		vnic_iw_tell(iw->id, IW_CM_EVENT_CONNECT_REPLY, status, ev);
		break;
	case VNIC_IW_ACCEPTING:
		vnic_iw_tell(iw->id, IW_CM_EVENT_ESTABLISHED, 0, NULL);
		fallthrough;
	case VNIC_IW_OPEN:
		vnic_iw_tell(iw->id, IW_CM_EVENT_CLOSE, 0, NULL);
		break;
	}
	return vnic_iw_take(iw);
}

/* Ends the connection of a queue pair that is in error, was reset or destroyed, or is lost. */
void vnic_iw_close(struct vnic_qp *qp)
{
	struct iw_cm_id *id;
	unsigned long flags;

	spin_lock_irqsave(&qp->iw.lock, flags);
	id = vnic_iw_over(&qp->iw, -ECONNRESET, NULL);
	spin_unlock_irqrestore(&qp->iw.lock, flags);
	if (id)
		id->rem_ref(id);
}

/* The device is lost, and with it all connections. */
void vnic_iw_lose(struct vnic_fn *fn)
{
	struct vnic_hold *hold;
	unsigned long i;

	for (i = 0; (hold = vnic_find_from(&fn->qps, &i, U32_MAX)); i++) {
		vnic_iw_close(container_of(hold, struct vnic_qp, hold));
		vnic_release(hold);
	}
}

/* Tells the device to end a connection in order. Its event follows. */
int vnic_iw_disconnect(struct vnic_qp *qp)
{
	struct vnic_cm_disconnect p = {};
	unsigned long flags;

	spin_lock_irqsave(&qp->iw.lock, flags);
	if (qp->iw.state == VNIC_IW_OPEN)
		p.cmid = cpu_to_le32(qp->iw.cmid);
	spin_unlock_irqrestore(&qp->iw.lock, flags);
	if (!p.cmid)
		return 0;
	return vnic_destroy(to_fn(qp->ibqp.device), qp->life, VNIC_ADMIN_OP_CM_DISCONNECT, &p,
			    sizeof(p));
}

/* A peer asks for a connection. If nobody takes the request, the device rejects it (DEV-973). */
static void vnic_iw_requested(struct vnic_fn *fn, const struct vnic_async_event *ev)
{
	u16 port = le64_to_cpu(ev->service);
	struct iw_cm_event e = { .event = IW_CM_EVENT_CONNECT_REQUEST };
	struct in6_addr peer;
	struct iw_cm_id *id;

	xa_lock_irq(&fn->iw_listeners);
	id = xa_load(&fn->iw_listeners, port);
	if (id)
		id->add_ref(id);
	xa_unlock_irq(&fn->iw_listeners);
	if (!id)
		return;
	memcpy(&peer, ev->src_gid, sizeof(peer));
	vnic_iw_sockaddr(&fn->gid, port, &e.local_addr);
	vnic_iw_sockaddr(&peer, le16_to_cpu(ev->peer_port), &e.remote_addr);
	vnic_iw_of_peer(&e, ev);
	/* No object stands for a request: iw_cm may forget it without a word. */
	e.provider_data = (void *)((u64)READ_ONCE(fn->life) << 32 | le32_to_cpu(ev->number));
	id->event_handler(id, &e);
	id->rem_ref(id);
}

/* Whether an event is about this connection. A call learns its number by its first event. */
static bool vnic_iw_about(const struct vnic_iw *iw, u32 cmid)
{
	if (iw->state == VNIC_IW_CALLING)
		return (s32)(cmid - iw->cmid) > 0; /* newer than the one before */
	return iw->state != VNIC_IW_NONE && cmid == iw->cmid;
}

/* An event of the connection of a queue pair. The lock is held. Returns an id to release. */
static struct iw_cm_id *vnic_iw_happened(struct vnic_qp *qp, const struct vnic_async_event *ev)
{
	bool refused = le32_to_cpu(ev->status) == VNIC_STATUS_REFUSED;
	bool calling = qp->iw.state == VNIC_IW_CALLING;
	struct vnic_iw *iw = &qp->iw;

	switch (le16_to_cpu(ev->type)) {
	case VNIC_EVENT_ESTABLISHED:
		if (iw->state == VNIC_IW_OPEN)
			return NULL;
		iw->state = VNIC_IW_OPEN;
		WRITE_ONCE(qp->state, IB_QPS_RTS);
		if (calling)
			vnic_iw_tell(iw->id, IW_CM_EVENT_CONNECT_REPLY, 0, ev);
		else
			vnic_iw_tell(iw->id, IW_CM_EVENT_ESTABLISHED, 0, NULL);
		return NULL;
	case VNIC_EVENT_REJECTED:
		return vnic_iw_over(iw, -ECONNREFUSED, ev);
	case VNIC_EVENT_UNREACHABLE:
		return vnic_iw_over(iw, refused ? -ECONNREFUSED : -ETIMEDOUT, NULL);
	default:
		if (!calling)
			WRITE_ONCE(qp->state, IB_QPS_ERR);
		return vnic_iw_over(iw, -ECONNRESET, NULL);
	}
}

/* An event of a connection, in the thread of the control messages. */
void vnic_iw_event(struct vnic_fn *fn, const struct vnic_async_event *ev)
{
	u32 cmid = le32_to_cpu(ev->number);
	struct iw_cm_id *id = NULL;
	struct vnic_hold *hold;
	unsigned long flags;
	struct vnic_qp *qp;

	if (le16_to_cpu(ev->type) == VNIC_EVENT_CONNECT_REQUEST) {
		vnic_iw_requested(fn, ev);
		return;
	}
	hold = vnic_find(&fn->qps, le32_to_cpu(ev->qpn));
	if (!hold)
		return; /* its driver has ended the connection (DEV-971) */
	qp = container_of(hold, struct vnic_qp, hold);
	spin_lock_irqsave(&qp->iw.lock, flags);
	if (vnic_iw_about(&qp->iw, cmid)) {
		qp->iw.cmid = cmid;
		id = vnic_iw_happened(qp, ev);
	}
	spin_unlock_irqrestore(&qp->iw.lock, flags);
	if (id)
		id->rem_ref(id);
	vnic_release(hold);
}

/* iw_cm calls the next three under a spinlock. */
struct ib_qp *vnic_iw_get_qp(struct ib_device *ibdev, int qpn)
{
	struct vnic_hold *hold = vnic_find(&to_fn(ibdev)->qps, qpn);

	if (!hold)
		return NULL;
	vnic_release(hold);
	return &container_of(hold, struct vnic_qp, hold)->ibqp;
}

void vnic_iw_add_ref(struct ib_qp *ibqp)
{
	refcount_inc(&to_vqp(ibqp)->hold.refs);
}

void vnic_iw_rem_ref(struct ib_qp *ibqp)
{
	vnic_release(&to_vqp(ibqp)->hold);
}

/* Private data for a command: a page that the device reads before the command completes. */
static struct vnic_page_list *vnic_iw_private(struct vnic_fn *fn, u32 life, const void *data,
					      size_t len)
{
	struct vnic_page_list *page;

	if (len > VNIC_PRIVATE_MAX)
		return ERR_PTR(-EINVAL);
	page = vnic_page_list_alloc(fn, life, 1);
	if (!IS_ERR(page) && len)
		memcpy(page->pages[0].va, data, len);
	return page;
}

/* The READs that a connection may have in flight, either way. rdma_cm sets them here alone. */
static int vnic_iw_depth(struct vnic_fn *fn, struct vnic_qp *qp,
			 const struct iw_cm_conn_param *param)
{
	u32 most = fn->limits.max_read_atomic;
	struct vnic_modify_qp p = {
		.qpn = cpu_to_le32(qp->qpn),
		.mask = cpu_to_le32(IB_QP_MAX_QP_RD_ATOMIC | IB_QP_MAX_DEST_RD_ATOMIC),
		.max_rd_atomic = min(param->ord, most),
		.max_dest_rd_atomic = min(param->ird, most),
	};

	return vnic_command_in(fn, qp->life, VNIC_ADMIN_OP_MODIFY_QP, &p, sizeof(p), NULL, 0);
}

static int vnic_iw_call(struct vnic_fn *fn, struct vnic_qp *qp, struct iw_cm_id *id,
			const struct iw_cm_conn_param *param)
{
	struct vnic_cm_connect p = { .qpn = cpu_to_le32(qp->qpn) };
	struct vnic_cm_connect_result r;
	struct vnic_iw_address from, to;
	struct vnic_page_list *page;
	int err;

	err = vnic_iw_address(&id->m_local_addr, &from);
	if (err)
		return err;
	err = vnic_iw_address(&id->m_remote_addr, &to);
	if (err)
		return err;
	if (!ipv6_addr_equal(&from.ip, &fn->gid))
		return -EADDRNOTAVAIL;
	err = vnic_iw_depth(fn, qp, param);
	if (err)
		return err;
	page = vnic_iw_private(fn, qp->life, param->private_data, param->private_data_len);
	if (IS_ERR(page))
		return PTR_ERR(page);
	p.priv_len = cpu_to_le16(param->private_data_len);
	p.priv = cpu_to_le64(page->root);
	p.src_port = cpu_to_le16(from.port);
	p.service = cpu_to_le64(to.port);
	memcpy(p.dgid, &to.ip, sizeof(p.dgid));
	err = vnic_iw_begin(qp, id, VNIC_IW_CALLING, 0);
	if (err)
		goto out;
	err = vnic_command_in(fn, qp->life, VNIC_ADMIN_OP_CM_CONNECT, &p, sizeof(p), &r,
			      sizeof(r));
	if (err)
		err = vnic_iw_failed(qp, id, err);
out:
	vnic_page_list_free(page);
	return err;
}

static int vnic_iw_answer(struct vnic_fn *fn, struct vnic_qp *qp, struct iw_cm_id *id,
			  const struct iw_cm_conn_param *param)
{
	u64 request = (u64)id->provider_data;
	struct vnic_cm_accept p = {
		.cmid = cpu_to_le32(request),
		.qpn = cpu_to_le32(qp->qpn),
		.priv_len = cpu_to_le16(param->private_data_len),
	};
	struct vnic_page_list *page;
	int err;

	if (request >> 32 != qp->life)
		return -ECONNRESET; /* the device was lost meanwhile */
	err = vnic_iw_depth(fn, qp, param);
	if (err)
		return err;
	page = vnic_iw_private(fn, qp->life, param->private_data, param->private_data_len);
	if (IS_ERR(page))
		return PTR_ERR(page);
	p.priv = cpu_to_le64(page->root);
	err = vnic_iw_begin(qp, id, VNIC_IW_ACCEPTING, request);
	if (err)
		goto out;
	err = vnic_command_in(fn, qp->life, VNIC_ADMIN_OP_CM_ACCEPT, &p, sizeof(p), NULL, 0);
	if (err == -ENOENT)
		err = -ECONNRESET; /* the peer has gone */
	if (err)
		err = vnic_iw_failed(qp, id, err);
out:
	vnic_page_list_free(page);
	return err;
}

/* Begins a connection of the queue pair that iw_cm names, by a call or an answer. */
static int vnic_iw_with_qp(struct iw_cm_id *id, const struct iw_cm_conn_param *param,
			   int (*begin)(struct vnic_fn *fn, struct vnic_qp *qp, struct iw_cm_id *id,
					const struct iw_cm_conn_param *param))
{
	struct vnic_fn *fn = to_fn(id->device);
	struct vnic_hold *hold = vnic_find(&fn->qps, param->qpn);
	int err;

	if (!hold)
		return -EINVAL;
	err = begin(fn, container_of(hold, struct vnic_qp, hold), id, param);
	vnic_release(hold);
	return err;
}

int vnic_iw_connect(struct iw_cm_id *id, struct iw_cm_conn_param *param)
{
	return vnic_iw_with_qp(id, param, vnic_iw_call);
}

int vnic_iw_reject(struct iw_cm_id *id, const void *data, u8 len)
{
	u64 request = (u64)id->provider_data;
	struct vnic_cm_reject p = {
		.cmid = cpu_to_le32(request),
		.priv_len = cpu_to_le16(len),
	};
	struct vnic_fn *fn = to_fn(id->device);
	struct vnic_page_list *page;
	int err;

	page = vnic_iw_private(fn, request >> 32, data, len);
	if (IS_ERR(page))
		return PTR_ERR(page);
	p.priv = cpu_to_le64(page->root);
	err = vnic_destroy(fn, request >> 32, VNIC_ADMIN_OP_CM_REJECT, &p, sizeof(p));
	vnic_page_list_free(page);
	return err;
}

/* A request that cannot be accepted is rejected: iw_cm forgets it. */
int vnic_iw_accept(struct iw_cm_id *id, struct iw_cm_conn_param *param)
{
	int err = vnic_iw_with_qp(id, param, vnic_iw_answer);

	if (err)
		vnic_iw_reject(id, NULL, 0);
	return err;
}

/* Tells the device to listen at a port; after a loss, again. */
int vnic_iw_listen(struct vnic_fn *fn, u16 port)
{
	struct vnic_cm_listen p = { .service = cpu_to_le64(port) };

	return vnic_command(fn, VNIC_ADMIN_OP_CM_LISTEN, &p, sizeof(p), NULL, 0);
}

/*
 * Whether a listener gets what comes to the function's address. One at the wildcard of the
 * other family does not, which is no error.
 */
static int vnic_iw_listens(struct vnic_fn *fn, const struct iw_cm_id *id,
			   const struct vnic_iw_address *at)
{
	bool v4 = ipv6_addr_v4mapped(&fn->gid);

	if (ipv6_addr_any(&at->ip))
		return !v4 || !id->afonly;
	if (ipv6_addr_v4mapped(&at->ip) && !at->ip.s6_addr32[3])
		return v4;
	return ipv6_addr_equal(&at->ip, &fn->gid) ? 1 : -EADDRNOTAVAIL;
}

int vnic_iw_create_listen(struct iw_cm_id *id, int backlog)
{
	struct vnic_fn *fn = to_fn(id->device);
	struct vnic_iw_address at;
	int err;

	err = vnic_iw_address(&id->m_local_addr, &at);
	if (err)
		return err;
	err = vnic_iw_listens(fn, id, &at);
	if (err <= 0)
		return err;
	mutex_lock(&fn->kernel_lock);
	err = xa_insert_irq(&fn->iw_listeners, at.port, id, GFP_KERNEL);
	if (err) {
		err = err == -EBUSY ? -EADDRINUSE : err;
		goto out;
	}
	id->add_ref(id);
	err = vnic_iw_listen(fn, at.port);
	if (err == -EIO)
		err = 0; /* the device is told when it is back */
	if (err) {
		xa_erase_irq(&fn->iw_listeners, at.port);
		id->rem_ref(id);
	}
out:
	mutex_unlock(&fn->kernel_lock);
	return err;
}

int vnic_iw_destroy_listen(struct iw_cm_id *id)
{
	struct vnic_fn *fn = to_fn(id->device);
	struct vnic_iw_address at;
	struct vnic_cm_unlisten p;

	if (vnic_iw_address(&id->m_local_addr, &at))
		return 0;
	p.service = cpu_to_le64(at.port);
	mutex_lock(&fn->kernel_lock);
	if (xa_load(&fn->iw_listeners, at.port) == id) {
		xa_erase_irq(&fn->iw_listeners, at.port);
		vnic_destroy(fn, READ_ONCE(fn->life), VNIC_ADMIN_OP_CM_UNLISTEN, &p, sizeof(p));
		id->rem_ref(id);
	}
	mutex_unlock(&fn->kernel_lock);
	return 0;
}
