/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The driver is written for the newest kernel. This is what it takes to build it outside of the
 * kernel's tree, for all versions from 6.1 on. No other file knows of versions: those of the
 * ib_device's operations that changed are vnic_compat_… in its table.
 */
#ifndef VNIC_COMPAT_H
#define VNIC_COMPAT_H

#include <linux/slab.h>
#include <linux/version.h>
#include <rdma/ib_verbs.h>
#include <rdma/uverbs_ioctl.h>

/* Ids are given to drivers in the kernel's tree. */
#define RDMA_DRIVER_VNIC RDMA_DRIVER_UNKNOWN

struct ib_dmah;

int vnic_create_cq(struct ib_cq *cq, const struct ib_cq_init_attr *attr,
		   struct uverbs_attr_bundle *attrs);
int vnic_resize_cq(struct ib_cq *cq, unsigned int cqe, struct ib_udata *udata);
struct ib_mr *vnic_reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 iova, int access,
			       struct ib_dmah *dmah, struct ib_udata *udata);

#ifndef kzalloc_obj
#define kzalloc_obj(obj) kzalloc(sizeof(obj), GFP_KERNEL)
#define kvzalloc_obj(obj) kvzalloc(sizeof(obj), GFP_KERNEL)
#endif

#if KERNEL_VERSION(7, 2, 0) > LINUX_VERSION_CODE
#define ib_umem_get_va ib_umem_get
#endif

#if KERNEL_VERSION(7, 0, 0) <= LINUX_VERSION_CODE
#define vnic_compat_resize_cq vnic_resize_cq
#else
#define resize_user_cq resize_cq

static inline int vnic_compat_resize_cq(struct ib_cq *cq, int cqe, struct ib_udata *udata)
{
	return vnic_resize_cq(cq, cqe, udata);
}
#endif

#if KERNEL_VERSION(6, 17, 0) <= LINUX_VERSION_CODE
#define vnic_compat_reg_user_mr vnic_reg_user_mr
#else
static inline struct ib_mr *vnic_compat_reg_user_mr(struct ib_pd *pd, u64 start, u64 length,
						    u64 iova, int access, struct ib_udata *udata)
{
	return vnic_reg_user_mr(pd, start, length, iova, access, NULL, udata);
}
#endif

/* Before 6.11 the operation has udata, which lies in attrs. */
#if KERNEL_VERSION(6, 11, 0) <= LINUX_VERSION_CODE
#define vnic_compat_create_cq vnic_create_cq
#else
static inline int vnic_compat_create_cq(struct ib_cq *cq, const struct ib_cq_init_attr *attr,
					struct ib_udata *udata)
{
	return vnic_create_cq(cq, attr, udata ? rdma_udata_to_uverbs_attr_bundle(udata) : NULL);
}
#endif

#endif
