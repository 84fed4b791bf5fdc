/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Device memory, and what programs ask of objects that another process made. */
#ifndef VNIC_DM_H
#define VNIC_DM_H

#include <rdma/uverbs_ioctl.h>

extern const struct uapi_definition vnic_uapi[];
struct ib_dm *vnic_alloc_dm(struct ib_device *ibdev, struct ib_ucontext *uctx,
			    struct ib_dm_alloc_attr *attr, struct uverbs_attr_bundle *attrs);
int vnic_dealloc_dm(struct ib_dm *dm, struct uverbs_attr_bundle *attrs);
struct ib_mr *vnic_reg_dm_mr(struct ib_pd *pd, struct ib_dm *dm, struct ib_dm_mr_attr *attr,
			     struct uverbs_attr_bundle *attrs);
int vnic_query_ucontext(struct ib_ucontext *uctx, struct uverbs_attr_bundle *attrs);

#endif
