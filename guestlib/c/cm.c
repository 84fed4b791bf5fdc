/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Connections (docs/abi section 9). */
#include <errno.h>
#include <string.h>

#include "internal.h"

int vnic_listen(struct vnic_device *dev, uint64_t service)
{
	struct vnic_cm_listen p = { .service = service };
	return admin_do(dev, VNIC_ADMIN_OP_CM_LISTEN, &p, sizeof p, NULL, 0);
}

/* Takes from f what match wants, putting the rest back in order; waits up to timeout_ms. */
static int await(struct vnic_device *dev, struct fifo *f, bool any, uint32_t number, struct vnic_async_event *e, int timeout_ms)
{
	for (long long end = now_ms() + timeout_ms;;) {
		for (unsigned n = f->count; n; n--) {
			fifo_take(f, e);
			if (any || e->number == number)
				return 1;
			fifo_put(f, e);
		}
		if (check_stopped(dev) < 0)
			return -1;
		long long left = timeout_ms < 0 ? -1 : end - now_ms();
		if (timeout_ms >= 0 && left <= 0)
			return 0;
		if (vnic_dispatch(dev, (int)left) < 0)
			return -1;
	}
}

int vnic_get_request(struct vnic_device *dev, struct vnic_request *request, int timeout_ms)
{
	struct vnic_async_event e;
	int n = await(dev, &dev->requests, true, 0, &e, timeout_ms);
	if (n <= 0)
		return n;
	*request = (struct vnic_request){ .id = e.number, .service = e.service, .qpn = e.peer_qpn };
	memcpy(request->gid, e.src_gid, sizeof request->gid);
	request->priv_len = e.priv_len <= sizeof e.priv ? e.priv_len : sizeof e.priv;
	memcpy(request->priv, e.priv, request->priv_len);
	return 1;
}

/* Puts private data where the device can read it; *page is freed after the command. */
static int store_private(struct vnic_device *dev, const void *priv, uint16_t len, void **page, uint64_t *addr)
{
	*page = NULL;
	*addr = 0;
	if (len > VNIC_PRIVATE_MAX)
		return fail(EINVAL, "private data of %u bytes; at most %u", len, VNIC_PRIVATE_MAX);
	if (!len)
		return 0;
	*page = vnic_alloc(dev, VNIC_PAGE_SIZE);
	if (!*page)
		return -1;
	memcpy(*page, priv, len);
	*addr = arena_addr(&dev->arena, *page);
	return 0;
}

/* Waits for how an attempt ends. */
static int settle(struct vnic_device *dev, uint32_t id, struct vnic_async_event *e, int timeout_ms)
{
	int n = await(dev, &dev->connections, false, id, e, timeout_ms);
	if (n < 0)
		return -1;
	if (!n) {
		struct vnic_cm_disconnect p = { .cmid = id };
		admin_do(dev, VNIC_ADMIN_OP_CM_DISCONNECT, &p, sizeof p, NULL, 0);
		return fail(ETIMEDOUT, "connection: no answer within %d ms", timeout_ms);
	}
	switch (e->type) {
	case VNIC_EVENT_ESTABLISHED:
		return 0;
	case VNIC_EVENT_REJECTED:
		return fail(ECONNREFUSED, "connection: rejected with reason %u", e->status);
	case VNIC_EVENT_UNREACHABLE:
		return fail_status(e->status ? e->status : VNIC_STATUS_UNREACHABLE, "connection");
	}
	return fail(ECONNRESET, "connection: it ended at once");
}

int vnic_accept(struct vnic_qp *qp, const struct vnic_request *request, const void *priv, uint16_t priv_len, int timeout_ms)
{
	struct vnic_device *dev = qp->dev;
	struct vnic_cm_accept p = { .cmid = request->id, .qpn = qp->qpn, .priv_len = priv_len };
	struct vnic_async_event e;
	void *page;
	uint64_t addr;
	if (check_life(dev, qp->life) < 0 || store_private(dev, priv, priv_len, &page, &addr) < 0)
		return -1;
	p.priv = addr;
	int err = admin_do(dev, VNIC_ADMIN_OP_CM_ACCEPT, &p, sizeof p, NULL, 0);
	vnic_free(dev, page, VNIC_PAGE_SIZE);
	return err < 0 ? -1 : settle(dev, request->id, &e, timeout_ms);
}

int vnic_reject(struct vnic_device *dev, const struct vnic_request *request, uint32_t reason)
{
	struct vnic_cm_reject p = { .cmid = request->id, .reason = reason };
	return admin_do(dev, VNIC_ADMIN_OP_CM_REJECT, &p, sizeof p, NULL, 0);
}

int vnic_connect(struct vnic_qp *qp, const uint8_t gid[16], uint64_t service, const void *priv, uint16_t priv_len, void *reply,
		 uint16_t *reply_len, int timeout_ms)
{
	struct vnic_device *dev = qp->dev;
	struct vnic_cm_connect p = { .qpn = qp->qpn, .service = service, .priv_len = priv_len };
	struct vnic_cm_connect_result r;
	struct vnic_async_event e;
	void *page;
	uint64_t addr;
	if (check_life(dev, qp->life) < 0 || store_private(dev, priv, priv_len, &page, &addr) < 0)
		return -1;
	p.priv = addr;
	memcpy(p.dgid, gid, sizeof p.dgid);
	int err = admin_do(dev, VNIC_ADMIN_OP_CM_CONNECT, &p, sizeof p, &r, sizeof r);
	vnic_free(dev, page, VNIC_PAGE_SIZE);
	if (err < 0 || settle(dev, r.cmid, &e, timeout_ms) < 0)
		return -1;
	uint16_t n = e.priv_len <= sizeof e.priv ? e.priv_len : sizeof e.priv;
	if (reply)
		memcpy(reply, e.priv, n);
	if (reply_len)
		*reply_len = n;
	return 0;
}
