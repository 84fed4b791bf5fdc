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

#endif
