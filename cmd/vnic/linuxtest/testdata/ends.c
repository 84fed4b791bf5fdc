// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The verbs program of TestLongRoCEEnds, which end.h describes. A GID is 32 hexadecimal digits.
 *
 *   ends DEVICE GID-INDEX PORT
 *
 *   open                                            QPN PSN ADDRESS RKEY GID of a new queue pair
 *   connect QPN PSN GID TIMEOUT RETRY-CNT RNR-RETRY as far as RTS
 *   state                                           of the queue pair
 *   error                                           moves it to ERR
 */
#include "end.h"

static struct ibv_context *device;
static int gid_index;
static struct ibv_pd *pd;

enum { first_psn = 0xfffff0 };

static void open_device(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	for (; list && *list; list++)
		if (!strcmp(ibv_get_device_name(*list), name))
			device = ibv_open_device(*list);
	must(device != NULL, name);
	pd = ibv_alloc_pd(device);
	register_memory(pd);
}

static void open_qp(FILE *to)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access_flags };
	union ibv_gid gid;

	if (qp)
		must(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq), "destroy");
	init = attributes(device);
	qp = ibv_create_qp(pd, &init);
	must(qp != NULL, "ibv_create_qp");
	must(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	must(!ibv_query_gid(device, 1, gid_index, &gid), "ibv_query_gid");
	fprintf(to, "%u %u %lu %u ", qp->qp_num, first_psn, (unsigned long)memory, mr->rkey);
	for (int i = 0; i < 16; i++)
		fprintf(to, "%02x", gid.raw[i]);
	fprintf(to, "\n");
}

static void connect_qp(const char *words)
{
	char text[33];
	unsigned qpn, psn, timeout, retries, rnrs;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .max_dest_rd_atomic = 16, .min_rnr_timer = 12,
				    .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 64, .sgid_index = gid_index } } };

	must(sscanf(words, "%u %u %32s %u %u %u", &qpn, &psn, text, &timeout, &retries, &rnrs) == 6, words);
	for (int i = 0; i < 16; i++)
		must(sscanf(text + 2 * i, "%2hhx", &attr.ah_attr.grh.dgid.raw[i]) == 1, text);
	attr.dest_qp_num = qpn;
	attr.rq_psn = psn;
	must(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = first_psn;
	attr.timeout = timeout;
	attr.retry_cnt = retries;
	attr.rnr_retry = rnrs;
	attr.max_rd_atomic = 16;
	must(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				       IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

static void state(FILE *to)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	must(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), "ibv_query_qp");
	fprintf(to, "%d\n", attr.qp_state);
}

static int command(FILE *to, const char *word, const char *rest)
{
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	int opens = !strcmp(word, "open"), asks = !strcmp(word, "state");

	if (opens)
		open_qp(to);
	else if (asks)
		state(to);
	else if (!strcmp(word, "connect"))
		connect_qp(rest);
	else
		must(!strcmp(word, "error") && !ibv_modify_qp(qp, &error, IBV_QP_STATE), word);
	return opens || asks;
}

int main(int argc, char **argv)
{
	must(argc == 4, "ends DEVICE GID-INDEX PORT");
	gid_index = atoi(argv[2]);
	open_device(argv[1]);
	serve_all(argv[3]);
}
