/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What the files of libvnic share. */
#ifndef VNIC_INTERNAL_H
#define VNIC_INTERNAL_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "vnic.h"

/* Integers of the ABI are little-endian, as every machine this driver runs on is. */
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "libvnic is for little-endian machines"
#endif

enum { EVENTS = 256, REQUESTS = 32, OPEN_MS = 10000 /* the device opens a session */ };

enum { FREE, USED, KEPT /* freed, and the device may reach it still */ };

/* Memory the device can reach: one mapping, page by page. */
struct arena {
	uint8_t *base;
	size_t pages;
	uint64_t *addrs; /* device address of each page */
	uint8_t *used;   /* of each page: FREE, USED or KEPT */
	int ring;        /* io_uring that pins it, or -1 */
	int memfd;       /* or -1 */
};

struct fifo {
	struct vnic_async_event *ring;
	unsigned size, head, count;
};

/* The function's PCI device and its window; docs/abi sections 10 and 11. */
struct window {
	uint8_t *shared, *regs; /* BAR2 and BAR0 */
	size_t size, regs_size;
	uint32_t function;
	uint8_t *bells, *control;        /* blocks of the window */
	uint32_t session;                /* 0: none */
	uint32_t bell, request, message; /* next in the bell ring, and in the rings of the control block */
	int container, group, device;    /* of vfio; -1: mapped from sysfs */
};

struct vnic_device {
	int fd;             /* the stream; with win what interrupts, or a timer */
	struct window *win; /* or NULL */
	struct arena arena;
	bool told;          /* of the arena's memory */
	bool unsure;        /* of a command that was not answered, until a reset: what it named stays the device's */
	bool ended;         /* the device has ended the session: it touches no memory any more */
	bool stopped;       /* by a fault or by the host, until a reset: what is waited for does not come */
	struct vnic_info info;

	uint8_t in[VNIC_MAX_MESSAGE]; /* the message being received */
	size_t have;
	uint64_t tag;           /* of the request being answered, 0: none */
	uint8_t answer[64];
	size_t answered;        /* bytes of answer; 0: not there */

	uint8_t *asq, *acq;     /* areas of the admin queues */
	uint64_t asq_root, acq_root; /* of their page lists */
	uint32_t commands, completions;
	uint32_t life; /* counts resets */

	struct fifo events, requests, connections; /* connections: what becomes of attempts */
	struct vnic_cq *cqs;
};

struct vnic_cq {
	struct vnic_device *dev;
	struct vnic_cq *next_cq;
	uint8_t *area;
	size_t size;
	uint32_t life;               /* of the device when it was made */
	uint32_t cqn, entries, next; /* next entry to poll, counts up without bound */
	uint32_t arming;             /* number of the last arming by the word */
	bool event;                  /* came since the last arming */
	bool failed;                 /* nothing is written to it any more (DEV-705) */
};

struct queue {
	uint8_t *area;
	size_t size;
	uint32_t entries, stride, next;
	uint8_t log2, log2_stride;
};

struct vnic_qp {
	struct vnic_device *dev;
	uint32_t life; /* of the device when it was made */
	uint32_t qpn;
	struct queue sq, rq;
	uint8_t max_send_sge, max_recv_sge;
	uint16_t max_inline;
};

/* memory.c */
int arena_pin(struct arena *a, size_t size);              /* in a guest */
int arena_memfd(struct arena *a, size_t size, uint64_t at); /* on the NIC's host */
int arena_iova(struct arena *a, size_t size, uint64_t at);  /* for an IOMMU, which maps it at an address */
void arena_close(struct arena *a, bool mapped); /* its memory may stay mapped, until the process ends */
void arena_release(struct arena *a);            /* the device has let go of what is KEPT */
uint64_t arena_addr(const struct arena *a, const void *p); /* device address */
/* Makes the page list of memory; it is freed with vnic_free(list, *size). */
int page_list(struct vnic_device *dev, const void *p, size_t size, void **list, size_t *list_size, uint64_t *root, uint8_t *levels);

/* stream.c */
int stream_dial(struct vnic_device *dev, const char *url, size_t memory, uint32_t *function);
int stream_send(struct vnic_device *dev, uint16_t type, uint64_t tag, const void *body, size_t size);
int stream_call(struct vnic_device *dev, uint16_t type, const void *body, size_t size, void *reply, size_t reply_size);
int check_stopped(const struct vnic_device *dev); /* fails when the function was stopped */
int ring_doorbell(struct vnic_device *dev, uint8_t kind, uint8_t flags, uint32_t queue, uint32_t index);
int fifo_take(struct fifo *f, struct vnic_async_event *e);
void fifo_put(struct fifo *f, const struct vnic_async_event *e);

/* window.c */
int window_find(struct window *w);       /* the blocks of a mapped window: 1, or 0 if it is no function's */
int window_busy(const struct window *w); /* whether a driver has a session */
int window_open(struct window *w);
bool window_leave(struct window *w); /* whether the device has ended the session, or none was open */
int window_send(struct window *w, const void *message, size_t size);
int window_ring(struct window *w, const struct vnic_doorbell *d);
/* Receives a message, waiting with fd up to timeout_ms for it: its length, 0 if there is none. */
ssize_t window_receive(struct window *w, int fd, void *to, size_t size, int timeout_ms);

/* pci.c */
int pci_dial(struct vnic_device *dev, const char *address, size_t memory, uint32_t function);
void pci_close(struct vnic_device *dev);

/* admin.c */
int admin_do(struct vnic_device *dev, uint16_t opcode, const void *params, size_t size, void *result, size_t result_size);
int read_register(struct vnic_device *dev, uint32_t offset, uint32_t width, uint64_t *value);
int write_register(struct vnic_device *dev, uint32_t offset, uint32_t width, uint64_t value);

/* error.c */
int fail(int err, const char *format, ...) __attribute__((format(printf, 2, 3)));
int fail_status(uint32_t status, const char *what);
long long now_ms(void);

/* Fails for an object of before a reset: numbers start again, so that its number may be another's (DEV-906). */
static inline int check_life(const struct vnic_device *dev, uint32_t life)
{
	return life == dev->life ? 0 : fail(ENOENT, "an object of before vnic_reset: destroy it and make another");
}

static inline uint32_t load32(const void *p)
{
	return atomic_load_explicit((_Atomic uint32_t *)p, memory_order_acquire);
}

static inline void store32(void *p, uint32_t v)
{
	atomic_store_explicit((_Atomic uint32_t *)p, v, memory_order_release);
}

static inline uint64_t load64(const void *p)
{
	return atomic_load_explicit((_Atomic uint64_t *)p, memory_order_acquire);
}

static inline void store64(void *p, uint64_t v)
{
	atomic_store_explicit((_Atomic uint64_t *)p, v, memory_order_release);
}

/* between storing an index or arming word and looking at what the other side wrote (DRV-604, DRV-709) */
static inline void full_barrier(void) { atomic_thread_fence(memory_order_seq_cst); }

#endif
