/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What the files of the driver share. Each file calls only those below it, and what
 * the device reports goes up by struct vnic_handlers:
 *
 *   pci.c         probe, interrupts, reset
 *   function.c    session, registers, state; loss and recovery
 *   netdev.c      the function's Ethernet interface
 *   event.c       completion and asynchronous events
 *   recover.c     loss and return of the kernel's objects
 *   verbs.c       the ib_device: device, port, contexts, protection domains
 *   counters.c post.c dm.c mr.c qp.c srq.c cq.c gid.c    its other objects
 *   iwcm.c        connections over iWARP
 *   queue.c       memory of send, receive and shared receive queues
 *   admin.c       commands and their completions
 *   control.c     messages and registers, over the rings of the window
 *   window.c      capability chain, bell ring, event queues
 *   memory.c      memory that the device reaches, and when it is given back
 */
#ifndef VNIC_H
#define VNIC_H

#include <linux/completion.h>
#include <linux/in6.h>
#include <linux/interrupt.h>
#include <linux/pci.h>
#include <linux/semaphore.h>
#include <linux/sizes.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>
#include <rdma/ib_verbs.h>
#include <rdma/uverbs_ioctl.h>
#include <rdma/vnic-abi.h>

#include "vnic_abi.h"
#include "vnic_compat.h"

#define VNIC_MAX_EVENT_QUEUES	16
#define VNIC_MAX_DM_SIZE	SZ_1M /* of a function */
#define VNIC_PAGE_SIZES	GENMASK_ULL(VNIC_MAX_PAGE_SHIFT, VNIC_MIN_PAGE_SHIFT)

struct iw_cm_conn_param;
struct iw_cm_id;
struct vnic_fn;

/* What the lower layers report to the upper ones. */
struct vnic_handlers {
	/* The session is over; why is NULL if the driver itself ends it. From any context. */
	void (*lost)(struct vnic_fn *fn, const char *why);
	/* A completion queue has entries: from an interrupt or its thread. */
	void (*completion)(struct vnic_fn *fn, u32 cqn);
	/* An asynchronous event: from the thread of the control messages. */
	void (*event)(struct vnic_fn *fn, const struct vnic_async_event *ev);
};

/* The bell ring: doorbell records of all queues, from all processors. */
struct vnic_bells {
	spinlock_t lock; /* the ring and its producer */
	struct vnic_queue_header *hdr;
	struct vnic_doorbell *ring;
	u32 mask;
	u32 producer;
	struct work_struct again; /* rings for all queues, after the ring was full */
};

/* One event queue of the window and its interrupt. */
struct vnic_event_queue {
	struct vnic_fn *fn;
	struct vnic_queue_header *hdr;
	struct vnic_window_event *ring;
	u32 mask;
	u32 consumer;
};

/* Control messages: requests that wait for their reply, one at a time. */
struct vnic_messages {
	struct mutex lock; /* one request at a time */
	struct vnic_control_header *hdr;
	struct vnic_queue_header *requests;
	struct vnic_queue_header *messages;
	u32 producer;
	u32 consumer;
	u32 session;
	u64 tag;

	spinlock_t reply_lock; /* what follows */
	struct completion replied;
	u16 reply_type;
	u16 reply_len;
	void *reply;
};

/* A command, from its start until the caller has its result. */
struct vnic_command {
	struct completion done;
	u32 id;
	u32 status;
	void *result;
	size_t result_len;
	bool used;
	bool waiting; /* for the device */
};

/* An entry of the GID table, as the device was told of it. */
struct vnic_gid {
	struct vnic_gid_entry entry;
	bool used;
};

/* Admin queues in the window. */
struct vnic_admin {
	spinlock_t lock; /* the queues and the commands */
	bool open; /* the function is READY: the device takes commands */
	struct semaphore room;
	struct vnic_queue_header *sq;
	struct vnic_cq_header *cq;
	u32 entries;
	u32 producer;
	u32 consumer;
	u32 next_id;
	struct vnic_command commands[VNIC_MAX_ADMIN_ENTRIES];
};

/* A function: it lives from probe to remove. */
struct vnic_fn {
	struct pci_dev *pdev;
	void __iomem *bar0;
	void *window;
	u32 window_len;
	u32 number;
	const struct vnic_handlers *handlers;

	struct vnic_bells bells;
	struct vnic_messages control;
	struct vnic_admin admin;
	struct vnic_event_queue event_queues[VNIC_MAX_EVENT_QUEUES];
	unsigned int num_event_queues;

	/* What the device said when the session began. */
	struct vnic_query_device_result limits;
	struct vnic_object_counts counts;
	u64 features;
	u32 mtu;
	u32 speed; /* Mbit/s, as last read */
	u8 mac[ETH_ALEN];
	struct in6_addr gid; /* the function's address */
	bool link_up;
	atomic_long_t dm_used; /* bytes of device memory */

	/* Queues by number, for completions and events. */
	struct xarray qps, cqs, srqs;

	/*
	 * A life is the time between two losses of the device. It is over when the
	 * device has confirmed that it no longer reaches the memory it was told of.
	 * The objects of a life end with it, and their numbers may be used again.
	 */
	u32 life; /* from 1 */
	spinlock_t life_lock; /* life, lost, ending, kept */
	struct list_head kept; /* memory given back while the life was ending */
	wait_queue_head_t over; /* a life is over */
	/* Objects that the kernel made, for recovery; the lock is for changes of them, too. */
	struct mutex kernel_lock;
	struct list_head kernel_pds, kernel_cqs, kernel_qps;
	struct vnic_gid gids[VNIC_GID_ENTRIES]; /* under kernel_lock */
	struct xarray iw_listeners; /* struct iw_cm_id by TCP port; changed under kernel_lock */
	struct work_struct loss;
	struct work_struct flush;
	struct workqueue_struct *loss_wq;

	bool lost;     /* there is no session: the device takes no requests */
	bool ending;   /* it was lost, and has not confirmed that it reaches no memory */
	bool leaving;  /* the driver does not wait for that any more */
	bool stopping; /* remove has begun, or a reset */
	bool up;       /* the function is READY */
	struct mutex lock; /* up, ib, netdev */
	struct delayed_work work;
	struct workqueue_struct *wq;
	struct notifier_block netdev_nb;
	spinlock_t ib_lock; /* ib, for those that do not hold lock */
	struct vnic_ibdev *ib;
	struct net_device *netdev; /* held while ib is registered */
	u8 netdev_mac[ETH_ALEN];   /* the function's when netdev was found */
};

/* Memory that the device may reach: since which life; 0 if it was never told of it. */
struct vnic_memory {
	struct list_head link; /* in kept */
	u32 life;
	void (*release)(struct vnic_memory *m);
};

/* Memory that the device reads and writes, and a program may map. */
struct vnic_area {
	struct vnic_memory memory;
	struct rdma_user_mmap_entry entry;
	struct vnic_fn *fn;
	void *buf;
	size_t size;
	dma_addr_t *pages;
	unsigned int num_pages;
	bool mapped; /* entry is in use: the last mmap frees the area */
};

/* A list of pages as the device reads it: a tree of pages of addresses. */
struct vnic_page_list {
	struct vnic_memory memory;
	struct vnic_fn *fn;
	unsigned int levels;
	dma_addr_t root;
	unsigned int num;
	struct {
		void *va;
		dma_addr_t dma;
	} pages[];
};

/* How the device is to read pinned memory. */
struct vnic_translation {
	struct vnic_page_list *list;
	u32 offset;
	u8 page_shift;
};

struct vnic_ibdev {
	struct ib_device ibdev;
	struct vnic_fn *fn;
};

struct vnic_ucontext {
	struct ib_ucontext ibucontext;
	u32 life;
};

struct vnic_pd {
	struct ib_pd ibpd;
	u32 pdn;
	u32 life;
	struct list_head kernel;
};

struct vnic_xrcd {
	struct ib_xrcd ibxrcd;
	u32 xrcdn;
	u32 life;
};

struct vnic_ah {
	struct ib_ah ibah;
	struct vnic_address address;
};

struct vnic_mr {
	struct ib_mr ibmr;
	struct vnic_memory memory;
	struct ib_device *ibdev;
	u32 life;
	struct ib_umem *umem;
	/* Fast registration: one page of addresses. */
	__le64 *list;
	dma_addr_t list_dma;
	u32 max_pages;
	u32 num_pages;
};

struct vnic_mw {
	struct ib_mw ibmw;
	u32 life;
};

/* Holds an object while its events are delivered. */
struct vnic_hold {
	refcount_t refs;
	struct completion gone;
};

struct vnic_cq {
	struct ib_cq ibcq;
	struct vnic_hold hold;
	struct vnic_area *area;
	u32 cqn;
	u32 log2;
	u32 life;
	u16 vector;
	struct list_head kernel;
	spinlock_t lock; /* what follows: kernel's queues only */
	bool lost;	/* the device's entries are not read */
	u32 consumer;
	u32 armings;
	struct list_head senders, receivers; /* queue pairs that complete here */
};

/* A send, receive or shared receive queue. */
struct vnic_queue {
	struct vnic_area *area;
	u32 entries;
	u8 log2;
	u8 stride_log2;
	u8 max_sge;
	u16 max_inline;
	u32 life;
	u32 producer;
	spinlock_t lock; /* producer: kernel's queues only */
	/*
	 * The kernel's queue pairs: the ids of work requests by index. The device is
	 * given the index as the id. Those before completed are complete.
	 */
	u64 *wrids;
	u32 completed;
};

enum vnic_iw_state {
	VNIC_IW_NONE,
	VNIC_IW_CALLING,
	VNIC_IW_ACCEPTING,
	VNIC_IW_OPEN,
};

/* The connection of a queue pair over iWARP. */
struct vnic_iw {
	spinlock_t lock; /* what follows, and the order of the events for iw_cm */
	enum vnic_iw_state state;
	struct iw_cm_id *id; /* held; NULL if there is no connection */
	u32 cmid; /* the device's number of it, or of the one before */
};

struct vnic_qp {
	struct ib_qp ibqp;
	struct vnic_hold hold;
	u32 qpn;
	u8 type;
	bool sig_all;
	struct mutex state_lock; /* state */
	enum ib_qp_state state;
	u32 life;
	bool lost; /* the kernel's: what is posted is flushed */
	u32 qkey;
	struct vnic_iw iw;
	struct list_head kernel, sender, receiver;
	struct vnic_queue sq;
	struct vnic_queue rq;
};

struct vnic_srq {
	struct ib_srq ibsrq;
	struct vnic_hold hold;
	u32 srqn;
	struct vnic_queue q;
};

static inline struct vnic_ibdev *to_vibdev(struct ib_device *obj)
{
	return container_of(obj, struct vnic_ibdev, ibdev);
}

static inline struct vnic_pd *to_vpd(struct ib_pd *obj)
{
	return container_of(obj, struct vnic_pd, ibpd);
}

static inline struct vnic_ah *to_vah(struct ib_ah *obj)
{
	return container_of(obj, struct vnic_ah, ibah);
}

static inline struct vnic_mr *to_vmr(struct ib_mr *obj)
{
	return container_of(obj, struct vnic_mr, ibmr);
}

static inline struct vnic_cq *to_vcq(struct ib_cq *obj)
{
	return container_of(obj, struct vnic_cq, ibcq);
}

static inline struct vnic_qp *to_vqp(struct ib_qp *obj)
{
	return container_of(obj, struct vnic_qp, ibqp);
}

static inline struct vnic_srq *to_vsrq(struct ib_srq *obj)
{
	return container_of(obj, struct vnic_srq, ibsrq);
}

static inline struct vnic_xrcd *to_vxrcd(struct ib_xrcd *obj)
{
	return container_of(obj, struct vnic_xrcd, ibxrcd);
}

static inline struct vnic_fn *to_fn(struct ib_device *ibdev)
{
	return to_vibdev(ibdev)->fn;
}

static inline bool vnic_is_iwarp(const struct ib_device *ibdev)
{
	return ibdev->node_type == RDMA_NODE_RNIC;
}

static inline void vnic_hold_init(struct vnic_hold *h)
{
	refcount_set(&h->refs, 1);
	init_completion(&h->gone);
}

static inline void vnic_release(struct vnic_hold *h)
{
	if (refcount_dec_and_test(&h->refs))
		complete(&h->gone);
}

/* Removes the number of an object, unless another object has it by now. */
static inline void vnic_forget(struct xarray *objects, u32 number, struct vnic_hold *h)
{
	xa_lock_irq(objects);
	__xa_cmpxchg(objects, number, h, NULL, 0);
	xa_unlock_irq(objects);
}

/* The object of the first number from this one on, held; NULL if there is none. */
static inline struct vnic_hold *vnic_find_from(struct xarray *objects, unsigned long *number,
					       unsigned long last)
{
	struct vnic_hold *h;
	unsigned long flags;

	xa_lock_irqsave(objects, flags);
	h = xa_find(objects, number, last, XA_PRESENT);
	if (h)
		refcount_inc(&h->refs);
	xa_unlock_irqrestore(objects, flags);
	return h;
}

/* The object of a number, held; NULL if it was destroyed. */
static inline struct vnic_hold *vnic_find(struct xarray *objects, u32 number)
{
	unsigned long n = number;

	return vnic_find_from(objects, &n, n);
}

/* Queues the function's work. */
static inline void vnic_fn_kick(struct vnic_fn *fn)
{
	if (!READ_ONCE(fn->stopping))
		mod_delayed_work(fn->wq, &fn->work, 0);
}

/* The life that new objects of a program, or of the kernel, belong to. */
static inline u32 vnic_life(struct vnic_fn *fn, struct ib_udata *udata)
{
	if (udata)
		return rdma_udata_to_drv_context(udata, struct vnic_ucontext, ibucontext)->life;
	return READ_ONCE(fn->life);
}

/* Whether the device has the objects of a life, as far as the driver knows. */
static inline bool vnic_alive(struct vnic_fn *fn, u32 life)
{
	return !READ_ONCE(fn->lost) && life == READ_ONCE(fn->life);
}

/* memory.c */
void vnic_give_back(struct vnic_fn *fn, struct vnic_memory *m);
void vnic_life_over(struct vnic_fn *fn);
void vnic_await_over(struct vnic_fn *fn, u32 life);
void vnic_leak(struct vnic_fn *fn);
struct vnic_area *vnic_area_alloc(struct vnic_fn *fn, size_t size);
void vnic_area_free(struct vnic_area *area);
int vnic_area_offer(struct vnic_area *area, struct ib_ucontext *uctx);
u64 vnic_area_offset(struct vnic_area *area);
struct vnic_page_list *vnic_area_list(struct vnic_area *area, u32 life, size_t first, size_t n);
struct vnic_page_list *vnic_page_list_alloc(struct vnic_fn *fn, u32 life, size_t n);
void vnic_page_list_set(struct vnic_page_list *list, size_t i, u64 address);
void vnic_page_list_free(struct vnic_page_list *list);
int vnic_mmap(struct ib_ucontext *uctx, struct vm_area_struct *vma);
void vnic_mmap_free(struct rdma_user_mmap_entry *entry);

/* window.c */
bool vnic_window_is_ours(struct pci_dev *pdev);
int vnic_window_open(struct vnic_fn *fn);
void vnic_window_start(struct vnic_fn *fn);
void vnic_ring(struct vnic_fn *fn, u8 kind, u32 queue, u32 index);
bool vnic_bells_room(struct vnic_fn *fn, u32 kept);
void vnic_control_bell(struct vnic_fn *fn);
irqreturn_t vnic_events(int irq, void *data);

/* control.c */
int vnic_control_open(struct vnic_fn *fn);
bool vnic_control_close(struct vnic_fn *fn);
void vnic_control_abort(struct vnic_fn *fn);
int vnic_control_call(struct vnic_fn *fn, u16 type, const void *body, size_t len,
		      u16 want, void *reply, size_t reply_len);
int vnic_reg_read(struct vnic_fn *fn, u32 offset, u32 width, u64 *value);
int vnic_reg_write(struct vnic_fn *fn, u32 offset, u32 width, u64 value);
irqreturn_t vnic_control_irq(int irq, void *data);
irqreturn_t vnic_control_messages(int irq, void *data);

/* admin.c */
void vnic_admin_start(struct vnic_fn *fn);
void vnic_admin_open(struct vnic_fn *fn);
void vnic_admin_abort(struct vnic_fn *fn);
void vnic_admin_poll(struct vnic_fn *fn);
void vnic_admin_ring(struct vnic_fn *fn);
int vnic_command(struct vnic_fn *fn, u16 op, const void *params, size_t len,
		 void *result, size_t result_len);
int vnic_command_in(struct vnic_fn *fn, u32 life, u16 op, const void *params, size_t len,
		    void *result, size_t result_len);
int vnic_destroy(struct vnic_fn *fn, u32 life, u16 op, const void *params, size_t len);

/* queue.c */
struct vnic_area *vnic_queue_area(struct vnic_fn *fn, const struct vnic_queue *q);
int vnic_queue_make(struct vnic_fn *fn, struct vnic_queue *q, u32 entries, size_t entry,
		    struct ib_ucontext *uctx);
int vnic_queue_make_recv(struct vnic_fn *fn, struct vnic_queue *q, u32 entries, u32 max_sge,
			 struct ib_ucontext *uctx);
int vnic_queue_keep(struct vnic_queue *q);
void vnic_queue_reset(struct vnic_queue *q);
void vnic_queue_free(struct vnic_queue *q);

/* gid.c */
int vnic_add_gid(const struct ib_gid_attr *attr, void **context);
int vnic_del_gid(const struct ib_gid_attr *attr, void **context);
int vnic_address(const struct rdma_ah_attr *attr, struct vnic_address *to);
void vnic_query_address(const struct vnic_address *from, struct rdma_ah_attr *attr);
int vnic_create_ah(struct ib_ah *ah, struct rdma_ah_init_attr *attr, struct ib_udata *udata);
int vnic_query_ah(struct ib_ah *ah, struct rdma_ah_attr *attr);
int vnic_destroy_ah(struct ib_ah *ah, u32 flags);
int vnic_attach_mcast(struct ib_qp *qp, union ib_gid *gid, u16 lid);
int vnic_detach_mcast(struct ib_qp *qp, union ib_gid *gid, u16 lid);

/* cq.c */
int vnic_cq_make(struct vnic_cq *cq);
void vnic_cq_join(struct vnic_cq *cq, struct list_head *link, struct list_head *list);
void vnic_cq_leave(struct vnic_cq *cq, struct vnic_qp *qp, struct list_head *link);
void vnic_cq_wake(struct vnic_cq *cq);
int vnic_create_cq(struct ib_cq *cq, const struct ib_cq_init_attr *attr,
		   struct uverbs_attr_bundle *attrs);
int vnic_destroy_cq(struct ib_cq *cq, struct ib_udata *udata);
int vnic_modify_cq(struct ib_cq *cq, u16 count, u16 period);
int vnic_resize_cq(struct ib_cq *cq, unsigned int cqe, struct ib_udata *udata);
int vnic_poll_cq(struct ib_cq *cq, int n, struct ib_wc *wc);
int vnic_req_notify_cq(struct ib_cq *cq, enum ib_cq_notify_flags flags);

/* srq.c */
int vnic_create_srq(struct ib_srq *srq, struct ib_srq_init_attr *attr, struct ib_udata *udata);
int vnic_modify_srq(struct ib_srq *srq, struct ib_srq_attr *attr, enum ib_srq_attr_mask mask,
		    struct ib_udata *udata);
int vnic_query_srq(struct ib_srq *srq, struct ib_srq_attr *attr);
int vnic_destroy_srq(struct ib_srq *srq, struct ib_udata *udata);
int vnic_alloc_xrcd(struct ib_xrcd *xrcd, struct ib_udata *udata);
int vnic_dealloc_xrcd(struct ib_xrcd *xrcd, struct ib_udata *udata);
int vnic_xrcd_number(struct ib_xrcd *xrcd, u32 life, __le32 *number);

/* iwcm.c */
struct ib_qp *vnic_iw_get_qp(struct ib_device *ibdev, int qpn);
void vnic_iw_add_ref(struct ib_qp *qp);
void vnic_iw_rem_ref(struct ib_qp *qp);
int vnic_iw_connect(struct iw_cm_id *id, struct iw_cm_conn_param *param);
int vnic_iw_accept(struct iw_cm_id *id, struct iw_cm_conn_param *param);
int vnic_iw_reject(struct iw_cm_id *id, const void *data, u8 len);
int vnic_iw_create_listen(struct iw_cm_id *id, int backlog);
int vnic_iw_destroy_listen(struct iw_cm_id *id);
int vnic_iw_listen(struct vnic_fn *fn, u16 port);
int vnic_iw_disconnect(struct vnic_qp *qp);
void vnic_iw_close(struct vnic_qp *qp);
void vnic_iw_lose(struct vnic_fn *fn);
void vnic_iw_event(struct vnic_fn *fn, const struct vnic_async_event *ev);

/* qp.c */
int vnic_create_qp(struct ib_qp *qp, struct ib_qp_init_attr *attr, struct ib_udata *udata);
int vnic_modify_qp(struct ib_qp *qp, struct ib_qp_attr *attr, int mask, struct ib_udata *udata);
int vnic_query_qp(struct ib_qp *qp, struct ib_qp_attr *attr, int mask,
		  struct ib_qp_init_attr *init);
int vnic_destroy_qp(struct ib_qp *qp, struct ib_udata *udata);
int vnic_qp_make(struct vnic_fn *fn, struct vnic_qp *qp, const struct ib_qp_init_attr *attr,
		 struct vnic_area *sq_area, struct vnic_area *rq_area, bool user);

/* mr.c */
struct ib_mr *vnic_get_dma_mr(struct ib_pd *pd, int access);
struct ib_mr *vnic_reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 iova, int access,
			       struct ib_dmah *dmah, struct ib_udata *udata);
struct ib_mr *vnic_rereg_user_mr(struct ib_mr *mr, int flags, u64 start, u64 length, u64 iova,
				 int access, struct ib_pd *pd, struct ib_udata *udata);
int vnic_dereg_mr(struct ib_mr *mr, struct ib_udata *udata);
struct ib_mr *vnic_alloc_mr(struct ib_pd *pd, enum ib_mr_type type, u32 max_num_sg);
int vnic_map_mr_sg(struct ib_mr *mr, struct scatterlist *sg, int n, unsigned int *offset);
int vnic_alloc_mw(struct ib_mw *mw, struct ib_udata *udata);
int vnic_dealloc_mw(struct ib_mw *mw);
struct vnic_mr *vnic_mr_alloc(struct ib_device *ibdev);
void vnic_mr_free(struct vnic_mr *mr);
int vnic_mr_make(struct ib_pd *pd, struct vnic_mr *mr, int access, u64 iova, u64 length,
		 struct vnic_translation *t);

/* dm.c */
extern const struct uapi_definition vnic_uapi[];
void vnic_tell_limits(struct vnic_fn *fn, struct vnic_ucontext_resp *resp);
struct ib_dm *vnic_alloc_dm(struct ib_device *ibdev, struct ib_ucontext *uctx,
			    struct ib_dm_alloc_attr *attr, struct uverbs_attr_bundle *attrs);
int vnic_dealloc_dm(struct ib_dm *dm, struct uverbs_attr_bundle *attrs);
struct ib_mr *vnic_reg_dm_mr(struct ib_pd *pd, struct ib_dm *dm, struct ib_dm_mr_attr *attr,
			     struct uverbs_attr_bundle *attrs);
int vnic_query_ucontext(struct ib_ucontext *uctx, struct uverbs_attr_bundle *attrs);

/* post.c */
void vnic_bells_work(struct work_struct *work);
int vnic_post_send(struct ib_qp *qp, const struct ib_send_wr *wr, const struct ib_send_wr **bad);
int vnic_post_recv(struct ib_qp *qp, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad);
int vnic_post_srq_recv(struct ib_srq *srq, const struct ib_recv_wr *wr,
		       const struct ib_recv_wr **bad);

/* counters.c */
struct rdma_hw_stats *vnic_alloc_hw_port_stats(struct ib_device *ibdev, u32 port);
int vnic_get_hw_stats(struct ib_device *ibdev, struct rdma_hw_stats *stats, u32 port, int index);

/* verbs.c */
struct vnic_ibdev *vnic_ib_register(struct vnic_fn *fn, struct net_device *netdev);
void vnic_ib_unregister(struct vnic_ibdev *dev);
void vnic_ib_event(struct vnic_fn *fn, enum ib_event_type type);
int vnic_pd_make(struct vnic_fn *fn, struct vnic_pd *pd);

/* recover.c */
void vnic_lose_objects(struct vnic_fn *fn);
int vnic_revive_objects(struct vnic_fn *fn);
void vnic_flush_work(struct work_struct *work);

/* event.c */
void vnic_completion_event(struct vnic_fn *fn, u32 cqn);
void vnic_async_event(struct vnic_fn *fn, const struct vnic_async_event *ev);

/* netdev.c */
void vnic_netdev_gone(struct vnic_fn *fn);
void vnic_netdev_check(struct vnic_fn *fn);
void vnic_netdev_follow(struct vnic_fn *fn);
void vnic_netdev_part(struct vnic_fn *fn, const char *why);
int vnic_netdev_event(struct notifier_block *nb, unsigned long event, void *ptr);

/* function.c */
extern const struct vnic_handlers vnic_handlers;
void vnic_fn_work(struct work_struct *work);
void vnic_loss_work(struct work_struct *work);
void vnic_fn_down(struct vnic_fn *fn, const char *why);
void vnic_fn_leave(struct vnic_fn *fn);

#endif
