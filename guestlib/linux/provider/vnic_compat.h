/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The provider is written for the newest rdma-core. This is what it takes to build it outside of
 * that, for versions 44 to 56, which have one private interface.
 */
#ifndef VNIC_COMPAT_H
#define VNIC_COMPAT_H

#include <infiniband/driver.h>

/* Ids are given to drivers in the kernel's tree. */
#define RDMA_DRIVER_VNIC RDMA_DRIVER_UNKNOWN

#define ibv_cmd_get_context(ctx, cmd, size, fds, resp, resp_size) \
	ibv_cmd_get_context(ctx, cmd, size, resp, resp_size)
#define ibv_cmd_create_cq_ex(ctx, attr, prov, cq, cmd, size, resp, resp_size, flags) \
	ibv_cmd_create_cq_ex(ctx, attr, cq, cmd, size, resp, resp_size, flags)
#define ibv_cmd_create_qp_ex2(ctx, qp, attr, cmd, size, resp, resp_size, driver) \
	ibv_cmd_create_qp_ex2(ctx, qp, attr, cmd, size, resp, resp_size)

/*
 * Says that a queue pair has ibv_wr_*. Since v45 struct ibv_qp_ex has one function more
 * (wr_flush), and comp_mask, which follows it, another place. Which library the program has is
 * not known, so both places are marked. The other members there are not used of such a queue
 * pair: wr_flush, which it does not offer, and the XRC domain, which only targets have.
 */
static inline void vnic_compat_mark_extended(struct verbs_qp *qp)
{
	size_t at = offsetof(struct ibv_qp_ex, wr_atomic_write) + sizeof(void *);
	uint32_t *before = (uint32_t *)((char *)qp + at);
	uint32_t *after = (uint32_t *)((char *)qp + at + sizeof(void *));

	*before |= VERBS_QP_EX;
	*after |= VERBS_QP_EX;
}

#endif
