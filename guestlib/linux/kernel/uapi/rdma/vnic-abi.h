/* SPDX-License-Identifier: ((GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause) */
/*
 * The answers of vnic.ko to its provider, beside those of the verbs. A queue is one
 * mapping of /dev/infiniband/uverbs*: struct vnic_queue_header or struct
 * vnic_cq_header, then the entries (the ABI of the device).
 */
#ifndef VNIC_ABI_USER_H
#define VNIC_ABI_USER_H

#include <linux/types.h>

#define VNIC_USER_ABI_VERSION 1

struct vnic_ucontext_resp {
	__u32 abi_minor;
	__u32 max_inline;
	__u32 max_send_sge;
	__u32 max_recv_sge;
	__aligned_u64 features;
};

/* Follows the answer to a query of the device, if there is room for it. */
struct vnic_device_resp {
	__aligned_u64 clock; /* of the device, as in completions: nanoseconds */
};

struct vnic_pd_resp {
	__u32 pdn;
	__u32 reserved;
};

/* A queue that can be mapped; size is 0 if there is none. */
struct vnic_mapping {
	__aligned_u64 offset;
	__aligned_u64 size;
	__u32 entries_log2;
	__u32 stride_log2;
};

struct vnic_cq_resp {
	struct vnic_mapping queue;
	__u32 cqn;
	__u32 reserved;
};

struct vnic_qp_resp {
	struct vnic_mapping sq;
	struct vnic_mapping rq;
};

struct vnic_srq_resp {
	struct vnic_mapping queue;
	__u32 srqn;
	__u32 reserved;
};

/* The address of a peer, as work requests hold it: struct vnic_address of the device's ABI. */
struct vnic_ah_resp {
	__u8 address[32];
};

/*
 * What the driver adds to the kernel's own calls: attributes and methods from
 * 1 << UVERBS_ID_NS_SHIFT (0x1000) on.
 */
enum vnic_query_context_attrs {
	VNIC_ATTR_QUERY_CONTEXT_RESP = 0x1000, /* struct vnic_ucontext_resp */
};

enum vnic_alloc_dm_attrs {
	VNIC_ATTR_ALLOC_DM_MAPPING = 0x1000, /* struct vnic_mapping */
};

enum vnic_dm_methods {
	VNIC_METHOD_DM_QUERY = 0x1000,
};

enum vnic_query_dm_attrs {
	VNIC_ATTR_QUERY_DM_HANDLE = 0x1000,
	VNIC_ATTR_QUERY_DM_MAPPING, /* struct vnic_mapping */
	VNIC_ATTR_QUERY_DM_LENGTH,  /* __u64 */
};

enum vnic_pd_methods {
	VNIC_METHOD_PD_QUERY = 0x1000,
};

enum vnic_query_pd_attrs {
	VNIC_ATTR_QUERY_PD_HANDLE = 0x1000,
	VNIC_ATTR_QUERY_PD_RESP, /* struct vnic_pd_resp */
};

#endif
