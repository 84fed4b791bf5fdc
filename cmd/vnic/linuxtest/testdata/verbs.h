/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What the programs here share: a device, and queue pairs of it that name each other. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct ibv_context *device;
static int gid_index;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

static void must(int ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "%s: %s\n", what, strerror(errno));
		exit(1);
	}
}

static void open_device(const char *name, int cq_entries)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	for (; list && *list; list++)
		if (!strcmp(ibv_get_device_name(*list), name))
			device = ibv_open_device(*list);
	must(device != NULL, name);
	pd = ibv_alloc_pd(device);
	cq = ibv_create_cq(device, cq_entries, NULL, NULL, 0);
	must(pd && cq, "PD and CQ");
}

/* connect_to connects a queue pair to another one of this device, and gives it these rights. */
static void connect_to(struct ibv_qp *qp, unsigned qpn, int rights, enum ibv_mtu mtu)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = rights };
	union ibv_gid gid;

	must(!ibv_query_gid(device, 1, gid_index, &gid), "ibv_query_gid");
	must(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = qpn, .max_dest_rd_atomic = 4, .min_rnr_timer = 12,
				     .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 64, .sgid_index = gid_index } } };
	must(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 17, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4 };
	must(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				       IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}
