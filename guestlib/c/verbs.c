/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Protection domains, memory regions, completion queues and queue pairs: their making and their end. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* Ends an object at the device, unless a reset has: its number may be another's now (DEV-906). */
static int destroy(struct vnic_device *dev, uint32_t life, uint16_t opcode, const void *params, size_t size)
{
	return life == dev->life ? admin_do(dev, opcode, params, size, NULL, 0) : 0;
}

int vnic_alloc_pd(struct vnic_device *dev, uint32_t *pdn)
{
	struct vnic_alloc_pd_result r;
	if (admin_do(dev, VNIC_ADMIN_OP_ALLOC_PD, NULL, 0, &r, sizeof r) < 0)
		return -1;
	*pdn = r.pdn;
	return 0;
}

int vnic_dealloc_pd(struct vnic_device *dev, uint32_t pdn)
{
	struct vnic_dealloc_pd p = { .pdn = pdn };
	return admin_do(dev, VNIC_ADMIN_OP_DEALLOC_PD, &p, sizeof p, NULL, 0);
}

int vnic_reg_mr(struct vnic_device *dev, uint32_t pdn, void *addr, size_t length, uint32_t access, struct vnic_mr *mr)
{
	struct vnic_reg_mr p = { .pdn = pdn, .access = access, .iova = (uintptr_t)addr, .length = length };
	struct vnic_reg_mr_result r;
	void *list;
	size_t size;
	if (page_list(dev, addr, length, &list, &size, &p.pages, &p.levels) < 0)
		return -1;
	int err = admin_do(dev, VNIC_ADMIN_OP_REG_MR, &p, sizeof p, &r, sizeof r);
	vnic_free(dev, list, size); /* the device copied it (DEV-404) */
	if (err < 0)
		return -1;
	*mr = (struct vnic_mr){ addr, length, r.lkey, r.rkey, dev->life };
	return 0;
}

int vnic_alloc_mr(struct vnic_device *dev, uint32_t pdn, uint32_t max_pages, struct vnic_fast_mr *f)
{
	struct vnic_alloc_mr p = { .pdn = pdn, .max_pages = max_pages };
	struct vnic_reg_mr_result r;
	*f = (struct vnic_fast_mr){ .max_pages = max_pages, .list = vnic_alloc(dev, VNIC_PAGE_SIZE) };
	if (!f->list)
		return -1;
	if (admin_do(dev, VNIC_ADMIN_OP_ALLOC_MR, &p, sizeof p, &r, sizeof r) < 0) {
		vnic_free(dev, f->list, VNIC_PAGE_SIZE);
		return -1;
	}
	f->mr.lkey = r.lkey;
	f->mr.rkey = r.rkey;
	f->mr.life = dev->life;
	return 0;
}

int vnic_free_mr(struct vnic_device *dev, struct vnic_fast_mr *f)
{
	if (vnic_dereg_mr(dev, &f->mr) < 0)
		return -1;
	vnic_free(dev, f->list, VNIC_PAGE_SIZE);
	f->list = NULL;
	return 0;
}

int vnic_dereg_mr(struct vnic_device *dev, const struct vnic_mr *mr)
{
	struct vnic_dereg_mr p = { .lkey = mr->lkey };
	return destroy(dev, mr->life, VNIC_ADMIN_OP_DEREG_MR, &p, sizeof p);
}

static uint8_t log2_of(uint32_t n, uint8_t least)
{
	uint8_t log2 = least;
	while ((UINT32_C(1) << log2) < n)
		log2++;
	return log2;
}

/* Gone says that the device does not know an object: it has ended with a reset. */
static bool gone(int err) { return err < 0 && (errno == ENOENT || errno == ECONNRESET); }

struct vnic_cq *vnic_create_cq(struct vnic_device *dev, uint32_t entries)
{
	struct vnic_create_cq p = { .log2_entries = log2_of(entries, 1) };
	struct vnic_create_cq_result r;
	struct vnic_cq *cq = calloc(1, sizeof *cq);
	void *list = NULL;
	size_t size = 0;
	if (!cq) {
		fail(ENOMEM, "out of memory");
		return NULL;
	}
	cq->dev = dev;
	cq->life = dev->life;
	cq->entries = UINT32_C(1) << p.log2_entries;
	cq->size = VNIC_QUEUE_HEADER_SIZE + (size_t)cq->entries * sizeof(struct vnic_cqe);
	cq->area = vnic_alloc(dev, cq->size);
	if (!cq->area || page_list(dev, cq->area, cq->size, &list, &size, &p.pages, &p.levels) < 0 ||
	    admin_do(dev, VNIC_ADMIN_OP_CREATE_CQ, &p, sizeof p, &r, sizeof r) < 0) {
		vnic_free(dev, list, size);
		vnic_free(dev, cq->area, cq->size);
		free(cq);
		return NULL;
	}
	vnic_free(dev, list, size);
	cq->cqn = r.cqn;
	cq->next_cq = dev->cqs;
	dev->cqs = cq;
	return cq;
}

int vnic_destroy_cq(struct vnic_cq *cq)
{
	struct vnic_device *dev = cq->dev;
	struct vnic_destroy_cq p = { .cqn = cq->cqn };
	int err = destroy(dev, cq->life, VNIC_ADMIN_OP_DESTROY_CQ, &p, sizeof p);
	if (err < 0 && !gone(err))
		return -1;
	for (struct vnic_cq **at = &dev->cqs; *at; at = &(*at)->next_cq)
		if (*at == cq) {
			*at = cq->next_cq;
			break;
		}
	vnic_free(dev, cq->area, cq->size);
	free(cq);
	return 0;
}

static int make_queue(struct vnic_device *dev, struct queue *q, uint32_t entries, size_t entry, uint8_t least)
{
	q->log2 = log2_of(entries ? entries : 64, 1);
	q->log2_stride = log2_of((uint32_t)entry, least);
	q->entries = UINT32_C(1) << q->log2;
	q->stride = UINT32_C(1) << q->log2_stride;
	q->size = VNIC_QUEUE_HEADER_SIZE + (size_t)q->entries * q->stride;
	q->area = vnic_alloc(dev, q->size);
	return q->area ? 0 : -1;
}

static int to_init(struct vnic_qp *qp, uint32_t access, uint8_t type)
{
	const uint32_t reliable = VNIC_QP_ATTR_RETRY_CNT | VNIC_QP_ATTR_RNR_RETRY | VNIC_QP_ATTR_MIN_RNR_TIMER | VNIC_QP_ATTR_MAX_RD_ATOMIC |
				  VNIC_QP_ATTR_MAX_DEST_RD_ATOMIC;
	struct vnic_device *dev = qp->dev;
	struct vnic_modify_qp m = {
		.qpn = qp->qpn,
		.mask = VNIC_QP_ATTR_STATE | VNIC_QP_ATTR_ACCESS | VNIC_QP_ATTR_PATH_MTU | (type == VNIC_QP_TYPE_RC ? reliable : 0),
		.state = VNIC_QP_STATE_INIT, .access = access, .path_mtu = dev->info.limits.path_mtu, .retry_cnt = 7, .rnr_retry = 7,
		.min_rnr_timer = 12, .max_rd_atomic = dev->info.limits.max_read_atomic, .max_dest_rd_atomic = dev->info.limits.max_read_atomic,
	};
	return admin_do(dev, VNIC_ADMIN_OP_MODIFY_QP, &m, sizeof m, NULL, 0);
}

static void free_qp(struct vnic_qp *qp)
{
	vnic_free(qp->dev, qp->sq.area, qp->sq.size);
	vnic_free(qp->dev, qp->rq.area, qp->rq.size);
	free(qp);
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

struct vnic_qp *vnic_create_qp(struct vnic_device *dev, const struct vnic_qp_attr *attr)
{
	const struct vnic_cq *recv_cq = attr->recv_cq ? attr->recv_cq : attr->send_cq;
	struct vnic_qp *qp = calloc(1, sizeof *qp);
	void *lists[2] = { NULL, NULL };
	size_t sizes[2] = { 0, 0 };
	struct vnic_create_qp_result r;
	if (!qp || !attr->send_cq) {
		fail(qp ? EINVAL : ENOMEM, qp ? "QP without send_cq" : "out of memory");
		free(qp);
		return NULL;
	}
	if (attr->type && attr->type != VNIC_QP_TYPE_RC && attr->type != VNIC_QP_TYPE_UC) {
		fail(EINVAL, "QP of type %u; VNIC_QP_TYPE_RC and VNIC_QP_TYPE_UC can be made", attr->type);
		free(qp);
		return NULL;
	}
	qp->dev = dev;
	qp->life = dev->life;
	if (check_life(dev, attr->send_cq->life) < 0 || check_life(dev, recv_cq->life) < 0) {
		free(qp);
		return NULL;
	}
	qp->max_send_sge = attr->max_send_sge ? attr->max_send_sge : 1;
	qp->max_recv_sge = attr->max_recv_sge ? attr->max_recv_sge : 1;
	qp->max_inline = attr->max_inline;
	if (attr->privileged) /* an entry has room for what vnic_post_reg_mr needs */
		qp->max_inline = (uint16_t)larger(qp->max_inline, sizeof(struct vnic_fast_reg));
	struct vnic_create_qp p = {
		.pdn = attr->pdn, .send_cq = attr->send_cq->cqn, .recv_cq = recv_cq->cqn, .type = attr->type ? attr->type : VNIC_QP_TYPE_RC, .sig_all = attr->sig_all,
		.flags = attr->privileged ? VNIC_QP_PRIVILEGED : 0,
		.max_send_sge = qp->max_send_sge, .max_recv_sge = qp->max_recv_sge, .max_inline = qp->max_inline,
	};
	int err = make_queue(dev, &qp->sq, attr->send_entries,
			     VNIC_SEND_WQE_HEADER + larger(qp->max_send_sge * sizeof(struct vnic_sge), qp->max_inline), 6);
	if (err == 0)
		err = make_queue(dev, &qp->rq, attr->recv_entries, VNIC_RECV_WQE_HEADER + qp->max_recv_sge * sizeof(struct vnic_sge), 5);
	if (err == 0)
		err = page_list(dev, qp->sq.area, qp->sq.size, &lists[0], &sizes[0], &p.sq_pages, &p.sq_levels);
	if (err == 0)
		err = page_list(dev, qp->rq.area, qp->rq.size, &lists[1], &sizes[1], &p.rq_pages, &p.rq_levels);
	if (err == 0) {
		p.sq_log2_entries = qp->sq.log2;
		p.rq_log2_entries = qp->rq.log2;
		p.sq_log2_stride = qp->sq.log2_stride;
		p.rq_log2_stride = qp->rq.log2_stride;
		err = admin_do(dev, VNIC_ADMIN_OP_CREATE_QP, &p, sizeof p, &r, sizeof r);
	}
	vnic_free(dev, lists[0], sizes[0]);
	vnic_free(dev, lists[1], sizes[1]);
	if (err < 0) {
		free_qp(qp);
		return NULL;
	}
	qp->qpn = r.qpn;
	if (to_init(qp, attr->access, p.type) < 0) {
		int why = errno;
		vnic_destroy_qp(qp);
		errno = why;
		return NULL;
	}
	return qp;
}

int vnic_destroy_qp(struct vnic_qp *qp)
{
	struct vnic_destroy_qp p = { .qpn = qp->qpn };
	int err = destroy(qp->dev, qp->life, VNIC_ADMIN_OP_DESTROY_QP, &p, sizeof p);
	if (err < 0 && !gone(err))
		return -1;
	free_qp(qp);
	return 0;
}

uint32_t vnic_qp_num(const struct vnic_qp *qp) { return qp->qpn; }

struct vnic_sge vnic_sge(const struct vnic_mr *mr, size_t offset, uint32_t length)
{
	return (struct vnic_sge){ .addr = (uintptr_t)mr->addr + offset, .length = length, .lkey = mr->lkey };
}

int vnic_parse_gid(const char *text, uint8_t gid[16])
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };
	memcpy(gid, mapped, sizeof mapped);
	if (inet_pton(AF_INET, text, gid + 12) == 1 || inet_pton(AF_INET6, text, gid) == 1)
		return 0;
	return fail(EINVAL, "\"%s\" is no IPv4 or IPv6 address", text);
}

int vnic_add_gid(struct vnic_device *dev, uint16_t index, const uint8_t gid[16])
{
	struct vnic_gid_entry p = { .index = index, .vlan = VNIC_NO_VLAN };
	memcpy(p.gid, gid, sizeof p.gid);
	return admin_do(dev, VNIC_ADMIN_OP_ADD_GID, &p, sizeof p, NULL, 0);
}

int vnic_del_gid(struct vnic_device *dev, uint16_t index)
{
	struct vnic_gid_index p = { .index = index };
	return admin_do(dev, VNIC_ADMIN_OP_DEL_GID, &p, sizeof p, NULL, 0);
}

int vnic_query_gid(struct vnic_device *dev, uint16_t index, uint8_t gid[16])
{
	struct vnic_gid_index p = { .index = index };
	struct vnic_gid_entry r;
	if (admin_do(dev, VNIC_ADMIN_OP_QUERY_GID, &p, sizeof p, &r, sizeof r) < 0)
		return -1;
	memcpy(gid, r.gid, sizeof r.gid);
	return 0;
}
