/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What vnic.ko tells its provider beside the verbs' own answers. A queue is one
 * mapping of /dev/infiniband/uverbs*: struct vnic_queue_header or struct
 * vnic_cq_header, then the entries (vnic_abi.h).
 */
#ifndef VNIC_USER_H
#define VNIC_USER_H

#include <linux/types.h>

#define VNIC_USER_ABI_VERSION 1

struct vnic_ucontext_resp {
	__u32 abi_minor;
	__u32 max_inline;
	__u32 max_send_sge;
	__u32 max_recv_sge;
	__u64 features;
};

/* Behind the limits of a device, for who asks for it. */
struct vnic_device_resp {
	__u64 clock; /* of the device, as completions' times are: nanoseconds */
};

struct vnic_pd_resp {
	__u32 pdn;
	__u32 reserved;
};

/* A queue that can be mapped; size 0: there is none. */
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

/* The address of a peer, as DatagramWQE, ModifyQP and QueryQPResult have it from dgid on. */
struct vnic_address {
	__u8 dgid[16];
	__le32 flow_label;
	__u8 dmac[6];
	__le16 vlan;
	__u8 traffic_class;
	__u8 hop_limit;
	__u8 sl;
	__u8 sgid_index;
};

/* The address for work requests. */
struct vnic_ah_resp {
	struct vnic_address address;
};

/*
 * What the driver adds to the kernel's own calls: attributes and methods from
 * 1 << UVERBS_ID_NS_SHIFT on.
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
