/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * libvnic, the rdma-core provider of vnic.ko. Programs post, poll and arm in memory that
 * they share with the device. All else is a call of the kernel.
 *
 *   device.c   contexts, domains, address handles
 *   memory.c   regions, windows, device memory
 *   cq.c       completion queues, with ibv_start_poll
 *   qp.c       queue pairs and shared receive queues
 *   post.c     ibv_post_*: work requests as the device reads them
 *   wr.c       ibv_wr_*
 */
#ifndef VNIC_PROVIDER_H
#define VNIC_PROVIDER_H

#include <endian.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <infiniband/driver.h>
#include <infiniband/kern-abi.h>
#include <rdma/ib_user_verbs.h>

#include "rdma/vnic-abi.h"
#include "vnic_abi.h"
#include "vnic_compat.h"

/*
 * A spinlock, which objects of a thread domain do without. It is inline, since each post and
 * poll takes it.
 */
struct vnic_lock {
	atomic_uint held;
	bool single;
};

static inline void vnic_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#endif
}

static inline void vnic_lock(struct vnic_lock *l)
{
	if (l->single)
		return;
	while (atomic_exchange_explicit(&l->held, 1, memory_order_acquire))
		while (atomic_load_explicit(&l->held, memory_order_relaxed))
			vnic_pause();
}

static inline void vnic_unlock(struct vnic_lock *l)
{
	if (!l->single)
		atomic_store_explicit(&l->held, 0, memory_order_release);
}

static inline void vnic_lock_init(struct vnic_lock *l, bool single)
{
	atomic_init(&l->held, 0);
	l->single = single;
}

struct vnic_context {
	struct verbs_context ibv;
	struct vnic_ucontext_resp limits;
};

struct vnic_device {
	struct verbs_device ibv;
};

struct vnic_td {
	struct ibv_td ibv;
	atomic_int refs;
};

/* A protection domain, or a parent domain on top of one. */
struct vnic_pd {
	struct ibv_pd ibv;
	atomic_int refs;
	struct vnic_pd *parent; /* of a parent domain: the domain below it */
	struct vnic_td *td;
};

struct vnic_ah {
	struct ibv_ah ibv;
	struct vnic_address address;
};

/* A mapped area: completion queue, or queue of work requests. */
struct vnic_map {
	void *base;
	size_t size;
};

struct vnic_cq {
	struct verbs_cq ibv;
	struct vnic_lock lock;
	struct vnic_map map;
	struct vnic_map old; /* after a resize: the area of before, while it has entries */
	uint32_t log2;
	uint32_t old_log2;
	uint32_t consumer;
	uint32_t armings;
	bool armed;
	struct vnic_pd *parent;
	const struct vnic_cqe *cqe; /* of ibv_start_poll */
};

struct vnic_queue {
	struct vnic_lock lock;
	struct vnic_map map;
	uint32_t mask;
	uint32_t stride_log2;
	uint32_t max_sge;
	uint32_t max_inline;
	uint32_t producer;
};

struct vnic_qp {
	struct verbs_qp ibv;
	uint64_t room[2]; /* for a longer verbs_qp, see vnic_compat_mark_extended */
	struct vnic_queue sq;
	struct vnic_queue rq;
	struct vnic_pd *parent;
	bool sig_all;
	/* ibv_wr_*: entries that are built and not yet published. */
	uint32_t building;
	int error;
	struct vnic_send_wqe *wqe;
};

struct vnic_srq {
	struct verbs_srq ibv;
	struct vnic_queue q;
	uint32_t srqn;
};

struct vnic_dm {
	struct verbs_dm ibv;
	uint64_t length;
	void *base;
	size_t size; /* of the mapping */
};

static inline struct vnic_pd *to_vpd(struct ibv_pd *obj)
{
	return container_of(obj, struct vnic_pd, ibv);
}

static inline struct vnic_td *to_vtd(struct ibv_td *obj)
{
	return container_of(obj, struct vnic_td, ibv);
}

static inline struct vnic_ah *to_vah(struct ibv_ah *obj)
{
	return container_of(obj, struct vnic_ah, ibv);
}

static inline struct vnic_dm *to_vdm(struct ibv_dm *obj)
{
	return container_of(obj, struct vnic_dm, ibv.dm);
}

static inline struct vnic_cq *to_vcq(struct ibv_cq *obj)
{
	return container_of(obj, struct vnic_cq, ibv.cq);
}

static inline struct vnic_cq *to_vcq_ex(struct ibv_cq_ex *obj)
{
	return container_of(obj, struct vnic_cq, ibv.cq_ex);
}

static inline struct vnic_qp *to_vqp(struct ibv_qp *obj)
{
	return container_of(obj, struct vnic_qp, ibv.qp);
}

static inline struct vnic_qp *to_vqp_ex(struct ibv_qp_ex *obj)
{
	return container_of(obj, struct vnic_qp, ibv.qp_ex);
}

/*
 * Nothing is sent before RTS. Over iWARP the kernel's connection manager moves a queue pair there,
 * of which libibverbs hears nothing: the device keeps what is posted before.
 */
static inline bool vnic_may_send(const struct ibv_qp *qp)
{
	if (qp->context->device->transport_type == IBV_TRANSPORT_IWARP)
		return qp->state != IBV_QPS_RESET;
	return qp->state >= IBV_QPS_RTS;
}

static inline struct vnic_srq *to_vsrq(struct ibv_srq *obj)
{
	return container_of(obj, struct vnic_srq, ibv.srq);
}

static inline struct vnic_context *to_vctx(struct ibv_context *ctx)
{
	return container_of(ctx, struct vnic_context, ibv.context);
}

static inline void *vnic_entry(const struct vnic_queue *q, uint32_t index)
{
	return (char *)q->map.base + VNIC_QUEUE_HEADER_SIZE +
	       ((size_t)(index & q->mask) << q->stride_log2);
}

static inline bool vnic_full(const struct vnic_queue *q, uint32_t producer)
{
	struct vnic_queue_header *h = q->map.base;
	uint32_t consumer = atomic_load_explicit((_Atomic uint32_t *)&h->consumer,
						 memory_order_acquire);

	return producer - le32toh(consumer) > q->mask;
}

/* Publishes entries up to producer. Returns whether the device wants a doorbell (DRV-604). */
static inline bool vnic_show(struct vnic_queue *q, uint32_t producer)
{
	struct vnic_queue_header *h = q->map.base;
	uint32_t old = q->producer, event;

	if (producer == old)
		return false;
	q->producer = producer;
	atomic_store_explicit((_Atomic uint32_t *)&h->producer, htole32(producer),
			      memory_order_release);
	atomic_thread_fence(memory_order_seq_cst);
	event = le32toh(atomic_load_explicit((_Atomic uint32_t *)&h->event_index,
					     memory_order_relaxed));
	return producer - event - 1 < producer - old;
}

/* device.c */
int vnic_map(struct ibv_context *ctx, struct vnic_map *map, const struct vnic_mapping *m);
void vnic_unmap(struct vnic_map *map);
struct ibv_pd *vnic_real_pd(struct ibv_pd *pd);
void vnic_domain_hold(struct ibv_pd *pd, struct vnic_pd **parent, bool *single);
void vnic_domain_drop(struct vnic_pd *parent);

/* memory.c */
struct ibv_mr *vnic_reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t hca_va,
			   int access);
int vnic_rereg_mr(struct verbs_mr *mr, int flags, struct ibv_pd *pd, void *addr,
		  size_t length, int access);
int vnic_dereg_mr(struct verbs_mr *mr);
struct ibv_mr *vnic_import_mr(struct ibv_pd *pd, uint32_t handle);
void vnic_unimport_mr(struct ibv_mr *mr);
struct ibv_mw *vnic_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int vnic_dealloc_mw(struct ibv_mw *mw);
struct ibv_dm *vnic_alloc_dm(struct ibv_context *ctx, struct ibv_alloc_dm_attr *attr);
int vnic_free_dm(struct ibv_dm *dm);
struct ibv_dm *vnic_import_dm(struct ibv_context *ctx, uint32_t handle);
void vnic_unimport_dm(struct ibv_dm *dm);
struct ibv_mr *vnic_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset, size_t length,
			      unsigned int access);

/* cq.c */
struct ibv_cq *vnic_create_cq(struct ibv_context *ctx, int cqe, struct ibv_comp_channel *channel,
			      int vector);
struct ibv_cq_ex *vnic_create_cq_ex(struct ibv_context *ctx, struct ibv_cq_init_attr_ex *attr);
int vnic_resize_cq(struct ibv_cq *cq, int cqe);
void vnic_cq_sweep(struct ibv_cq *cq, uint32_t qpn);
int vnic_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr);
int vnic_destroy_cq(struct ibv_cq *cq);
int vnic_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int vnic_req_notify_cq(struct ibv_cq *cq, int solicited);

/* qp.c */
struct ibv_qp *vnic_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
struct ibv_qp *vnic_create_qp_ex(struct ibv_context *ctx, struct ibv_qp_init_attr_ex *attr);
struct ibv_qp *vnic_open_qp(struct ibv_context *ctx, struct ibv_qp_open_attr *attr);
int vnic_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
int vnic_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
		  struct ibv_qp_init_attr *init);
int vnic_destroy_qp(struct ibv_qp *qp);
struct ibv_srq *vnic_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr);
struct ibv_srq *vnic_create_srq_ex(struct ibv_context *ctx, struct ibv_srq_init_attr_ex *attr);
int vnic_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask);
int vnic_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr);
int vnic_get_srq_num(struct ibv_srq *srq, uint32_t *num);
int vnic_destroy_srq(struct ibv_srq *srq);
struct ibv_xrcd *vnic_open_xrcd(struct ibv_context *ctx, struct ibv_xrcd_init_attr *attr);
int vnic_close_xrcd(struct ibv_xrcd *xrcd);

/* post.c */
void vnic_wake_sends(struct vnic_qp *qp);
void vnic_put_bind(struct vnic_send_wqe *w, uint32_t rkey, const struct ibv_mw_bind_info *info);
int vnic_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int vnic_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int vnic_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int vnic_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);

static inline void vnic_submit_sends(struct vnic_qp *qp, uint32_t producer)
{
	if (vnic_show(&qp->sq, producer))
		vnic_wake_sends(qp);
}

/* wr.c */
int vnic_wr_init(struct vnic_qp *qp, uint64_t ops);

#endif
