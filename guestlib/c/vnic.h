/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * libvnic: the user-space driver of the vnic device in C. It needs Linux and libc, nothing else.
 *
 *   vnic_open ──► device ──vnic_alloc──► memory the device can reach ──vnic_reg_mr──► keys
 *                   ├──vnic_create_cq──► cq ──vnic_poll_cq, vnic_wait_cq
 *                   ├──vnic_create_qp──► qp ──vnic_post_send, vnic_post_recv
 *                   └──vnic_listen, vnic_get_request, vnic_accept, vnic_connect
 *
 * Names and meanings are those of verbs; constants, WQE opcodes and completions are those of vnic_abi.h, whose rules are in
 * docs/abi. Functions return 0 (or a count, or an object) and -1 (or NULL) after an error; vnic_error() then says what was wrong and what
 * helps.
 *
 * Threads: a device and all of its objects belong to one thread at a time. The library makes no threads: it reads the control stream
 * while it waits for something. A program that does not call it for long watches vnic_fd() with poll(2) and calls vnic_dispatch().
 */
#ifndef VNIC_H
#define VNIC_H

#include <stddef.h>
#include <stdint.h>

#include "vnic_abi.h"

#ifdef __cplusplus
extern "C" {
#endif

struct vnic_device;
struct vnic_cq;
struct vnic_qp;

/* What a function is. */
struct vnic_info {
	uint32_t function; /* host in bits 23:16, PF in 15:12, VF in 11:0 */
	uint32_t tenant;
	uint32_t mtu;      /* largest path MTU in bytes */
	uint64_t features; /* in use */
	uint8_t gid[16];   /* IPv4 in its mapped form */
	uint8_t mac[6];
	struct vnic_query_device_result limits;
	struct vnic_object_counts quotas;
};

/* The text of the last error of this thread. */
const char *vnic_error(void);

/*
 * Attaches to a function and enables it. url is "vsock" or "vsock://2:7000" in a guest (as root: memory is pinned), "pci://" or
 * "pci:///0000:00:08.0" there for a function that is a PCI device of its own (as root; through vfio-pci if the guest has an IOMMU), or
 * "unix:///path" for a process on the NIC's host; "?function=N" (0x10001 is VF 1 of PF 0 of host 1) names one of several. memory is what the device can be
 * given to work with, in bytes, 1 MiB to 1 GiB; queues take some of it.
 */
struct vnic_device *vnic_open(const char *url, size_t memory);

/*
 * Resets the function and frees everything. If the device does not confirm within seconds that it has let go of the memory, that stays
 * mapped until the process ends.
 */
void vnic_close(struct vnic_device *dev);

const struct vnic_info *vnic_get_info(const struct vnic_device *dev);

/* Readable when there is something for vnic_dispatch. */
int vnic_fd(const struct vnic_device *dev);

/* Takes what the device sent; waits up to timeout_ms (-1: for ever) for the first message. Returns 1 if there was one, 0 if not. */
int vnic_dispatch(struct vnic_device *dev, int timeout_ms);

/* Takes the next asynchronous event that no other function took (QP and CQ errors, disconnections, faults): 1, or 0 after timeout_ms. */
int vnic_get_event(struct vnic_device *dev, struct vnic_async_event *event, int timeout_ms);

/*
 * After a fault or a reset by the host: a fresh function. Until then all that waits for the device, but vnic_get_event, fails with errno
 * ECONNABORTED. The device has forgotten all objects; destroy them to free their memory, when you like.
 * Protection domains and peers' requests are mere numbers, and numbers start again: none of before may be used.
 */
int vnic_reset(struct vnic_device *dev);

/*
 * Whole pages, zeroed, that stay where they are. What is freed after a command that the device did not answer is not given out again
 * before vnic_reset: the device may still reach it.
 */
void *vnic_alloc(struct vnic_device *dev, size_t size);
void vnic_free(struct vnic_device *dev, void *addr, size_t size);

int vnic_alloc_pd(struct vnic_device *dev, uint32_t *pdn);
int vnic_dealloc_pd(struct vnic_device *dev, uint32_t pdn);

struct vnic_mr {
	void *addr;
	size_t length;
	uint32_t lkey, rkey;
	uint32_t life; /* the library's: how often the function was reset before */
};

/* Registers memory of vnic_alloc. Work requests and peers name its bytes by their addresses in this process. */
int vnic_reg_mr(struct vnic_device *dev, uint32_t pdn, void *addr, size_t length, uint32_t access, struct vnic_mr *mr);
int vnic_dereg_mr(struct vnic_device *dev, const struct vnic_mr *mr);

/* A region that a work request gives its memory (DEV-935); mr says what it has since the last vnic_post_reg_mr. */
struct vnic_fast_mr {
	struct vnic_mr mr;
	uint32_t max_pages;
	uint64_t *list; /* of the pages; the device reads it when the request is carried out */
};

/* Makes one for up to max_pages pages of 4 KiB: 1 to VNIC_MAX_FAST_PAGES. */
int vnic_alloc_mr(struct vnic_device *dev, uint32_t pdn, uint32_t max_pages, struct vnic_fast_mr *f);
int vnic_free_mr(struct vnic_device *dev, struct vnic_fast_mr *f);

/* A queue of at least entries completions. */
struct vnic_cq *vnic_create_cq(struct vnic_device *dev, uint32_t entries);
int vnic_destroy_cq(struct vnic_cq *cq);

/* Takes up to n completions; does not wait. */
int vnic_poll_cq(struct vnic_cq *cq, struct vnic_cqe *cqes, int n);

/* Sleeps until there is a completion: 1, or 0 after timeout_ms. errno is EIO when the queue has failed (VNIC_EVENT_CQ_ERROR). */
int vnic_wait_cq(struct vnic_cq *cq, int timeout_ms);

/* Zero is a good value of all but pdn and send_cq. */
struct vnic_qp_attr {
	uint32_t pdn;
	struct vnic_cq *send_cq, *recv_cq; /* recv_cq NULL: send_cq */
	uint32_t send_entries, recv_entries; /* 64 */
	uint8_t max_send_sge, max_recv_sge;  /* 1 */
	uint16_t max_inline;
	uint8_t sig_all;
	uint32_t access; /* remote access the QP allows */
	uint8_t type;	 /* VNIC_QP_TYPE_RC (also 0) or VNIC_QP_TYPE_UC */
	uint8_t privileged; /* 1: takes vnic_post_reg_mr */
};

/* A queue pair in INIT. */
struct vnic_qp *vnic_create_qp(struct vnic_device *dev, const struct vnic_qp_attr *attr);
int vnic_destroy_qp(struct vnic_qp *qp);
uint32_t vnic_qp_num(const struct vnic_qp *qp);

struct vnic_send_wr {
	uint64_t wrid;
	uint8_t opcode; /* enum vnic_opcode */
	uint8_t flags;  /* VNIC_SEND_… */
	uint8_t num_sge;
	const struct vnic_sge *sgl;
	const void *inline_data; /* with VNIC_SEND_INLINE, instead of sgl */
	uint32_t inline_len;
	uint32_t imm, rkey;
	uint64_t remote_addr, compare_add, swap;
};

/* Do not wait. A full queue is an error with errno EAGAIN. */
int vnic_post_send(struct vnic_qp *qp, const struct vnic_send_wr *wr);
/*
 * Registers memory of vnic_alloc by a work request of a privileged QP. Its keys, which f has at once, are of use when the request has
 * completed. VNIC_OP_LOCAL_INV of the key takes the memory away again; only then may the next one follow.
 */
int vnic_post_reg_mr(struct vnic_qp *qp, uint64_t wrid, uint8_t flags, struct vnic_fast_mr *f, void *addr, size_t length, uint32_t access);
int vnic_post_recv(struct vnic_qp *qp, uint64_t wrid, const struct vnic_sge *sgl, uint8_t num_sge);

/* Fills an SGE. */
struct vnic_sge vnic_sge(const struct vnic_mr *mr, size_t offset, uint32_t length);

int vnic_listen(struct vnic_device *dev, uint64_t service);

/* A peer's wish to connect. */
struct vnic_request {
	uint32_t id;
	uint64_t service;
	uint8_t gid[16];
	uint32_t qpn;
	uint16_t priv_len;
	uint8_t priv[VNIC_PRIVATE_MAX];
};

/* Takes the next request: 1, or 0 after timeout_ms. */
int vnic_get_request(struct vnic_device *dev, struct vnic_request *request, int timeout_ms);

/* Connects a QP in INIT with the peer; receives should have been posted. The connection is up when it returns 0. */
int vnic_accept(struct vnic_qp *qp, const struct vnic_request *request, const void *priv, uint16_t priv_len, int timeout_ms);
int vnic_reject(struct vnic_device *dev, const struct vnic_request *request, uint32_t reason);

/* Connects a QP in INIT to a listener. The private data it accepts with goes to reply (VNIC_PRIVATE_MAX bytes, or NULL). errno is
 * ECONNREFUSED when there is no listener (yet) or it said no, EHOSTUNREACH when there is no such function. */
int vnic_connect(struct vnic_qp *qp, const uint8_t gid[16], uint64_t service, const void *priv, uint16_t priv_len, void *reply,
		 uint16_t *reply_len, int timeout_ms);

/* Reads an address, IPv4 or IPv6, as GID. */
int vnic_parse_gid(const char *text, uint8_t gid[16]);

/*
 * The GID table (DEV-949): entry 0 is the function's own address at first. An address that is neither that nor the link-local one of the
 * function's MAC address takes trust. errno is EADDRINUSE where another function of the tenant has it.
 */
int vnic_add_gid(struct vnic_device *dev, uint16_t index, const uint8_t gid[16]);
int vnic_del_gid(struct vnic_device *dev, uint16_t index);
int vnic_query_gid(struct vnic_device *dev, uint16_t index, uint8_t gid[16]);

#ifdef __cplusplus
}
#endif
#endif
